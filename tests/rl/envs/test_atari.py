"""Atari by ale-py's vector environment: standard preprocessing, scores that are those of the game."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import levada as lv
from levada.flow import Shard
from levada.rl.acting.evaluation import evaluate
from levada.rl.acting.sampler import Sampler
from levada.rl.acting.trained_policy import TrainedPolicy
from levada.rl.data.frames import Frames
from levada.rl.envs.task import Task, TaskError
from levada.rl.policies.networks import NatureCNN
from levada.rl.policies.policy import Policy

PONG, BREAKOUT = "ALE/Pong-v5", "ALE/Breakout-v5"


def rollouts(task: Task, num: int, *, num_envs: int = 2, num_steps: int = 64) -> Any:
    policy = Policy(observation_space=task.observation_space, action_space=task.action_space)
    live = Sampler(task=task, policy=policy, num_envs=num_envs, num_steps=num_steps)(Shard("rollout", 0, 1, seed=1))
    weights = policy.weights(policy.module(0))
    yield from (live(weights) for _ in range(num))
    live.close()


def test_the_standard_preprocessing() -> None:
    task = Task(PONG)
    assert task.observation_space == spaces.Box(0, 255, (4, 1, 84, 84), np.uint8)
    assert (task.frame_stack, task.reward_clip) == (4, 1.0)
    assert task.env_kwargs == {"stack_num": 1, "reward_clipping": False}
    again = Task(PONG, env_kwargs=task.env_kwargs, frame_stack=task.frame_stack, reward_clip=task.reward_clip)
    assert again == task


def test_what_is_asked_for_is_not_changed() -> None:
    task = Task(PONG, env_kwargs={"stack_num": 3, "reward_clipping": False, "img_height": 64, "img_width": 48})
    assert (task.frame_stack, task.reward_clip) == (None, None)
    assert task.observation_space.shape == (3, 64, 48)
    assert Task(PONG, frame_stack=2).observation_space.shape == (2, 1, 84, 84)
    assert Task(PONG, vectorization="sync").frame_stack is None


def test_stacks_of_stacks_are_refused() -> None:
    with pytest.raises(TaskError, match="stack_num=4 and frame_stack is 2, which would make stacks of stacks"):
        Task(PONG, env_kwargs={"stack_num": 4}, frame_stack=2)


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("ppo", {"minibatch_size": 8, "precision": "bfloat16"}),
        ("impala", {"num_rollouts": 2, "microbatch_size": 8, "precision": "bfloat16"}),
        ("appo", {"minibatch_size": 8, "rnn_type": "gru", "precision": "float32"}),
    ],
)
def test_algorithms_learn_from_frames_in_processes(algorithm: str, settings: dict[str, Any], tmp_path: Path) -> None:
    first, last = (
        lv.train(
            algorithm, PONG, until=f"updates={num}", on="processes:2", threads=1, shards=2, num_envs=2, num_steps=4,
            out=tmp_path / str(num), seed=1, log="none", display="quiet", **settings,
        )
        for num in (1, 3)
    )  # fmt: skip
    assert last.summary.updates == 3
    for name, array in last.policy.weights.items():
        assert np.isfinite(array).all(), name
        assert not np.array_equal(array, first.policy.weights[name]), name
    (lag,) = last.summary.lag.values()
    assert lag.max <= lag.bound


def test_each_frame_goes_once_and_stays_bytes() -> None:
    for rollout in rollouts(Task(PONG), 2, num_steps=16):
        obs = rollout.obs
        assert isinstance(obs, Frames) and obs.dtype == np.uint8
        assert obs.pool.num_frames == (16 + 4) * 2
        stacks = np.asarray(obs)
        np.testing.assert_array_equal(stacks[1:, :, :-1], stacks[:-1, :, 1:])
        assert (stacks[1:, :, -1] != stacks[:-1, :, -1]).any()


def test_life_losses_end_episodes_for_the_learner_alone() -> None:
    num_ends = num_games = 0
    for rollout in rollouts(Task(BREAKOUT, life_loss=True), 8):
        num_ends += int((rollout.terminated | rollout.truncated).sum())
        num_games += len(rollout.episodes)
        assert int((~rollout.mask).sum()) <= num_games + 2  # a life lost is no reset
    assert num_games >= 2
    assert num_ends >= 5 * num_games  # five lives


def test_rewards_are_clipped_for_the_learner_alone() -> None:
    """Breakout's bricks are worth up to 7 points; half a point here, lest that depends on how well one plays."""
    seen, scores = set(), []
    for rollout in rollouts(Task(BREAKOUT, reward_clip=0.5), 8):
        seen |= {*np.unique(rollout.reward).tolist()}
        scores += [episode.episode_return for episode in rollout.episodes]
    assert seen == {0.0, 0.5}
    assert sum(scores) > 0.0 and all(score == int(score) for score in scores)


