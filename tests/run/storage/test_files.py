"""Files are whole or not there, whatever fails while they are written."""

import os

import pytest
from support.runs.fakes import FullDisk, files_below

from levada.run.storage.files import NotAFileError, write_atomic, write_synced, writing


def test_a_file_is_written_and_replaced(tmp_path):
    path = tmp_path / "summary.json"
    write_atomic(path, b"one")
    write_atomic(str(path), b"")
    assert path.read_bytes() == b""
    assert files_below(tmp_path) == ["summary.json"]


@pytest.mark.parametrize(("name", "num_calls"), [("write", 0), ("write", 1), ("fsync", 0), ("replace", 0), ("open", 0)])
def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path, monkeypatch, name, num_calls):
    path = tmp_path / "summary.json"
    write_atomic(path, b"old")
    real_write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: real_write(descriptor, data[:2]))
        FullDisk(patch, name, num_calls)
        with pytest.raises(OSError, match="No space left"):
            write_atomic(path, b"newer")
    assert path.read_bytes() == b"old"
    assert files_below(tmp_path) == ["summary.json"]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "directory"])
def test_only_files_are_replaced(tmp_path, make):
    place = tmp_path / "out"
    make(place)
    before = place.lstat()
    with pytest.raises(NotAFileError):
        write_atomic(place, b"new")
    with pytest.raises(NotAFileError), writing(place):
        pass
    assert place.lstat().st_ino == before.st_ino
    assert os.listdir(tmp_path) == ["out"]


def test_a_link_to_a_device_stays(tmp_path):
    (tmp_path / "out").symlink_to(os.devnull)
    with pytest.raises(NotAFileError):
        write_atomic(tmp_path / "out", b"new")
    assert (tmp_path / "out").is_symlink()


def test_a_link_is_replaced_and_not_what_it_leads_to(tmp_path):
    (tmp_path / "other").write_bytes(b"old")
    (tmp_path / "out").symlink_to("other")
    write_atomic(tmp_path / "out", b"new")
    assert (tmp_path / "other").read_bytes() == b"old"
    assert (tmp_path / "out").read_bytes() == b"new"


def test_an_interrupt_leaves_nothing_behind(tmp_path, monkeypatch):
    def interrupted(descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(tmp_path / "summary.json", b"new")
    assert files_below(tmp_path) == []


def test_short_writes_are_continued(tmp_path, monkeypatch):
    real_write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real_write(descriptor, data[:3]))
    write_atomic(tmp_path / "a", b"0123456789")
    assert (tmp_path / "a").read_bytes() == b"0123456789"


def test_a_file_that_is_there_is_not_overwritten_by_the_plain_write(tmp_path):
    (tmp_path / "a").write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        write_synced(tmp_path / "a", b"theirs")
    assert (tmp_path / "a").read_bytes() == b"mine"
