"""How a batch becomes minibatches, and these become microbatches, whose gradients are computed separately.

A `Cut` counts rows: N in the batch, and M microbatches per minibatch. Microbatch p of every minibatch comes from part p of the
batch, which is one M-th of its rows. If the batch is shuffled, or is one minibatch, part p is a run of consecutive rows, and each
part is shuffled by itself. Otherwise minibatches are runs of consecutive rows, and part p is the p-th microbatch of each.

>>> Cut(num_rows=8, minibatch_size=4, num_parts=2, shuffle=True).rows_of(1).tolist()
[4, 5, 6, 7]
>>> Cut(num_rows=8, minibatch_size=4, num_parts=2, shuffle=False).rows_of(1).tolist()
[2, 3, 6, 7]

A replica of a learner has only some of the parts (`levada.rl.learning.replicas`); a `Share` is what it has. A learner that is
`Alone` has all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from levada.flow import LevadaError, LevadaInternalError
from levada.rl.compute.threads import Concurrent
from levada.rl.data.normalize import Moments, merge_all
from levada.rl.data.spaces import Array, map_nest
from levada.rl.learning.step import GradientOf
from levada.rl.replay.transitions import IS_STEP, MASK, Transitions, concatenate

CutOf = Callable[[int], "Cut"]
"""Function from the number of rows in a batch to its division."""
Sampled = Callable[[Transitions], Mapping[str, Moments]]
"""Function from rows to their moments."""


class MinibatchError(LevadaError, ValueError):
    """A minibatch size, or a number of microbatches, does not suit the batch."""


class Microbatches(NamedTuple):
    """The microbatches of a minibatch that are here."""

    rows: tuple[Tensor, ...]
    """Rows of each, ``[m]``, int64."""
    weights: tuple[float, ...]
    """Weight of each in the mean over the minibatch: its fraction of the valid steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """Division of a batch into minibatches of M microbatches."""

    num_rows: int
    """Number of rows in the batch, N."""
    minibatch_size: int
    """Number of rows of a minibatch."""
    num_parts: int
    """Number of microbatches per minibatch, M."""
    shuffle: bool
    """Whether rows are shuffled."""

    def __post_init__(self) -> None:
        num_rows, size, num = self.num_rows, self.minibatch_size, self.num_parts
        if num_rows % size:
            msg = f"a batch of {num_rows} rows does not divide into minibatches of {size}; {num_rows % size} would be left"
            raise MinibatchError(msg)
        if size % num:
            msg = f"a minibatch of {size} rows does not divide into {num} microbatches; {size % num} would be left"
            raise MinibatchError(msg)

    @property
    def num_minibatches(self) -> int:
        """Number of minibatches of one pass over the batch."""
        return self.num_rows // self.minibatch_size

    @property
    def microbatch_size(self) -> int:
        """Number of rows of a microbatch."""
        return self.minibatch_size // self.num_parts

    @property
    def part_size(self) -> int:
        """Number of rows of a part."""
        return self.num_rows // self.num_parts

    def rows_of(self, part: int) -> Array:
        """Return the rows of a part, in order."""
        size = self.part_size if self.shuffle else self.microbatch_size
        return np.arange(self.num_rows).reshape(-1, self.num_parts, size)[:, part].reshape(-1)

    def rows_by_part(self) -> Array:
        """Return all rows, part by part."""
        if self.num_parts == 1:
            return np.arange(self.num_rows)
        return np.concatenate([self.rows_of(part) for part in range(self.num_parts)])

    def order(self, rng: np.random.Generator) -> Array:
        """Return the rows of one pass over the batch, minibatch by minibatch."""
        return rng.permutation(self.num_rows) if self.shuffle else np.arange(self.num_rows)

    def minibatches(self, rng: np.random.Generator, device: torch.device) -> Iterator[Tensor | slice]:
        """Rows of each minibatch of one pass over a batch that is here as a whole."""
        if self.shuffle:
            yield from torch.split(torch.from_numpy(self.order(rng)).to(device), self.minibatch_size)
        else:
            size = self.minibatch_size
            yield from (slice(start, start + size) for start in range(0, self.num_rows, size))

    def microbatches(
        self, rng: np.random.Generator, device: torch.device, steps: Array | None, rows: Mapping[int, Array]
    ) -> Iterator[Microbatches]:
        """Microbatches of each minibatch of one pass. Draws the same numbers whatever is here.

        Args:
            rng: generator of the learner.
            device: device of the rows.
            steps: number of valid steps of each row of each part, ``[M, N / M]``; None: all are alike.
            rows: for each part that is here, the places of its rows.
        """
        parts, size = range(self.num_parts), self.part_size
        order = np.stack([rng.permutation(size) if self.shuffle else np.arange(size) for _ in parts])
        num_steps = np.ones(order.shape) if steps is None else np.take_along_axis(steps, order, axis=1)
        shape = (self.num_parts, self.num_minibatches, self.microbatch_size)
        # [minibatches, parts]; without a mask every microbatch counts as one
        sums = num_steps.reshape(shape)[:, :, : 1 if steps is None else None].sum(axis=2).T
        weights = (sums / np.maximum(sums.sum(axis=1, keepdims=True), 1.0)).tolist()
        places = [torch.from_numpy(rows[part][order[part]].reshape(shape[1:])).to(device) for part in rows]
        for number, weight in enumerate(weights):
            yield Microbatches(tuple(some[number] for some in places), tuple(weight[part] for part in rows))


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """The rows of a batch that are here, and what is known of all."""

    cut: Cut
    """Division of the whole batch."""
    data: Transitions
    """Rows that are here: the whole batch, or the parts of `parts` one after the other."""
    parts: tuple[int, ...]
    """Parts whose gradients are computed here, in ascending order."""
    is_whole: bool
    """Whether `data` is the whole batch, in the order of its rows."""
    steps: Array | None
    """Number of valid steps of each row of each part, ``[M, N / M]``; None: there is no mask."""
    moments: Mapping[str, Moments] = field(default_factory=dict)
    """Moments of the whole batch."""

    @property
    def num_transitions(self) -> int:
        """Number of transitions in the whole batch; a sequence without a mask of transitions counts as one."""
        return self.cut.num_rows if self.steps is None or MASK not in self.data.columns else int(self.steps.sum())

    def places(self) -> dict[int, Array]:
        """Return where the rows of each part are in `data`."""
        size = self.cut.part_size
        return {
            part: self.cut.rows_of(part) if self.is_whole else np.arange(number * size, (number + 1) * size)
            for number, part in enumerate(self.parts)
        }

    def rows(self) -> Array | None:
        """Return which rows of the batch are here, in order; None: all."""
        return None if self.is_whole else np.concatenate([self.cut.rows_of(part) for part in self.parts])


