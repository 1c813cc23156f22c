"""Rollouts of stacked frames: each frame once, and to the bit what Gymnasium's stacking would have taught."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from support.envs.pixels import Pixels, make_pixels, make_stacked_pixels

import levada as lv
from levada.algorithms.impala import IMPALA
from levada.algorithms.ppo import PPO
from levada.flow import Shard
from levada.rl.acting.sampler import Sampler
from levada.rl.data.frames import Frames
from levada.rl.envs.task import Task
from levada.rl.policies.policy import Policy
from levada.run.storage.hashing import params_sha256

MODES = [None, *(mode.value for mode in AutoresetMode)]


def tasks(k: int, mode: str | None) -> tuple[Task, Task]:
    """With levada's stacking, and with Gymnasium's."""
    if mode is None:
        return Task(Pixels, frame_stack=k), Task(make_stacked_pixels, env_kwargs={"stack": k})
    return Task(make_pixels, env_kwargs={"mode": mode}, frame_stack=k), Task(
        make_pixels, env_kwargs={"mode": mode, "stack": k}
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("num_steps", "k"), [(1, 4), (2, 4), (7, 3), (20, 1)])
def test_rollouts_show_what_gymnasiums_stacking_shows(mode: str | None, num_steps: int, k: int) -> None:
    num_envs = 3
    lives = []
    for task in tasks(k, mode):
        policy = Policy(observation_space=task.observation_space, action_space=task.action_space)
        live = Sampler(task=task, policy=policy, num_envs=num_envs, num_steps=num_steps)(Shard("rollout", 0, 1, seed=3))
        lives.append((live, policy.weights(policy.module(0))))
    for _ in range(30 // num_steps):
        ours, theirs = (live(weights) for live, weights in lives)
        assert isinstance(ours.obs, Frames)
        assert ours.obs.pool.num_frames == (num_steps + k) * num_envs  # each once, and those before the first step
        is_seen = np.ones((num_steps + 1, num_envs), np.bool_)
        np.testing.assert_array_equal(np.asarray(ours.obs)[is_seen], np.asarray(theirs.obs)[is_seen])
        for name in ("action", "reward", "terminated", "truncated", "mask", "log_prob", "value", "next_value"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=name)
        assert ours.episodes == theirs.episodes
    for live, _ in lives:
        live.close()


@pytest.mark.parametrize("hp", [
    PPO(num_envs=2, num_steps=8, num_epochs=2, minibatch_size=8, shards=2),
    PPO(num_envs=2, num_steps=8, num_epochs=2, minibatch_size=8, compile=False),
    IMPALA(num_envs=2, num_steps=8, num_rollouts=2, microbatch_size=16),
], ids=["ppo", "ppo, eager", "impala"])  # fmt: skip
def test_both_teach_the_same(hp: PPO | IMPALA) -> None:
    found = set()
    for task in tasks(4, "SameStep"):
        with lv.Inline().open(hp.flow(task), seed=2) as run:
            for report in run:
                if report.firing == 4:
                    break
            found.add(params_sha256(run.node_state("learn").weights()))
    assert len(found) == 1


def test_frames_of_a_rollout_are_made_in_place() -> None:
    """What a worker sends is the memory that the shard was given; no stack is put together on the way."""
    task = Task(make_pixels, frame_stack=4)
    policy = Policy(observation_space=task.observation_space, action_space=task.action_space)
    given = []

    def empty(shape: tuple[int, ...], dtype: object) -> np.ndarray:
        given.append(np.empty(shape, dtype))
        return given[-1]

    shard = Shard("rollout", 0, 1, seed=3, empty=empty)
    live = Sampler(task=task, policy=policy, num_envs=2, num_steps=5)(shard)
    obs = live(policy.weights(policy.module(0))).sequences().columns["obs"]
    live.close()
    assert isinstance(obs, Frames) and obs.shape == (2, 5, 4, 10, 10)
    assert any(np.shares_memory(obs.pool.as_array(), memory) for memory in given)
