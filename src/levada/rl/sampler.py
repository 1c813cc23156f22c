"""Sampler: the source of an RL flow. Acts in a vector environment and gives one rollout per firing.

    rollouts = flow.source("rollout", Sampler(task=task, policy=policy, num_envs=8, num_steps=128), reads=weights)

A step costs one forward pass of the policy, one step of the environments, and one row written into the rollout's arrays;
noise is drawn, and log-probabilities and values are computed, once for the whole rollout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from levada.flow import Shard
from levada.flow.payload import never
from levada.rl._env_loop import EnvLoop, Walk, flat
from levada.rl._frame_walk import walk_for
from levada.rl.frames import Frames, as_array
from levada.rl.normalise import DiscountedReturn, Moments, observation_moments
from levada.rl.policy import Policy
from levada.rl.rollout import Rollout
from levada.rl.spaces import Array, Nest, map_nest
from levada.rl.task import Task

OnNewWeights: TypeAlias = Literal["continue", "cut"]


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
    on_new_weights: OnNewWeights = "continue"
    """What becomes of a rollout when newer weights come: it goes on with the old ones, or is cut and sent as it is, and the rest
    of its rows masked."""
    discount: float = 0.99
    """Only for the scale of rewards, if the policy normalises them."""

    def __post_init__(self) -> None:
        if self.on_new_weights not in get_args(OnNewWeights):
            msg = f"Sampler(on_new_weights={self.on_new_weights!r}): expected 'continue' or 'cut'"
            raise ValueError(msg)
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
        self._is_cut = shard.has_newer if recipe.on_new_weights == "cut" else never
        self._loop = EnvLoop(recipe.task, recipe.policy, recipe.num_envs, shard)
        self._returns = DiscountedReturn(recipe.num_envs, recipe.discount)

    def __call__(self, weights: Mapping[str, Array]) -> Rollout:
        """Act for T steps with these weights."""
        recipe, loop, empty = self.recipe, self._loop, self._empty
        num_steps, num_envs, actor = recipe.num_steps, recipe.num_envs, self._loop.actor
        actor.load(weights)
        head = actor.head
        noise = head.draw(loop.rng, num_steps, num_envs)
        walk = walk_for(recipe.task, num_steps, num_envs, empty)
        walk.begin(loop.obs)
        rows = np.empty((num_steps, num_envs, head.row_size), np.float32)
        value = empty((num_steps + 1, num_envs), np.float32)
        next_value = empty((num_steps, num_envs), np.float32)
        has_values = True
        memory = None if loop.memory is None else (loop.memory.state.copy(), loop.memory.age == 0)

        def choose(t: int, row: Array, mask: Array | None, out: Array) -> Array:
            return head.sample(row, noise[t], mask, out)

        def see(t: int, row: Array, v_t: Array | None) -> None:
            nonlocal has_values
            rows[t] = row
            if v_t is None:
                has_values = False  # cheaper for all steps at once
            else:
                value[t] = v_t

        num_rows = loop.walk(walk, choose, see, is_cut=self._is_cut)
        if num_rows < num_steps:
            self._fill(walk, rows, num_rows)
        obs, finals = walk.observations()
        acted = map_nest(lambda leaf: leaf[:-1], obs)
        if loop.memory is not None or has_values:
            state = actor.initial_state(0) if loop.memory is None else loop.memory.state
            value[num_rows] = actor.step(loop.obs, state)[1]
            value[num_rows + 1 :] = 0.0
        else:
            value[...] = actor.value(map_nest(as_array, flat(obs))).reshape(num_steps + 1, num_envs)
        next_value[...] = value[1:]
        for t, index, last in finals if memory is None else ():
            next_value[t, index] = actor.value(map_nest(as_array, last))
        for t, index, last, state in walk.lasts:
            next_value[t, index] = actor.step(last, state)[1]
        log_prob = head.log_prob(flat(rows), flat(walk.action), actor.mask(flat(acted)))
        episodes = loop.episodes(walk)
        moments = self._moments(acted, walk.reward, walk.ended, walk.mask)
        if num_rows < num_steps:
            # where it was cut, what would have followed is worth its value, as at the end of others
            walk.truncated[num_rows - 1] |= walk.mask[num_rows - 1] & ~walk.terminated[num_rows - 1]
        if actor.reward_scale != 1.0:
            walk.reward[...] *= np.float32(actor.reward_scale)
        return Rollout(
            obs.of_first_part() if isinstance(obs, Frames) else obs,
            walk.action, walk.reward, walk.terminated, walk.truncated, walk.mask,
            log_prob.reshape(num_steps, num_envs), value[:-1], next_value, moments, episodes,
            *(() if memory is None else _memory(walk, *memory)),
        )  # fmt: skip

    def state_dict(self) -> dict[str, Array]:
        """What the next rollout depends on, but the weights: generator, environments, running episodes.

        Raises:
            NotSavedError: the environments cannot be saved.

        """
        return self._loop.state_dict() | {"returns": self._returns.returns.copy()}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Go on from what `state_dict` gave.

        Raises:
            NotSavedError: it is the state of other environments.

        """
        self._loop.load_state_dict(state)
        self._returns.returns[...] = state["returns"]

    def close(self) -> None:
        """Close the environments."""
        self._loop.close()

    def _fill(self, walk: Walk, rows: Array, first: int) -> None:
        """Act as if in the rows from `first` on, which are masked: no number of theirs may spoil a sum."""
        actor, memory = self._loop.actor, self._loop.memory
        row = actor.step(self._loop.obs, actor.initial_state(0) if memory is None else memory.state)[0]
        rows[first:] = row
        walk.action[first:] = actor.head.mode(row, actor.mask(self._loop.obs))

    def _moments(self, obs: Nest, reward: Array, ended: Array, mask: Array) -> dict[str, Moments]:
        policy = self.recipe.policy
        found: dict[str, Moments] = {}
        if policy.normalise_obs:
            found |= observation_moments(policy.observation_space, map_nest(as_array, obs), mask)
        if policy.normalise_reward:
            found["return"] = self._returns.update(reward, ended, mask)
        return found


def _memory(walk: Walk, state: Array, begins: Array) -> tuple[Array, Array]:
    """The state before the first step ``[B, state_size]``, and where episodes begin ``[T+1, B]``."""
    return state, np.concatenate([begins[None], walk.ended | ~walk.mask])
