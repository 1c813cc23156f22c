"""Messages to the page: what is known of a run, and what is new.

A page gets the same messages from the server and from the data in a report.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from levada.run.frames.frame import Frame
from levada.run.identity import Identity, Setting
from levada.run.storage.status import Status


class Opened(msgspec.Struct, frozen=True, tag="opened", tag_field="kind"):
    """A run, of which nothing else is known yet; what was sent before about a run with this number is void."""

    run: int
    """Number of the run on the page, from 0."""
    name: str
    """Its directory."""
    identity: Identity
    settings: dict[str, Setting]
    versions: dict[str, str | None]
    """Versions of packages."""
    svg: str | None
    """Drawing of the flow, made safe."""


class Unreadable(msgspec.Struct, frozen=True, tag="unreadable", tag_field="kind"):
    """A run that cannot be read."""

    run: int
    name: str
    why: str


class Rows(msgspec.Struct, frozen=True, tag="rows", tag_field="kind"):
    """Lines of the metrics, in columns of equal length; null where a line lacks a value."""

    run: int
    columns: dict[str, list[float | None]]
    is_first: bool = False
    """Whether they replace all that were sent before."""


class Frames(msgspec.Struct, frozen=True, tag="frames", tag_field="kind"):
    """Frames of the run, oldest first."""

    run: int
    frames: list[Frame]


class Changed(msgspec.Struct, frozen=True, tag="status", tag_field="kind"):
    """The status of the run is another one."""

    run: int
    status: Status
    stopped_by: str | None = None
    error: str | None = None
    """End of the traceback, if it failed."""


Message: TypeAlias = Opened | Unreadable | Rows | Frames | Changed

_encoder = msgspec.json.Encoder()


def encode(message: Message) -> bytes:
    """Encode a message as JSON in one line."""
    return _encoder.encode(message)
