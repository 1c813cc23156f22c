"""StepSampler: the source of flows with a replay. It gives what environments went through, and nothing of the policy.

sampler = StepSampler(task=task, policy=policy, explore=EpsilonGreedy(), num_envs=8, num_steps=16)
steps = flow.source("steps", sampler, reads=weights)
transitions = flow.map("n_step", NStep(num_steps=3, discount=0.99), steps)
flow.store(transitions, to=replay)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from levada.flow import Episode, Shard
from levada.flow.payload import Allocate
from levada.rl._env_loop import EnvLoop, Finals, Walk
from levada.rl._frame_walk import FrameWalk, walk_for
from levada.rl.explore import Exploration
from levada.rl.policy import Policy
from levada.rl.spaces import ACTION_MASK, Array, Nest, map_nest, named_leaves
from levada.rl.task import Task
from levada.rl.transitions import PRIORITY, Transitions

FirstPriority: TypeAlias = Callable[[Array, Array, Array, Array, Array, Array | None], Array]
"""(parameters ``[T, B, row_size]``, actions ``[T, B, ...]``, rewards and discounts of windows ``[T, B]``, parameters after them,
the action masks ``[T, B, num_actions]`` there, if there are any) -> priorities ``[T, B]``, not negative."""


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """T steps of B environments, of which the first `num_old` were in the item before: for windows that begin there."""

    walk: Walk
    num_old: int
    episodes: tuple[Episode, ...]
    """Episodes that ended in new steps, in order."""
    rows: Array | None = None
    """``[T, B, row_size]``: the parameters that actions were chosen by, where the sampler keeps them."""
    stream: str = ""
    """Whose steps: all that one shard makes."""
    first_step: int = 0
    """Number of the first step in it."""

    @property
    def num_env_steps(self) -> int:
        """New transitions."""
        return int(self.walk.mask[self.num_old :].sum())

    @property
    def observations(self) -> tuple[Any, Finals]:
        """The observations ``[T+1, B, ...]`` and the true final ones; those of a task with a frame stack are `Frames`."""
        return self.walk.observations(self.stream, self.first_step)


@dataclass(frozen=True, kw_only=True)
class StepSampler:
    """Recipe of a sampler: opened once per shard, where the shard runs.

    Raises:
        ValueError: numbers that cannot be.
        SpaceError: the exploration is for other actions.

    """

    task: Task
    """Where to act."""
    policy: Policy
    """How to act; its weights come with each firing."""
    explore: Exploration
    """How to leave it."""
    num_envs: int
    """B: environments of one shard. Their observations go through the network together."""
    num_steps: int
    """T: new steps of one item."""
    num_old: int = 0
    """Steps of the item before that an item begins with."""
    keeps_rows: bool = False
    """Whether an item has the parameters that its actions were chosen by: for first priorities."""

    def __post_init__(self) -> None:
        for name, least in (("num_envs", 1), ("num_steps", 1), ("num_old", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                msg = f"StepSampler({name}={value!r}): expected an integer >= {least}"
                raise ValueError(msg)
        self.explore.check(self.policy.head)

    def __call__(self, shard: Shard) -> LiveStepSampler:
        """Make the environments of a shard."""
        return LiveStepSampler(self, shard)


class LiveStepSampler:
    """A sampler at work."""

    def __init__(self, recipe: StepSampler, shard: Shard) -> None:
        self.recipe = recipe
        self._shard = shard
        self._loop = EnvLoop(recipe.task, recipe.policy, recipe.num_envs, shard)
        self._num_items = shard.num_items
        self._old: Walk | None = None
        self._old_rows = np.empty((0, recipe.num_envs, self._loop.actor.head.row_size), np.float32)

    def __call__(self, weights: Mapping[str, Array]) -> Steps:
        """Act for T steps with these weights."""
        recipe, loop, shard = self.recipe, self._loop, self._shard
        actor, num_old = loop.actor, 0 if self._old is None else len(self._old.action)
        actor.load(weights)
        actor.draw_weight_noise(loop.rng)
        walk = self._allocate(num_old + recipe.num_steps, shard.empty)
        if self._old is not None:
            _copy(self._old, walk, 0)
        num_env_steps = self._num_items * recipe.num_steps * recipe.num_envs * shard.num_shards
        explore = recipe.explore.plan(actor.head, loop.rng, recipe.num_steps, recipe.num_envs, shard, num_env_steps)
        rows = self._rows(num_old)
        see = (lambda *_: None) if rows is None else (lambda t, row, _: rows.__setitem__(t, row))
        loop.walk(walk, lambda t, *rest: explore(t - num_old, *rest), see, first=num_old)
        first_step = self._num_items * recipe.num_steps - num_old
        self._num_items += 1
        episodes = loop.episodes(walk, num_old)
        if recipe.num_old or recipe.task.frame_stack:
            self._keep(walk, rows)
        return Steps(walk, num_old, episodes, rows, f"{shard.node}/{shard.index}", first_step)

    def state_dict(self) -> dict[str, Array]:
        """What the next item depends on, but the weights.

        Raises:
            NotSavedError: the environments cannot be saved.

        """
        return self._loop.state_dict() | {
            "num_items": np.array(self._num_items), "old_rows": self._old_rows, **_arrays(self._old),
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Go on from what `state_dict` gave.

        Raises:
            NotSavedError: it is the state of other environments.

        """
        self._loop.load_state_dict(state)
        self._num_items = int(state["num_items"])
        self._old_rows = state["old_rows"].copy()
        self._old = None
        if "old/reward" in state:
            self._old = self._allocate(len(state["old/reward"]), np.empty)
            _load(self._old, state)

    def close(self) -> None:
        """Close the environments."""
        self._loop.close()

    def _rows(self, num_old: int) -> Array | None:
        """Memory for the rows of parameters, the old ones in it."""
        if not self.recipe.keeps_rows:
            return None
        rows = np.empty((num_old + self.recipe.num_steps, *self._old_rows.shape[1:]), np.float32)
        rows[:num_old] = self._old_rows
        return rows

    def _keep(self, walk: Walk, rows: Array | None) -> None:
        """Copy the last steps: their memory is used again."""
        num_kept = min(self.recipe.num_old, len(walk.action))
        first = len(walk.action) - num_kept
        self._old = self._allocate(num_kept, np.empty)
        _copy(walk, self._old, first)
        if rows is not None:
            self._old_rows = rows[first:].copy()

    def _allocate(self, num_steps: int, empty: Allocate) -> Walk:
        recipe = self.recipe
        return walk_for(recipe.task, num_steps, recipe.num_envs, empty, recipe.policy.state_size)


