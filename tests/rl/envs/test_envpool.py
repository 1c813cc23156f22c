"""Environments of EnvPool as tasks; what needs the package is left out where it is not installed."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import levada as lv
from levada.algorithms.ppo import PPO
from levada.rl.envs.task import Task, TaskError

installed = pytest.mark.skipif(importlib.util.find_spec("envpool") is None, reason="EnvPool is not installed")


def play(task: Task, seed: int, num_steps: int = 40) -> list[Any]:
    rng, seen = np.random.default_rng(0), []
    with task.make(num_envs=3) as batch:
        obs = batch.reset(seed)
        for _ in range(num_steps):
            result = batch.step(rng.integers(0, task.action_space.n, 3))  # type: ignore[attr-defined]
            seen.append((np.array(obs), result.reward, result.terminated, result.is_reset))
            obs = result.obs
    return seen


@installed
def test_atari_is_as_by_ale_py() -> None:
    task = Task("ALE/Pong-v5", vectorization="envpool")
    assert task.observation_space == Task("ALE/Pong-v5").observation_space
    assert task.action_space == Task("ALE/Pong-v5").action_space
    assert (task.frame_stack, task.reward_clip) == (4, 1.0)
    assert task.env_kwargs == {"repeat_action_probability": 0.25, "stack_num": 1, "reward_clip": False}
    again = Task("ALE/Pong-v5", env_kwargs=task.env_kwargs, vectorization="envpool", frame_stack=4, reward_clip=1.0)
    assert again == task


@installed
def test_a_seed_is_the_same_episodes_each_time() -> None:
    task = Task("CartPole-v1", vectorization="envpool")
    first, same, other = play(task, 1), play(task, 1), play(task, 2)
    for one, two in zip(first, same, strict=True):
        for a, b in zip(one, two, strict=True):
            np.testing.assert_array_equal(a, b)
    assert not np.array_equal(first[0][0], other[0][0])
    ends = np.array([terminated for _, _, terminated, _ in first])
    resets = np.array([is_reset for *_, is_reset in first])
    assert ends.any()
    np.testing.assert_array_equal(resets[1:], ends[:-1])


@installed
@pytest.mark.parametrize("on", ["inline", "processes:2"])
def test_it_is_learned_from(on: str, tmp_path: Any) -> None:
    hp = PPO(shards=2, num_envs=4, num_steps=16, minibatch_size=64)
    task = Task("CartPole-v1", vectorization="envpool")
    result = lv.train(hp, task, on=on, until="updates=20", seed=1, out=tmp_path / "run", display="quiet")
    assert result.summary.episodes > 20
    assert lv.evaluate(tmp_path / "run", num_episodes=2).mean > 8


@installed
def test_life_losses_are_seen() -> None:
    task = Task("ALE/Breakout-v5", vectorization="envpool", life_loss=True)
    with task.make(num_envs=2) as batch:
        batch.reset(0)
        life_lost = [batch.step(np.array([1, 2])).life_lost.any() for _ in range(120)]
    assert any(life_lost)


@installed
def test_mistakes_are_named() -> None:
    with pytest.raises(TaskError, match="EnvPool has no 'Nothing-v5'"):
        Task("ALE/Nothing-v5", vectorization="envpool").make(1)
    with pytest.raises(TaskError, match=r"'Pong-v5': EnvPool refuses env_kwargs .*'nonsense'"):
        Task("ALE/Pong-v5", vectorization="envpool", env_kwargs={"nonsense": 1}).make(1)


def test_without_the_package_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(TaskError, match=r"needs EnvPool; run: pip install 'levada\[envpool\]'"):
        Task("ALE/Pong-v5", vectorization="envpool").make(1)


def test_a_callable_is_no_id() -> None:
    with pytest.raises(TaskError, match="only an id goes together with vectorization='envpool'"):
        Task(lambda: spaces, vectorization="envpool")  # type: ignore[arg-type,return-value]