class Alone:
    """A learner without replicas, which computes the gradients of all parts."""

    size: int = 1
    """Number of replicas."""
    _keeps_gradients = False
    """Whether the gradients of all microbatches are kept until the end of a minibatch; they are added at once otherwise."""

    def __init__(self, num_parts: int) -> None:
        self._num_parts = num_parts

    @property
    def parts(self) -> tuple[int, ...]:
        """Parts whose gradients are computed here, in ascending order."""
        return tuple(range(self._num_parts))

    def leave(self) -> None:
        """Disconnect from other replicas, which notice."""

    def share(
        self, batch: Sequence[Transitions], parts: Sequence[int] | None, cut_of: CutOf, sampled: Sampled | None,
        num_updates: int,
    ) -> Share:  # fmt: skip
        """Return the rows of the parts whose gradients are computed here, and what is known of all.

        Args:
            batch: items, of the whole batch or of `parts`.
            parts: parts that the items belong to, in this order; None: the batch is whole.
            cut_of: how a batch is divided.
            sampled: function from rows to their moments; None: moments come with the items.
            num_updates: number of updates so far.

        Raises:
            MinibatchError: rows do not divide as they should, here or at another replica.
            ReplicaLostError: another replica was lost.
        """
        if parts is not None:
            self.check_parts(parts)
        data = concatenate(batch) if parts is None else joined(divided(batch, parts))
        cut = cut_of(data.num_rows)
        if parts is not None:  # in the order of the batch
            data = Transitions(take(data, np.argsort(cut.rows_by_part())).columns, data.moments)
        moments: Mapping[str, Moments] = data.moments
        if sampled is not None:
            by_part = [data]
            if cut.num_parts > 1:
                by_part = [take(data, some) for some in cut.rows_by_part().reshape(cut.num_parts, -1)]
            moments = merge_all(sampled(some) for some in by_part)
        steps = steps_of(data)
        return Share(
            cut=cut, data=data, parts=self.parts, is_whole=True, moments=moments,
            steps=None if steps is None else steps[cut.rows_by_part()].reshape(cut.num_parts, -1),
        )  # fmt: skip

    def check_parts(self, parts: Sequence[int]) -> None:
        """Raise LevadaInternalError if the parts of a batch are not those of this replica."""
        if sorted(parts) != list(self.parts):
            msg = f"replica got the parts {list(parts)}, and its own are {list(self.parts)}"
            raise LevadaInternalError(msg)

    def combined(self, gradient_of: GradientOf, concurrent: Concurrent | None = None) -> GradientOf:
        """Return a function of `Microbatches` that computes the mean gradient over the whole minibatch, always added in order.

        `concurrent` computes several microbatches at a time; None: one.
        """
        each: Callable[..., Iterable[tuple[Tensor, Tensor]]] = map if concurrent is None else concurrent.map

        def gradient(params: Tensor, target: Tensor, some: Microbatches, *more: Any) -> tuple[Tensor, Tensor, Tensor]:
            num, vectors, priorities = len(params), list[Tensor](), []

            def weighted(microbatch: tuple[Tensor, float]) -> tuple[Tensor, Tensor]:
                rows, weight = microbatch
                one, stats, told = gradient_of(params, target, rows, *more)
                vector = params.new_empty(num + len(stats))
                torch.mul(one, weight, out=vector[:num])
                torch.mul(stats, weight, out=vector[num:])
                return vector, told.clone()  # a graph overwrites it

            for vector, told in each(weighted, list(zip(some.rows, some.weights, strict=True))):
                priorities.append(told)
                if vectors and not self._keeps_gradients:
                    vectors[0] += vector
                else:
                    vectors.append(vector)
            total = self._total(vectors)
            return total[:num], total[num:], torch.cat(priorities)

        return gradient

    def priorities(self, own: Sequence[Tensor]) -> Tensor:
        """Return the priorities of all rows, minibatch by minibatch, from those of the microbatches here, one tensor for each."""
        return torch.cat(list(own))

    def whole(self, columns: Mapping[str, Any], share: Share) -> Mapping[str, Any]:
        """Return the columns of the whole batch, from those of the rows here."""
        return columns

    def check_unchanged(self, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> None:
        """Raise DeploymentError if the gradients have changed buffers, and there are replicas whose buffers would differ."""

    def _total(self, vectors: Sequence[Tensor]) -> Tensor:
        """Gradient and statistics of the whole minibatch."""
        return vectors[0]


def changed(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the buffers that differ."""
    return [name for name, buffer in before.items() if not torch.equal(buffer, after[name])]


def steps_of(data: Transitions) -> Array | None:
    """Return the number of valid steps in each row, float64 ``[N]``; None: there is no mask."""
    for name in (MASK, IS_STEP):
        mask = data.columns.get(name)
        if isinstance(mask, np.ndarray):
            return np.asarray(mask.reshape(len(mask), -1).sum(axis=1, dtype=np.float64))
    return None


def take(data: Transitions, rows: Array | slice) -> Transitions:
    """Return some rows, without moments."""
    return Transitions({name: map_nest(lambda leaf: leaf[rows], nest) for name, nest in data.columns.items()})


def divided(batch: Sequence[Transitions], parts: Sequence[int]) -> dict[int, list[Transitions]]:
    """Return the items of each part, in ascending order of the parts, from the items of all, in the order of `parts`.

    Raises:
        MinibatchError: the parts have different numbers of rows, or an item belongs to several.
    """
    ends = np.cumsum([0, *(item.num_rows for item in batch)]).tolist()
    size, left = divmod(ends[-1], len(parts))
    wanted = [size * number for number in range(len(parts) + 1)]
    if left or not set(wanted) <= set(ends):
        msg = (
            f"items of {', '.join(str(item.num_rows) for item in batch)} rows do not make {len(parts)} parts of the same "
            "number of rows; expected items of one size, and as many for each part"
        )
        raise MinibatchError(msg)
    first = [ends.index(end) for end in wanted]
    found = {part: list(batch[first[n] : first[n + 1]]) for n, part in enumerate(parts)}
    return dict(sorted(found.items()))


def joined(items: Mapping[int, Sequence[Transitions]]) -> Transitions:
    """Return the rows of the parts one after the other."""
    return concatenate([item for some in items.values() for item in some])
