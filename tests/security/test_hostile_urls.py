"""What lies at a URL is hostile until it is checked: before it is downloaded, and again as the files of any run."""

import gc
import json
import shutil
from pathlib import Path

import pytest
from support.runs.cli import TINY_FIELDS, Shell
from support.runs.stores import Watched

import levada
from levada.errors import CheckpointWarning, LoadError, RunDirectoryError, UntrustedError
from levada.memory import Memory
from levada.run.storage import remote, trust
from levada.run.storage.checkpoint import ARRAYS, META, sealed
from levada.run.storage.directory import RunDirectory

URL = "watched://runs/a"
NEWEST = f"{URL}/checkpoints/000000004"
FIELDS = {"display": "quiet", "log": "none", **TINY_FIELDS}

pytestmark = pytest.mark.filterwarnings("always::levada.errors.CheckpointWarning")


@pytest.fixture(scope="module")
def made():
    """The files of a run at a URL."""
    Watched.reset()
    levada.train("ppo", "CartPole-v1", until="updates=4", checkpoint_every_updates=2, seed=3, out=URL, **FIELDS)
    return Watched.files()


@pytest.fixture(autouse=True)
def files(made, tmp_path, monkeypatch):
    (tmp_path / "copies").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "copies"))
    Watched.reset(made)
    return dict(made)


@pytest.fixture
def read(monkeypatch):
    """Number of bytes that were downloaded of each file."""
    counts = {}
    cat = Watched.cat_file

    def counted(self, path, start=None, end=None):
        data = cat(self, path, start=start, end=end)
        counts[path] = counts.get(path, 0) + len(data)
        return data

    monkeypatch.setattr(Watched, "cat_file", counted)
    return counts


def pretend(monkeypatch, path, size):
    """Let a file say that it is this large."""
    info = Watched.info

    def lying(self, asked, **rest):
        found = info(self, asked, **rest)
        return found | {"size": size} if asked == path else found

    monkeypatch.setattr(Watched, "info", lying)


def changed(files, path, change):
    record = json.loads(files[path])
    change(record)
    Watched.reset(files | {path: json.dumps(sealed(record) if "sha256" in record else record).encode()})


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("config.json", 1 << 24),
        ("summary.json", 1 << 24),
        ("metrics.jsonl", 1 << 32),
        ("checkpoints/000000004/meta.json", 1 << 28),
    ],
)
def test_a_file_that_is_too_large_is_not_downloaded(name, most, read, monkeypatch):
    pretend(monkeypatch, f"{URL}/{name}", most + 1)
    call = levada.resume if name == "metrics.jsonl" else levada.load
    words = rf"watched://runs/a/{name} has {most + 1:,} bytes, expected at most {most:,}"
    if name == "summary.json":
        with pytest.warns(CheckpointWarning, match=words):
            assert call(URL).summary.stopped_by == "cut off"
    else:
        with pytest.raises(RunDirectoryError, match=words):
            call(URL)
    assert f"{URL}/{name}" not in read


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_arrays_without_room_are_not_downloaded(where, read, monkeypatch):
    if where == "memory":
        monkeypatch.setattr(remote, "machine_memory", lambda: Memory(100, 100))
    else:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 0, 100))
    words = "and this machine a memory of 100" if where == "memory" else "room for 100; TMPDIR names another directory"
    with pytest.raises(RunDirectoryError, match=rf"{NEWEST}/.* has [\d,]+ bytes, .*{words}"):
        levada.load(URL)
    assert f"{NEWEST}/{ARRAYS}" not in read


@pytest.mark.parametrize("size", [0, 1, 1 << 40])
def test_arrays_that_are_not_as_large_as_they_should_be_are_not_downloaded(size, read, monkeypatch):
    pretend(monkeypatch, f"{NEWEST}/{ARRAYS}", size)
    with pytest.warns(CheckpointWarning, match=r"skipped: checkpoint watched://runs/a/checkpoints/000000004 is torn"):
        assert levada.load(URL).policy.version == 2
    assert f"{NEWEST}/{ARRAYS}" not in read


def test_sizes_that_meta_json_claims_are_bounded_too(files, read):
    changed(files, f"{NEWEST}/{META}", lambda record: record.update(arrays_bytes=1 << 60))
    with pytest.raises(RunDirectoryError, match=r"has 1,152,921,504,606,846,976 bytes, and this machine a memory of"):
        levada.load(URL)
    assert f"{NEWEST}/{ARRAYS}" not in read


def test_names_at_a_url_never_become_paths(files, tmp_path, monkeypatch):
    names = [
        "..",
        "../../../etc",
        "9" * 5000,
        "٣" * 9,
        "000000004/../../x",
        "-00000004",
        "4",
        "000000004.tmp",
        "\x1b[31m",
    ]
    before = sorted(path for path in tmp_path.rglob("*"))
    ls = Watched.ls

    def lying(self, path, detail=True):
        return ls(self, path, detail) + [{"name": f"{path}/{name}", "type": "directory", "size": 0} for name in names]

    monkeypatch.setattr(Watched, "ls", lying)
    assert RunDirectory.open(URL).steps() == (2, 4)
    run = levada.resume(URL, until="updates=5", display="quiet")
    assert {path.name for path in (run.path / "checkpoints").iterdir()} == {"000000004", "000000005"}
    del run
    gc.collect()
    assert sorted(path for path in tmp_path.rglob("*")) == before


