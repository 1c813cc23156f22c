"""What a worker sends: its events, with the values of the items in the object store.

Large values have an object each. Small values are copied when they are made, and those that are sent with one answer share an
object.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import ray
from msgspec import Struct, structs

from levada.runners.ray.refs import Packed, RemoteValue, pack
from levada.runners.remote_errors import pack_error
from levada.runners.saving import ShardKey
from levada.runners.transport import ShardFailed, TicketDone, WorkerEvent


class Failure(Struct, frozen=True):
    """`ShardFailed` on its way: the error as bytes, with its traceback."""

    source: str
    shard: int
    is_final: bool
    error: bytes
    is_mistake: bool


class _Small(Struct, frozen=True):
    """A copy of a small value that was not sent yet."""

    packed: Packed
    num_entries: int
    shard: ShardKey


def prepared(event: WorkerEvent) -> WorkerEvent | Failure:
    """Make an event ready for `put_together`: copy the small values of its items, and put the others into the object store."""
    if isinstance(event, ShardFailed):
        return Failure(event.source, event.shard, event.is_final, pack_error(event.error), event.is_mistake)
    if not isinstance(event, TicketDone):
        return event
    ticket = event.closed.ticket
    try:
        return _map_values(event, lambda value: _small_or_sent(value, (ticket.source, ticket.shard)))
    except Exception as error:  # pickling calls methods of every object, which may raise anything
        error.add_note(f"while sending what shard {ticket.shard} of {ticket.source!r} has made to another process")
        return Failure(ticket.source, ticket.shard, True, pack_error(error), is_mistake=False)


def put_together(events: Sequence[WorkerEvent | Failure]) -> tuple[WorkerEvent | Failure, ...]:
    """Put the small values of several events into one object."""
    small: list[Packed] = []

    def collect(value: Any) -> Any:
        if isinstance(value, _Small):
            small.append(value.packed)
        return value

    def send(value: Any) -> Any:
        return RemoteValue(ref, next(places), value.num_entries, value.shard) if isinstance(value, _Small) else value

    for event in events:
        _map_values(event, collect)
    if not small:
        return tuple(events)
    ref, places = ray.put(small), count()
    return tuple([_map_values(event, send) for event in events])


def _map_values(event: WorkerEvent | Failure, change: Callable[[Any], Any]) -> WorkerEvent | Failure:
    """Replace the values of all items of an event."""
    if not isinstance(event, TicketDone):
        return event
    made = {
        channel: [structs.replace(item, value=change(item.value)) for item in items]
        for channel, items in event.closed.made.items()
    }
    return structs.replace(event, closed=structs.replace(event.closed, made=made))


def _small_or_sent(value: Any, shard: ShardKey) -> _Small | RemoteValue:
    packed, num_entries = pack(value), getattr(value, "num_entries", 1)
    return (
        RemoteValue(ray.put(value), None, num_entries, shard) if packed is None else _Small(packed, num_entries, shard)
    )
