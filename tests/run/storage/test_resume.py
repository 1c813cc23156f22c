"""A run goes on where its newest valid checkpoint left it."""

import warnings

import msgspec
import pytest
from support.runs.fakes import IDENTITY, SETTINGS, Clock, FakeRun

from levada.run.display.base import Display
from levada.run.loggers import JsonLines
from levada.run.loop import Loop
from levada.run.monitor import Monitor
from levada.run.storage.checkpoint import ARRAYS, META, CheckpointWarning, UnreadableError, list_checkpoints, save
from levada.run.storage.directory import RunDirectory, RunDirectoryError
from levada.run.storage.restore import resume
from levada.run.until import Until


def run_it(directory, monitor, run, until):
    return Loop(
        identity=IDENTITY,
        until=Until.parse(until),
        monitor=monitor,
        directory=directory,
        loggers=[JsonLines(directory.metrics_path)],
        display=Display(),
        arrays_of=FakeRun.arrays,
        params_of=FakeRun.params,
        checkpoint_every_updates=4,
    ).execute(run)


def start(path, until, **rest):
    clock = Clock()
    monitor = Monitor(clock=clock)
    run = FakeRun(monitor, clock=clock, **rest)
    directory = RunDirectory.create(path, IDENTITY, SETTINGS)
    return directory, lambda: run_it(directory, monitor, run, until)


class Killed(BaseException):
    """Stands for the end of the process: nothing is saved any more."""


def without_rates(lines):
    return [{name: value for name, value in line.items() if name != "charts/SPS"} for line in lines]


def go_on(path, until):
    clock = Clock(500.0)
    monitor = Monitor(clock=clock)
    directory = RunDirectory.open(path)
    point = resume(directory, monitor)
    directory.rewind(monitor.updates)
    run = FakeRun(monitor, clock=clock, updates=point.meta["firing"], weights=point.arrays["weights"])
    return run_it(directory, monitor, run, until)


@pytest.mark.parametrize("torn", [False, True])
def test_a_resumed_run_ends_as_an_uninterrupted_one(tmp_path, torn):
    directory, whole = start(tmp_path / "whole", "updates=20")
    expected = whole()
    broken, begin = start(tmp_path / "broken", "updates=20", raises={11: Killed()})
    with pytest.raises(Killed):
        begin()
    if torn:
        (list_checkpoints(broken.path)[-1] / ARRAYS).write_bytes(b"")
        with pytest.warns(CheckpointWarning, match="000000008 is torn"):
            found = go_on(broken.path, "updates=20")
    else:
        found = go_on(broken.path, "updates=20")
    assert found.startup_s > expected.startup_s  # it started twice
    assert msgspec.structs.replace(found, startup_s=0.0, steps_per_s=None) == msgspec.structs.replace(
        expected, startup_s=0.0, steps_per_s=None
    )
    assert broken.summary() == found
    assert without_rates(broken.metrics()) == without_rates(directory.metrics())
    assert [p.name for p in list_checkpoints(broken.path)] == [p.name for p in list_checkpoints(directory.path)]


def test_a_run_that_has_nothing_left_to_do_does_nothing(tmp_path):
    directory, begin = start(tmp_path / "run", "updates=10")
    first = begin()
    before = [p.name for p in list_checkpoints(directory.path)]
    again = go_on(directory.path, "updates=10")
    assert (again.stopped_by, again.updates, again.params_sha256) == ("updates=10", 10, first.params_sha256)
    assert [p.name for p in list_checkpoints(directory.path)] == before


def test_a_checkpoint_from_the_middle_of_an_update_is_warned_about(tmp_path):
    directory, begin = start(tmp_path / "run", "updates=10", raises={3: KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        begin()
    with pytest.warns(CheckpointWarning, match="was cut off or failed"):
        assert resume(directory, Monitor()).step == 2


def test_so_is_one_of_a_run_that_failed(tmp_path):
    directory, begin = start(tmp_path / "run", "updates=10", raises={3: ZeroDivisionError()})
    with pytest.raises(ZeroDivisionError):
        begin()
    with pytest.warns(CheckpointWarning, match="was cut off or failed"):
        assert resume(directory, Monitor()).step == 2


def test_a_whole_checkpoint_gives_no_warning(tmp_path):
    directory, begin = start(tmp_path / "run", "updates=10")
    begin()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resume(directory, Monitor()).meta == {"firing": 10}


def test_a_run_without_checkpoints_begins_anew(tmp_path):
    directory = RunDirectory.create(tmp_path / "run", IDENTITY, SETTINGS)
    directory.metrics_path.write_bytes(b'{"step": 5}\n')
    with pytest.warns(
        CheckpointWarning, match="has no checkpoint: it ended before the first one was due, and starts from scratch"
    ):
        assert resume(directory, Monitor()) is None


def test_torn_checkpoints_alone_are_no_reason_to_begin_anew(tmp_path):
    directory, begin = start(tmp_path / "run", "updates=10")
    begin()
    for path in list_checkpoints(directory.path):
        (path / ARRAYS).write_bytes(b"")
    with (
        pytest.warns(CheckpointWarning, match="is torn"),
        pytest.raises(
            RunDirectoryError,
            match=r"has 3 checkpoint\(s\), and none is whole; to start from scratch, delete .*/checkpoints",
        ),
    ):
        resume(directory, Monitor())


def test_a_checkpoint_of_another_levada_is_refused_and_nothing_is_changed(tmp_path):
    directory, begin = start(tmp_path / "run", "updates=10")
    begin()
    meta = list_checkpoints(directory.path)[-1] / META
    meta.write_bytes(meta.read_bytes().replace(b'"format": ', b'"format": 9'))
    before = sorted((path, path.stat().st_mtime_ns) for path in directory.path.rglob("*"))
    with pytest.raises(UnreadableError, match="has format 9"):
        resume(directory, Monitor())
    assert sorted((path, path.stat().st_mtime_ns) for path in directory.path.rglob("*")) == before


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    directory = RunDirectory.create(tmp_path / "run", IDENTITY, SETTINGS)
    save(directory.path, 1, {}, {"a": 1}, flow_hash=IDENTITY.flow_hash)
    with (
        pytest.warns(CheckpointWarning, match="was not saved by a run"),
        pytest.raises(RunDirectoryError, match="none is whole"),
    ):
        resume(directory, Monitor())


def test_a_checkpoint_of_another_seed_is_refused(tmp_path):
    directory, begin = start(tmp_path / "run", "updates=10")
    begin()
    save(directory.path, 11, {}, {"seed": IDENTITY.seed + 1, "flow": {}, "monitor": {}}, flow_hash=IDENTITY.flow_hash)
    with pytest.warns(
        CheckpointWarning, match=f"000000011 belongs to a run with seed {IDENTITY.seed + 1}, and this one has"
    ):
        assert resume(directory, Monitor()).step == 10


def test_a_checkpoint_of_another_flow_is_refused(tmp_path):
    directory, begin = start(tmp_path / "run", "updates=10")
    begin()
    save(directory.path, 11, {}, {"flow": {}, "monitor": {}}, flow_hash="cd" * 32)
    with pytest.warns(CheckpointWarning, match="000000011 belongs to another flow"):
        assert resume(directory, Monitor()).step == 10
