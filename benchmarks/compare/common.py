"""Places, and the one error that is expected."""

from __future__ import annotations

from pathlib import Path
from typing import Final

BENCHMARKS: Final = Path(__file__).resolve().parent.parent
SCRIPTS: Final = BENCHMARKS / "compare" / "libraries"
"""The peers' own scripts and pins."""
REPOSITORY: Final = BENCHMARKS.parent
CACHE: Final = REPOSITORY / ".bench"
"""The peers' virtual environments, and the files of the last benchmark."""
RUNS: Final = CACHE / "runs"


class BenchmarkError(Exception):
    """The benchmark cannot go on; the message says what to do."""


def make_cache() -> None:
    """Make the folder, which git ignores."""
    CACHE.mkdir(exist_ok=True)
    (CACHE / ".gitignore").write_text("*\n")


def tail(path: Path, num_lines: int = 15) -> str:
    """The last lines of a file."""
    return "\n".join(path.read_text(errors="replace").strip().splitlines()[-num_lines:])
