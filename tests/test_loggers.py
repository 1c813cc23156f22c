"""Loggers and instruments of whole runs: what they receive, how they end a run, and that they change nothing."""

import csv
import json
import math
import threading

import pytest
from support.runs import cli as cli_harness

import levada
from levada.api.options import OptionError
from levada.run.active import ActiveRun, StopError
from levada.run.identity import Identity
from levada.run.metrics import is_measured

IDENTITY = Identity(algorithm="ppo", env="CartPole-v1", seed=1, deployment="inline", flow_hash="")


def train(path, **options):
    options = {"until": "updates=6", "display": "quiet", "log": "none", "seed": 1, **cli_harness.TINY_FIELDS, **options}
    return levada.train("ppo", "CartPole-v1", out=path, **options)


def lines_of(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


class Kept:
    """Instrument and logger that keeps everything, and may stop the run."""

    def __init__(self, stop_after=None, why="pruned"):
        self.rows, self.calls, self.num_events = [], [], 0
        self.stop_after, self.why = stop_after, why

    def on_event(self, event):
        self.num_events += 1

    def on_metrics(self, row, run):
        self.rows.append(row)
        if len(self.rows) == self.stop_after:
            run.stop(self.why)

    def start(self, run):
        self.run = run
        self.calls.append("start")

    def write(self, env_steps, values):
        self.calls.append((env_steps, dict(values)))
        if len(self.calls) - 1 == self.stop_after:
            self.run.stop(self.why)

    def close(self, summary):
        self.calls.append(summary)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return train(tmp_path_factory.mktemp("plain") / "run")


def test_loggers_and_instruments_receive_the_rows_and_change_nothing(tmp_path, plain):
    logger, instrument = Kept(), Kept()
    run = train(tmp_path / "run", log="tensorboard,csv", loggers=[logger], instruments=[instrument])
    lines = lines_of(run.path)
    assert len(lines) == 6
    assert [[(name, x) for name, x in line.items() if not is_measured(name)] for line in lines] == [
        [(name, x) for name, x in line.items() if not is_measured(name)] for line in lines_of(plain.path)
    ]
    assert [{name: x if math.isfinite(x) else None for name, x in row.items()} for row in instrument.rows] == lines
    assert [{"step": step, **values} for step, values in logger.calls[1:-1]] == instrument.rows
    assert (logger.calls[0], logger.calls[-1]) == ("start", run.summary)
    assert (logger.run.path, logger.run.settings["num_envs"], logger.run.identity.seed) == (run.path, 2, 1)
    assert instrument.num_events > 0
    with (run.path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [{name: float(x) for name, x in row.items() if x} for row in rows] == [
        {name: x for name, x in line.items() if x is not None} for line in lines
    ]
    assert run.summary.params_sha256 == plain.summary.params_sha256


@pytest.mark.parametrize("place", ["instruments", "loggers"])
def test_a_stopped_run_is_saved_and_goes_on_to_the_same_end(tmp_path, plain, place):
    run = train(tmp_path / "run", log="csv", **{place: [Kept(stop_after=3)]})
    assert (run.summary.stopped_by, run.summary.updates) == ("pruned", 3)
    assert json.loads((run.path / "summary.json").read_bytes())["stopped_by"] == "pruned"
    assert not (run.path / "error.txt").exists()
    logger = Kept()
    again = levada.resume(run.path, display="quiet", loggers=[logger])
    assert logger.run.resumed_at == 3 * 32
    assert (again.summary.stopped_by, again.summary.params_sha256) == ("updates=6", plain.summary.params_sha256)
    with (run.path / "metrics.csv").open(newline="") as file:
        assert [int(row["step"]) for row in csv.DictReader(file)] == [line["step"] for line in lines_of(run.path)]


def test_a_stop_while_a_replay_is_filled_ends_the_run_before_its_first_update(tmp_path):
    class AtOnce(Kept):
        def start(self, run):
            thread = threading.Thread(target=run.stop, args=("not needed",))
            thread.start()
            thread.join()

    run = levada.train(
        "dqn",
        "CartPole-v1",
        until="steps=1_000_000",
        out=tmp_path / "run",
        display="quiet",
        log="none",
        loggers=[AtOnce()],
    )
    assert (run.summary.stopped_by, run.summary.updates) == ("not needed", 0)


def test_a_logger_that_fails_fails_the_run(tmp_path):
    class Broken(Kept):
        def write(self, env_steps, values):
            raise RuntimeError("no idea where to write")

    logger, broken = Kept(), Broken()
    with pytest.raises(RuntimeError, match="no idea where to write"):
        train(tmp_path / "run", loggers=[logger, broken])
    assert "no idea where to write" in (tmp_path / "run" / "error.txt").read_text()
    assert (logger.calls[-1], broken.calls[-1]) == (None, None)


def test_a_logger_that_does_not_start_closes_the_others(tmp_path):
    class Broken(Kept):
        def start(self, run):
            raise RuntimeError("no account")

    logger = Kept()
    with pytest.raises(RuntimeError, match="no account"):
        train(tmp_path / "run", loggers=[logger, Broken()])
    assert logger.calls == ["start", None]


def test_what_is_no_logger_or_instrument_is_rejected():
    with pytest.raises(OptionError, match=r"loggers\[0\] is Kept, expected .* start\(run\).*did you mean to make one"):
        levada.train("ppo", "CartPole-v1", loggers=[Kept])
    with pytest.raises(OptionError, match=r"loggers='csv': expected a sequence of objects with the methods start"):
        levada.train("ppo", "CartPole-v1", loggers="csv")
    with pytest.raises(OptionError, match=r"instruments\[0\] is int, .* on_event\(event\) or on_metrics\(row, run\)"):
        levada.train("ppo", "CartPole-v1", instruments=[1])


@pytest.mark.parametrize("reason", ["", " ", "interrupted", "failed", "sources ended", "x" * 201, "a\nb"])
def test_reasons_that_would_be_misread(reason):
    run = ActiveRun(IDENTITY, {}, None)
    with pytest.raises(StopError, match="expected 1 to 200 printable characters"):
        run.stop(reason)
    assert run.stop_reason is None


def test_a_reason_is_text_and_the_first_one_counts():
    run = ActiveRun(IDENTITY, {}, None)
    with pytest.raises(StopError, match=r"run\.stop\(3\): expected a reason as text"):
        run.stop(3)
    run.stop("first")
    run.stop("second")
    assert run.stop_reason == "first"
