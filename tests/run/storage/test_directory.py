"""A run gets a directory of its own, and can be read from it again."""

import errno
import io
import json
import os
import platform
import re
from datetime import datetime

import msgspec
import numpy as np
import pytest
from support.runs.fakes import IDENTITY, SETTINGS, FullDisk, files_below

from levada import _version
from levada.run.identity import Identity, Setting, versions
from levada.run.storage.directory import RunDirectory, RunDirectoryError

NOW = datetime(2026, 11, 21, 9, 30, 5)


def create(path=None, **rest):
    return RunDirectory.create(path, IDENTITY, SETTINGS, **rest)


def test_the_default_name_says_which_run_it_is(tmp_path):
    made = create(root=tmp_path / "runs", now=NOW)
    assert made.path == tmp_path / "runs" / "ppo-CartPole-v1-1-20261121-093005"
    assert files_below(made.path) == ["checkpoints", "config.json"]


def test_the_default_place_is_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = create()
    assert re.fullmatch(r"runs/ppo-CartPole-v1-1-\d{8}-\d{6}", str(made.shown))


def test_a_second_run_in_the_same_second_gets_a_suffix(tmp_path):
    names = [create(root=tmp_path, now=NOW).path.name for _ in range(3)]
    base = "ppo-CartPole-v1-1-20261121-093005"
    assert names == [base, f"{base}-2", f"{base}-3"]


def test_a_run_that_takes_the_name_at_the_same_moment_is_stepped_aside_for(tmp_path, monkeypatch):
    first = create(root=tmp_path, now=NOW)
    real = os.path.lexists
    monkeypatch.setattr(os.path, "lexists", lambda path: path != first.path and real(path))
    assert create(root=tmp_path, now=NOW).path.name.endswith("-2")


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ("ALE/Pong-v5", "ALE-Pong-v5"),
        ("<lambda>", "lambda"),
        ("../../etc", "etc"),
        ("my env\0\n", "my-env"),
        ("...", "env"),
        ("x" * 300, "x" * 60),
    ],
)
def test_an_env_may_have_any_name(tmp_path, env, name):
    identity = msgspec.structs.replace(IDENTITY, env=env)
    made = RunDirectory.create(None, identity, {}, root=tmp_path, now=NOW)
    assert made.path == tmp_path / f"ppo-{name}-1-20261121-093005"
    assert RunDirectory.open(made.path).config.identity.env == env


def test_the_config_says_who_chose_what(tmp_path):
    settings = {"hidden_sizes": Setting((64, 64), "default"), "max_norm": Setting(float("inf"), "argument"), **SETTINGS}
    RunDirectory.create(tmp_path / "run", IDENTITY, settings)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["settings"] == {
        "hidden_sizes": {"value": [64, 64], "from": "default"},
        "max_norm": {"value": "inf", "from": "argument"},
        "learning_rate": {"value": 3e-4, "from": "preset"},
        "seed": {"value": 1, "from": "command line"},
    }
    assert config["identity"] == {
        "algorithm": "ppo",
        "env": "CartPole-v1",
        "seed": 1,
        "deployment": "inline",
        "threads": 1,
        "precision": "float32",
        "device": "cpu",
        "machine": {},
        "flow_hash": "ab" * 32,
    }
    assert config["versions"] == versions()


def test_versions_are_those_that_run():
    found = versions()
    assert list(found)[:5] == ["python", "levada", "torch", "numpy", "gymnasium"]
    assert (found["python"], found["levada"], found["numpy"]) == (
        platform.python_version(),
        _version.__version__,
        np.__version__,
    )


def test_a_package_that_is_not_installed_has_no_version(monkeypatch):
    from levada.run import identity

    monkeypatch.setattr(identity, "PACKAGES", ("surely-not-installed",))
    assert identity.versions()["surely-not-installed"] is None


def test_the_optional_packages_are_those_that_are_installed(monkeypatch):
    from levada.run import identity

    assert {"jax", "jaxlib", "torchax", "gymnax", "brax", "pgx", "craftax"} <= set(identity.OPTIONAL_PACKAGES)
    monkeypatch.setattr(identity, "OPTIONAL_PACKAGES", ("pytest", "surely-not-installed"))
    assert list(versions())[5:] == ["pytest"]
    assert versions()["pytest"] == pytest.__version__


def test_what_was_created_is_opened(tmp_path):
    made = create(tmp_path / "run")
    opened = RunDirectory.open(str(tmp_path / "run"))
    assert opened.config == made.config
    assert opened.config.settings["learning_rate"] == Setting(3e-4, "preset")
    assert (opened.summary(), opened.metrics()) == (None, [])


