"""What a user sees when something goes wrong: one clear message on stderr, and an exit code that says whose turn it is.

    MISTAKEN    levada: no algorithm 'pop'; did you mean 'ppo'? There are: ppo
    FAILED      levada: ZeroDivisionError: division by zero
                  at my_envs.py, line 55, in step: return 1 / 0
                  environment 'my_envs:Mine-v0', env 0 of 2, step 5, seed 1337405893
                  in node 'rollout' of flow 'ppo' (rollout, shard 0, firing 1, ticket 0); versions: policy 0
                  The traceback is in runs/ppo-.../error.txt.

Where there is no run yet, the traceback is printed above the message.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import levada
from levada.flow.errors import LevadaError

FAILED, MISTAKEN, INTERRUPTED = 1, 2, 130


class UsageError(LevadaError, ValueError):
    """The command cannot be carried out as given."""


class RunFailedError(LevadaError, RuntimeError):
    """A run failed after it had begun; `directory` holds what was written until then."""

    def __init__(self, directory: Path) -> None:
        super().__init__(f"the run in {directory} failed")
        self.directory = directory


def guarded(command: Callable[[], int]) -> int:
    """Call `command`; turn what it raises into a message and an exit code, and what it warns of into one line each."""
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            return command()
        except SystemExit as exit_:  # from the parser, which has printed its message
            return exit_.code if isinstance(exit_.code, int) else 0 if exit_.code is None else MISTAKEN
        except KeyboardInterrupt:
            print("levada: interrupted", file=sys.stderr)
            return INTERRUPTED
        except BrokenPipeError:  # `levada show ppo ... | head`: the reader has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except RunFailedError as failure:
            return _report(failure.__cause__ or failure, failure.directory)
        except Exception as error:
            if isinstance(error, LevadaError) and isinstance(error, ValueError | TypeError):
                print(f"levada: {error}", file=sys.stderr)
                return MISTAKEN
            return _report(error, None)


def silence_warnings() -> None:
    """Show none until `guarded` returns."""
    warnings.showwarning = lambda *args, **kwargs: None


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """One line, without the place in somebody's site-packages, and without Gymnasium's colours."""
    del category, filename, lineno, line
    print(f"levada: warning: {plain_warning(message)}", file=file or sys.stderr)


def plain_warning(message: Warning | str) -> str:
    """The text of a warning, without Gymnasium's colours and mark."""
    return re.sub(r"\x1b\[[0-9;]*m", "", str(message)).removeprefix("WARN: ")


def _report(error: BaseException, directory: Path | None) -> int:
    """Say what failed; the traceback goes to a file beside the run, or is printed above if there is no run."""
    lines = [f"levada: {type(error).__name__}: {error}", *_place(error)]
    lines += [f"  {note}" for note in getattr(error, "__notes__", ())]
    trace = traceback.TracebackException.from_exception(error)
    file = directory and directory / "error.txt"
    try:
        if file is None:
            raise FileNotFoundError
        file.write_text("".join(trace.format()), encoding="utf-8")
        lines.append(f"  The traceback is in {file}.")
    except OSError:  # also a full disk, which may be what failed
        frames = "".join(trace.format()).removesuffix("".join(trace.format_exception_only()))
        print(frames, file=sys.stderr, end="")
    print("\n".join(lines), file=sys.stderr)
    return FAILED


def _place(error: BaseException) -> list[str]:
    """Where the user's own code raised it; nothing if levada did."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or Path(frames[-1].filename).is_relative_to(Path(levada.__file__).parent):
        return []
    frame = frames[-1]
    return [f"  at {frame.filename}, line {frame.lineno}, in {frame.name}: {frame.line}"]
