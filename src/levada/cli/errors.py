"""What a user sees when something goes wrong: one clear message on stderr, and an exit code that says whose turn it is."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

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
    """Call `command`; turn what it raises into a message and an exit code."""
    try:
        return command()
    except SystemExit as exit_:  # from the parser, which has printed its message
        return exit_.code if isinstance(exit_.code, int) else MISTAKEN
    except KeyboardInterrupt:
        print("levada: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # `levada show ppo ... | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except RunFailedError as failure:
        assert failure.__cause__ is not None
        return _report(failure.__cause__, failure.directory)
    except Exception as error:
        if isinstance(error, LevadaError) and isinstance(error, ValueError | TypeError):
            print(f"levada: {error}", file=sys.stderr)
            return MISTAKEN
        return _report(error, None)


def _report(error: BaseException, directory: Path | None) -> int:
    """Say what failed; the traceback goes to a file beside the run, or is printed if there is none."""
    lines = [f"levada: {type(error).__name__}: {error}"]
    lines += [f"  {note}" for note in getattr(error, "__notes__", ())]
    text = "".join(traceback.format_exception(error))
    if directory is None:
        print(text, file=sys.stderr, end="")
    else:
        file = directory / "error.txt"
        file.write_text(text)
        lines.append(f"  The traceback is in {file}.")
    print("\n".join(lines), file=sys.stderr)
    return FAILED