@pytest.mark.parametrize("number", [None, 1, 3])
def test_a_run_of_another_version_is_refused_with_the_version_that_wrote_it(tmp_path, number):
    made = create(tmp_path / "run")
    config = json.loads((made.path / "config.json").read_text())
    config["versions"]["levada"] = "0.1.0"
    if number is None:
        del config["format"]
    else:
        config["format"] = number
    (made.path / "config.json").write_text(json.dumps(config))
    message = rf"run was written by levada 0\.1\.0 in format {number or 1}; levada {_version.__version__} reads format 2: open"
    with pytest.raises(RunDirectoryError, match=message):
        RunDirectory.open(made.path)


def test_an_empty_directory_is_taken(tmp_path):
    (tmp_path / "run").mkdir()
    assert create(tmp_path / "run").path == tmp_path / "run"


def test_home_is_understood(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert create("~/run").path == tmp_path / "run"
    with pytest.raises(RunDirectoryError, match="there is no such user"):
        create("~nobody-has-this-name/run")


# ---- refusals


def test_a_run_is_never_overwritten(tmp_path):
    create(tmp_path / "run")
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    with pytest.raises(RunDirectoryError, match="already holds a run: nothing is overwritten"):
        create(tmp_path / "run")
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()} == before


def test_other_files_are_left_alone(tmp_path):
    for name in ("a", "b", "c", "d"):
        (tmp_path / name).write_text("mine")
    with pytest.raises(RunDirectoryError, match=r"holds other files \(a, b, c, \.\.\.\): nothing is overwritten"):
        create(tmp_path)
    assert files_below(tmp_path) == ["a", "b", "c", "d"]


def test_a_file_is_no_directory(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunDirectoryError, match="file is a file, expected a new or an empty directory"):
        create(tmp_path / "file")
    with pytest.raises(RunDirectoryError, match="file is a file, not a directory"):
        create(tmp_path / "file" / "deep" / "run")
    with pytest.raises(RunDirectoryError, match="file is a file, not a directory"):
        create(root=tmp_path / "file")


@pytest.mark.parametrize("path", ["/proc/levada/run", "a\0b", "x" * 300])
def test_an_impossible_path_is_refused(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunDirectoryError, match=r"cannot (write|make) the run directory"):
        create(path)
    assert files_below(tmp_path) == []


@pytest.mark.parametrize(
    ("code", "hint"), [(errno.EACCES, "that you may write"), (errno.EROFS, "can be written"), (errno.EDQUOT, "quota")]
)
def test_what_may_not_be_written_is_refused(tmp_path, monkeypatch, code, hint):
    def refuse(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(RunDirectoryError, match=hint):
        create(tmp_path / "run")


@pytest.mark.parametrize(("name", "num_calls"), [("mkdir", 0), ("mkdir", 1), ("write", 0), ("fsync", 0), ("fsync", 1)])
@pytest.mark.parametrize("there", [False, True])
def test_a_full_disk_is_said_and_leaves_nothing(tmp_path, monkeypatch, name, num_calls, there):
    path = tmp_path / "run"
    if there:
        path.mkdir()
        num_calls -= name == "mkdir"
    if num_calls < 0:
        num_calls = 0
    with monkeypatch.context() as patch:
        FullDisk(patch, name, num_calls)
        with pytest.raises(RunDirectoryError, match="No space left on device; free some space"):
            create(path)
    assert files_below(tmp_path) == (["run"] if there else [])
    assert create(path).path == path


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda path: None, "there is no run at .*: no such directory"),
        (lambda path: path.write_text(""), "is a file, expected the directory of a run"),
        (lambda path: path.mkdir(), "is not a run: it has no config.json$"),
        (lambda path: create(root=path, now=NOW), r"is not a run.*did you mean .*ppo-CartPole-v1-1-20261121-093005\?"),
        (lambda path: (path / "config.json").mkdir(parents=True), "config.json cannot be read: it is a directory"),
    ],
)
def test_what_is_no_run_is_not_opened(tmp_path, prepare, message):
    prepare(tmp_path / "run")
    with pytest.raises(RunDirectoryError, match=message):
        RunDirectory.open(tmp_path / "run")


def test_an_impossible_path_is_not_opened():
    with pytest.raises(RunDirectoryError, match="there is no run"):
        RunDirectory.open("a\0b")
    with pytest.raises(RunDirectoryError, match="there is no run"):
        RunDirectory.open("x" * 300)


