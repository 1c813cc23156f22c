"""The status of a run, from its files and its lock."""

import os

import pytest

from levada.run.storage.status import FRESH_S, is_locked, status_of


@pytest.mark.parametrize(
    ("files", "status"),
    [
        (["summary.json"], "finished"),
        (["error.txt"], "failed"),
        (["summary.json", "error.txt"], "finished"),
        ([], "cut off"),
        (["frames.bin"], "running"),
    ],
)
def test_files_tell_the_status(tmp_path, files, status):
    for name in files:
        (tmp_path / name).touch()
    assert status_of(tmp_path) == status


def test_old_frames_are_those_of_a_run_that_was_cut_off(tmp_path):
    (tmp_path / "frames.bin").touch()
    written_s = os.stat(tmp_path / "frames.bin").st_mtime
    assert status_of(tmp_path, now=lambda: written_s + FRESH_S - 1) == "running"
    assert status_of(tmp_path, now=lambda: written_s + FRESH_S + 1) == "cut off"


def test_a_locked_run_is_running(tmp_path):
    import fcntl

    (tmp_path / "summary.json").touch()
    assert not is_locked(tmp_path)
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert is_locked(tmp_path)
        assert status_of(tmp_path) == "running"
    finally:
        os.close(descriptor)
    assert status_of(tmp_path) == "finished"


def test_a_run_that_is_gone_is_not_running(tmp_path):
    assert status_of(tmp_path / "gone") == "cut off"
