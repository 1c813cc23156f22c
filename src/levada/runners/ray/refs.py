"""References to values in the object store of a cluster, which travel in place of the values."""

from __future__ import annotations

from typing import Any

import ray
from msgspec import Struct
from ray.exceptions import RayError

from levada.runners.firing import resolved
from levada.runners.losses import ItemLostError
from levada.runners.saving import ShardKey


class Sent(Struct, frozen=True):
    """A value in the object store."""

    ref: Any
    """`ray.ObjectRef` of the value."""
    num_entries: int = 1
    """Number of its entries in a replay."""
    shard: ShardKey | None = None
    """The shard that made it, whose worker owns it. None: the process of the run owns it."""


def fetched(value: Any) -> Any:
    """Return a value, such as a batch, with everything fetched that is in the object store, in one request.

    Raises:
        ItemLostError: items are gone with their workers.
    """
    sent: list[Sent] = []
    resolved(value, lambda each: sent.append(each) if isinstance(each, Sent) else None)
    try:
        found = ray.get([each.ref for each in sent])
    except RayError:
        found = _one_by_one(sent)
    values = iter(found)
    return resolved(value, lambda each: next(values) if isinstance(each, Sent) else each)


def _one_by_one(sent: list[Sent]) -> list[Any]:
    """Fetch what can be had. A node that was cut off for a moment may be back."""
    found: list[Any] = []
    lost: dict[ShardKey, RayError] = {}
    for each in sent:
        try:
            found.append(ray.get(each.ref))
        except RayError as error:
            if each.shard is None:
                raise
            lost[each.shard] = error
    if lost:
        raise ItemLostError(tuple(lost)) from next(iter(lost.values()))
    return found
