"""The loop that all samplers share: acting in the environments of one shard, step by step.

A running sampler is a generator, `sampling(weights)`: it yields the actions of a step, is sent what came of them, and returns the
item. With environments of its own, `play` steps them. Where agents of several policies share an environment, their samplers take
each step together.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from levada.flow import Episode, Shard
from levada.flow.items import never
from levada.flow.state import rng_array, set_rng
from levada.flow.stopwatch import ENVIRONMENT, INFERENCE, WRITING, Stopwatch
from levada.rl.acting.actor import Actor
from levada.rl.acting.rollout import EpisodeCounter
from levada.rl.acting.turns import Turns
from levada.rl.data.normalize import DiscountedReturn
from levada.rl.data.spaces import Array, Nest, map_nest, named_leaves, write
from levada.rl.envs.batch import EnvBatch, StepResult
from levada.rl.envs.task import Task
from levada.rl.policies.policy import Policy

ResultT = TypeVar("ResultT")
Choose: TypeAlias = Callable[[int, Array, "Array | None", Array], Array]
"""(step, rows of the head's parameters ``[B, row_size]``, action mask, output array) -> actions ``[B, ...]``."""
Finals: TypeAlias = list[tuple[Any, Array, Nest]]
"""Ends of episodes whose next row belongs to another episode: the step, or one for each, the environments, and the true final
observations."""


class Steps(NamedTuple):
    """T steps of B environments that were taken in one call."""

    obs: Nest
    """``[T, B, ...]``: before each step."""
    action: Array
    """``[T, B, ...]``."""
    row: Array
    """``[T, B, row_size]``: the head's parameters."""
    reward: Array
    """``[T, B]``."""
    terminated: Array
    """``[T, B]``."""
    truncated: Array
    """``[T, B]``."""
    last_obs: Nest
    """``[T, B, ...]``: after each step, before any reset."""


Acting: TypeAlias = Generator[Array, StepResult, ResultT]
"""Yields actions ``[B, ...]``, is sent the result of each step, and returns something in the end."""


def play(acting: Acting[ResultT], step: Callable[[Array], StepResult], stopwatch: Stopwatch) -> ResultT:
    """Take all steps, and return what the acting returns. `step`: steps the environments."""
    do = stopwatch.do
    action = next(acting)
    while True:
        do(ENVIRONMENT)
        result = step(action)
        try:
            action = acting.send(result)
        except StopIteration as over:
            returned: ResultT = over.value
            return returned


@dataclass(frozen=True, slots=True, eq=False)
class RecurrentState:
    """Recurrent state of a policy before a step."""

    state: Array
    """float32 ``[..., state_size]``."""
    age: Array
    """int64 ``[...]``: number of steps of the episode so far, all of which are in the state."""

    @classmethod
    def allocate(cls, shape: tuple[int, ...], state_size: int, empty: Any) -> RecurrentState:
        """Allocate states of this shape."""
        return cls(empty((*shape, state_size), np.float32), empty(shape, np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class StepBuffer:
    """T steps of B environments, in memory that the caller provides. See `Rollout` for the shapes."""

    obs: Nest
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    mask: Array
    final_obs: Finals
    memory: RecurrentState | None = None
    """Recurrent states; None if the policy is not recurrent."""
    discounted_return: Array | None = None
    """float32 ``[T, B]``: discounted sum of the rewards of the episode so far; None if the policy does not normalize rewards."""
    lasts: list[tuple[int, Array, Nest, Array]] = field(default_factory=list)
    """For a recurrent policy: steps in which episodes ended, the environments, their final observations, and the recurrent
    states ``[M, state_size]`` before those."""

    def begin(self, obs: Nest) -> None:
        """Store the observations ``[B, ...]`` before the first step, if that does not follow a reset."""

    def put(self, t: int, obs: Nest) -> None:
        """Store the observations ``[B, ...]`` before step t, or after the last step."""
        write(self.obs, t, obs)

    def observations(self, stream: str = "", first_step: int = 0) -> tuple[Any, Finals]:
        """Return the observations ``[T+1, B, ...]`` and the true final ones; of frame stacks, `Frames` that name their stream."""
        return self.obs, self.final_obs

    def fill_observations(self, obs: Nest, last: Nest) -> None:
        """Store the observations ``[T, B, ...]`` before all steps, and ``[B, ...]`` after them."""
        num_steps = len(self.action)
        self.put(num_steps, last)
        map_nest(lambda column, rows: np.copyto(column[:num_steps], rows), self.obs, obs)

    def fill(self, steps: Steps) -> None:
        """Store all of the steps but the observations."""
        for name in ("action", "reward", "terminated", "truncated"):
            np.copyto(getattr(self, name), getattr(steps, name))
        self.mask[...] = True
        step, env = np.nonzero(self.ended)
        if len(step):
            self.final_obs.append((step, env, map_nest(lambda leaf: leaf[step, env], steps.last_obs)))

    def blank(self, t: int) -> None:
        """Fill the rows from t on, which are not transitions, with the observations before step t; actions are not changed."""
        for column in (self.reward, self.terminated, self.truncated):
            column[t:] = 0
        self.mask[t:] = True  # as environments mark a reset
        self.repeat_observations(t)

    def repeat_observations(self, t: int) -> None:
        """Copy the observations of row t to all rows after it."""
        map_nest(lambda leaf: np.copyto(leaf[t + 1 :], leaf[t]), self.obs)

    def put_final(self, t: int, index: Array, last: Nest) -> None:
        """Store the final observations ``[M, ...]`` of the environments `index`, where row t + 1 starts another episode."""
        self.final_obs.append((t, index, last))

    @property
    def ended(self) -> Array:
        """``[T, B]``, bool: where episodes ended."""
        return self.terminated | self.truncated

    def arrange(self, turns: Turns) -> None:
        """Put the steps in which agents acted together. Until then, `mask` says which these are."""
        columns: list[Any] = [self.action, self.obs]
        if self.memory is not None:
            columns += [self.memory.state, self.memory.age]
        for column in columns:
            map_nest(lambda leaf, rows: np.copyto(leaf, rows), column, turns.rows(column))
        for total in (self.reward, self.terminated, self.truncated):
            total[...] = turns.sums(total)
        self.mask[...] = turns.mask
        self.final_obs[:] = [
            (row, index[own], map_nest(lambda leaf, own=own: leaf[own], last))
            for t, index, last in self.final_obs
            for row, own in turns.places(t, index)
        ]
        self.lasts[:] = [
            (row, index[own], map_nest(lambda leaf, own=own: leaf[own], last), state[own])
            for t, index, last, state in self.lasts
            for row, own in turns.places(t, index)
        ]


class EnvLoop:
    """The environments of a shard, and the actor that acts in them: base of the running samplers."""

    def __init__(self, task: Task, policy: Policy, num_envs: int, discount: float, shard: Shard) -> None:
        self.stopwatch: Stopwatch = shard.stopwatch
        self.rng: np.random.Generator = np.random.default_rng(shard.seed)
        self.actor: Actor = Actor(policy, shard.serve, shard.num_threads, owner=f"{shard.node}/{shard.index}")
        self.envs: EnvBatch = task.make(num_envs, shard.num_threads)
        self._reward_clip, self._has_lives = task.reward_clip, task.life_loss
        self._lives_lost = list[tuple[int, Array]]()
        self._recorded = dict[int, Array]()
        self._episodes = EpisodeCounter(num_envs)
        self.returns: DiscountedReturn = DiscountedReturn(num_envs, discount)
        """Discounted returns, by which rewards are normalized."""
        self.obs: Nest = self.envs.reset(shard.seed)
        """Observations that the next actions are chosen by."""
        self.memory: RecurrentState | None = (
            RecurrentState.allocate((num_envs,), policy.state_size, np.zeros) if policy.state_size else None
        )
        """Recurrent state; None if the policy is not recurrent."""

    def collecting(
        self, into: StepBuffer, choose: Choose, record: Callable[[int, Array, Array | None], None], first: int = 0,
        is_cut: Callable[[], bool] = never,
    ) -> Acting[int]:  # fmt: skip
        """Act and fill the rows from `first` on; call `record(step, parameters, values)` with the network's outputs of each step.
        Return the number of filled rows: all, unless `is_cut()` returned True after one. The others are not transitions.
        """
        actor, memory, do = self.actor, self.memory, self.stopwatch.do
        none = actor.initial_state(0)
        self._lives_lost.clear()
        self._recorded.clear()
        for t in range(first, len(into.action)):
            into.put(t, self.obs)
            if memory is not None and into.memory is not None:
                into.memory.state[t], into.memory.age[t] = memory.state, memory.age
            do(INFERENCE)
            row, v_t, state = actor.step(self.obs, none if memory is None else memory.state)
            record(t, row, v_t)
            step = yield choose(t, row, actor.mask(self.obs), into.action[t])
            do(WRITING)
            into.reward[t] = step.reward
            into.terminated[t] = step.terminated
            into.truncated[t] = step.truncated
            into.mask[t] = step.is_reset
            if step.final_obs is not None:
                into.put_final(t, *step.final_obs)
            if self._has_lives and step.life_lost.any():
                self._lives_lost.append((t, step.life_lost))
            if step.recorded_return is not None:
                self._recorded[t] = step.recorded_return
            self.obs = step.obs
            if memory is not None:
                is_over = step.terminated | step.truncated
                if self.envs.acts_in_turns:  # an agent that waits for its turn keeps its state
                    state = np.where(step.is_reset[:, None], memory.state, state)
                else:
                    is_over |= step.is_reset
                into.lasts.extend(_lasts(t, step, state))
                memory.state[...] = state
                memory.age[...] += ~step.is_reset
                memory.state[is_over], memory.age[is_over] = 0.0, 0
            if is_cut():
                break
        num_rows = t + 1
        into.put(num_rows, self.obs)
        if num_rows < len(into.action):
            into.blank(num_rows)
        np.logical_not(into.mask[first:], out=into.mask[first:])
        do(INFERENCE)  # of values and log-probabilities, for all steps at once
        return num_rows

    def episodes(self, buffer: StepBuffer, first: int = 0) -> tuple[Episode, ...]:
        """Return the episodes that ended in the rows of the last buffer from `first` on, and clip its rewards. Call it once."""
        is_over = buffer.ended
        for t, life_lost in self._lives_lost:
            is_over[t] &= ~life_lost
        reward = buffer.reward[first:]
        recorded = {t - first: returns for t, returns in self._recorded.items()}
        episodes = self._episodes.count(reward, is_over[first:], buffer.mask[first:], recorded)
        if self._reward_clip is not None:
            np.clip(reward, -self._reward_clip, self._reward_clip, out=reward)
        return episodes

    def turns(self, buffer: StepBuffer, *, to_end: bool) -> Turns | None:
        """Return the steps of a buffer that are rows, if agents act in turns. `to_end`: whether they are aligned to its end."""
        if self.envs.acts is None or not self.envs.acts_in_turns:
            return None
        return Turns.of(buffer.mask, buffer.ended, self.envs.acts, to_end=to_end)

    def state_dict(self) -> dict[str, Array]:
        """Return all state of the next steps except the weights: generator, environments, running episodes."""
        envs = np.frombuffer(self.envs.save(), np.uint8)
        obs = {f"obs/{path}": leaf for path, leaf in named_leaves(self.obs).items()}
        counts = {f"episodes/{name}": array for name, array in self._episodes.state_dict().items()}
        memory = {} if self.memory is None else {"state": self.memory.state.copy(), "age": self.memory.age.copy()}
        returns = self.returns.returns.copy()
        return {"rng": rng_array(self.rng), "envs": envs, "returns": returns, **counts, **obs, **memory}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Restore the state that `state_dict` returned."""
        self.envs.restore(state["envs"].tobytes())
        set_rng(self.rng, state["rng"])
        self.returns.returns[...] = state["returns"]
        self._episodes.load_state_dict({name: state[f"episodes/{name}"] for name in self._episodes.state_dict()})
        # after a compiled rollout they are JAX's, which cannot be written
        self.obs = map_nest(lambda leaf: leaf if leaf.flags.writeable else leaf.copy(), self.obs)
        for path, leaf in named_leaves(self.obs).items():
            leaf[...] = state[f"obs/{path}"]
        if self.memory is not None:
            self.memory.state[...], self.memory.age[...] = state["state"], state["age"]

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()


def _lasts(t: int, step: StepResult, state: Array) -> Iterator[tuple[int, Array, Nest, Array]]:
    """Yield the ends of episodes in a step, with the recurrent states among `state` ``[B, state_size]``."""
    if step.final_obs is not None:
        index, last = step.final_obs
    else:
        index = np.flatnonzero(step.terminated | step.truncated)
        last = map_nest(lambda leaf: leaf[index], step.obs)
    if len(index):
        yield t, index, last, state[index]
