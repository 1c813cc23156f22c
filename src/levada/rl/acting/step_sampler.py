"""StepSampler: the source of flows with a replay. Returns environment steps without log-probabilities or values.

sampler = StepSampler(task=task, policy=policy, explore=EpsilonGreedy(), num_envs=8, num_steps=16)
steps = flow.source("steps", sampler, reads=weights)
transitions = flow.map("n_step", NStep(num_steps=3, discount=0.99), steps)
flow.store(transitions, to=replay)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np

from levada.flow import Episode, Shard
from levada.flow.state import PrefixView
from levada.rl.acting.env_loop import Acting, EnvLoop, Finals, StepBuffer, play
from levada.rl.acting.exploration import Exploration
from levada.rl.acting.frame_buffer import FrameStepBuffer, StepBuffers
from levada.rl.acting.network import check_network
from levada.rl.acting.sizes import Sizes
from levada.rl.acting.turns import Turns
from levada.rl.data.nest import flat
from levada.rl.data.spaces import ACTION_MASK, Array, Nest, map_nest, named_leaves
from levada.rl.envs.task import Task
from levada.rl.policies.policy import ModelError, Policy
from levada.rl.replay.transitions import PRIORITY, RETURN, Transitions
from levada.validation import NonNegativeInt, PositiveInt, check_fields

log: logging.Logger = logging.getLogger(__name__)

RESULTS: Final = ("reward", "terminated", "truncated")
"""Columns of what came of an action."""
FirstPriority: TypeAlias = Callable[[Array, Array, Array, Array, Array, Array | None], Array]
"""(parameters ``[T, B, row_size]``, actions ``[T, B, ...]``, rewards and discounts of the windows ``[T, B]``, parameters at
the bootstrap state, its action masks ``[T, B, num_actions]`` if there are any) -> nonnegative priorities ``[T, B]``."""


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """T steps of B environments, the first `num_overlap_steps` from the previous item, for windows that start there."""

    buffer: StepBuffer
    num_overlap_steps: int
    episodes: tuple[Episode, ...]
    """Episodes that ended in new steps, in order."""
    num_env_steps: int
    """Number of new transitions."""
    rows: Array | None = None
    """``[T, B, row_size]``: the parameters that the actions were chosen by, if the sampler keeps them."""
    stream: str = ""
    """Name of the stream of steps: all steps of one shard."""
    first_step: int = 0
    """Index of the first step in the stream."""
    reward_scale: float = 1.0
    """Factor of rewards under the weights that acted."""
    began: Array | None = None
    """``[T, num_copies]``, bool, of agents that act at once: where the step ended the episode of a copy of the environment for
    all its agents. None: every environment has one agent, or they act in turns."""
    acts: Array | None = None
    """``[B]``, bool: which of these agents act after the last step."""

    @property
    def observations(self) -> tuple[Any, Finals]:
        """Observations ``[T+1, B, ...]`` and the true final ones. With a frame stack they are `Frames`."""
        return self.buffer.observations(self.stream, self.first_step)


@dataclass(frozen=True, kw_only=True)
class StepSampler:
    """Recipe of a sampler, opened once per shard, where the shard runs.

    Raises:
        ValueError: a number is invalid.
        SpaceError: the exploration does not fit the action space.
    """

    task: Task
    """Task to act in."""
    policy: Policy
    """Policy to act with; each firing passes its weights."""
    explore: Exploration
    """Exploration: how actions deviate from the policy's."""
    num_envs: PositiveInt
    """B: number of environments per shard. Their observations go through the network together."""
    num_steps: PositiveInt
    """T: number of new steps per item."""
    num_overlap_steps: NonNegativeInt = 0
    """Number of steps of the previous item that an item starts with."""
    is_recurrent: bool = False
    """Whether the policy must be recurrent: sequences start from its states, and transitions have none."""
    keeps_network_outputs: bool = False
    """Whether items contain the parameters that the actions were chosen by; initial priorities need them."""
    discount: float = 0.99
    """Discount factor of the returns that items contain if the policy normalizes rewards."""

    def __post_init__(self) -> None:
        check_fields(self, ValueError)
        self.explore.check(self.policy.head)

    def verify(self) -> None:
        """Refuse a network that cannot act.

        Raises:
            ModelError: it has the wrong inputs or outputs, or is recurrent although `is_recurrent` is False, or vice versa.
        """
        check_network(self.policy)
        if bool(self.policy.state_size) is not self.is_recurrent:
            kind = "a recurrent one (levada.rl.Recurrent)" if self.is_recurrent else "a network that is not recurrent"
            msg = f"policy {self.policy.name!r}: network={self.policy.network!r}, expected {kind}"
            raise ModelError(msg)

    def __call__(self, shard: Shard) -> LiveStepSampler:
        """Make the environments of a shard."""
        return LiveStepSampler(self, shard)


