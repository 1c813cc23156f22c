"""`levada watch`."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Annotated

import tyro

from levada.cli.errors import UsageError, say
from levada.cli.parse import RUNS, parse_run
from levada.comparison.records import runs_in
from levada.run.storage.directory import RunDirectory, absolute
from levada.run.storage.store import is_url


@dataclass(frozen=True, kw_only=True)
class WatchOptions:
    """Show runs in the browser, while they go on and afterwards."""

    runs: Annotated[tyro.conf.Positional[tuple[str, ...]], RUNS]
    """Runs, or directories of runs, which are shown side by side."""
    host: str = "127.0.0.1"
    """Address to listen on. With any other than the default, anyone who has the full URL can see the runs."""
    port: int = 0
    """Port. 0: a free one."""
    open: bool = False
    """Open the page in the browser."""


def watch(args: list[str]) -> int:
    """Serve the page until Ctrl-C."""
    options = parse_run(WatchOptions, "watch", args)
    paths = directories("watch", options.runs)
    if not 0 <= options.port <= 65_535:
        msg = f"--port {options.port}: expected a number from 0 to 65535"
        raise UsageError(msg)
    check_installed("levada watch")
    from levada.watch.server import LOCAL, run_server

    def tell(url: str) -> None:
        say(f"{url}\nCtrl-C ends the page, and no run.")
        if options.host not in LOCAL:
            say("Anyone who can reach this address and has the full URL can see the runs.")
        sys.stdout.flush()
        if options.open:
            webbrowser.open(url)

    try:
        run_server(paths, host=options.host, port=options.port, on_start=tell)
    except OSError as error:
        # negative numbers are those of the name service
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        msg = f"cannot listen at {options.host}, port {options.port}: {why}"
        raise UsageError(msg) from error
    except KeyboardInterrupt:
        pass
    return 0


def check_installed(command: str) -> None:
    """Check that there is what the page needs.

    Raises:
        UsageError: it is not installed.
    """
    for name in ("starlette", "uvicorn"):
        if find_spec(name) is None:
            msg = f"`{command}` needs {name}: pip install 'levada[watch]'"
            raise UsageError(msg)


@contextmanager
def watched(run: Path) -> Iterator[str]:
    """Context in which another process shows the run; yields the address of the page.

    Raises:
        UsageError: that process could not begin.
    """
    command = [sys.executable, "-P", "-m", "levada.watch", str(run)]  # no module of the working directory
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True, start_new_session=True) as page:
        assert page.stdin is not None
        assert page.stdout is not None
        with page.stdin:
            url = page.stdout.readline().strip()
            if not url:
                msg = f"the page of {run} could not be served; the cause is above"
                raise UsageError(msg)
            yield url


def directories(verb: str, runs: Sequence[str]) -> list[Path]:
    """Return the directories of the runs that a command names, or that are in directories which it names.

    Raises:
        UsageError: there is no run in one of them, or none is named.
    """
    if not runs:
        msg = f"which run? `levada {verb} RUN`, with its directory"
        raise UsageError(msg)
    for run in runs:
        check_local(verb, run)
    return [path for run in runs for path in list(runs_in(absolute(run))) or [RunDirectory.open(run).path]]


def check_local(verb: str, run: str) -> None:
    """Check that a run is in a directory of this machine.

    Raises:
        UsageError: it is at a URL.
    """
    if is_url(run):
        msg = f"{run}: `levada {verb}` reads directories alone; copy the run, or mount its place"
        raise UsageError(msg)
