"""`--on auto` with real runs, briefly."""

from statistics import fmean

import pytest
from support.processes import samples

from levada.flow import Flow, Queue
from levada.flow.errors import DeploymentError
from levada.run.planner import probe as probes
from levada.run.planner.auto import Auto
from levada.run.planner.candidates import Variant
from levada.run.planner.probe import probe
from levada.run.planner.search import WORTH_IT
from levada.runners import Inline
from levada.runners.processes import Processes
from levada.runners.threads import Threads


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(probes, "PROBE_S", 0.05)


def flow(seconds: float, max_lag: int = 0) -> Flow:
    return samples.counting_flow(samples.Sleeping(seconds), queue=Queue(max_lag=max_lag))


def test_a_source_that_waits_gets_workers():
    plan = Auto().search(flow(0.01))
    assert plan.best.workers >= 2
    speeds = {
        each.candidate: fmean(e.measured for e in plan.probed if e.candidate == each.candidate) for each in plan.probed
    }
    assert plan.steps_per_s == speeds[plan.best]
    assert max(speeds.values()) <= WORTH_IT * plan.steps_per_s
    assert str(plan.probed[0].candidate) == "inline"


def test_a_probe_measures_what_sampling_waits_for():
    found = probe(flow(0.05), Inline())
    assert found.sampling_s > 20 * found.sampling_cpu_s
    assert found.steps_per_s < 1.0 / found.sampling_s


@pytest.mark.parametrize("place", [Threads(workers=2), Processes(workers=2)])
def test_a_probe_of_workers(place):
    found = probe(flow(0.03), place)
    assert 0.0 < found.sampling_cpu_s < 0.5 / found.steps_per_s  # it waits for most of the time
    assert 0.0 < found.learning_s < 0.5 / found.steps_per_s
    assert found.item_steps == pytest.approx(0.25, rel=0.5)  # four items per update


def test_what_cannot_be_sent_stays_in_this_process():
    plan = Auto().search(samples.counting_flow(lambda shard: samples.Numbers()(shard)))
    assert {each.candidate.kind for each in plan.probed} <= {"inline", "threads"}


def test_it_runs():
    with Auto(max_probes=1).open(flow(0.001), seed=1) as run:
        reports = iter(run)
        assert [next(reports).firing for _ in range(3)] == [1, 2, 3]


def test_an_environment_that_cannot_be_closed_is_a_warning(monkeypatch):
    class Run:
        def __init__(self, run):
            self._run = run

        def __getattr__(self, name):
            return getattr(self._run, name)

        def __iter__(self):
            return iter(self._run)

        def close(self):
            self._run.close()
            raise OSError("the simulator is gone")

    place = Inline()
    monkeypatch.setattr(
        Inline, "open", lambda self, flow, _open=Inline.open, **options: Run(_open(self, flow, **options))
    )
    with pytest.warns(RuntimeWarning, match="OSError: the simulator is gone; that was when a probe of flow"):
        probe(flow(0.0), place)


def test_a_lag_overlaps():
    assert [Variant.of(flow(0.0, max_lag)).overlaps for max_lag in (0, 1)] == [False, True]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (",max_envs=0", r"Auto\(max_envs=0\): expected an integer >= 1, or None"),
        (",max_lag=x", r"Auto\(max_lag='x'\): expected an integer >= 0, or None"),
        (":2", "expected 'auto', or with options behind a comma"),
        (",envs=4", "no option 'envs'; .*max_envs=..., max_lag=..., max_threads=..., max_probes=..."),
    ],
)
def test_mistakes(text, message):
    with pytest.raises(DeploymentError, match=message):
        Auto.parse(text)
