"""Errors on a cluster: those of Ray as text, and those of calls as data, with their traceback."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from levada.runners.remote_errors import pack_error


class Refusal(Struct, frozen=True):
    """The error that a call has raised, as bytes. Ray would wrap an error that is raised."""

    error: bytes


def result_or_refusal(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function; return its result, or its error."""
    try:
        return function(*args)
    except Exception as error:
        return Refusal(pack_error(error))


def reason_of(error: Exception) -> str:
    """How an actor ended: the last line of the error, which names what was raised if it ended while it started, without Ray's
    advice.
    """
    lines = [line.strip() for line in re.sub("\x1b\\[[0-9;]*m", "", str(error)).splitlines() if line.strip()]
    said = lines[-1].partition(" Worker exit detail:")[0] if lines else "no reason given"
    return f"({type(error).__name__}: {said.partition('. Some common causes')[0]})"
