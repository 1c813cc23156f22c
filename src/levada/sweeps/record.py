"""The record of a trial, in a file beside its runs, from which a sweep goes on after its process was killed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from levada.run.display.printable import printable
from levada.run.storage.files import read_whole, short, write_atomic
from levada.sweeps.errors import SweepError

FILE: Final = "trial.json"
_NBYTES: Final = 1 << 20

_Name = Annotated[str, msgspec.Meta(max_length=200)]
_Value = Annotated[str, msgspec.Meta(max_length=10_000)]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What is decided about a trial. All else is read from its runs."""

    settings: dict[_Name, _Value]
    """Settings, written before its first run starts."""
    outcome: Literal["finished", "pruned", "failed"] | None = None
    """How it ended; None while it goes on."""
    values: list[float] = []
    """Values at the checks until it was pruned."""

    def write(self, folder: Path) -> None:
        """Write it into the directory of the trial, which is made.

        Raises:
            SweepError: it cannot be written.
        """
        try:
            folder.mkdir(exist_ok=True)
            write_atomic(folder / FILE, msgspec.json.encode(self) + b"\n")
        except OSError as error:
            msg = f"{short(folder / FILE)} cannot be written: {error.strerror or error}"
            raise SweepError(msg) from error


def read_record_of(folder: Path) -> Record | None:
    """Read the record of a trial; None if it has not begun.

    Raises:
        SweepError: it cannot be read.
    """
    path = folder / FILE
    try:
        return msgspec.json.decode(read_whole(path, _NBYTES), type=Record)
    except FileNotFoundError:
        return None
    except OSError as error:
        msg = f"{short(path)} cannot be read: {error.strerror or error}"
        raise SweepError(msg) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = printable(str(error))
        msg = f"{short(path)} is not the record of a trial: {why}; without {short(folder)}, the trial is made anew"
        raise SweepError(msg) from error