def test_few_of_many_checkpoints_are_looked_at(files, monkeypatch):
    asked = []
    ls, info = Watched.ls, Watched.info
    many = [{"name": f"x/{number:09d}", "type": "directory", "size": 0} for number in range(100_000)]
    monkeypatch.setattr(
        Watched, "ls", lambda self, path, detail=True: many if "checkpoints" in path else ls(self, path)
    )
    monkeypatch.setattr(Watched, "info", lambda self, path: asked.append(path) or info(self, path))
    with pytest.raises(LoadError, match="has no valid checkpoint"):
        levada.load(URL)
    assert len(asked) < 300


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("config.json", b"{", "watched://runs/a/config.json is torn or was edited"),
        ("config.json", b"[]", "watched://runs/a/config.json is not the config of a levada run"),
        ("metrics.jsonl", b"[]\n", "watched://runs/a/metrics.jsonl, line 1 is torn or was edited"),
    ],
)
def test_files_from_a_url_are_checked_as_all_are(files, name, data, words):
    Watched.reset(files | {f"{URL}/{name}": data})
    with pytest.raises(RunDirectoryError, match=words):
        levada.resume(URL)


@pytest.fixture
def foreign(monkeypatch, tmp_path):
    """Another machine, or another user."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(trust, "_of_this_process", b"x" * 32)


def test_a_run_from_a_url_is_foreign_where_the_key_is_another(foreign):
    with pytest.raises(UntrustedError, match="--trust"):
        levada.resume(URL, until="updates=5", display="quiet")
    assert levada.load(URL).policy.version == 4
    assert levada.resume(URL, until="updates=5", display="quiet", trust=True).summary.updates == 5
    assert levada.resume(URL, until="updates=6", display="quiet").summary.updates == 6  # from here on it is ours


def test_code_that_a_foreign_run_names_is_not_executed(foreign, files, tmp_path):
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'marker')!r}, 'w')\n")
    place = f"{tmp_path / 'evil.py'}:Evil"
    changed(files, f"{URL}/config.json", lambda config: config["settings"]["env"].update(value=place))
    with pytest.raises(UntrustedError, match="watched://runs/a names code of its own"):
        levada.load(URL)
    assert not (tmp_path / "marker").exists()


def test_code_beside_a_run_at_a_file_url_is_not_trusted(tmp_path):
    """As of a run at a path: though the settings are ours, what stands in the run may be of anybody."""
    url = f"file://{tmp_path}/run"
    code = "import gymnasium\ndef Mine():\n    return gymnasium.make('CartPole-v1')\n"
    (tmp_path / "mine.py").write_text(code)
    levada.train("ppo", f"{tmp_path}/mine.py:Mine", until="updates=1", out=url, **FIELDS)
    assert levada.load(url).policy.version == 1
    (tmp_path / "run" / "mine.py").write_text(code)
    path = tmp_path / "run" / "config.json"
    config = json.loads(path.read_bytes())
    config["settings"]["env"]["value"] = f"{tmp_path}/run/mine.py:Mine"
    path.write_text(json.dumps(config))
    with pytest.raises(UntrustedError, match="which stands in the run itself"):
        levada.load(url)


@pytest.mark.parametrize(
    "name", ["config.json", "summary.json", "metrics.jsonl", "checkpoints", "checkpoints/000000004"]
)
def test_links_at_a_file_url_are_not_followed(name, tmp_path):
    url = f"file://{tmp_path}/run"
    levada.train("ppo", "CartPole-v1", until="updates=4", out=url, **FIELDS)
    path = tmp_path / "run" / name
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    before = {p: p.read_bytes() for p in (tmp_path / "elsewhere").rglob("*") if p.is_file()}
    if name == "checkpoints/000000004":  # in a list of checkpoints it is none
        with pytest.warns(CheckpointWarning, match="has no checkpoint: it ended before the first one was due"):
            levada.resume(url, until="updates=1", display="quiet")
        assert path.is_symlink()
    else:
        with pytest.raises(RunDirectoryError, match=f"run/{name} is a symbolic link, and none is followed"):
            (
                RunDirectory.open(url).summary
                if name == "summary.json"
                else lambda: levada.resume(url, display="quiet")
            )()
    assert {p: p.read_bytes() for p in (tmp_path / "elsewhere").rglob("*") if p.is_file()} == before


def test_the_command_imports_nothing_from_beside_a_foreign_run(foreign, tmp_path, capsys, monkeypatch):
    """Of a run at a file URL; others lie beside nothing of this machine."""
    url = f"file://{tmp_path}/run"
    levada.train("ppo", "CartPole-v1", until="updates=1", out=url, **FIELDS)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    monkeypatch.setattr(trust, "_of_this_process", b"y" * 32)
    monkeypatch.chdir(tmp_path)
    seen = []
    monkeypatch.setattr(
        "levada.cli.evaluate.load", lambda *args, **kwargs: seen.extend(__import__("sys").path) or 1 / 0
    )
    assert Shell(capsys)(f"eval {url}").code == 1
    assert seen and str(tmp_path) not in [str(Path(entry).resolve()) for entry in seen]