class LiveStepSampler(EnvLoop):
    """A running sampler."""

    def __init__(self, recipe: StepSampler, shard: Shard) -> None:
        super().__init__(recipe.task, recipe.policy, recipe.num_envs, recipe.discount, shard)
        self.recipe = recipe
        if recipe.task.is_functional:
            log.warning(
                "environment %r: rollouts for a replay are not compiled, which makes them slower", self.envs.name
            )
        self._shard = shard
        self._buffers = cache(
            lambda num_steps: StepBuffers(
                recipe.task, num_steps, recipe.num_envs, recipe.policy.state_size,
                has_returns=recipe.policy.normalize_reward,
            )
        )  # fmt: skip
        """Number of steps, with those of before -> buffers."""
        self._num_items = shard.num_items
        self._old: dict[str, Array] = {}
        """The last steps, copied because their memory is reused; empty if none are needed."""
        self._old_rows = np.empty((0, recipe.num_envs, self.actor.head.row_size), np.float32)

    def __call__(self, weights: Mapping[str, Array]) -> Steps:
        """Act for T steps with these weights."""
        return play(self.sampling(weights), self.envs.step, self.stopwatch)

    def sampling(self, weights: Mapping[str, Array]) -> Acting[Steps]:
        """Yield the actions of T steps with these weights, each for the result of the step, and return the steps."""
        recipe, shard, actor = self.recipe, self._shard, self.actor
        num_overlap_steps = len(self._old["action"]) if self._old else 0
        actor.load(weights)
        actor.draw_weight_noise(self.rng)
        buffer = self._buffers(num_overlap_steps + recipe.num_steps).allocate(shard.empty)
        if self._old:
            _begin_with(self._old, buffer)
        num_env_steps = self._num_items * recipe.num_steps * recipe.num_envs * shard.num_shards
        explore = recipe.explore.plan(actor.head, self.rng, recipe.num_steps, recipe.num_envs, shard, num_env_steps)
        rows: Array | None = None
        if recipe.keeps_network_outputs:
            rows = np.concatenate([self._old_rows, np.empty((recipe.num_steps, *self._old_rows.shape[1:]), np.float32)])
        record = (lambda *_: None) if rows is None else (lambda t, row, _: rows.__setitem__(t, row))
        yield from self.collecting(
            buffer, lambda t, *rest: explore(t - num_overlap_steps, *rest), record, first=num_overlap_steps
        )
        first_step = self._num_items * recipe.num_steps - num_overlap_steps
        self._num_items += 1
        episodes = self.episodes(buffer, num_overlap_steps)
        num_new = int(buffer.mask[num_overlap_steps:].sum())
        if (turns := self.turns(buffer, to_end=True)) is not None:
            arranged = self._in_turns(buffer, rows, turns)
            return Steps(buffer, num_overlap_steps, episodes, num_new, arranged, reward_scale=actor.reward_scale)
        if buffer.discounted_return is not None:
            new = (column[num_overlap_steps:] for column in (buffer.reward, buffer.ended, buffer.mask))
            buffer.discounted_return[num_overlap_steps:] = self.returns.sums(*new)
        if recipe.num_overlap_steps or recipe.task.frame_stack:
            first = max(0, len(buffer.action) - recipe.num_overlap_steps)
            self._old = _tail(buffer, first)
            if rows is not None:
                self._old_rows = rows[first:].copy()
        stream = f"{shard.node}/{shard.index}"
        return Steps(buffer, num_overlap_steps, episodes, num_new, rows, stream, first_step, actor.reward_scale)

    def _in_turns(self, buffer: StepBuffer, rows: Array | None, turns: Turns) -> Array | None:
        """Put the steps in which agents acted together, at the end of the buffer. Keep what the next item starts with: the last
        of them, and the actions whose results are not known yet. Return the parameters of the steps.
        """
        first = len(buffer.action) - self.recipe.num_overlap_steps
        pending = {
            name: turns.pending(column) for name, column in _columns(buffer).items() if not name.startswith("obs/")
        }
        pending |= {name: np.zeros_like(pending[name]) for name in RESULTS} | {"mask": turns.is_pending}
        buffer.arrange(turns)
        self._old = _tail(buffer, first)
        self._old |= {name: np.concatenate([self._old[name], column[None]]) for name, column in pending.items()}
        if rows is None:
            return None
        arranged: Array = turns.rows(rows)
        self._old_rows = np.concatenate([arranged[first:], turns.pending(rows)[None]])
        return arranged

    def state_dict(self) -> dict[str, Array]:
        """Return all state of the next item except the weights."""
        own = {"num_items": np.array(self._num_items), "old_rows": self._old_rows}
        return super().state_dict() | own | {f"old/{name}": array for name, array in self._old.items()}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Restore the state that `state_dict` returned."""
        super().load_state_dict(state)
        self._num_items = int(state["num_items"])
        self._old_rows = state["old_rows"].copy()
        self._old = {name: array.copy() for name, array in PrefixView(state, "old/").items()}


def _columns(buffer: StepBuffer) -> dict[str, Array]:
    """Return the columns, which have one row per step, and the observations."""
    columns = {name: getattr(buffer, name) for name in ("action", "reward", "terminated", "truncated", "mask")}
    if buffer.memory is not None:
        columns |= {"state": buffer.memory.state, "age": buffer.memory.age}
    if buffer.discounted_return is not None:
        columns[RETURN] = buffer.discounted_return
    return columns | {f"obs/{path}": leaf for path, leaf in named_leaves(buffer.obs).items()}


def _tail(buffer: StepBuffer, first: int) -> dict[str, Array]:
    """Copy the steps of a buffer from `first` on."""
    tail = {name: column[first:].copy() for name, column in _columns(buffer).items()}
    if isinstance(buffer, FrameStepBuffer):
        tail["frame_age"] = buffer.ages()[first]
    for number, (t, index, last) in enumerate(final for final in buffer.final_obs if final[0] >= first):
        tail |= {f"final/{number}/t": np.array(t - first), f"final/{number}/index": index.copy()}
        tail |= {f"final/{number}/obs/{path}": leaf.copy() for path, leaf in named_leaves(last).items()}
    return tail


def _begin_with(tail: Mapping[str, Array], buffer: StepBuffer) -> None:
    """Copy the last steps of another buffer to the beginning of a buffer."""
    for name, column in _columns(buffer).items():
        column[: len(tail[name])] = tail[name]
    if isinstance(buffer, FrameStepBuffer):
        buffer.age[...] = tail["frame_age"]
    number = 0
    while f"final/{number}/t" in tail:
        final = PrefixView(tail, f"final/{number}/")
        leaves = iter([final[f"obs/{path}"] for path in named_leaves(buffer.obs)])
        buffer.final_obs.append((int(final["t"]), final["index"], map_nest(lambda _, of=leaves: next(of), buffer.obs)))
        number += 1


@lru_cache(maxsize=16)
def _grid(num_rows: int, num_envs: int) -> tuple[Array, Array]:
    """Return the rows and the environments of ``[num_rows, num_envs]`` steps, read-only."""
    rows, envs = np.indices((num_rows, num_envs))
    rows.setflags(write=False)
    envs.setflags(write=False)
    return rows, envs


def look_ahead(
    buffer: StepBuffer, start: Array, env: Array, is_step: Array, num_steps: int, discount: float
) -> tuple[Array, Array, Array]:
    """Return the n-step windows that start in the rows `start` of the environments `env` and end with the episode or after n
    steps: the discounted sum of rewards, the last row, and the discount of the bootstrap value. `is_step`: False for no
    transition.
    """
    ended, num_rows = buffer.ended, len(buffer.reward)
    reward, last, alive = np.zeros(start.shape, np.float32), start.copy(), is_step.copy()
    for k in range(num_steps):
        row = np.minimum(start + k, num_rows - 1)
        reward += np.float32(discount**k) * buffer.reward[row, env] * alive
        last[alive] = start[alive] + k
        alive &= ~ended[row, env]
    alive = ~buffer.terminated[np.minimum(last, num_rows - 1), env]
    after = np.float32(discount) ** (last - start + 1).astype(np.float32) * alive
    return reward, last, after.astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class NStep:
    """Turns steps into n-step transitions; a function for `flow.map`.

    The columns of row t, ``[N, ...]``, for a window that ends after k steps, because it is full or its episode ended:

    - `obs`, `action`: s_t and a_t, at step t.
    - `reward`: r_{t+1} + discount r_{t+2} + ... + discount^(k-1) r_{t+k}, where r_{t+1} is the reward that follows a_t.
    - `next_obs`: s_{t+k}, the true observation after these k steps, also if the episode was truncated.
    - `discount`: discount^k, or 0 if the episode terminated: the factor of the value of `next_obs`.
    - `discounted_return`, if the policy normalizes rewards: the discounted sum of the rewards of the episode up to step t.

    Source: Sutton and Barto 2018, equation 7.1; as in Rainbow (arXiv 1710.02298). Windows that extend beyond the item wait for
    the next one, which starts with the steps they need: use `StepSampler(num_overlap_steps=n_step.num_overlap_steps)`.

    With a `priority` there is a priority column, for prioritized replay. It is computed from the parameters that the actions
    were chosen by, including those after the window, so it needs one more step: use
    `StepSampler(num_overlap_steps=num_steps, keeps_network_outputs=True)`.
    """

    NODE: ClassVar[str] = "n_step"
    discount: float
    num_steps: int = 1
    priority: FirstPriority | None = None
    """Initial priorities of rows in a replay; None: the largest priority so far."""

    @property
    def num_overlap_steps(self) -> int:
        """Number of steps of the previous item that it needs."""
        return self.num_steps - (self.priority is None)

    def entry_nbytes(self, sizes: Sizes) -> int:
        """Bytes of a row, with reward and discount."""
        return sizes.observation + sizes.next_observation + sizes.action + 8

    def __call__(self, steps: Steps) -> Transitions:
        """Return the windows that this item completes."""
        buffer = steps.buffer
        obs, final_obs = steps.observations
        num_all, num_envs = buffer.reward.shape
        num = max(0, num_all - self.num_overlap_steps)
        start, env = _grid(num, num_envs)
        reward, last, discount = look_ahead(buffer, start, env, buffer.mask[:num], self.num_steps, self.discount)
        after = {"next_obs": map_nest(lambda leaf: leaf[last + 1, env], obs)}
        for t, index, final in final_obs:
            rows, columns = np.nonzero((last == t) & np.isin(env, index))
            place = np.searchsorted(index, columns)
            map_nest(lambda to, of, r=rows, c=columns, p=place: to.__setitem__((r, c), of[p]), after["next_obs"], final)
        columns_: dict[str, Nest] = {
            "obs": map_nest(lambda leaf: leaf[:num], obs), "action": buffer.action[:num], "reward": reward,
            "discount": discount, **after, "mask": buffer.mask[:num],
        }  # fmt: skip
        if buffer.discounted_return is not None:
            columns_[RETURN] = buffer.discounted_return[:num]
        if self.priority is not None:
            assert steps.rows is not None, "priorities need StepSampler(keeps_network_outputs=True)"
            after_t = np.where(buffer.ended[last, env], last, last + 1)  # no action is chosen after an episode
            mask_t = obs[ACTION_MASK][after_t, env] if isinstance(obs, dict) and ACTION_MASK in obs else None
            scaled = reward * np.float32(steps.reward_scale)
            columns_[PRIORITY] = self.priority(
                steps.rows[start, env], buffer.action[:num], scaled, discount, steps.rows[after_t, env], mask_t
            )
        return Transitions(flat(columns_))
