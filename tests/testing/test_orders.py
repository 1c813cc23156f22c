"""`check_orders` passes what timing cannot change, and finds what it can."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from levada.algorithms.dqn import DQN
from levada.algorithms.ppo import PPO
from levada.flow import Queue, Update
from levada.rl.envs.task import Task
from levada.runners import InlineRun
from levada.testing import ToyLearner, check_orders, toy_flow

TASK = Task("CartPole-v1")


@pytest.mark.parametrize("max_lag", range(3))
def test_the_largest_lag_of_each_queue(max_lag: int) -> None:
    assert check_orders(toy_flow(Queue(max_lag=max_lag, order="arrival")), updates=60) == {"rollout->batch": max_lag}


def test_algorithms_learn_the_same_in_every_order() -> None:
    ppo = PPO(shards=2, num_envs=2, num_steps=8, hidden_sizes=(8,), minibatch_size=16, num_epochs=1, max_lag=1)
    assert check_orders(ppo.flow(TASK), updates=3, adversaries=range(2)) == {"gae->batch": 1}
    dqn = DQN(num_envs=2, hidden_sizes=(8,), learning_starts=16, batch_size=8, buffer_size=100)
    assert check_orders(dqn.flow(TASK), updates=3, adversaries=range(2)) == {}


@dataclass(frozen=True)
class Adding:
    """A learner whose weights are arrays that say what it learned from."""

    policy_name: str = "policy"
    tolerates_staleness: bool = True

    def open(self, seed: int) -> AddingState:
        return AddingState()


class AddingState:
    def __init__(self) -> None:
        self.sum = {"sum": (np.zeros(1),)}

    def weights(self) -> Any:
        return copy.deepcopy(self.sum)

    def update(self, batch: Any) -> Update[Any]:
        self.sum["sum"][0][:] = self.sum["sum"][0] * 1.5 + sum(number for number, _ in batch)
        return Update(self.weights(), {})


def test_work_that_shares_state_between_shards_is_found() -> None:
    made: list[int] = []

    def counting(shard: Any) -> Any:
        def work(weights: Any) -> tuple[int, int]:
            made.append(shard.index)
            return len(made), shard.index

        return work

    with pytest.raises(
        AssertionError, match="weights of learn after 10 updates differ between adversary 0 and the plain"
    ):
        check_orders(toy_flow(Queue(max_lag=2), source=counting, learner=Adding()))


def test_in_arrival_order_nothing_is_promised() -> None:
    check_orders(toy_flow(Queue(max_lag=2, order="arrival"), learner=ToyLearner()))


def test_a_lag_above_its_bound_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    statistics = InlineRun.statistics

    def stale(run: InlineRun) -> Any:
        found = statistics(run)
        for channel in found.channels.values():
            for lag in channel.lag.values():
                object.__setattr__(lag, "max", 7)
        return found

    monkeypatch.setattr(InlineRun, "statistics", stale)
    with pytest.raises(AssertionError, match="rollout->batch has lag 7 under the plain order, expected at most 1"):
        check_orders(toy_flow(Queue(max_lag=1)))
