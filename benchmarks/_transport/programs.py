"""Who is compared, and the processes that do it: each program has some transports, and sleeps while it is not its turn."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from benchmarks._transport.turns import Turn
from benchmarks.compare.common import CACHE, SCRIPTS, BenchmarkError, tail
from benchmarks.compare.environments import peer_python
from benchmarks.compare.processes import Process, started
from benchmarks.compare.screen import Screen

ENVIRONMENT: Final = "transport"
MEMCPY: Final = "memcpy"
OURS: Final = "ours"
PEERS: Final = ("multiprocessing", "zmq", "ray", "mpi")
_LOOK_EVERY_S: Final = 0.5
_READY_LIMIT_S: Final = 60.0
_TURN_LIMIT_S: Final = 30.0
_END_LIMIT_S: Final = 15.0


@dataclass(frozen=True)
class Program:
    """One that runs."""

    name: str
    transports: Sequence[str]
    _process: Process
    _connection: Connection
    _log: Path

    def take(self, turn: Turn) -> list[float]:
        """Seconds of each item."""
        self._connection.send(turn)
        seconds: list[float] = _receive(self.name, self._connection, self._process, self._log, _TURN_LIMIT_S)
        return seconds

    def end(self) -> None:
        """Hang up, and wait until it has ended."""
        self._connection.close()
        self._process.ended_within(_END_LIMIT_S)


@contextmanager
def running(names: Sequence[str], screen: Screen) -> Iterator[list[Program]]:
    """Start the programs, which do not outlive the block."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        programs = []
        with screen.task("starting", None) as task:
            for name in names:
                task.note(name)
                program = _start(name, folder / name, stack)
                stack.callback(program.end)
                programs.append(program)
        yield programs


def _command(name: str) -> tuple[list[str], dict[str, str]]:
    root = str(CACHE.parent)
    if name == OURS:
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        return [sys.executable, "-m", "benchmarks._transport.ours"], {"PYTHONPATH": os.pathsep.join(paths)}
    python = peer_python(ENVIRONMENT)
    command = [str(python), str(SCRIPTS / f"transport_{name}.py")]
    if name == "mpi":  # who waits, lets others have the core: else it loses much whenever something else runs
        options = ["--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
        command = [str(python.parent / "mpiexec"), *options, "-n", "2", *command]
    if name == "ray":
        return command, {"PYTHONPATH": root, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    return command, {}


def _start(name: str, address: Path, stack: ExitStack) -> Program:
    command, variables = _command(name)
    log = CACHE / f"transport-{name}.log"
    listener = stack.enter_context(socket.socket(socket.AF_UNIX))
    listener.bind(str(address))
    listener.listen()
    listener.settimeout(_LOOK_EVERY_S)
    output = stack.enter_context(log.open("wb"))
    process = stack.enter_context(started([*command, str(address)], variables, output, output))
    while True:
        try:
            accepted, _ = listener.accept()
            break
        except TimeoutError:
            _check(name, process, log, process.seconds > _READY_LIMIT_S)
    accepted.setblocking(True)
    connection = stack.enter_context(Connection(accepted.detach()))
    transports = _receive(name, connection, process, log, _READY_LIMIT_S)
    return Program(name, transports, process, connection, log)


def _receive(name: str, connection: Connection, process: Process, log: Path, limit_s: float) -> Any:
    deadline_s = process.seconds + limit_s
    try:
        while not connection.poll(_LOOK_EVERY_S):
            _check(name, process, log, process.seconds > deadline_s)
        return connection.recv()
    except (EOFError, ConnectionError):
        process.ended_within(_END_LIMIT_S)
        _check(name, process, log, True)


def _check(name: str, process: Process, log: Path, is_late: bool) -> None:
    if process.exit_code is not None or is_late:
        what = "does not answer" if process.exit_code is None else f"ended, exit code {process.exit_code}"
        raise BenchmarkError(f"the program of {name} {what}:\n{tail(log)}")
