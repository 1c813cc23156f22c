"""Messages between a run and the process of its learners.

run -> learners      Introduce, Ask
learners -> run      Busy, Answered, Refused
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from levada.runners.processes.inference.messages import Parcel
from levada.runners.processes.ipc.forwarded import Place


class Introduce(Struct, frozen=True, tag=True):
    """A place in memory that is new to the process. The descriptor of its segment is sent with it."""

    place: Place


class Ask(Struct, frozen=True, tag=True):
    """Call a method. The parcel holds its arguments, in which a `Place` stands for each item of a worker."""

    method: str
    parcel: Parcel
    gone: tuple[int, ...]
    """Workers that are gone, with all that they made."""


class Busy(Struct, frozen=True, tag=True):
    """The process starts something slow, such as compiling; an empty text means that it has finished."""

    what: str


class Answered(Struct, frozen=True, tag=True):
    """The result of a call."""

    parcel: Parcel


class Refused(Struct, frozen=True, tag=True):
    """The error that a call has raised, with its traceback."""

    error: BaseException


ToLearners: TypeAlias = Introduce | Ask
FromLearners: TypeAlias = Busy | Answered | Refused
