"""The loop: what is written when, and what is left when it ends early."""

import errno
import io
import json
import os
import signal

import numpy as np
import pytest
from support.runs.fakes import IDENTITY, SETTINGS, Clock, FakeRun, FullDisk, files_below

from levada.flow.channels import Queue
from levada.flow.graph import Flow
from levada.flow.items import Episode
from levada.flow.protocols import Update
from levada.run import loop as execute_module
from levada.run.display.base import Display
from levada.run.display.displays import PlainDisplay
from levada.run.interrupt import Interrupted, Terminated
from levada.run.loggers import JsonLines
from levada.run.loop import Loop
from levada.run.monitor import Monitor
from levada.run.storage.checkpoint import list_checkpoints, newest
from levada.run.storage.directory import RunDirectory
from levada.run.storage.hashing import params_sha256
from levada.run.summary import Summary
from levada.run.until import Until
from levada.runners.inline import Inline


class ListLogger:
    def __init__(self):
        self.written = []
        self.num_closed = 0

    def write(self, step, values):
        self.written.append((step, dict(values)))

    def close(self, summary):
        self.num_closed += 1


class ListDisplay:
    def __init__(self):
        self.calls = []

    def start(self, identity, until):
        self.calls.append("start")

    def notice(self, text):
        return False

    def update(self, monitor, statistics):
        self.calls.append("update")

    def finish(self, summary):
        self.calls.append(summary)


class Setup:
    """A fake run with everything around it."""

    def __init__(self, tmp_path, **run):
        self.clock = Clock()
        self.monitor = Monitor(clock=self.clock, target_return=50.0)
        self.run = FakeRun(self.monitor, clock=self.clock, **run)
        self.directory = RunDirectory.create(tmp_path / "run", IDENTITY, SETTINGS)
        self.logger = ListLogger()
        self.display = ListDisplay()

    def execute(self, until, **rest):
        arguments = {
            "identity": IDENTITY,
            "until": Until.parse(until),
            "monitor": self.monitor,
            "directory": self.directory,
            "loggers": [self.logger],
            "display": self.display,
            "arrays_of": FakeRun.arrays,
            "params_of": FakeRun.params,
        }
        return Loop(**(arguments | rest)).execute(self.run)

    @property
    def steps(self):
        return [int(path.name) for path in list_checkpoints(self.directory.path)]


def test_a_run_ends_at_the_first_condition_and_says_what_came(tmp_path):
    it = Setup(tmp_path)
    summary = it.execute("updates=5 steps=1000")
    assert (summary.stopped_by, summary.updates, summary.env_steps, summary.episodes) == ("updates=5", 5, 50, 5)
    assert summary.params_sha256 == params_sha256({"weights": np.full(3, 2.5, np.float32)})
    assert it.directory.summary() == summary
    assert it.display.calls == ["start", *["update"] * 5, summary]
    assert it.logger.num_closed == 1
    assert it.steps == [5]


def test_the_return_ends_it(tmp_path):
    summary = Setup(tmp_path, returns=lambda update: 60.0 if update > 20 else 0.0).execute("return=50")
    assert summary.stopped_by == "return=50"
    assert summary.return_mean_100 >= 50.0
    assert (summary.updates, summary.solved_at_steps, summary.solved_at_s) == (104, 1040, 104.0)


def test_the_end_of_the_sources_ends_it(tmp_path):
    summary = Setup(tmp_path, num_reports=3).execute("updates=5")
    assert (summary.stopped_by, summary.updates) == ("sources ended", 3)


@pytest.mark.parametrize(
    ("every", "keep", "kept"), [(None, 3, [10]), (4, 3, [4, 8, 10]), (5, 3, [5, 10]), (1, 2, [9, 10])]
)
def test_checkpoints_come_every_so_many_updates_and_at_the_end(tmp_path, every, keep, kept):
    it = Setup(tmp_path)
    it.execute("updates=10", checkpoint_every_updates=every, keep_checkpoints=keep)
    assert it.steps == kept
    found = newest(it.directory.path)
    assert (found.arrays["weights"] == 5.0).all()
    assert (found.arrays["moments"] == 10.0).all()
    assert found.meta["flow"] == {"firing": 10}
    assert found.meta["monitor"]["env_steps"] == 100
    assert found.meta["between_updates"] is True


