"""The executor finds what a schedule does wrong: each test breaks one promise of the schedule."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from levada.algorithms.dqn import DQN
from levada.flow import Queue
from levada.rl.envs.task import Task
from levada.schedule import Hub, Publish, ShardsLost
from levada.testing import Executor, toy_flow


def test_a_sound_schedule_passes_and_reaches_its_bound() -> None:
    executor = Executor(toy_flow(Queue(max_lag=2)), seed=1, losses=0.02).run(updates=100).drain()
    assert max(executor.audit.lags["policy"]) == 2


def test_the_same_seed_gives_the_same_run() -> None:
    first, again, other = (
        Executor(toy_flow(Queue(max_lag=2, order="arrival")), seed).run(updates=30) for seed in (3, 3, 4)
    )
    assert first.audit.updates == again.audit.updates
    assert first.audit.updates != other.audit.updates


def test_a_flow_that_cannot_start_is_reported() -> None:
    with pytest.raises(AssertionError, match="stuck"):
        Executor(toy_flow(Queue(max_lag=0), every=2), seed=1).run(updates=5)


def test_a_version_that_is_announced_too_early_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    follow = Executor._follow

    def early(self: Executor, instruction: Any) -> None:
        is_publish = isinstance(instruction, Publish)
        follow(self, replace(instruction, version=instruction.version + 1) if is_publish else instruction)

    monkeypatch.setattr(Executor, "_follow", early)
    with pytest.raises(AssertionError):
        Executor(toy_flow(Queue(max_lag=1)), seed=1).run(updates=5)


def test_a_ledger_that_forgets_an_item_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = Hub.handle

    def forgetful(self: Hub, event: Any) -> Any:
        return handle(self, ShardsLost(()) if isinstance(event, ShardsLost) else event)

    monkeypatch.setattr(Hub, "handle", forgetful)
    with pytest.raises(AssertionError):
        Executor(toy_flow(Queue(max_lag=1)), seed=1, losses=0.2).run(updates=20)


def test_more_firings_than_allowed_are_reported() -> None:
    with pytest.raises(AssertionError, match="after 10 firings"):
        Executor(toy_flow(Queue(max_lag=1)), seed=1).run(updates=50, within=10)


def test_flows_with_replays_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Executor: flow 'dqn' has replays \(replay\), expected queues only"):
        Executor(DQN().flow(Task("CartPole-v1")), seed=1)
