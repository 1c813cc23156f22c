"""Acting in the environments of one shard, step by step: what all samplers have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from levada.flow import Episode, Shard
from levada.flow.payload import never
from levada.flow.rng import rng_array, set_rng
from levada.rl.env_batch import StepResult
from levada.rl.policy import Policy
from levada.rl.rollout import EpisodeCounter
from levada.rl.spaces import Array, Nest, allocate, map_nest, named_leaves, write
from levada.rl.task import Task

Choose: TypeAlias = Callable[[int, Array, "Array | None", Array], Array]
"""(step, rows of the head's parameters ``[B, row_size]``, action mask, where to write them) -> actions ``[B, ...]``."""
Finals: TypeAlias = list[tuple[int, Array, Nest]]
"""Steps in which episodes ended whose next row is another episode's: the step, the environments, and the true observations."""


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """What a recurrent policy remembers before a step."""

    state: Array
    """float32 ``[..., state_size]``."""
    age: Array
    """int64 ``[...]``: steps of the episode so far, all of which are in the state."""

    @classmethod
    def allocate(cls, shape: tuple[int, ...], state_size: int, empty: Any) -> Memory:
        """Memory for some."""
        return cls(empty((*shape, state_size), np.float32), empty(shape, np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class Walk:
    """What B environments went through in T steps, in memory that was given. See `Rollout` for the shapes."""

    obs: Nest
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    mask: Array
    finals: Finals
    memory: Memory | None = None
    """Of a policy that is recurrent."""
    lasts: list[tuple[int, Array, Nest, Array]] = field(default_factory=list)
    """Of a policy that is recurrent: steps in which episodes ended, the environments, the true observations that follow, and what
    is remembered ``[M, state_size]`` of what came before those."""

    @classmethod
    def allocate(cls, task: Task, num_steps: int, num_envs: int, empty: Any, state_size: int = 0) -> Walk:
        """Memory for one; `state_size`: of a policy whose states are wanted."""
        obs = allocate(task.observation_space, num_steps + 1, num_envs, make=empty)
        return cls(obs=obs, finals=[], **step_columns(task, num_steps, num_envs, empty, state_size))

    def begin(self, obs: Nest) -> None:
        """The observations ``[B, ...]`` before the first step, of walks that do not begin with a reset."""

    def put(self, t: int, obs: Nest) -> None:
        """The observations ``[B, ...]`` before step t, or after the last."""
        write(self.obs, t, obs)

    def observations(self, stream: str = "", first_step: int = 0) -> tuple[Any, Finals]:
        """The observations ``[T+1, B, ...]`` and the true final ones. Those of a task with a frame stack are `Frames`.

        Args:
            stream: whose steps these are.
            first_step: number of the first in it.

        """
        return self.obs, self.finals

    def blank(self, t: int) -> None:
        """Fill the rows from t on, which are no transitions, all with the observations before step t; their actions are left."""
        for column in (self.reward, self.terminated, self.truncated):
            column[t:] = 0
        self.mask[t:] = True  # as the environments say it, of a reset
        self.repeat_observations(t)

    def repeat_observations(self, t: int) -> None:
        """Show those of row t in all that follow."""
        map_nest(lambda leaf: np.copyto(leaf[t + 1 :], leaf[t]), self.obs)

    def put_final(self, t: int, index: Array, last: Nest) -> None:
        """The true final observations ``[M, ...]`` of the environments `index`, in whose row t + 1 another episode begins."""
        self.finals.append((t, index, last))

    @property
    def ended(self) -> Array:
        """``[T, B]``, bool: where episodes ended."""
        ended: Array = self.terminated | self.truncated
        return ended


def step_columns(task: Task, num_steps: int, num_envs: int, empty: Any, state_size: int) -> dict[str, Any]:
    """Memory for the columns ``[T, B, ...]`` of a walk."""
    shape = (num_steps, num_envs)
    columns: dict[str, Any] = {name: empty(shape, np.bool_) for name in ("terminated", "truncated", "mask")}
    columns["action"] = allocate(task.action_space, *shape, make=empty)
    columns["memory"] = Memory.allocate(shape, state_size, empty) if state_size else None
    return columns | {"reward": empty(shape, np.float32)}


class EnvLoop:
    """The environments of a shard, and what acts in them."""

    def __init__(self, task: Task, policy: Policy, num_envs: int, shard: Shard) -> None:
        self.rng = np.random.default_rng(shard.seed)
        self.actor = policy.actor(shard.serve, shard.num_threads, owner=f"{shard.node}/{shard.index}")
        self.envs = task.make(num_envs, shard.num_threads)
        self._reward_clip, self._has_lives = task.reward_clip, task.life_loss
        self._goes_on = list[tuple[int, Array]]()
        self._episodes = EpisodeCounter(num_envs)
        self.obs: Nest = self.envs.reset(shard.seed)
        """What the next actions are chosen by."""
        self.memory = Memory.allocate((num_envs,), policy.state_size, np.zeros) if policy.state_size else None
        """And what is remembered, if the policy is recurrent."""

    def walk(
        self, into: Walk, choose: Choose, see: Callable[[int, Array, Array | None], None], first: int = 0,
        is_cut: Callable[[], bool] = never,
    ) -> int:  # fmt: skip
        """Act and fill the rows from `first` on; `see(step, parameters, values)` is told what actions were chosen by.

        Returns:
            The number of rows that are filled: all, unless `is_cut()` said to stop after one. The others are no transitions.

        """
        envs, actor, memory = self.envs, self.actor, self.memory
        none = actor.initial_state(0)
        self._goes_on.clear()
        for t in range(first, len(into.action)):
            into.put(t, self.obs)
            if memory is not None and into.memory is not None:
                into.memory.state[t], into.memory.age[t] = memory.state, memory.age
            row, v_t, state = actor.step(self.obs, none if memory is None else memory.state)
            see(t, row, v_t)
            step = envs.step(choose(t, row, actor.mask(self.obs), into.action[t]))
            into.reward[t] = step.reward
            into.terminated[t] = step.terminated
            into.truncated[t] = step.truncated
            into.mask[t] = step.is_reset
            if step.final_obs is not None:
                into.put_final(t, *step.final_obs)
            if self._has_lives and step.goes_on.any():
                self._goes_on.append((t, step.goes_on))
            self.obs = step.obs
            if memory is not None:
                is_over = step.terminated | step.truncated | step.is_reset
                into.lasts.extend(_lasts(t, step, state))
                memory.state[...], memory.age[...] = state, memory.age + 1
                memory.state[is_over], memory.age[is_over] = 0.0, 0
            if is_cut():
                break
        num_rows = t + 1
        into.put(num_rows, self.obs)
        if num_rows < len(into.action):
            into.blank(num_rows)
        np.logical_not(into.mask[first:], out=into.mask[first:])
        return num_rows

    def episodes(self, walk: Walk, first: int = 0) -> tuple[Episode, ...]:
        """The episodes that ended in the rows from `first` on, which were just walked; to be asked once. Then rewards are cut off
        where the task says so.
        """
        is_over = walk.ended
        for t, goes_on in self._goes_on:
            is_over[t] &= ~goes_on
        reward = walk.reward[first:]
        episodes = self._episodes.count(reward, is_over[first:], walk.mask[first:])
        if self._reward_clip is not None:
            np.clip(reward, -self._reward_clip, self._reward_clip, out=reward)
        return episodes

    def state_dict(self) -> dict[str, Array]:
        """What the next walk depends on, but the weights: generator, environments, running episodes.

        Raises:
            NotSavedError: the environments cannot be saved.

        """
        envs = np.frombuffer(self.envs.save(), np.uint8)
        obs = {f"obs/{path}": leaf for path, leaf in named_leaves(self.obs).items()}
        counts = {f"episodes/{name}": array for name, array in self._episodes.state_dict().items()}
        memory = {} if self.memory is None else {"state": self.memory.state.copy(), "age": self.memory.age.copy()}
        return {"rng": rng_array(self.rng), "envs": envs, **counts, **obs, **memory}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Go on from what `state_dict` gave.

        Raises:
            NotSavedError: it is the state of other environments.

        """
        self.envs.restore(state["envs"].tobytes())
        set_rng(self.rng, state["rng"])
        self._episodes.load_state_dict({name: state[f"episodes/{name}"] for name in self._episodes.state_dict()})
        for path, leaf in named_leaves(self.obs).items():
            leaf[...] = state[f"obs/{path}"]
        if self.memory is not None:
            self.memory.state[...], self.memory.age[...] = state["state"], state["age"]

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()


def _lasts(t: int, step: StepResult, state: Array) -> Iterator[tuple[int, Array, Nest, Array]]:
    """The ends of episodes in a step, after which the memory is `state` ``[B, state_size]``."""
    if step.final_obs is not None:
        index, last = step.final_obs
    else:
        index = np.flatnonzero(step.terminated | step.truncated)
        last = map_nest(lambda leaf: leaf[index], step.obs)
    if len(index):
        yield t, index, last, state[index]


def flat(nest: Any) -> Any:
    """``[T, B, ...]`` as ``[T * B, ...]``."""
    return map_nest(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), nest)
