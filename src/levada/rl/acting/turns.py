"""Rollouts of agents that act in turns: rows in which they act, put together.

The environments of a shard are stepped together, but in each step only some agents act, and the result of an action comes later:
when the agent is to act again, or when its episode ends. `Turns` says which steps of an item become its rows:

    acted in 0, 2, 5; acts again after the last step  ->  rows 0, 2, 5, followed by the observation after the item
    acted in 1, 4; what came of 4 is not known yet    ->  row 1, followed by the observation of the pending action, that of step 4

A row's reward is the sum of the rewards from its step until the agent acts again. Rows are aligned to the beginning of the item,
or to its end; those that are left over are masked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from levada.rl.data.spaces import Array, map_nest


@dataclass(frozen=True, slots=True)
class Turns:
    """The steps in which the agents of B rows acted, in an item of T steps."""

    step_of: Array
    """``[T+1, B]``: the step whose observation is in a row; T: the observation after the item."""
    row_of: Array
    """``[T, B]``: the row that what came of a step belongs to; -1: none of this item."""
    mask: Array
    """``[T, B]``, bool: which rows are transitions."""
    last: Array
    """``[B]``: the last step in which an agent acted."""
    is_pending: Array
    """``[B]``, bool: where the result of that action is not known yet."""

    @classmethod
    def of(cls, acted: Array, ended: Array, acts: Array, *, to_end: bool) -> Turns:
        """Find the rows.

        Args:
            acted: ``[T, B]``, bool: where an agent acted.
            ended: ``[T, B]``, bool: where its episode ended.
            acts: ``[B]``, bool: who acts after the last step.
            to_end: whether rows are aligned to the last row.
        """
        num_steps, num_envs = acted.shape
        count = np.cumsum(acted, axis=0)
        num_acted = count[-1]
        has_ended = (ended & (count == num_acted)).any(axis=0)
        is_pending = (num_acted > 0) & ~acts & ~has_ended
        # the observation after the item follows the last row, or that of the pending action does
        shown = np.concatenate([acted, ~is_pending[None]])
        step_of = np.argsort(shown if to_end else ~shown, axis=0, kind="stable")
        num_rows = num_acted - is_pending
        first = num_steps - num_rows if to_end else np.zeros(num_envs, np.int64)
        row = np.arange(num_steps)[:, None]
        mask = (first <= row) & (row < first + num_rows)
        # what comes after the end of an episode and before the next action belongs to no row
        num_ended_before = np.cumsum(ended, axis=0) - ended
        at_act = np.where(acted, num_ended_before, 0)
        is_own = num_ended_before == np.maximum.accumulate(at_act, axis=0)
        row_of = np.where((count > 0) & (count <= num_rows) & is_own, first + count - 1, -1)
        last = np.where(acted, row, 0).max(axis=0)
        return cls(step_of, row_of, mask, last, is_pending)

    def rows(self, column: Any) -> Any:
        """Return a column ``[T, B, ...]`` or ``[T+1, B, ...]`` of steps as a column of rows."""
        env = np.arange(self.step_of.shape[1])

        def take(leaf: Array) -> Array:
            num = len(leaf)
            return leaf[np.minimum(self.step_of[:num], num - 1), env]

        return map_nest(take, column)

    def sums(self, column: Array) -> Array:
        """Add up a column ``[T, B]`` of what came of each step: the rewards of each row, or whether its episode ended."""
        step, env = np.nonzero(self.row_of >= 0)
        row, total = self.row_of[step, env], np.zeros_like(column)
        ufunc = np.logical_or if column.dtype == np.bool_ else np.add
        ufunc.at(total, (row, env), column[step, env])
        return total

    def pending(self, column: Array) -> Array:
        """Return the entries ``[B, ...]`` of a column ``[T, B, ...]`` that belong to the pending actions."""
        pending: Array = column[self.last, np.arange(len(self.last))]
        return pending

    def cut(self, terminated: Array, truncated: Array) -> None:
        """Let the last row of each agent bootstrap from the value of its next observation, if masked rows follow."""
        env = np.flatnonzero(self.mask[0] & ~self.mask[-1])
        last = self.mask.sum(axis=0)[env] - 1
        truncated[last, env] |= ~terminated[last, env]

    def places(self, step: int, index: Array) -> Iterator[tuple[int, Array]]:
        """Yield the rows that what came of a step for the environments `index` belongs to, each with the places in `index`."""
        rows = self.row_of[step, index]
        for row in np.unique(rows[rows >= 0]):
            yield int(row), np.flatnonzero(rows == row)
