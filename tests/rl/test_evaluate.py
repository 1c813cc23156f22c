"""Evaluation: whole episodes, none favoured, actions as the environment takes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from levada.flow import Episode
from levada.rl.evaluate import TrainedPolicy, evaluate
from levada.rl.policy import Policy
from levada.rl.task import Task


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
    with pytest.raises(ValueError, match=r"shape \(3,\), expected \(4,\); one observation, not a batch"):
        policy.act(np.zeros(3))
    with pytest.raises(ValueError, match=r"shape \(8, 4\), expected \(4,\)"):
        policy.act(np.zeros((8, 4)))


def test_at_least_one_episode() -> None:
    task = Task("CartPole-v1")
    with pytest.raises(ValueError, match="num_episodes=0; expected an integer >= 1"):
        evaluate(task, trained(task), num_episodes=0)
