"""Replicas of a learner: which rows each of them has, and how their gradients become that of the whole minibatch.

Whatever is computed from a whole batch (the gradient, the running statistics, the number of transitions) is computed per part
and combined in the order of the parts, by one learner as well as by several. So the result does not depend on their number, to
the bit with `reduce="exact"`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from levada.flow import DeploymentError, LevadaInternalError, Replica, ReplicaLostError
from levada.rl.compute.group import Group, Rendezvous
from levada.rl.data.nest import Stacks
from levada.rl.data.normalize import Moments, merge_all
from levada.rl.data.spaces import Array
from levada.rl.learning.batches import (
    Alone,
    Cut,
    CutOf,
    MinibatchError,
    Sampled,
    Share,
    changed,
    divided,
    joined,
    steps_of,
    take,
)
from levada.rl.replay.transitions import Transitions, concatenate

_Packed = dict[str, tuple[float, tuple[int, ...], bytes, bytes]]
_RUNNING = (
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d,
)  # fmt: skip


class _Notice(msgspec.Struct):
    """What a replica says about its rows before an update."""

    num_updates: int
    is_whole: bool
    """Whether it was given the whole batch."""
    part_size: int = 0
    steps: bytes | None = None
    """Valid steps of the rows of its own parts, float64."""
    moments: list[list[_Packed]] = []
    """For each of its own parts: moments to be merged, in order."""
    error: str = ""
    """Why its rows cannot be used."""

    def steps_of(self, number: int) -> Array:
        """Valid steps of the rows of one of its parts."""
        rows: Array = np.frombuffer(self.steps or b"").reshape(-1, self.part_size)[number]
        return rows


class Replicas(Alone):
    """The replicas of a learner, seen from one of them."""

    def __init__(self, replica: Replica, num_parts: int, modules: nn.Module, device: torch.device) -> None:
        """Raise DeploymentError if minibatches or networks cannot be divided among so many replicas."""
        super().__init__(num_parts)
        self.size: int = replica.size
        self._refuse(modules)
        self._replica = replica
        self._device = device
        self._keeps_gradients = replica.reduce == "exact"
        self._joined: Group | None = None

    def connect(self, rendezvous: Rendezvous | None) -> None:
        """Form the group, at the place where rank 0 listens; raise ReplicaLostError if not all come in time."""
        own = self._replica
        here = rendezvous if own.rank == 0 else None
        self._joined = Group(own.address, own.rank, own.size, self._device, timeout_s=own.timeout_s, rendezvous=here)

    @property
    def parts(self) -> tuple[int, ...]:
        """Parts whose gradients are computed here, in ascending order."""
        return self._replica.parts(self._num_parts)

    def leave(self) -> None:
        """Disconnect from the others, which notice."""
        if self._joined is not None:
            self._joined.close()
        self._joined = None

    def share(
        self, batch: Sequence[Transitions], parts: Sequence[int] | None, cut_of: CutOf, sampled: Sampled | None,
        num_updates: int,
    ) -> Share:  # fmt: skip
        """Return the rows of the parts whose gradients are computed here, and what the others say of theirs."""
        if parts is not None:
            self.check_parts(parts)
        notice, whole = _Notice(num_updates, parts is None), None
        data = Transitions({})
        try:
            if parts is None:
                whole = concatenate(batch)
                cut = cut_of(whole.num_rows)
                data = take(whole, np.concatenate([cut.rows_of(part) for part in self.parts]))
                notice.moments = [[] for _ in self.parts]
            else:
                items = divided(batch, parts)
                data = joined(items)
                notice.moments = [[_packed(item.moments) for item in some] for some in items.values()]
            notice.part_size = data.num_rows // len(self.parts)
            notice.steps = None if (steps := steps_of(data)) is None else steps.tobytes()
            if sampled is not None:
                by_part = np.arange(data.num_rows).reshape(len(self.parts), -1)
                notice.moments = [[_packed(sampled(take(data, rows)))] for rows in by_part]
        except MinibatchError as error:
            notice.error = str(error)
        given = self._group.gather_bytes(msgspec.msgpack.encode(notice))
        notices = [msgspec.msgpack.decode(one, type=_Notice) for one in given]
        _check(notices)
        told = [(notices[part % self.size], part // self.size) for part in range(self._num_parts)]
        moments = merge_all(_unpacked(one) for some, number in told for one in some.moments[number])
        return Share(
            cut=cut_of(notice.part_size * self._num_parts), data=data, parts=self.parts, is_whole=False,
            steps=None if notice.steps is None else np.stack([some.steps_of(number) for some, number in told]),
            moments=whole.moments if whole is not None and sampled is None else moments,
        )  # fmt: skip

    def priorities(self, own: Sequence[Tensor]) -> Tensor:
        """Return the priorities of all rows, minibatch by minibatch, from those of the microbatches here, one tensor for each."""
        by_part = torch.stack(list(own)).view(len(own), len(self.parts), -1).transpose(0, 1)
        whole = by_part.new_empty(self._num_parts, *by_part.shape[1:])
        for rank, found in enumerate(self._group.gather_rows(by_part)):
            whole[rank :: self.size] = found
        return whole.transpose(0, 1).reshape(-1)

    def whole(self, columns: Mapping[str, Any], share: Share) -> Mapping[str, Any]:
        """Return the columns of the whole batch. All replicas must read the same ones, in the same order."""
        return _Whole(columns, self._group, share.cut)

    def check_unchanged(self, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> None:
        """Raise DeploymentError if the gradients have changed buffers, which then differ between the replicas."""
        if names := changed(before, after):
            raise DeploymentError(_changes(self.size, f"a forward pass changes the buffer {names[0]}"))

    # ---- inside

    @property
    def _group(self) -> Group:
        if self._joined is None:
            msg = "the group of this replica is lost; it must join a new one"
            raise ReplicaLostError(msg)
        return self._joined

    def _refuse(self, modules: nn.Module) -> None:
        size, num = self.size, self._num_parts
        if size > num:
            msg = (
                f"learners={size} share the microbatches of a minibatch, of which there {'is' if num == 1 else 'are'} {num}: set "
                f"microbatch_size to the size of a minibatch divided by {size}, or less, or use at most learners={num}"
            )
            raise DeploymentError(msg)
        for name, layer in modules.named_modules():
            if isinstance(layer, _RUNNING) and layer.track_running_stats:
                raise DeploymentError(
                    _changes(size, f"{name}, a {type(layer).__name__}, changes its buffers in a forward pass")
                )

    def _total(self, vectors: Sequence[Tensor]) -> Tensor:
        """Gradient and statistics of the whole minibatch, from the vectors of the own parts, or from their sum."""
        if not self._keeps_gradients:
            self._group.add(vectors[0])
            return vectors[0]
        num_missing = -(-self._num_parts // self.size) - len(vectors)
        padded = torch.stack([*vectors, *[torch.zeros_like(vectors[0])] * num_missing])
        found = self._group.gather(padded)
        total = found[0][0].clone()
        for part in range(1, self._num_parts):
            total += found[part % self.size][part // self.size]
        return total


class _Whole(Mapping[str, Any]):
    """Columns of a whole batch, whose rows are collected from all replicas when a column is first read."""

    def __init__(self, columns: Mapping[str, Any], group: Group, cut: Cut) -> None:
        self._columns = columns
        self._group = group
        order = [cut.rows_of(part) for rank in range(group.size) for part in range(rank, cut.num_parts, group.size)]
        self._places = torch.from_numpy(np.argsort(np.concatenate(order)))
        self._found: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._found:
            self._found[name] = self._collected(self._columns[name])
        return self._found[name]

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def _collected(self, nest: Any) -> Any:
        if isinstance(nest, Stacks):
            pools, places = (self._group.gather_rows(leaf) for leaf in nest)
            starts = np.cumsum([0, *(len(pool) for pool in pools)]).tolist()
            moved = [some + start for some, start in zip(places, starts[:-1], strict=True)]
            return Stacks(torch.cat(pools), self._in_order(moved))
        if isinstance(nest, dict):
            return {key: self._collected(child) for key, child in nest.items()}
        if isinstance(nest, tuple):
            return tuple(self._collected(child) for child in nest)
        return self._in_order(self._group.gather_rows(nest))

    def _in_order(self, found: Sequence[Tensor]) -> Tensor:
        rows = torch.cat(list(found))
        return rows[self._places.to(rows.device)]


def _check(notices: Sequence[_Notice]) -> None:
    """Raise the same error at all replicas if their rows do not go together."""
    for rank, notice in enumerate(notices):
        if notice.error:
            msg = f"replica {rank} of {len(notices)}: {notice.error}"
            raise MinibatchError(msg)
    if len({(notice.num_updates, notice.is_whole) for notice in notices}) > 1:
        states = ", ".join(
            f"update {one.num_updates + 1} of {'all' if one.is_whole else 'its'} parts" for one in notices
        )
        msg = f"replicas begin different updates: {states}; those that are ahead need `undo`"
        raise LevadaInternalError(msg)
    for what, found in (
        ("number of rows", [notice.part_size for notice in notices]),
        ("kind of mask", ["none" if notice.steps is None else "steps" for notice in notices]),
    ):
        if len(set(found)) > 1:
            msg = f"the parts of a batch must have the same {what}; those of the {len(found)} replicas have {found}"
            raise MinibatchError(msg)


def _changes(size: int, what: str) -> str:
    return (
        f"learners={size}: {what}, so the networks of the learners would differ; use learners=1, or layers without running "
        "statistics, such as LayerNorm"
    )


def _packed(moments: Mapping[str, Moments]) -> _Packed:
    return {
        name: (
            one.count,
            np.shape(one.mean),
            np.asarray(one.mean, np.float64).tobytes(),
            np.asarray(one.var, np.float64).tobytes(),
        )
        for name, one in moments.items()
    }


def _unpacked(packed: _Packed) -> dict[str, Moments]:
    return {
        name: Moments(count, np.frombuffer(mean).reshape(shape), np.frombuffer(var).reshape(shape))
        for name, (count, shape, mean, var) in packed.items()
    }