@pytest.mark.parametrize(
    ("every_s", "saving_s", "saved"),
    [
        (0.0, 0.0, [4, 8, 12, 16, 20, 24, 28, 30]),
        (3.0, 0.0, [4, 8, 12, 16, 20, 24, 28, 30]),
        (5.0, 0.0, [8, 16, 24, 30]),  # an update takes a second
        (1000.0, 0.0, [30]),
        (5.0, 0.5, [8, 20, 30]),  # 5 % of ten seconds
    ],
)
def test_checkpoints_may_wait_for_the_clock_too(tmp_path, every_s, saving_s, saved):
    it = Setup(tmp_path)

    def arrays(run):
        it.clock.now += saving_s
        return it.run.arrays()

    it.execute(
        "updates=30", checkpoint_every_updates=4, checkpoint_every_s=every_s, keep_checkpoints=9, arrays_of=arrays
    )
    assert it.steps == saved


def test_metrics_come_after_every_update(tmp_path):
    it = Setup(tmp_path)
    it.execute("updates=5")
    assert [step for step, _ in it.logger.written] == [10, 20, 30, 40, 50]
    assert it.logger.written[-1][1]["losses/policy_loss"] == 1 / 5
    assert it.logger.written[-1][1]["charts/episodic_return"] == 3.0


