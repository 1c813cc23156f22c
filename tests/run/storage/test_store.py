"""Files below a URL: what is no URL of a run is refused with the reason, and what lies there is checked before it is read."""

import errno
import io
import os

import fsspec
import pytest
from fsspec.registry import known_implementations
from support.runs.stores import Watched, failing

from levada.run.storage import store as store_module
from levada.run.storage.files import temporary_name
from levada.run.storage.store import Store, StoreError, is_url


@pytest.fixture(autouse=True)
def nothing_there(monkeypatch):
    Watched.reset()
    monkeypatch.setattr(store_module, "_CHUNK", 4)


@pytest.fixture(params=["watched", "memory", "file"])
def store(request, tmp_path):
    if request.param == "memory":
        fsspec.filesystem("memory").store.clear()
    return Store(f"file://{tmp_path}/a b" if request.param == "file" else f"{request.param}://runs/a b/*[x]?#%20")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("s3://bucket/a", True), ("arrow_hdfs://host/a", True), ("simplecache::s3://b/a", True), ("s3:/bucket/a", True),
        ("hf://user/name@main", True), ("hf:/user/name", True),
        ("file:runs/a", False), ("runs/a", False), ("/a://b", False), ("./a://b", False), ("a::b", False), ("a:/b", False),
        ("~/a", False), (b"s3://b/a", False), (3, False), (None, False),
    ],
)  # fmt: skip
def test_what_is_meant_as_a_url(path, expected):
    assert is_url(path) is expected


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("s3://", "it has no bucket, expected such as s3://bucket/runs/a"),
        ("gs:///runs/a", "it has no bucket, expected such as gs://bucket/runs/a"),
        ("hf://user", "expected hf://USER/NAME, or hf://USER/NAME@REVISION"),
        ("hf:/user/name", "did you mean hf://user/name? Give it as text"),
        ("hf://user:secret@name/a", "it has a password"),
        ("memory://", "it names no directory, expected such as memory://runs/a"),
        ("memory:///", "it names no directory"),
        (
            "file://runs/a",
            "expected an absolute path after file://, such as file:///data/runs/a; a path needs no file://",
        ),
        ("s3:/bucket/a", "did you mean s3://bucket/a? Give it as text, because a Path joins slashes"),
        ("simplecache::s3://bucket/a", "it chains file systems, which is not supported"),
        ("memory://a/../b", "it has an empty name, '.' or '..' between slashes"),
        ("memory://a//b", "it has an empty name"),
        ("memory://a\n", "it has control characters"),
        ("memory://a\udcff", "it has control characters"),
        ("s4://bucket/a", "fsspec knows no file system 's4'; did you mean s3"),
        ("nothing-like-it://bucket/a", "fsspec knows no file system 'nothing-like-it'; expected such as s3://"),
    ],
)
def test_a_url_that_cannot_be_used(url, why):
    with pytest.raises(StoreError) as found:
        Store(url)
    assert why in str(found.value)
    assert str(found.value).isprintable()


def test_a_password_is_refused_and_not_shown():
    with pytest.raises(StoreError, match="it has a password, which would be stored with the run") as found:
        Store("ftp://user:hunter2@host/runs/a")
    assert "hunter2" not in str(found.value)


def test_a_driver_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(known_implementations, "odd", {"class": "oddfs.Odd", "err": "Install oddfs"})
    with pytest.raises(StoreError) as found:
        Store("odd://bucket/a")
    assert str(found.value) == "'odd://bucket/a': oddfs is not installed: pip install oddfs"
    monkeypatch.setitem(
        known_implementations, "odd", {"class": "fsspec.implementations.odd.Odd", "err": "needs oddlib"}
    )
    with pytest.raises(StoreError, match=r"its driver cannot be imported \(needs oddlib\)"):
        Store("odd://bucket/a")


