"""`python -m levada.watch RUN`: the page of `levada train --watch`, which ends when standard input is closed."""

from __future__ import annotations

import sys
from pathlib import Path

from levada.watch.server import run_server


def main() -> None:
    """Serve the page of the runs that are named."""
    runs = [Path(run) for run in sys.argv[1:]]
    run_server(runs, on_start=lambda url: print(url, flush=True), ends_with=sys.stdin.fileno())


if __name__ == "__main__":
    main()
