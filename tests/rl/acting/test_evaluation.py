"""Evaluation: whole episodes, none favored, actions as the environment takes them."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from levada.flow import Episode
from levada.rl.acting.actor import Actor
from levada.rl.acting.evaluation import evaluate
from levada.rl.acting.trained_policy import TrainedPolicy
from levada.rl.envs.task import Task
from levada.rl.policies.policy import Policy


def trained(task: Task, **options: Any) -> TrainedPolicy:
    policy = Policy(observation_space=task.observation_space, action_space=task.action_space, **options)
    return TrainedPolicy(policy, policy.weights(policy.module(0)), version=7)


@pytest.mark.parametrize("num_episodes", [1, 3, 8, 13])
@pytest.mark.parametrize("vectorization", ["sync", "vector_entry_point"])
def test_as_many_episodes_as_asked_for(num_episodes: int, vectorization: Any) -> None:
    task = Task("CartPole-v1", vectorization=vectorization)
    seen: list[Episode] = []
    evaluation = evaluate(task, trained(task), num_episodes=num_episodes, on_episode=seen.append)
    assert len(evaluation.episodes) == num_episodes
    assert tuple(seen) == evaluation.episodes
    assert evaluation.version == 7
    assert all(episode.episode_return == episode.length for episode in evaluation.episodes)
    assert evaluation.mean == pytest.approx(np.mean([episode.length for episode in seen]))


def test_the_same_seed_plays_the_same_episodes() -> None:
    task = Task("CartPole-v1")
    policy = trained(task)
    one, same, other = (
        evaluate(task, policy, num_episodes=5, seed=seed, deterministic=False).episodes for seed in (1, 1, 2)
    )
    assert one == same != other


def test_actions_are_within_the_bounds() -> None:
    task = Task("Pendulum-v1")
    policy = trained(task, log_std_init=3.0)
    actions = np.array([policy.act(np.zeros(3), deterministic=False) for _ in range(50)])
    assert np.abs(actions).max() == 2.0


def test_an_observation_of_another_shape_is_refused() -> None:
    policy = trained(Task("CartPole-v1"))
    with pytest.raises(
        ValueError,
        match=r"act: observation has shape \(3,\), expected \(4,\).*one observation .*act_batch takes a batch",
    ):
        policy.act(np.zeros(3))
    with pytest.raises(ValueError, match=r"shape \(8, 4\), expected \(4,\)"):
        policy.act(np.zeros((8, 4)))


class Counting(gymnasium.Env[Any, Any]):
    """Shows a choice that counts from elsewhere, and refuses actions that its space does not contain."""

    def __init__(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = deepcopy(observation_space), deepcopy(action_space)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.num_steps = 0
        if seed is not None:
            self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.num_steps += 1
        return self.observation_space.sample(), float(np.sum(action)), self.num_steps == 5, False, {}


SIX = spaces.Discrete(6, start=3)
SEVERAL = spaces.MultiDiscrete([2, 3], start=[4, -1])
NESTED = spaces.Dict({"a": spaces.Tuple((SIX, spaces.Box(-9.0, 9.0, (2,), np.float64))), "b": SEVERAL})


@pytest.mark.parametrize("observation_space", [SIX, SEVERAL, NESTED], ids=["Discrete", "MultiDiscrete", "nested"])
@pytest.mark.parametrize(
    "action_space",
    [spaces.Discrete(3, start=1), SEVERAL, spaces.Box(-0.1, 0.1, (2,), np.float64), spaces.MultiBinary(3)],
    ids=["Discrete", "MultiDiscrete", "Box", "MultiBinary"],
)
def test_it_sees_and_acts_as_in_training(observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
    task = Task(Counting, env_kwargs={"observation_space": observation_space, "action_space": action_space})
    policy = trained(task)
    for name in policy.weights:  # large ones, so that each observation has an action of its own
        np.multiply(policy.weights[name], 30.0, out=policy.weights[name])
    policy = TrainedPolicy(policy.policy, policy.weights, version=0)
    actor = Actor(policy.policy)
    actor.load(policy.weights)
    env = Counting(observation_space, action_space)
    with task.make(1) as envs:
        rows, obs = envs.reset(seed=7), None
        words = envs._env_seeds
        assert words is not None
        obs, _ = env.reset(seed=words[0])
        for _ in range(4):
            expected = envs.step(actor.mode(rows))
            obs, reward, *_ = env.step(policy.act(obs))
            assert reward == pytest.approx(expected.reward[0], rel=1e-6)
            rows = expected.obs
    assert env.action_space.contains(policy.act(obs, deterministic=False))
    assert len(evaluate(task, policy, num_episodes=2).episodes) == 2


def test_an_observation_that_the_environment_cannot_show_is_refused() -> None:
    policy = trained(Task(Counting, env_kwargs={"observation_space": SIX, "action_space": SIX}))
    with pytest.raises(ValueError, match="act: observation is 2, outside the declared space: expected 3 to 8"):
        policy.act(2)
    with pytest.raises(ValueError, match=r"act: observation has NaN or infinity in \[ 0. nan  0.  0.\]"):
        trained(Task("CartPole-v1")).act(np.array([0.0, np.nan, 0.0, 0.0]))


def test_a_mask_that_allows_nothing_is_refused() -> None:
    masked = spaces.Dict({"obs": SIX, "action_mask": spaces.MultiBinary(2)})
    policy = trained(
        Task(Counting, env_kwargs={"observation_space": masked, "action_space": spaces.Discrete(2, start=5)})
    )
    assert policy.act({"obs": 3, "action_mask": np.array([0, 1], np.int8)}) == 6
    with pytest.raises(ValueError, match=r"act: the action mask allows no action.*\[0, 0\]"):
        policy.act({"obs": 3, "action_mask": np.array([0, 0], np.int8)})


def test_at_least_one_episode() -> None:
    task = Task("CartPole-v1")
    with pytest.raises(ValueError, match="num_episodes=0; expected an integer >= 1"):
        evaluate(task, trained(task), num_episodes=0)