def _copy(source: Walk, into: Walk, first: int) -> None:
    """Fill the first rows of one walk with those of another, from `first` on."""
    num = len(source.action) - first
    map_nest(lambda to, of: np.copyto(to[: len(of) - first], of[first:]), into.obs, source.obs)
    if isinstance(source, FrameWalk) and isinstance(into, FrameWalk):
        into.age[...] = source.ages()[first]
    sources = _columns(source)
    for name, column in _columns(into).items():
        column[:num] = sources[name][first:]
    into.finals.extend(
        (t - first, index.copy(), map_nest(np.copy, last)) for t, index, last in source.finals if t >= first
    )


def _columns(walk: Walk) -> dict[str, Array]:
    """What has one row for each step."""
    memory = {} if walk.memory is None else {"state": walk.memory.state, "age": walk.memory.age}
    return {name: getattr(walk, name) for name in ("action", "reward", "terminated", "truncated", "mask")} | memory


def _saved(walk: Walk) -> dict[str, Array]:
    """These, and what else is an array of its own."""
    return _columns(walk) | ({"frame_age": walk.age} if isinstance(walk, FrameWalk) else {})


def _arrays(walk: Walk | None) -> dict[str, Array]:
    if walk is None:
        return {}
    found = {f"old/{name}": column for name, column in _saved(walk).items()}
    found |= {f"old/obs/{path}": leaf for path, leaf in named_leaves(walk.obs).items()}
    for number, (t, index, last) in enumerate(walk.finals):
        found |= {f"old/final/{number}/t": np.array(t), f"old/final/{number}/index": index}
        found |= {f"old/final/{number}/obs/{path}": leaf for path, leaf in named_leaves(last).items()}
    return found


def _rows_like(num_rows: int, leaf: Array) -> Array:
    return np.empty((num_rows, *leaf.shape[2:]), leaf.dtype)


def _load(walk: Walk, state: Mapping[str, Array]) -> None:
    for name, column in _saved(walk).items():
        column[...] = state[f"old/{name}"]
    for path, leaf in named_leaves(walk.obs).items():
        leaf[...] = state[f"old/obs/{path}"]
    number = 0
    while (prefix := f"old/final/{number}/") + "t" in state:
        index = state[prefix + "index"].copy()
        last: Nest = map_nest(partial(_rows_like, len(index)), walk.obs)
        for path, leaf in named_leaves(last).items():
            leaf[...] = state[f"{prefix}obs/{path}"]
        walk.finals.append((int(state[prefix + "t"]), index, last))
        number += 1


