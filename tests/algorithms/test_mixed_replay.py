"""IMPALA and APPO that learn from rollouts again: what comes again is what was, and as often as was asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.envs.pixels import make_pixels

import levada as lv
from levada.algorithms.appo import APPO
from levada.algorithms.checks import ConfigError
from levada.algorithms.impala import IMPALA
from levada.flow import Flow, Shard
from levada.flow.events import Used
from levada.rl.acting.sampler import Sampler
from levada.rl.data.spaces import map_nest
from levada.rl.envs.task import Task
from levada.rl.policies.policy import Policy
from levada.rl.replay.transitions import Transitions
from levada.runners.processes import Processes

TASKS = [
    Task("CartPole-v1"),
    Task(make_pixels, frame_stack=3),
    Task(make_pixels, env_kwargs={"mode": "SameStep"}, frame_stack=3),
]
NUM_ENVS, NUM_STEPS = 3, 5


def flattened(some: Transitions) -> dict[str, Any]:
    return {name: map_nest(np.asarray, column) for name, column in some.columns.items()}


@pytest.mark.parametrize("task", TASKS)
def test_rows_of_a_replay_are_rollouts_as_they_were(task: Task) -> None:
    policy = Policy(observation_space=task.observation_space, action_space=task.action_space)
    recipe = Sampler(task=task, policy=policy, num_envs=NUM_ENVS, num_steps=NUM_STEPS)
    live, weights = recipe(Shard("rollout", 0, 1, seed=1)), policy.weights(policy.module(0))
    replay = Flow("flow").replay("replay", of=Transitions, capacity=60, min_size=1, samples_per_insert=1.0)
    table = Transitions.open_table(replay, capacity=60, seed=0)
    known: dict[bytes, dict[str, Any]] = {}
    for _ in range(15):
        rows = live(weights).sequences()
        table.insert(rows)
        for number in range(NUM_ENVS):
            row = {name: column[number].copy() for name, column in flattened(rows).items()}
            known[row["log_prob"].tobytes() + row["obs"].tobytes()] = row
    assert table.num_entries == 15 * NUM_ENVS
    [batch], _ = table.sample(200)
    found = flattened(batch)
    for number in range(200):
        row = {name: column[number] for name, column in found.items()}
        for name, expected in known[row["log_prob"].tobytes() + row["obs"].tobytes()].items():
            np.testing.assert_array_equal(row[name], expected, err_msg=name)
    live.close()


@pytest.mark.parametrize("place", [lv.Inline(), Processes(workers=2)], ids=str)
@pytest.mark.parametrize(("algorithm", "ratio"), [(IMPALA, 0.5), (IMPALA, 2.0), (APPO, 1.0)])
def test_as_many_come_again_as_was_asked_for(place: Any, algorithm: type[IMPALA], ratio: float) -> None:
    # without a bound on lag: what is too old to be new is still there to come again, which would change the ratio
    hp = algorithm(
        shards=2, num_envs=2, num_steps=8, num_rollouts=2, max_lag=None, replay_ratio=ratio, replay_buffer_size=8
    )
    with place.open(hp.flow(Task("CartPole-v1")), seed=1) as run:
        for report in run:
            if report.firing == 150:
                break
        known = run.statistics()
    [channel] = known.channels.values()
    assert channel.ledger.balanced
    assert not channel.ledger.dropped
    assert known.replays["replay"].reuse == pytest.approx(ratio, rel=0.15)
    num_again, num_new = known.nodes["again"].firings, known.nodes["sequences"].firings
    assert num_again / num_new == pytest.approx(ratio, rel=0.25)


@pytest.mark.parametrize("ratio", [0.5, 1.0, 3.0])
def test_new_rollouts_are_learned_from_with_the_usual_bound(ratio: float) -> None:
    """Updates by what comes again do not make them too old."""
    hp = IMPALA(shards=2, num_envs=2, num_steps=8, replay_ratio=ratio, replay_buffer_size=8)
    with Processes(workers=2).open(hp.flow(Task("CartPole-v1")), seed=1) as run:
        for report in run:
            if report.firing == 200:
                break
        [channel] = run.statistics().channels.values()
    assert channel.ledger.consumed == pytest.approx(200 / (1.0 + ratio), rel=0.25)
    assert sum(channel.ledger.dropped.values()) <= 0.1 * channel.ledger.produced


@pytest.mark.parametrize("fields", [{"replay_ratio": 1.0}, {"max_lag": None}, {"on_new_weights": "cut"}])
def test_an_order_that_timing_decides_is_not_called_another(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"order='admission'\): expected order='arrival'"):
        IMPALA(order="admission", **fields)


def test_the_learning_rate_falls_with_steps_of_the_environment() -> None:
    hp = IMPALA(learning_rate=1.0, anneal_steps=100, replay_ratio=1.0)
    assert hp.coefficients(100)["learning_rate"] == pytest.approx(0.5)


def test_the_smallest_replay_holds_a_batch() -> None:
    with pytest.raises(ConfigError, match="replay_buffer_size"):
        IMPALA(num_rollouts=4, replay_ratio=1.0, replay_buffer_size=3)
    assert IMPALA(num_rollouts=100).replay_ratio == 0.0, "what is not in use limits nothing"


class LagAtUse:
    """The largest number of updates between a rollout's version and the update that learns from it, counted by itself."""

    def __init__(self) -> None:
        self.num_updates = self.largest = self.num_rollouts = 0

    def on_event(self, event: object) -> None:
        if isinstance(event, Used) and event.node == "learn":
            for header in event.headers:
                self.largest = max(self.largest, self.num_updates - header.versions["policy"])
                self.num_rollouts += 1
            self.num_updates += 1


@pytest.mark.parametrize(("max_lag", "ratio", "bound"), [(4, 0.5, 10), (0, 1.0, 4), (1, 3.0, 10)])
@pytest.mark.parametrize("num_rollouts", [1, 3])
def test_the_printed_bound_is_kept_when_rollouts_are_learned_from(
    max_lag: int, ratio: float, bound: int, num_rollouts: int
) -> None:
    hp = IMPALA(
        shards=3, num_envs=1, num_steps=2, num_rollouts=num_rollouts, max_lag=max_lag, replay_ratio=ratio,
        replay_buffer_size=8, hidden_sizes=(4,), compile=False,
    )  # fmt: skip
    flow, lag = hp.flow(Task("CartPole-v1")), LagAtUse()
    assert f"rollout->batch: {hp.queue.capacity} tickets, lag <= {bound} of policy" in str(flow).replace(
        "ticket,", "tickets,"
    )
    with lv.Inline(adversary=1).open(flow, seed=1, instruments=[lag]) as run:
        for report in run:
            if report.firing == 60:
                break
        [channel] = run.statistics().channels.values()
    assert lag.largest <= bound
    assert channel.lag["policy"].max == lag.largest, "what is reported is what was learned from"
    assert channel.lag["policy"].bound == bound
    assert lag.num_rollouts >= 5 * num_rollouts
