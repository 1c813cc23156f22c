"""Values on their way through a cluster: references to the object store in place of large ones, copies of small ones.

An object costs about 1 ms of processor time, distributed over the processes of Ray, and so does each fetch.
"""

from __future__ import annotations

import pickle
from typing import Any, Final

import ray
from msgspec import Struct
from ray import cloudpickle
from ray.exceptions import RayError

from levada.runners.firing import resolved
from levada.runners.losses import ItemLostError
from levada.runners.saving import ShardKey

SMALL_NBYTES: Final = 1 << 18
"""Size in bytes of the largest value that is copied. To copy one takes less time than an object of its own."""


class RemoteValue(Struct, frozen=True):
    """A value in the object store."""

    ref: Any
    """`ray.ObjectRef` of the value, or of several."""
    index: int | None = None
    """Place of the value among the `Packed` values of the object. None: the object is the value."""
    num_entries: int = 1
    """Number of its entries in a replay."""
    shard: ShardKey | None = None
    """The shard that made it, whose worker owns it. None: the process of the run owns it."""
    spare: Any = None
    """`ray.ObjectRef` of a copy elsewhere, for the case that the node with the object is lost."""


class Packed(Struct, frozen=True):
    """A copy of a small value."""

    pickled: bytes
    buffers: tuple[bytes, ...]

    def unpack(self) -> Any:
        """Return the value. Its arrays are read-only."""
        return pickle.loads(self.pickled, buffers=self.buffers)


def pack(value: Any) -> Packed | None:
    """Copy a value. None: it is not small."""
    buffers: list[pickle.PickleBuffer] = []
    pickled = cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    if len(pickled) + sum(view.nbytes for view in views) > SMALL_NBYTES:
        return None
    return Packed(pickled, tuple(map(bytes, views)))


def fetched(value: Any) -> Any:
    """Return a value, such as a batch, with everything fetched that is in the object store, in one request.

    Raises:
        ItemLostError: items are gone with their workers.
    """
    sent: list[RemoteValue] = []
    resolved(value, lambda each: sent.append(each) if isinstance(each, RemoteValue) else None)
    refs = list(dict.fromkeys(each.ref for each in sent))
    try:
        found = dict(zip(refs, ray.get(refs), strict=True))
    except RayError:
        found = _one_by_one(sent)
    return resolved(value, lambda each: _value(found[each.ref], each.index) if isinstance(each, RemoteValue) else each)


def _value(found: Any, index: int | None) -> Any:
    return found if index is None else found[index].unpack()


def _one_by_one(sent: list[RemoteValue]) -> dict[Any, Any]:
    """Fetch what can be had. A node that was cut off for a moment may be back."""
    found: dict[Any, Any] = {}
    lost: dict[ShardKey, RayError] = {}
    for each in sent:
        if each.ref in found:
            continue
        try:
            found[each.ref] = ray.get(each.ref)
        except RayError as error:
            if each.spare is not None:
                found[each.ref] = ray.get(each.spare)
            elif each.shard is None:
                raise
            else:
                lost[each.shard] = error
    if lost:
        raise ItemLostError(tuple(lost)) from next(iter(lost.values()))
    return found
