"""The summary says exactly what happened, in JSON that any reader takes."""

import json
import math

import msgspec
import pytest
from support.runs.fakes import IDENTITY, Clock, channel, report, statistics, used

from levada.flow.events import Failed, LagStatistics, Ledger, ReplayStatistics, Reported
from levada.run.display.text import summary_text
from levada.run.monitor import Monitor
from levada.run.summary import Summary, summarize


def run(returns=(1.0, 2.0), stats=None):
    clock = Clock()
    monitor = Monitor(target_return=1.0, clock=clock)
    clock.now = 2.0
    monitor.on_event(used(0, steps=80, returns=returns))
    monitor.on_event(Reported(report(4)))
    clock.now = 10.0
    return summarize(IDENTITY, monitor, stats or statistics(), params_sha256="cd" * 32, stopped_by="steps=80")


def test_everything_is_said():
    assert json.loads(run().to_json()) == {
        "algorithm": "ppo",
        "env": "CartPole-v1",
        "seed": 1,
        "deployment": "inline",
        "threads": 1,
        "precision": "float32",
        "device": "cpu",
        "machine": {},
        "flow_hash": "ab" * 32,
        "stopped_by": "steps=80",
        "env_steps": 80,
        "updates": 4,
        "episodes": 2,
        "wall_s": 10.0,
        "startup_s": 2.0,
        "steps_per_s": 10.0,
        "return_mean_100": 1.5,
        "unshaped_return_mean_100": None,
        "solved_at_s": None,
        "solved_at_steps": None,
        "policies": {},
        "evaluations": {},
        "num_started_from_scratch": 0,
        "lag": {"rollout->learn": {"max": 1, "mean": 0.4, "bound": 1}},
        "ledger": {
            "rollout->learn": {
                "produced": 13,
                "consumed": 10,
                "dropped": 0,
                "lost": 0,
                "in_flight": 3,
                "dropped_by_reason": {},
            }
        },
        "replays": {},
        "efficiency": 0.8,
        "bottleneck": "rollout is busy 60% of the time",
        "advice": None,
        "times": None,
        "notes": [],
        "params_sha256": "cd" * 32,
    }


def test_what_came_of_a_replay_is_said():
    stats = statistics(
        replays={"replay": ReplayStatistics(40, 50, 108, 400, 4.0, 4.0, Ledger(12, 9, {}, 1, 2), lost=7)}
    )
    found = json.loads(run(stats=stats).to_json())
    assert found["replays"] == {"replay": {"inserted": 108, "sampled": 400, "reuse": 4.0, "asked": 4.0, "lost": 7}}
    assert found["ledger"]["replay"]["consumed"] == 9
    assert summary_text(run(stats=stats)).endswith("| reuse replay 4.00 of 4")


def test_a_shard_that_began_anew_is_said():
    monitor = Monitor(clock=Clock())
    for starts_from_scratch in (False, True, True):
        monitor.on_event(Failed("rollout", 0, "the worker ended by SIGKILL", starts_from_scratch))
    again = Monitor(clock=Clock())
    again.restore(monitor.state())
    found = summarize(IDENTITY, again, statistics(), params_sha256="cd" * 32, stopped_by="steps=80")
    assert found.num_started_from_scratch == 2
    assert "| 2 x a shard or a table started over: not the result of an undisturbed run |" in summary_text(found)


def test_the_moment_of_solving_is_said():
    found = run([2.0] * 100)
    assert (found.solved_at_s, found.solved_at_steps) == (2.0, 80)


def test_json_comes_back():
    found = run()
    assert Summary.from_json(found.to_json()) == found


@pytest.mark.parametrize("returns", [[], [math.nan], [math.inf]])
def test_what_is_not_known_is_null(returns):
    found = run(returns)
    assert found.return_mean_100 is None
    assert json.loads(found.to_json(), parse_constant=pytest.fail)["return_mean_100"] is None


def test_lag_is_by_policy_where_there_are_several():
    lags = {
        "left": LagStatistics(max=2, mean=1.0, bound=4, count=3),
        "right": LagStatistics(max=0, mean=math.nan, bound=None, count=0),
    }
    stats = statistics(channels={"a": channel(lag=lags), "b": channel(), "c": channel(lag={})})
    found = json.loads(run(stats=stats).to_json())["lag"]
    assert found == {
        "a:left": {"max": 2, "mean": 1.0, "bound": 4},
        "a:right": {"max": 0, "mean": None, "bound": None},
        "b": {"max": 1, "mean": 0.4, "bound": 1},
    }


def test_the_ledger_adds_up():
    stats = statistics(channels={"a": channel(dropped={"stale": 3, "full": 2}, lost=1)})
    ledger = run(stats=stats).ledger["a"]
    assert (ledger.dropped, ledger.dropped_by_reason) == (5, {"stale": 3, "full": 2})
    assert ledger.produced == ledger.consumed + ledger.dropped + ledger.lost + ledger.in_flight


def test_a_torn_summary_is_refused():
    with pytest.raises(msgspec.DecodeError):
        Summary.from_json(run().to_json()[:-3])