def test_a_config_torn_anywhere_is_not_opened(tmp_path):
    path = create(tmp_path / "run").path / "config.json"
    whole = path.read_bytes()
    for length in range(len(whole) - 1):  # the last byte is the line's end
        path.write_bytes(whole[:length])
        with pytest.raises(RunDirectoryError, match=r"config\.json is torn or was edited"):
            RunDirectory.open(path.parent)


def test_a_config_of_something_else_is_not_opened(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(RunDirectoryError, match=r"is not the config of a levada run: .*identity"):
        RunDirectory.open(tmp_path)


# ---- metrics and summary


def test_metrics_are_read_but_for_a_last_line_that_was_cut_off(tmp_path):
    made = create(tmp_path / "run")
    made.metrics_path.write_bytes(b'{"step":1,"a":null}\n{"step":2,"a":2.5}\n{"step":3,"a"')
    assert made.metrics() == [{"step": 1, "a": None}, {"step": 2, "a": 2.5}]


def test_a_broken_line_among_the_metrics_is_said(tmp_path):
    made = create(tmp_path / "run")
    made.metrics_path.write_bytes(b'{"step":1}\n{"st\n{"step":3}\n')
    with pytest.raises(RunDirectoryError, match=r"metrics\.jsonl, line 2 is torn or was edited"):
        made.metrics()


def test_more_lines_of_metrics_than_any_run_writes_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("levada.run.storage.directory.MAX_LINES", 3)
    made = create(tmp_path / "run")
    made.metrics_path.write_bytes(b'{"step":1}\n' * 3)
    assert len(made.metrics()) == 3
    made.metrics_path.write_bytes(b'{"step":1}\n' * 4)
    with pytest.raises(RunDirectoryError, match=r"metrics\.jsonl has more than 3 lines, which no run writes"):
        made.check_files()


def test_rewinding_forgets_what_came_later(tmp_path):
    made = create(tmp_path / "run")
    lines = [b'{"step":8,"charts/updates":%d}\n' % update for update in (1, 2, 3)]  # after one item of a replay
    made.metrics_path.write_bytes(b"".join(lines) + b'{"st')
    (made.path / "summary.json").write_text("{}")
    made.rewind(2)
    assert made.metrics_path.read_bytes() == b"".join(lines[:2])
    assert made.summary() is None


@pytest.fixture
def read_only(monkeypatch):
    """Makes every later writing and removing fail, as it does on a disk that cannot be written."""

    def refuse(path, *args, **kwargs):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    def opened(path, flags, *args, **kwargs):
        return refuse(path) if flags & (os.O_WRONLY | os.O_RDWR) else real(path, flags, *args, **kwargs)

    def made_or_read(path, mode="r", *args, **kwargs):
        return refuse(path) if "x" in mode else read(path, mode, *args, **kwargs)

    def begin():
        monkeypatch.setattr("os.open", opened)
        monkeypatch.setattr("io.open", made_or_read)
        for name in ("unlink", "rename", "replace"):
            monkeypatch.setattr(f"os.{name}", refuse)

    real, read = os.open, io.open
    return begin


@pytest.mark.parametrize(
    "call", [lambda made: made.rewind(2), lambda made: made.check_files()], ids=["rewind", "check"]
)
def test_going_on_where_nothing_can_be_written_is_refused(tmp_path, read_only, call):
    made = create(tmp_path / "run")
    made.metrics_path.write_bytes(b'{"step":8,"charts/updates":1}\n')
    read_only()
    with pytest.raises(
        RunDirectoryError, match=r"^cannot write the run directory \S*run: Read-only file system; give a direc"
    ):
        call(made)


def test_a_torn_summary_is_said(tmp_path):
    made = create(tmp_path / "run")
    (made.path / "summary.json").write_text('{"algorithm": "ppo"')
    with pytest.raises(RunDirectoryError, match=r"summary\.json is torn or was edited"):
        made.summary()


def test_a_seed_of_any_size_is_kept(tmp_path):
    identity = Identity(algorithm="a", env="b", seed=2**64 - 1, deployment="d", flow_hash="e")
    RunDirectory.create(tmp_path / "run", identity, {})
    assert RunDirectory.open(tmp_path / "run").config.identity.seed == 2**64 - 1


def test_the_traceback_of_a_run_that_failed(tmp_path, monkeypatch):
    made = create(tmp_path / "run")
    error = ZeroDivisionError("division by zero")
    made.write_error(error)
    assert made.error_path.read_text() == "ZeroDivisionError: division by zero\n"

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("levada.run.storage.files.os.replace", full)
    made.write_error(error)
    (note,) = error.__notes__
    assert note.startswith(f"{made.error_path} could not be written: No space left on device; free some space")