def look_ahead(
    walk: Walk, start: Array, env: Array, is_step: Array, num_steps: int, discount: float
) -> tuple[Array, Array, Array]:
    """Windows that begin in these rows of these environments, and end with the episode or after n steps.

    Args:
        walk: it has these steps, but for where `is_step` is False.
        start: rows, an integer array of any shape.
        env: environments, as `start`.
        is_step: bool, as `start`: False where there is no transition.
        num_steps: n.
        discount: of each step.

    Returns:
        The discounted sum of rewards, the window's last row, and what the value behind it is to be multiplied by.

    """
    ended, num_rows = walk.ended, len(walk.reward)
    reward, last, alive = np.zeros(start.shape, np.float32), start.copy(), is_step.copy()
    for k in range(num_steps):
        row = np.minimum(start + k, num_rows - 1)
        reward += np.float32(discount**k) * walk.reward[row, env] * alive
        last[alive] = start[alive] + k
        alive &= ~ended[row, env]
    alive = ~walk.terminated[np.minimum(last, num_rows - 1), env]
    after = np.float32(discount) ** (last - start + 1).astype(np.float32) * alive
    return reward, last, after.astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class NStep:
    """Turns steps into transitions that look n steps ahead: a function for `flow.map`.

    The columns of row t, ``[N, ...]``, with an episode that ends, or a window that is full, after k steps:

    - `obs`, `action`: of step t.
    - `reward`: r_t + discount r_{t+1} + ... + discount^(k-1) r_{t+k-1}.
    - `next_obs`: the true observation after these k steps, also where an episode was truncated.
    - `discount`: discount^k, and 0 where the episode terminated: what the value of `next_obs` is to be multiplied by.

    Source: Sutton and Barto 2018, equation 7.1; as in Rainbow (arXiv 1710.02298). Windows that go beyond the item wait for the
    next one, which begins with the steps that they need: give `StepSampler(num_old=n_step.num_old)`.

    With a `priority` there is a column of it, for a prioritised replay. It is made of the parameters that actions were chosen by,
    also after the window, so it takes one step more: give `StepSampler(num_old=num_steps, keeps_rows=True)`.

    """

    discount: float
    num_steps: int = 1
    priority: FirstPriority | None = None
    """Priorities with which rows enter a replay; None: the largest that there was."""

    @property
    def num_old(self) -> int:
        """Steps of the item before that it needs."""
        return self.num_steps - (self.priority is None)

    @property
    def stride(self) -> int:
        """Steps from one row to the next."""
        return 1

    def __call__(self, steps: Steps) -> Transitions:
        """The windows that are complete, and were not before."""
        walk = steps.walk
        obs, finals = steps.observations
        num_all, num_envs = walk.reward.shape
        num = max(0, num_all - self.num_old)
        start, env = np.mgrid[0:num, 0:num_envs]
        reward, last, discount = look_ahead(walk, start, env, walk.mask[:num], self.num_steps, self.discount)
        after = {"next_obs": map_nest(lambda leaf: leaf[last + 1, env], obs)}
        for t, index, final in finals:
            rows, columns = np.nonzero((last == t) & np.isin(env, index))
            place = np.searchsorted(index, columns)
            map_nest(lambda to, of, r=rows, c=columns, p=place: to.__setitem__((r, c), of[p]), after["next_obs"], final)
        columns_: dict[str, Nest] = {
            "obs": map_nest(lambda leaf: leaf[:num], obs), "action": walk.action[:num], "reward": reward,
            "discount": discount, **after, "mask": walk.mask[:num],
        }  # fmt: skip
        if self.priority is not None:
            assert steps.rows is not None, "priorities need StepSampler(keeps_rows=True)"
            after_t = np.where(walk.ended[last, env], last, last + 1)  # after an episode nothing was chosen
            mask_t = obs[ACTION_MASK][after_t, env] if isinstance(obs, dict) and ACTION_MASK in obs else None
            columns_[PRIORITY] = self.priority(
                steps.rows[start, env], walk.action[:num], reward, discount, steps.rows[after_t, env], mask_t
            )
        return Transitions({name: map_nest(_rows, nest) for name, nest in columns_.items()})


def _rows(array: Array) -> Array:
    return array.reshape(-1, *array.shape[2:])
