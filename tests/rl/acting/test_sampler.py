"""What comes out of a sampler, against an exactly known process: no sample lost, doubled or biased, no target wrong."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from scipy import stats
from support.envs.exact_mdp import SMALL, ExactEnv, ExactMDP, make_exact_env
from torch import Tensor, nn

from levada.algorithms.gae import GAE
from levada.flow import Shard
from levada.rl.acting.rollout import Rollout
from levada.rl.acting.sampler import Sampler
from levada.rl.envs.task import Task
from levada.rl.policies.policy import Policy

DISCOUNT = 0.9
MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]


def _ring() -> ExactMDP:
    """Deterministic: state s goes to s + 1, from the last to a terminal end; both actions do the same."""
    num_states = 7
    probability = np.zeros((num_states, 2, num_states))
    for s in range(num_states):
        probability[s, :, (s + 1) % num_states] = 1.0
    reward = np.arange(num_states, dtype=np.float64)[:, None, None] * np.ones_like(probability)
    terminal = np.zeros(probability.shape, bool)
    terminal[num_states - 1] = True
    return ExactMDP(
        start=np.full(num_states, 1 / num_states), probability=probability, reward=reward, terminal=terminal
    )


RING = _ring()


class Table(nn.Module):
    """Uniform actions, and the exact values as a table."""

    def __init__(self, space: Any, num_params: int, *, mdp: ExactMDP) -> None:
        super().__init__()
        value = mdp.value(mdp.uniform_policy(), DISCOUNT)
        self.value = nn.Parameter(torch.tensor(value, dtype=torch.float32))
        self.num_params = num_params

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros(len(obs), self.num_params), self.value[obs]


def make_vector(num_envs: int, mdp: ExactMDP, mode: AutoresetMode, max_episode_steps: int) -> Any:
    make_one = partial(_make_one, mdp, max_episode_steps)
    return SyncVectorEnv([make_one] * num_envs, autoreset_mode=mode)


def _make_one(mdp: ExactMDP, max_episode_steps: int) -> gymnasium.Env[Any, Any]:
    return TimeLimit(ExactEnv(mdp), max_episode_steps)


def sample(mdp: ExactMDP, mode: AutoresetMode, *, num_envs: int, num_steps: int, max_episode_steps: int = 5) -> Rollout:
    task = Task(make_vector, env_kwargs={"mdp": mdp, "mode": mode, "max_episode_steps": max_episode_steps})
    policy = Policy(
        observation_space=task.observation_space, action_space=task.action_space, network=partial(Table, mdp=mdp)
    )
    sampler = Sampler(task=task, policy=policy, num_envs=num_envs, num_steps=num_steps)(Shard("rollout", 0, 1, 3))
    rollout = sampler(policy.weights(policy.module(0)))
    sampler.close()
    return rollout


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("lambda_", [0.0, 0.8, 1.0])
def test_value_targets_are_the_analytic_values_where_everything_is_deterministic(
    mode: AutoresetMode, lambda_: float
) -> None:
    rollout = sample(RING, mode, num_envs=3, num_steps=40, max_episode_steps=3)
    assert rollout.truncated.sum() > 5, "the time limit must bite"
    assert rollout.terminated.sum() > 5
    value = RING.value(RING.uniform_policy(), DISCOUNT)
    columns = GAE(discount=DISCOUNT, lambda_=lambda_)(rollout).columns
    assert isinstance(columns["target"], np.ndarray)
    mask = rollout.mask.reshape(-1)
    np.testing.assert_allclose(columns["target"][mask], value[rollout.obs[:-1].reshape(-1)][mask], rtol=1e-5)  # type: ignore[index]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_treating_a_truncation_as_an_end_would_be_seen(mode: AutoresetMode) -> None:
    rollout = sample(RING, mode, num_envs=3, num_steps=40, max_episode_steps=3)
    value = RING.value(RING.uniform_policy(), DISCOUNT)
    wrong = rollout.reward + DISCOUNT * ~(rollout.terminated | rollout.truncated) * rollout.next_value
    assert np.abs(wrong - value[rollout.obs[:-1]])[rollout.mask].max() > 1.0  # type: ignore[index]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_temporal_differences_have_mean_zero_in_each_state(mode: AutoresetMode) -> None:
    rollout = sample(SMALL, mode, num_envs=4, num_steps=5000)
    error = rollout.reward + DISCOUNT * ~rollout.terminated * rollout.next_value - rollout.value
    states = rollout.obs[:-1]  # type: ignore[index]
    for s in range(SMALL.num_states):
        seen = error[(states == s) & rollout.mask]
        assert len(seen) > 100
        assert abs(seen.mean()) < 4 * seen.std() / np.sqrt(len(seen)), f"state {s} is biased"


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_visitation_counts_pass_a_chi_square_test(mode: AutoresetMode) -> None:
    rollout = sample(SMALL, mode, num_envs=4, num_steps=6000, max_episode_steps=6)
    assert isinstance(rollout.obs, np.ndarray)
    pairs = np.zeros((SMALL.num_states, SMALL.num_actions))
    np.add.at(pairs, (rollout.obs[:-1][rollout.mask], rollout.action[rollout.mask]), 1)
    expected = SMALL.occupancy(SMALL.uniform_policy(), 6).sum(axis=2)
    # visits within one episode depend on each other: thin them to about one per episode
    thinned = pairs / expected.sum()
    assert stats.chisquare(thinned.ravel(), expected.ravel() * thinned.sum() / expected.sum()).pvalue > 1e-3
    biased = pairs + 0.5 * pairs.sum(axis=1, keepdims=True) * np.eye(SMALL.num_states)[:, [0, 1]]
    thinned = biased / expected.sum()
    assert stats.chisquare(thinned.ravel(), expected.ravel() * thinned.sum() / expected.sum()).pvalue < 1e-6


def test_shapes_counts_and_episodes() -> None:
    rollout = sample(SMALL, AutoresetMode.SAME_STEP, num_envs=4, num_steps=50, max_episode_steps=6)
    assert rollout.obs.shape == (51, 4)  # type: ignore[union-attr]
    for name in ("action", "reward", "terminated", "truncated", "mask", "log_prob", "value", "next_value"):
        assert getattr(rollout, name).shape == (50, 4), name
    assert rollout.num_env_steps == 200
    assert len(rollout.episodes) == (rollout.terminated | rollout.truncated).sum()
    assert max(episode.length for episode in rollout.episodes) == 6
    np.testing.assert_allclose(rollout.log_prob, np.log(0.5), rtol=1e-6)


def test_reset_rows_are_no_env_steps() -> None:
    rollout = sample(SMALL, AutoresetMode.NEXT_STEP, num_envs=4, num_steps=50)
    ends = (rollout.terminated | rollout.truncated)[:-1].sum()
    assert rollout.num_env_steps == 200 - ends
    assert (rollout.reward[~rollout.mask] == 0).all()


def test_a_rollout_goes_on_where_the_last_one_stopped() -> None:
    task = Task(make_exact_env, env_kwargs={"max_episode_steps": 1000})
    policy = Policy(
        observation_space=task.observation_space, action_space=task.action_space, network=partial(Table, mdp=SMALL)
    )
    weights = policy.weights(policy.module(0))
    sampler = Sampler(task=task, policy=policy, num_envs=2, num_steps=7)(Shard("rollout", 0, 1, 5))
    first, second = sampler(weights), sampler(weights)
    np.testing.assert_array_equal(first.obs[-1], second.obs[0])  # type: ignore[index]
    total = sum(episode.length for rollout in (first, second) for episode in rollout.episodes)
    assert total <= 28


def test_equal_shards_give_equal_rollouts_and_others_differ() -> None:
    task = Task("CartPole-v1")
    policy = Policy(observation_space=task.observation_space, action_space=task.action_space)
    weights, recipe = policy.weights(policy.module(0)), Sampler(task=task, policy=policy, num_envs=2, num_steps=20)
    one, same, other = (recipe(Shard("rollout", 0, 1, seed))(weights) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.obs, same.obs)  # type: ignore[arg-type]
    assert not np.array_equal(one.obs, other.obs)  # type: ignore[arg-type]


def test_rewards_are_scaled_by_the_weights_statistics_and_returns_stay_raw() -> None:
    task = Task("Pendulum-v1")
    policy = Policy(observation_space=task.observation_space, action_space=task.action_space, normalize_reward=True)
    weights = dict(policy.weights(policy.module(0)))
    recipe = Sampler(task=task, policy=policy, num_envs=2, num_steps=200)
    raw = recipe(Shard("rollout", 0, 1, 1))(weights)
    weights["returns.var"] = np.asarray(400.0, np.float32)
    scaled = recipe(Shard("rollout", 0, 1, 1))(weights)
    np.testing.assert_allclose(scaled.reward * 20.0, raw.reward, rtol=1e-5)
    assert raw.episodes == scaled.episodes
    assert len(raw.episodes) == 2
    assert set(raw.moments) == {"return"}


@pytest.mark.parametrize("field", ["num_envs", "num_steps"])
def test_impossible_numbers_are_refused(field: str) -> None:
    task = Task("CartPole-v1")
    policy = Policy(observation_space=task.observation_space, action_space=task.action_space)
    with pytest.raises(ValueError, match=rf"Sampler\({field}=0\): expected an integer >= 1"):
        Sampler(task=task, policy=policy, **{"num_envs": 1, "num_steps": 1, field: 0})
