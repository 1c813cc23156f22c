"""Errors that cross processes with their traceback."""

from __future__ import annotations

import pickle
import traceback
from typing import cast

from tblib import pickling_support

from levada.flow.errors import LevadaError


class RemoteError(LevadaError, RuntimeError):
    """An error of a worker that could not be pickled; its text and traceback are in the message."""


def pack_error(error: BaseException) -> bytes:
    """Pickle an error with its traceback and notes; if it cannot be pickled, its description."""
    pickling_support.install(error)
    try:
        packed = pickle.dumps(error)
        pickle.loads(packed)  # an exception with custom arguments often pickles but does not unpickle
    except Exception:
        text = "".join(traceback.format_exception(error))
        packed = pickle.dumps(RemoteError(f"{type(error).__name__}: {error}\n\nwhere it was raised:\n{text}"))
    return packed


def unpack_error(packed: bytes) -> BaseException:
    """Restore the error."""
    return cast("BaseException", pickle.loads(packed))
