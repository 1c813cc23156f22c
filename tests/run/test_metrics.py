"""Metrics have the names that users know, and are left out while nothing is known."""

import math

import pytest
from support.runs.fakes import Clock, channel, report, statistics, used

from levada.flow.events import LagStatistics, NodeStatistics, Reported, Statistics
from levada.run.metrics import collect
from levada.run.monitor import Monitor


def test_everything_has_its_name():
    clock = Clock()
    monitor = Monitor(clock=clock)
    monitor.on_event(used(0, steps=80, returns=[1.0, 3.0], length=40))
    monitor.on_event(Reported(report(4)))
    clock.now = 10.0
    assert collect(monitor, statistics(), {"losses/policy_loss": 0.25}) == pytest.approx(
        {
            "charts/episodic_return": 2.0,
            "charts/episodic_length": 40.0,
            "charts/SPS": 8.0,
            "charts/updates": 4.0,
            "charts/episodes": 2.0,
            "charts/wall_s": 10.0,
            "losses/policy_loss": 0.25,
            "queue/rollout->learn/fill": 3 / 8,
            "lag/rollout->learn/mean": 0.4,
            "lag/rollout->learn/max": 1.0,
            "node/rollout/busy": 0.6,
            "node/learn/busy": 0.4,
        }
    )


def test_what_is_not_known_is_left_out():
    nodes = {"learn": NodeStatistics(0, 0.0, 0.0, 0.0, None)}
    channels = {"a": channel(fill=0, capacity=0, lag={"policy": LagStatistics(0, math.nan, 1, 0)})}
    found = collect(Monitor(clock=Clock()), Statistics(0.0, nodes, channels, {}), {})
    assert found == {"charts/updates": 0.0, "charts/episodes": 0.0, "charts/wall_s": 0.0, "queue/a/fill": 0.0}


def test_several_policies_have_lags_of_their_own():
    lag = LagStatistics(2, 1.0, 4, 3)
    found = collect(Monitor(), statistics(channels={"a": channel(lag={"left": lag, "right": lag})}), {})
    assert {name for name in found if name.startswith("lag/")} == {
        "lag/a:left/mean",
        "lag/a:left/max",
        "lag/a:right/mean",
        "lag/a:right/max",
    }