def test_files_come_back_as_they_were_written(store, tmp_path):
    assert store.names() == store.folders() == ()
    store.write("config.json", b"{}")
    store.upload("checkpoints/7/arrays", io.BytesIO(b"0123456789 and more"), 10)
    store.upload("empty", io.BytesIO(b""), 0)
    assert store.names() == ("config.json", "empty")
    assert store.folders() == ("checkpoints",)
    assert store.folders("checkpoints") == ("7",)
    assert store.read("config.json", 2) == b"{}"
    assert store.read("empty", 0) == b""
    assert (store.size("checkpoints/7/arrays"), store.size("nothing")) == (10, None)
    store.download("checkpoints/7/arrays", tmp_path / "copy", 10)
    assert (tmp_path / "copy").read_bytes() == b"0123456789"
    store.move("checkpoints/7/arrays", "checkpoints/7.skipped/arrays")
    assert store.names("checkpoints/7.skipped") == ("arrays",)
    store.remove("checkpoints/7.skipped/arrays")
    store.remove("checkpoints/7.skipped/arrays")
    for folder in store.folders("checkpoints"):
        store.remove_folder(f"checkpoints/{folder}")
    assert store.folders("checkpoints") == ()
    with pytest.raises(FileNotFoundError):
        store.read("checkpoints/7/arrays", 10)
    store.write("config.json", b"new")
    assert store.read("config.json", 3) == b"new"


def test_a_write_to_a_directory_that_is_cut_short_changes_nothing(tmp_path, monkeypatch):
    store = Store(f"file://{tmp_path}/run")
    store.write("checkpoints/7/meta.json", b"whole")

    def full(source, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(StoreError, match=r"meta.json cannot be written: OSError: .*No space left"):
        store.write("checkpoints/7/meta.json", b"torn")
    assert store.names("checkpoints/7") == ("meta.json",)
    assert store.read("checkpoints/7/meta.json", 5) == b"whole"


def test_a_folder_that_is_removed_takes_what_a_killed_process_was_writing_along(tmp_path):
    store = Store(f"file://{tmp_path}/run")
    store.write("checkpoints/7/meta.json", b"{}")
    temporary_name(tmp_path / "run/checkpoints/7/meta.json").write_bytes(b"{")
    store.remove("checkpoints/7/meta.json")
    store.remove_folder("checkpoints/7")
    assert store.folders("checkpoints") == ()


def test_the_size_is_checked_before_anything_is_read(tmp_path):
    store = Store("watched://runs/a")
    store.write("config.json", b"12345")
    Watched.watch(failing("cat"))
    with pytest.raises(StoreError, match=r"watched://runs/a/config.json has 5 bytes, expected at most 4"):
        store.read("config.json", 4)
    with pytest.raises(StoreError, match="expected at most 4"):
        store.download("config.json", tmp_path / "copy", 4)
    assert not (tmp_path / "copy").exists()


def test_a_download_that_breaks_off_leaves_nothing(tmp_path):
    """A part would pass for the whole when it is tried again."""
    store = Store("watched://runs/a")
    store.write("metrics.jsonl", b"1234567890")
    Watched.watch(failing("cat", after=1))
    with pytest.raises(StoreError, match="no network"):
        store.download("metrics.jsonl", tmp_path / "copy", 100)
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("size", [None, -1, True, "5", 2.5])
def test_a_file_of_unknown_size_is_not_read(size, monkeypatch):
    monkeypatch.setattr(Watched, "info", lambda self, path: {"name": path, "type": "file", "size": size})
    with pytest.raises(StoreError, match="its size is unknown"):
        Store("watched://runs/a").read("config.json", 100)


@pytest.mark.parametrize("data", [b"1234", b"123456"])
def test_a_file_that_is_not_as_long_as_it_says(data, monkeypatch):
    store = Store("watched://runs/a")
    store.write("config.json", b"12345")
    monkeypatch.setattr(
        Watched, "cat_file", lambda self, path, start, end: data[start:] if end == 5 else data[start:end]
    )
    with pytest.raises(StoreError, match="its size has changed while it was read"):
        store.read("config.json", 100)


@pytest.mark.parametrize("kind", ["link", "folder link", "pipe", "directory"])
def test_only_regular_files_are_read_and_no_link_is_followed(kind, tmp_path):
    store = Store(f"file://{tmp_path}/run")
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "file").write_text("secret")
    (tmp_path / "run").mkdir()
    name = "folder/file" if kind == "folder link" else "file"
    path = tmp_path / "run" / name
    if kind == "link":
        path.symlink_to(secret / "file")
    elif kind == "folder link":
        path.parent.symlink_to(secret)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(StoreError, match=r"symbolic link, and none is followed|is no regular file"):
        store.read(name, 100)
    if "link" in kind:
        with pytest.raises(StoreError, match="is a symbolic link"):
            store.write(name, b"-")
        with pytest.raises(StoreError, match="is a symbolic link"):
            store.upload(name, io.BytesIO(b"-"), 1)
        assert (secret / "file").read_text() == "secret"
    if kind == "folder link":
        with pytest.raises(StoreError, match="is a symbolic link"):
            store.names("folder")


