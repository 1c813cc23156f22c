"""Records of a trace, as they are written into trace.bin. Times are seconds of the clock of the firings."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

TRACE: Final = "trace"
FILE_NBYTES: Final = 128 << 20
"""Size from which a file of the trace is full; two of them are kept."""
_Name = Annotated[str, msgspec.Meta(max_length=10_000)]
_Int = Annotated[int, msgspec.Meta(ge=-(1 << 53), le=1 << 53)]


class FiringRecord(msgspec.Struct, frozen=True, array_like=True, tag="f"):
    """A firing of a node."""

    node: _Name
    worker: _Name
    shard: _Int | None
    firing: _Int
    ticket: _Int | None
    start_s: float
    end_s: float


class UseRecord(msgspec.Struct, frozen=True, array_like=True, tag="u"):
    """What a firing has used: the last one of the node. A replay uses what is inserted into it."""

    node: _Name
    at_s: float
    items: Annotated[list[tuple[_Name, _Int, _Int]], msgspec.Meta(max_length=1 << 20)]
    """Source, shard and ticket of each item."""


class CountRecord(msgspec.Struct, frozen=True, array_like=True, tag="c"):
    """A number that changes over time."""

    name: _Name
    at_s: float
    value: float


class MarkRecord(msgspec.Struct, frozen=True, array_like=True, tag="m"):
    """Something that happened at a moment."""

    text: _Name
    at_s: float


Record: TypeAlias = FiringRecord | UseRecord | CountRecord | MarkRecord
Batch: TypeAlias = Annotated[list[Record], msgspec.Meta(max_length=1 << 20)]
"""Records that were written together."""
