"""Cost of moving arrays from one process to another on this machine: levada, memcpy, and other transports.

    python benchmarks/transport.py --json transport.json     # 2 minutes
    python benchmarks/transport.py --quick                   # does it work? half a minute
    python benchmarks/transport.py --peers mpi,zmq           # compared with these only

There are three payloads, dicts of arrays: a small and a large rollout, and the weights of a network. One process sends an
item; the other receives it as arrays of the right shapes, reads a value from them and sends it back. The time of one such
round is measured, from "the item is finished" to "its answer is here", with nothing else in transit. The first and the last
item of a turn are not timed, but compared byte by byte.

Every transport has two processes of its own. All are started once, and sleep while others are measured, except for Ray's
daemons, which take some hundredths of a core. They take turns (A B C ..., C B A, ...), a tenth of a second each with each
payload; the figure of a turn is the median of its items. The tables show the median of all turns, with the minimum and the
maximum; a ratio is computed in each turn.

- *memcpy*: as many bytes from one warm buffer into another, in one process: the limit of any transport that copies once.
- *one byte*: there and back over a socket, both sides asleep: the limit of any transport that sleeps.
- *levada, in place*: the arrays were created in shared memory, so none is copied. The time is that of the messages.
- *levada, one copy*: the arrays are in ordinary memory, and are copied into shared memory, where the reader accesses them.
- *levada, ring*: weights, which the writer copies into shared memory, and the reader out of it.
- *Queue*, *Pipe*: those of multiprocessing; through the pipe, large arrays are sent outside the pickle.
- *pyzmq*: a pair of sockets over ipc; large arrays are frames that pyzmq does not copy.
- *Ray, actor*: the item is put into the object store, and a method is called with the reference; a small item is an argument.
- *Ray, compiled graph*: the same call, compiled beforehand, through its own channel.
- *MPI, pickle 5*: mpi4py with Open MPI; the arrays are sent outside the pickle.
- *MPI, plain*: one buffer whose layout both sides know, received into preallocated memory.

A process that waits for MPI or for a compiled graph keeps a core busy. With the others, levada among them, it sleeps. Busy
waiting saves a few microseconds per item, and costs a core that an environment could use.

Targets: in place, faster than memcpy; one copy, at least half of memcpy's rate for the large rollout; at least 3 times the
rate of every other transport. The peers get a virtual environment in `.bench/`, with the pins in
`compare/libraries/requirements-transport.txt`.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._transport.measure import Cell, Plan, jobs, measure
from benchmarks._transport.programs import ENVIRONMENT, MEMCPY, OURS, PEERS, running
from benchmarks._transport.report import as_json, tables, targets
from benchmarks.compare.common import BenchmarkError, make_cache
from benchmarks.compare.environments import prepare_environment
from benchmarks.compare.screen import Screen


def parse(arguments: Sequence[str] | None = None) -> tuple[Plan, Path | None]:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peers", default=",".join(PEERS), help="comma-separated; default: %(default)s")
    parser.add_argument("--turns", type=int, help="default 9, with --quick 2")
    parser.add_argument("--quick", action="store_true", help="few short turns: does it work? The figures mean little")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    args = parser.parse_args(arguments)
    peers = tuple(filter(None, args.peers.split(",")))
    if unknown := [peer for peer in peers if peer not in PEERS]:
        parser.error(f"no peer is called {', '.join(unknown)}; there are {', '.join(PEERS)}")
    turns = (2 if args.quick else 9) if args.turns is None else args.turns
    if turns < 1:
        parser.error(f"--turns {turns}: it takes at least 1")
    return Plan(peers=peers, turns=turns, turn_s=0.03 if args.quick else 0.1, quick=args.quick), args.json


def run(plan: Plan, screen: Screen) -> list[Cell]:
    """Start all processes, then measure in turns."""
    if plan.peers:
        prepare_environment(ENVIRONMENT, screen)
    with running((OURS, *plan.peers), screen) as programs:
        found = jobs(programs)
        with screen.task("measuring", len(found) * plan.turns) as task:
            return measure(found, plan, task.note)


def show(cells: Sequence[Cell], plan: Plan) -> None:
    """Print the tables."""
    console = Console()
    console.width = console.width if console.is_terminal else 130
    for table in tables(cells):
        console.print(table)
    for target in targets(cells):
        if target.other == MEMCPY:
            console.print(str(target), highlight=False, markup=False)
    console.print("Beside other transports, levada is to be at least 3 times faster.", highlight=False)
    if plan.quick:
        console.print("A quick run: it shows that the benchmark works, nothing else.")


def main() -> int:
    """Measure, then print the tables."""
    plan, json_file = parse()
    screen = Screen()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that child processes end too
    try:
        make_cache()
        with screen.bars:
            cells = run(plan, screen)
    except BenchmarkError as error:
        screen.say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        screen.say("interrupted; no tables, because the turns are not complete")
        return 130
    show(cells, plan)
    if json_file is not None:
        json_file.write_text(as_json(cells, plan) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