def test_names_in_a_listing_are_names_only(monkeypatch):
    entries = [
        {"name": "watched://runs/a/../../etc/passwd", "type": "file", "size": 1},
        {"name": "watched://runs/a/checkpoints/", "type": "directory", "size": 0},
        {"name": "watched://runs/a", "type": "directory", "size": 0},  # object stores list the directory itself
        {"name": "watched://runs/a/", "type": "file", "size": 0},
    ]
    monkeypatch.setattr(Watched, "ls", lambda self, path, detail: entries)
    store = Store("watched://runs/a")
    assert (store.names(), store.folders()) == (("passwd",), ("checkpoints",))


@pytest.mark.parametrize("error", [PermissionError, OSError, RuntimeError, KeyError, TimeoutError])
def test_whatever_a_driver_raises_names_the_url_and_the_file(error):
    store = Store("watched://runs/a")
    store.write("config.json", b"{}")
    Watched.watch(failing("cat", "write", "chunk", "rm", "cp", "ls", error=error))
    for call, words in (
        (lambda: store.read("config.json", 10), "config.json cannot be read"),
        (lambda: store.write("config.json", b""), "config.json cannot be written"),
        (lambda: store.upload("arrays", io.BytesIO(b"12"), 2), "arrays cannot be written"),
        (lambda: store.remove("config.json"), "config.json cannot be removed"),
        (lambda: store.move("config.json", "other"), "config.json cannot be renamed"),
        (store.names, "a cannot be listed"),
    ):
        with pytest.raises(StoreError) as found:
            call()
        assert f"{words}: {error.__name__}: " in str(found.value)
        assert str(found.value).startswith("watched://runs/a")


def test_what_is_missing_when_it_is_written_is_an_error():
    """Of S3 that is a bucket that does not exist."""
    Watched.watch(failing("write", error=FileNotFoundError))
    with pytest.raises(StoreError, match=r"config.json cannot be written: FileNotFoundError"):
        Store("watched://runs/a").write("config.json", b"{}")


def test_no_bucket_is_made(monkeypatch):
    monkeypatch.setattr(store_module, "_BUCKETS", frozenset({"watched"}))
    monkeypatch.setattr(Watched, "makedirs", lambda self, path, exist_ok: pytest.fail(path))
    monkeypatch.setattr(Watched, "rmdir", lambda self, path: pytest.fail(path))
    store = Store("watched://bucket/a")
    store.write("checkpoints/7/meta.json", b"{}")
    store.remove("checkpoints/7/meta.json")
    store.remove_folder("checkpoints/7")
    assert store.folders() == ()


def test_a_terminal_is_not_controlled_by_the_message_of_a_driver():
    Watched.watch(failing("info", message="\x1b[31m" + "x" * 5000))
    with pytest.raises(StoreError) as found:
        Store("watched://runs/a").size("config.json")
    assert "\x1b" not in str(found.value) and len(str(found.value)) < 500
