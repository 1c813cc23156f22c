"""Training data of a learner: columns of N transitions, and the moments for running statistics.

>>> import numpy as np
>>> some = Transitions({"reward": np.ones(3, np.float32)})
>>> concatenate([some, some]).num_rows
6
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from levada.flow import Replay
from levada.flow.items import Allocate
from levada.rl.data.device_array import DeviceArray
from levada.rl.data.frames import Frames
from levada.rl.data.normalize import Moments, merge_all
from levada.rl.data.spaces import Nest, leaves, map_nest

if TYPE_CHECKING:
    from levada.rl.replay.row_table import RowTable

MASK = "mask"
"""The column that is 0 where a row is not a transition but the reset after an episode; such rows are not trained on."""
WEIGHT = "weight"
"""The column with the weight of each row in a loss: 1 / (number of transitions), or 0. A mean is `(weight * x).sum()`."""
PRIORITY = "priority"
"""The column of initial priorities in a prioritized replay; without it, rows enter with the largest priority so far."""
IMPORTANCE = "importance"
"""The column of importance-sampling weights, float32, with a maximum of 1 per draw."""

IS_STEP = "is_step"
"""The column of sequences ``[N, length]`` that is False where a step is padding."""
REWARD = "reward"
"""The column of rewards; a learner scales it if its policy normalizes rewards and the batch comes from a replay."""
RETURN = "discounted_return"
"""The column of the discounted sum of an episode's rewards so far, by whose standard deviation rewards are scaled."""


@dataclass(frozen=True, slots=True, eq=False)
class Transitions:
    """Columns ``[N, ...]`` by name. Observations may be nested, and stacks of frames may be `Frames`."""

    columns: Mapping[str, Nest]
    moments: Mapping[str, Moments] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        """N."""
        return int(leaves(next(iter(self.columns.values())))[0].shape[0])

    @property
    def num_entries(self) -> int:
        """Number of rows that are transitions, or whole rollouts of single environments; a replay counts these."""
        mask = self.columns.get(MASK)
        return int(mask.sum()) if isinstance(mask, np.ndarray) and mask.ndim == 1 else self.num_rows

    @staticmethod
    def open_table(replay: Replay[Any], *, capacity: int, seed: int, zeros: Allocate = np.zeros) -> RowTable:
        """Open the table of a replay of transitions."""
        from levada.rl.replay.row_table import RowTable

        return RowTable(replay, capacity=capacity, seed=seed, zeros=zeros)


def concatenate(parts: Sequence[Transitions]) -> Transitions:
    """Concatenate the rows. A single part is returned without a copy; stacks of frames stay references.

    Raises:
        ValueError: the parts have different columns.
    """
    first = parts[0]
    for part in parts[1:]:
        if set(part.columns) != set(first.columns):
            got = f"{sorted(first.columns)} and {sorted(part.columns)}"
            msg = f"a batch of transitions needs the same columns in each part, got {got}"
            raise ValueError(msg)
    moments = merge_all(part.moments for part in parts)
    if len(parts) == 1:
        return Transitions(first.columns, moments)
    columns = {name: map_nest(_joined, *(part.columns[name] for part in parts)) for name in first.columns}
    return Transitions(columns, moments)


def _joined(*rows: Any) -> Any:
    kind: Any = type(rows[0])
    return kind.join(rows) if kind in (Frames, DeviceArray) else np.concatenate(rows)
