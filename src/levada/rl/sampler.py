"""Sampler: the source of an RL flow. Acts in a vector environment and gives one rollout per firing.

    rollouts = flow.source("rollout", Sampler(task=task, policy=policy, num_envs=8, num_steps=128), reads=weights)

A step costs one forward pass of the policy, one step of the environments, and one row written into the rollout's arrays;
noise is drawn, and log-probabilities and values are computed, once for the whole rollout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from levada.flow import Shard
from levada.flow.rng import rng_array, set_rng
from levada.rl.normalise import DiscountedReturn, Moments, observation_moments
from levada.rl.policy import Policy
from levada.rl.rollout import EpisodeCounter, Rollout
from levada.rl.spaces import Array, Nest, allocate, map_nest, named_leaves, write
from levada.rl.task import Task


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """Recipe of a sampler: opened once per shard, where the shard runs.

    Raises:
        ValueError: numbers that cannot be.
    """

    task: Task
    """Where to act."""
    policy: Policy
    """How to act; its weights come with each firing."""
    num_envs: int
    """B: environments of one shard. Their observations go through the network together."""
    num_steps: int
    """T: steps of one rollout."""
    discount: float = 0.99
    """Only for the scale of rewards, if the policy normalises them."""

    def __post_init__(self) -> None:
        for name, value in (("num_envs", self.num_envs), ("num_steps", self.num_steps)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                msg = f"Sampler({name}={value!r}): expected an integer >= 1"
                raise ValueError(msg)

    def __call__(self, shard: Shard) -> LiveSampler:
        """Make the environments of a shard."""
        return LiveSampler(self, shard)


class LiveSampler:
    """A sampler at work."""

    def __init__(self, recipe: Sampler, shard: Shard) -> None:
        self.recipe = recipe
        self._empty = shard.empty
        self._rng = np.random.default_rng(shard.seed)
        self._actor = recipe.policy.actor(shard.serve, shard.num_threads)
        self._envs = recipe.task.make(recipe.num_envs)
        self._episodes = EpisodeCounter(recipe.num_envs)
        self._returns = DiscountedReturn(recipe.num_envs, recipe.discount)
        self._obs: Nest = self._envs.reset(shard.seed)

    def __call__(self, weights: Mapping[str, Array]) -> Rollout:
        """Act for T steps with these weights."""
        recipe, envs, actor = self.recipe, self._envs, self._actor
        num_steps, num_envs = recipe.num_steps, recipe.num_envs
        actor.load(weights)
        head = actor.head
        noise = head.draw(self._rng, num_steps, num_envs)
        empty = self._empty
        obs = allocate(recipe.task.observation_space, num_steps + 1, num_envs, make=empty)
        action = allocate(recipe.task.action_space, num_steps, num_envs, make=empty)
        assert isinstance(action, np.ndarray)
        rows = np.empty((num_steps, num_envs, head.row_size), np.float32)
        value = empty((num_steps + 1, num_envs), np.float32)
        has_values = True
        reward, next_value = (empty((num_steps, num_envs), np.float32) for _ in range(2))
        terminated, truncated, is_reset = (empty((num_steps, num_envs), np.bool_) for _ in range(3))
        finals: list[tuple[int, Array, Nest]] = []
        for t in range(num_steps):
            write(obs, t, self._obs)
            rows[t], v_t = actor.forward(self._obs)
            chosen = head.sample(rows[t], noise[t], actor.mask(self._obs), action[t])
            step = envs.step(chosen)
            if v_t is None:
                has_values = False  # cheaper for all steps at once
            else:
                value[t] = v_t
            reward[t] = step.reward
            terminated[t] = step.terminated
            truncated[t] = step.truncated
            is_reset[t] = step.is_reset
            if step.final_obs is not None:
                finals.append((t, *step.final_obs))
            self._obs = step.obs
        write(obs, num_steps, self._obs)

        if has_values:
            value[num_steps] = actor.value(self._obs)
        else:
            value[...] = actor.value(_flat(obs)).reshape(num_steps + 1, num_envs)
        next_value[...] = value[1:]
        for t, index, last in finals:
            next_value[t, index] = actor.value(last)
        mask, ended = np.logical_not(is_reset, out=is_reset), terminated | truncated
        acted = map_nest(lambda leaf: leaf[:-1], obs)
        log_prob = head.log_prob(_flat(rows), _flat(action), actor.mask(_flat(acted)))
        episodes = self._episodes.count(reward, ended, mask)
        moments = self._moments(acted, reward, ended, mask)
        if actor.reward_scale != 1.0:
            reward *= np.float32(actor.reward_scale)
        return Rollout(
            obs, action, reward, terminated, truncated, mask,
            log_prob.reshape(num_steps, num_envs), value[:-1], next_value, moments, episodes,
        )  # fmt: skip

    def state_dict(self) -> dict[str, Array]:
        """What the next rollout depends on, but the weights: generator, environments, running episodes.

        Raises:
            NotSavedError: the environments cannot be saved.

        """
        envs = np.frombuffer(self._envs.save(), np.uint8)
        obs = {f"obs/{path}": leaf for path, leaf in named_leaves(self._obs).items()}
        counts = {f"episodes/{name}": array for name, array in self._episodes.state_dict().items()}
        return {"rng": rng_array(self._rng), "envs": envs, "returns": self._returns.returns.copy(), **counts, **obs}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Go on from what `state_dict` gave.

        Raises:
            NotSavedError: it is the state of other environments.

        """
        self._envs.restore(state["envs"].tobytes())
        set_rng(self._rng, state["rng"])
        self._returns.returns = state["returns"].copy()
        self._episodes.load_state_dict({name: state[f"episodes/{name}"] for name in self._episodes.state_dict()})
        for path, leaf in named_leaves(self._obs).items():
            leaf[...] = state[f"obs/{path}"]

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()

    def _moments(self, obs: Nest, reward: Array, ended: Array, mask: Array) -> dict[str, Moments]:
        policy = self.recipe.policy
        found: dict[str, Moments] = {}
        if policy.normalise_obs:
            found |= observation_moments(policy.observation_space, obs, mask)
        if policy.normalise_reward:
            found["return"] = self._returns.update(reward, ended, mask)
        return found


def _flat(nest: Any) -> Any:
    """``[T, B, ...]`` as ``[T * B, ...]``."""
    return map_nest(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), nest)