@pytest.mark.parametrize("last", [20, 19])
def test_metrics_become_rarer_in_long_runs_and_come_at_the_end(tmp_path, monkeypatch, last):
    monkeypatch.setattr(execute_module, "FULL_METRICS", 4)
    it = Setup(tmp_path)
    it.execute(f"updates={last}")
    assert [step // 10 for step, _ in it.logger.written] == [1, 2, 3, 4, 6, 8, 12, 16, last]


def test_two_runs_write_the_same(tmp_path):
    runs = [Setup(tmp_path / str(n)) for n in range(2)]
    for it in runs:
        it.execute("updates=30", checkpoint_every_updates=7)
    assert runs[0].logger.written == runs[1].logger.written
    assert files_below(runs[0].directory.path) == files_below(runs[1].directory.path)
    assert runs[0].directory.summary() == runs[1].directory.summary()


def test_without_a_directory_nothing_is_written(tmp_path):
    it = Setup(tmp_path)
    before = files_below(tmp_path)
    assert it.execute("updates=3", directory=None, checkpoint_every_updates=1).updates == 3
    assert files_below(tmp_path) == before


def test_without_params_all_arrays_are_fingerprinted(tmp_path):
    it = Setup(tmp_path)
    assert it.execute("updates=3", params_of=None).params_sha256 == params_sha256(it.run.arrays()[0])


# ---- ends that were not planned


def test_ctrl_c_ends_after_the_update_with_a_checkpoint(tmp_path, capfd):
    it = Setup(tmp_path)
    real, it.display.update = (
        it.display.update,
        lambda *args: (it.run.updates == 4 and signal.raise_signal(2), real(*args)),
    )
    with pytest.raises(Interrupted) as stopped:
        it.execute("updates=10")
    summary = stopped.value.result
    assert (summary.stopped_by, summary.updates) == ("interrupted", 4)
    assert it.directory.summary() == summary
    assert (it.steps, newest(it.directory.path).meta["between_updates"]) == ([4], True)
    assert it.logger.num_closed == 1
    assert "stopping after this update" in capfd.readouterr().err


def test_a_keyboard_interrupt_in_an_update_ends_with_a_checkpoint_that_says_so(tmp_path):
    it = Setup(tmp_path, raises={4: KeyboardInterrupt()})
    with pytest.raises(Interrupted) as stopped:
        it.execute("updates=10")
    summary = stopped.value.result
    assert (summary.stopped_by, summary.updates) == ("interrupted", 3)
    found = newest(it.directory.path)
    assert (found.step, found.meta["between_updates"], found.meta["stopped_by"]) == (3, False, "interrupted")
    assert it.display.calls[-1] == summary


def test_a_checkpoint_that_is_whole_is_not_replaced_by_a_doubtful_one(tmp_path):
    it = Setup(tmp_path, raises={4: KeyboardInterrupt()})
    with pytest.raises(Interrupted):
        it.execute("updates=10", checkpoint_every_updates=3)
    assert newest(it.directory.path).meta["between_updates"] is True


def test_an_interrupt_before_the_first_update_is_an_end_too(tmp_path):
    it = Setup(tmp_path, raises={1: KeyboardInterrupt()})
    with pytest.raises(Interrupted) as stopped:
        it.execute("updates=10")
    summary = stopped.value.result
    assert (summary.stopped_by, summary.env_steps, summary.return_mean_100) == ("interrupted", 0, None)
    assert it.steps == [0]


def test_an_error_of_the_run_leaves_what_was_written(tmp_path):
    it = Setup(tmp_path, raises={6: RuntimeError("the env broke")})
    lines = JsonLines(it.directory.metrics_path)
    with pytest.raises(RuntimeError, match="the env broke"):
        it.execute("updates=10", checkpoint_every_updates=2, loggers=[it.logger, lines])
    assert (it.logger.num_closed, it.display.calls[-1]) == (1, None)
    assert [line["step"] for line in it.directory.metrics()] == [10, 20, 30, 40, 50]
    assert it.steps == [2, 4, 5]
    assert it.directory.summary() is None
    with pytest.raises(OSError, match="Bad file descriptor"):
        lines.write(1, {})


def test_ctrl_c_while_the_end_is_saved_interrupts_too(tmp_path, capfd):
    """A loop over seeds must not go on with the next one."""
    it = Setup(tmp_path)
    with pytest.raises(KeyboardInterrupt) as stopped:
        it.execute("updates=3", params_of=lambda run: (signal.raise_signal(2), it.run.params())[1])
    assert stopped.value.result == it.directory.summary() == it.display.calls[-1]
    assert it.directory.summary().stopped_by == "updates=3"
    assert "saving what was learned" in capfd.readouterr().err


def test_a_display_that_shows_what_ctrl_c_does_is_left_to_it(tmp_path, capfd):
    it = Setup(tmp_path)
    noticed = []
    it.display.notice = lambda text: not noticed.append(text)
    real = it.display.update
    it.display.update = lambda *args: (it.run.updates == 2 and signal.raise_signal(2), real(*args))
    with pytest.raises(Interrupted):
        it.execute("updates=10")
    assert noticed == ["stopping after this update; press Ctrl-C again to stop at once"]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_that_ends_the_process_ends_the_run_first(tmp_path, capfd, name):
    it = Setup(tmp_path)
    number = getattr(signal, name)
    real, it.display.update = (
        it.display.update,
        lambda *args: (it.run.updates == 4 and signal.raise_signal(number), real(*args)),
    )
    with pytest.raises(Terminated) as ended:
        it.execute("updates=10")
    assert ended.value.code == 128 + number
    summary = it.directory.summary()
    assert (summary.stopped_by, summary.updates) == ("interrupted", 4)
    assert (it.steps, newest(it.directory.path).meta["between_updates"]) == ([4], True)
    assert (it.logger.num_closed, it.display.calls[-1]) == (1, summary)
    assert f"a second {name} stops at once" in capfd.readouterr().err
    assert signal.getsignal(number) is signal.SIG_DFL


def test_a_signal_while_the_end_is_saved_is_not_forgotten(tmp_path):
    it = Setup(tmp_path)
    it.logger.close = lambda summary: signal.raise_signal(signal.SIGTERM)
    with pytest.raises(Terminated):
        it.execute("updates=5")
    assert it.directory.summary().stopped_by == "updates=5"


@pytest.mark.parametrize("raised", [RuntimeError("the env broke"), SystemExit(0)])
def test_a_run_that_fails_saves_what_was_learned(tmp_path, raised):
    it = Setup(tmp_path, raises={6: raised})
    with pytest.raises(type(raised)) as caught:
        it.execute("updates=10")
    found = newest(it.directory.path)
    assert (found.step, found.meta["stopped_by"], found.meta["between_updates"]) == (5, "failed", False)
    assert (found.arrays["weights"] == 2.5).all()
    assert caught.value.__notes__ == [f"what was learned in 5 updates is saved in {it.directory.path}"]


def test_before_the_first_update_there_is_nothing_to_save(tmp_path):
    it = Setup(tmp_path, raises={1: RuntimeError("the env broke")})
    with pytest.raises(RuntimeError) as caught:
        it.execute("updates=10")
    assert (it.steps, hasattr(caught.value, "__notes__")) == ([], False)


def test_an_update_that_may_be_torn_is_not_saved(tmp_path):
    it = Setup(tmp_path, raises={6: RuntimeError("the learner broke")})
    with pytest.raises(RuntimeError) as caught:
        it.execute("updates=10", is_whole=lambda run: False, checkpoint_every_updates=4)
    assert it.steps == [4]
    assert caught.value.__notes__ == ["update 6 may have been applied in part: it was not saved"]


def test_a_failure_that_cannot_be_saved_says_so_and_stays_itself(tmp_path, monkeypatch):
    it = Setup(tmp_path, raises={6: RuntimeError("the env broke")})
    real = it.run.arrays
    with pytest.raises(RuntimeError, match="the env broke") as caught:
        it.execute("updates=10", arrays_of=lambda run: (FullDisk(monkeypatch, "fsync"), real())[1])
    monkeypatch.undo()
    (note,) = caught.value.__notes__
    assert note.startswith("saving what was learned until then failed too: OSError: [Errno 28] No space left")
    assert it.steps == []


def test_metrics_that_cannot_be_written_name_the_run_and_what_to_do(tmp_path):
    it = Setup(tmp_path)
    real = it.logger.write

    def full(step, values):
        if step == 30:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(step, values)

    it.logger.write = full
    with pytest.raises(OSError, match="No space left") as caught:
        it.execute("updates=10")
    where = f"the run in {it.directory.path}"
    assert caught.value.__notes__ == [
        f"ListLogger could not write the metrics of {where}; free some space, or give a directory on another disk",
        f"what was learned in 3 updates is saved in {it.directory.path}",
    ]
    assert it.steps == [3]


def test_a_logger_that_fails_twice_does_not_hide_the_first_error(tmp_path):
    it = Setup(tmp_path, raises={3: ZeroDivisionError()})

    def close(summary):
        raise OSError(errno.ENOSPC, "No space left on device")

    it.logger.close = close
    with pytest.raises(ZeroDivisionError) as caught:
        it.execute("updates=10")
    assert "closing what shows and writes the run failed too: OSError" in caught.value.__notes__[-1]
    assert it.display.calls[-1] is None


@pytest.mark.parametrize("where", ["start", "update", "finish"])
@pytest.mark.parametrize("number", [errno.EPIPE, errno.EIO, errno.EBADF])
def test_a_display_that_nobody_sees_does_not_end_the_run(tmp_path, where, number):
    it = Setup(tmp_path)
    real = getattr(it.display, where)

    def closed(*args):
        real(*args)
        if args != (None,):
            raise OSError(number, os.strerror(number))

    setattr(it.display, where, closed)
    summary = it.execute("updates=5")
    assert (summary.stopped_by, it.directory.summary(), it.steps) == ("updates=5", summary, [5])
    shown = {"start": ["start"], "update": ["start", "update"], "finish": ["start", *["update"] * 5, summary]}
    assert it.display.calls == [*shown[where], None]  # the last gives the terminal back


def test_a_display_that_fails_otherwise_fails_the_run_and_it_is_saved(tmp_path):
    it = Setup(tmp_path)
    real = it.display.update

    def full(*args):
        real(*args)
        if it.run.updates == 3:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    it.display.update = full
    with pytest.raises(OSError, match="Permission denied"):
        it.execute("updates=10")
    assert it.steps == [3]


@pytest.mark.parametrize("where", ["start", "update"])
def test_an_error_of_the_display_still_closes_everything(tmp_path, where):
    it = Setup(tmp_path)

    def broken(*args):
        raise RuntimeError("no terminal")

    setattr(it.display, where, broken)
    with pytest.raises(RuntimeError, match="no terminal"):
        it.execute("updates=10")
    assert (it.logger.num_closed, it.display.calls[-1]) == (1, None)


def test_a_logger_that_does_not_close_keeps_nothing_else_open(tmp_path):
    it = Setup(tmp_path)

    class Broken(ListLogger):
        def close(self, summary):
            raise RuntimeError("still uploading")

    with pytest.raises(RuntimeError, match="still uploading"):
        it.execute("updates=2", loggers=[it.logger, Broken()])
    assert it.logger.num_closed == 1
    assert it.directory.summary() == it.display.calls[-1]


def test_a_full_disk_says_which_checkpoint_failed_and_the_older_one_is_found(tmp_path, monkeypatch):
    it = Setup(tmp_path)
    real = it.run.arrays

    def arrays_then_full(run):
        if it.run.updates == 6:
            FullDisk(monkeypatch, "fsync", 1)
        return real()

    with pytest.raises(OSError, match="No space left") as caught:
        it.execute("updates=10", checkpoint_every_updates=3, arrays_of=arrays_then_full)
    monkeypatch.undo()
    assert caught.value.__notes__[0].startswith("saving the checkpoint after update 6; older ones in")
    assert newest(it.directory.path).step == 3
    assert not [name for name in files_below(it.directory.path) if "tmp" in name]
    assert (it.logger.num_closed, it.display.calls[-1]) == (1, None)


def test_a_monitor_that_sees_nothing_is_noticed(tmp_path):
    it = Setup(tmp_path)
    it.run.monitor = None
    with pytest.raises(ValueError, match=r"the monitor did not see .*instruments=\[monitor\]"):
        it.execute("updates=10")


@pytest.mark.parametrize("name", ["checkpoint_every_updates", "keep_checkpoints"])
def test_numbers_must_be_positive(tmp_path, name):
    with pytest.raises(ValueError, match=rf"{name}=0\): expected an integer >= 1"):
        Setup(tmp_path).execute("updates=10", **{name: 0})


# ---- with a real flow


class Made:
    def __init__(self, value):
        self.value = value
        self.num_env_steps = 4
        self.episodes = (Episode(float(value), 4),)


class Count:
    def __init__(self, shard):
        self.shard = shard

    def __call__(self, weights):
        return Made(float(weights["w"][0]) + self.shard.index)


class Sum:
    policy_name = "policy"
    tolerates_staleness = False

    def open(self, seed):
        return SumState()


class SumState:
    def __init__(self):
        self.w = np.zeros(2)

    def weights(self):
        return {"w": self.w}

    def update(self, batch):
        self.w = self.w + sum(made.value for made in batch) + 1.0
        return Update(self.weights(), {"losses/sum": float(self.w[0])})


def counting():
    flow = Flow("sum")
    learner = Sum()
    weights = flow.latest("weights", of=learner)
    made = flow.source("rollout", Count, reads=weights, shards=2)
    update = flow.learn("learn", learner, flow.batch("batch", made.via(Queue(max_lag=1)), size=2))
    flow.publish(update.weights, to=weights)
    flow.report(update.stats)
    return flow


def run_counting(path, *, adversary=None):
    monitor = Monitor(learners=["learn"])
    directory = RunDirectory.create(path, IDENTITY, {})
    stream = io.StringIO()
    run = Inline(adversary=adversary).open(counting(), seed=1, instruments=[monitor])
    try:
        summary = Loop(
            identity=IDENTITY,
            until=Until.parse("updates=12"),
            monitor=monitor,
            directory=directory,
            loggers=[JsonLines(directory.metrics_path)],
            display=PlainDisplay(stream, first_s=0.0, every_s=0.0),
            arrays_of=lambda run: (run.node_state("learn").weights(), {}),
            checkpoint_every_updates=5,
        ).execute(run)
    finally:
        run.close()
    return summary, directory, stream.getvalue()


def test_a_real_flow_is_counted_and_bounded(tmp_path):
    summary, directory, shown = run_counting(tmp_path / "run")
    assert (summary.stopped_by, summary.updates, summary.env_steps, summary.episodes) == ("updates=12", 12, 96, 24)
    (lag,) = summary.lag.values()
    assert (lag.bound, lag.max) == (1, 1)
    (ledger,) = summary.ledger.values()
    assert ledger.produced == ledger.consumed + ledger.dropped + ledger.lost + ledger.in_flight
    assert ledger.consumed == 24
    metrics = directory.metrics()
    assert [line["step"] for line in metrics] == [8 * update for update in range(1, 13)]
    assert {name.partition("/")[0] for name in metrics[-1]} == {"step", "charts", "losses", "lag", "queue", "node"}
    assert len([line for line in shown.splitlines() if "no update yet" not in line]) == 14
    assert json.loads((directory.path / "summary.json").read_text())["params_sha256"] == summary.params_sha256


def test_a_real_flow_learns_the_same_whatever_the_order(tmp_path):
    plain, *_ = run_counting(tmp_path / "plain")
    mixed, *_ = run_counting(tmp_path / "mixed", adversary=3)
    assert isinstance(plain, Summary)
    assert plain.params_sha256 == mixed.params_sha256


def test_a_quiet_run_prints_nothing(tmp_path, capsys):
    Setup(tmp_path).execute("updates=3", display=Display())
    assert capsys.readouterr() == ("", "")


def test_a_run_is_shown_before_its_first_update_as_often_as_something_is_done():
    """What an update is made of may take minutes."""
    monitor, display, shown = Monitor(learners=["learn"]), ListDisplay(), []
    display.update = lambda monitor, statistics: shown.append((monitor.updates, statistics().nodes["rollout"].firings))
    with Inline().open(counting(), seed=1, instruments=[monitor]) as run:
        Loop(identity=IDENTITY, until=Until.parse("updates=2"), monitor=monitor, directory=None, loggers=[],
            display=display, arrays_of=lambda run: ({}, {}),
        ).execute(run)  # fmt: skip
    assert shown[0] == (0, 0)
    assert (0, 1) in shown
    assert [updates for updates, _ in shown if updates] == [1, 2]