def test_evaluations_play_whole_games() -> None:
    task = Task(BREAKOUT, life_loss=True, env_kwargs={"max_num_frames_per_episode": 4_000})
    policy = Policy(observation_space=task.observation_space, action_space=task.action_space)
    trained = TrainedPolicy(policy, policy.weights(policy.module(0)), version=0)
    played = evaluate(task, trained, num_episodes=2, deterministic=False)
    assert len(played.episodes) == 2
    assert all(episode.length > 5 * 15 for episode in played.episodes)  # a ball takes as long to be lost


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"reward_clip": 0.0}, "reward_clip=0.0.: expected a finite number > 0, or None"),
        ({"reward_clip": True}, "reward_clip=True"),
        ({"life_loss": 1}, "life_loss=1.: expected True or False"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(TaskError, match=says):
        Task(PONG, **options)


def test_lives_that_are_not_told_are_missed() -> None:
    from levada.rl.envs.batch import EnvError

    for vectorization in ("sync", "vector_entry_point"):
        task = Task("CartPole-v1", life_loss=True, vectorization=vectorization)  # type: ignore[arg-type]
        with task.make(8) as batch, pytest.raises(EnvError, match="life_loss=True needs"):
            batch.reset(1)


class ThreeLives(gymnasium.Env[int, int]):
    """A life is lost every second step."""

    observation_space, action_space = spaces.Discrete(9), spaces.Discrete(2)

    def reset(self, **_: Any) -> tuple[int, dict[str, Any]]:  # type: ignore[override]
        super().reset(**_)
        self.t = 0
        return 0, {"lives": 3}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self.t, 1.0, self.t == 6, False, {"lives": 3 - self.t // 2}


def test_single_environments_lose_lives_too() -> None:
    with Task(ThreeLives, life_loss=True).make(2) as batch:
        batch.reset(0)
        results = [batch.step(np.zeros(2, np.int64)) for _ in range(12)]
    assert [bool(result.terminated[0]) for result in results] == [False, True] * 6
    assert [bool(result.life_lost[0]) for result in results] == ([False, True] * 2 + [False, False]) * 2


@pytest.mark.parametrize("name", ["episodic_life", "life_loss_info"])
def test_ales_own_episodes_of_one_life_are_warned_of(name: str) -> None:
    with pytest.warns(UserWarning, match=f"{name}=True: the vector environment says that an episode ended"):
        Task(BREAKOUT, env_kwargs={name: True})


def test_colors_are_images() -> None:
    task = Task(BREAKOUT, env_kwargs={"grayscale": False})
    assert task.observation_space.shape == (4, 1, 84, 84, 3)
    policy = Policy(observation_space=task.observation_space, action_space=task.action_space)
    module = policy.module(0)
    assert isinstance(module.network, NatureCNN)
    obs = np.random.default_rng(0).integers(0, 256, (2, *task.observation_space.shape), np.uint8)
    image = module.network.image.layers[0]
    assert image.in_channels == 4 * 3
    row, value = module.row(torch.from_numpy(obs))
    assert row.shape == (2, 4) and value.shape == (2,)
