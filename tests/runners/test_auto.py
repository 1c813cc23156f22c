"""`--on auto`: where a flow runs quickest, decided by measuring it."""

import pytest
from support.processes import samples

from levada.flow import Flow, Queue
from levada.runners import Inline, auto
from levada.runners.auto import Auto
from levada.runners.processes import Processes


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(auto, "TRIAL_S", 0.05)
    monkeypatch.setattr(auto, "num_cores", lambda: 2)


def flow(seconds: float, max_lag: int = 0) -> Flow:
    return samples.counting_flow(samples.Sleeping(seconds), queue=Queue(max_lag=max_lag))


def test_slow_sampling_gets_processes():
    place, why = Auto().choose(flow(0.01))
    assert place == Processes(workers=2)
    assert "an update samples for 4" in why
    assert "2 workers would make it" in why
    assert why.endswith("times as quick")


def test_what_is_quick_stays_in_one_thread(monkeypatch):
    monkeypatch.setattr(auto.Trial, "of", lambda flow, seed: auto.Trial(sampling_s=2e-4, learning_s=1e-4))
    place, why = Auto().choose(flow(0.0))
    assert place == Inline()
    assert why.endswith("which is not worth it")


def test_what_cannot_be_sent_stays_in_one_thread():
    place, why = Auto().choose(samples.counting_flow(lambda shard: samples.Numbers()(shard)))
    assert (place, why) == (Inline(), "its work cannot be sent to other processes")


@pytest.mark.parametrize(("sampling_s", "learning_s", "workers", "runs_ahead", "expected_s"), [
    (4.0, 1.0, 1, False, 5.0),
    (4.0, 1.0, 2, False, 3.0),
    (4.0, 1.0, 2, True, 2.5),  # three at work on two cores
    (4.0, 4.0, 1, True, 4.0),
    (1.0, 6.0, 1, True, 6.0),
])  # fmt: skip
def test_the_prediction(sampling_s, learning_s, workers, runs_ahead, expected_s):
    trial = auto.Trial(sampling_s, learning_s)
    assert auto.predict_s(trial, 4, workers, runs_ahead) == pytest.approx(expected_s, abs=0.01)


def test_it_runs():
    with Auto().open(flow(0.01), seed=1) as run:
        reports = iter(run)
        assert [next(reports).firing for _ in range(3)] == [1, 2, 3]
        assert len(run.worker_pids) == 2
