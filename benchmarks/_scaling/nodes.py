"""`scaling.py nodes`: runs the programs in turn, and makes the table."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.compare.common import CACHE, REPOSITORY, SCRIPTS, BenchmarkError, make_cache, tail
from benchmarks.compare.environments import peer_python, prepare_environment
from benchmarks.compare.processes import THREAD_VARIABLES, adopt_orphans, started
from benchmarks.compare.screen import Screen
from benchmarks.compare.tables import Spread

NODES: Final = (1, 2, 4, 8)
TURNS: Final = 3
TARGET: Final = 7.2
_PEER: Final = "rllib"
_LIMIT_S: Final = 400.0
_PROGRAMS: Final[Mapping[str, Sequence[str]]] = {
    "levada": (sys.executable, "-m", "benchmarks._scaling.nodes_levada"),
    "RLlib": (str(peer_python(_PEER)), str(SCRIPTS / "rllib_impala_asleep.py")),
}
Found = Mapping[tuple[str, int], list[dict[str, float]]]
"""Program and number of nodes -> what it told, by turn."""
_COLUMNS: Final[Mapping[str, tuple[str, int, float]]] = {
    "idle": ("samplers idle, %", 1, 100.0),
    "blocked": ("held back, %", 1, 100.0),
    "process_cores": ("hub, cores", 3, 1.0),
    "family_cores": ("all, cores", 2, 1.0),
    "foreign_cores": ("others, cores", 2, 1.0),
    "bytes_per_step": ("bytes/step through the hub", 0, 1.0),
}
"""What a program tells -> header, digits, factor. Those that it does not tell are left out."""


def nodes(console: Console, *, is_quick: bool = False) -> None:
    """Measure, and print the tables."""
    make_cache()
    adopt_orphans()
    screen = Screen()
    prepare_environment(_PEER, screen)
    counts, seconds, warm_s = (NODES[:2], 5.0, 3.0) if is_quick else (NODES, 20.0, 10.0)
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    for turn in range(1 if is_quick else TURNS):
        for count in counts:
            for name, program in _PROGRAMS.items():
                options = {"nodes": count, "seconds": seconds, "warm": warm_s, "seed": turn}
                words = [word for option, value in options.items() for word in (f"--{option}", str(value))]
                told = _run([*program, *words], f"nodes: {name}, {count} nodes, turn {turn + 1}", screen)
                found.setdefault((name, count), []).append(told)
    for table in tables(found, counts):
        console.print(table)


def _run(command: Sequence[str], title: str, screen: Screen) -> dict[str, float]:
    """Run a program to its end, in a Ray cluster and a folder of its own; what it tells."""
    out, err = (CACHE / f"nodes.{name}" for name in ("stdout", "stderr"))
    with (
        tempfile.TemporaryDirectory(prefix="lv", ignore_cleanup_errors=True) as folder,  # short: sockets are in it
        out.open("wb") as stdout,
        err.open("wb") as stderr,
        screen.task(title, None),
        started(command, _variables(folder), stdout, stderr) as process,
    ):
        if not process.ended_within(_LIMIT_S):
            raise BenchmarkError(f"{title} is not finished after {_LIMIT_S:.0f} s:\n{tail(err)}")
        process.reap()
    if process.exit_code:
        raise BenchmarkError(f"{title} failed with exit code {process.exit_code}:\n{tail(err)}")
    told: dict[str, float] = json.loads(tail(out, 1))
    cores = f"{told['family_cores']:.2f} cores, others {told['foreign_cores']:.2f}"
    screen.say(f"{title}: {told['env_steps_per_s']:,.0f} env steps/s, {cores}")
    return told


def _variables(folder: str) -> dict[str, str]:
    """A cluster without a password, in a folder of its own; one thread in each process."""
    threads = dict.fromkeys(THREAD_VARIABLES, "1")
    return {"PYTHONPATH": str(REPOSITORY), "RAY_TMPDIR": folder, "RAY_AUTH_MODE": "disabled", **threads}


def tables(found: Found, counts: Sequence[int]) -> Iterator[Table]:
    """One for each program, median (min - max) of the turns; then their ratio."""
    for name in _PROGRAMS:
        told = {key for of_count in counts for turn in found[name, of_count] for key in turn}
        columns = {key: column for key, column in _COLUMNS.items() if key in told}
        target = f"; target {TARGET:g} times one node at {NODES[-1]}" if name == "levada" else ""
        table = Table(
            "nodes", "env steps/s", "times one node", *(header for header, *_ in columns.values()),
            title=f"nodes: {name}'s IMPALA, 2 samplers on each, 20 ms a step{target}",
        )  # fmt: skip
        for count in counts:
            of = found[name, count]
            rate = _rate(of)
            shown = (
                Spread.of(factor * turn[key] for turn in of).text(digits)
                for key, (_, digits, factor) in columns.items()
            )
            table.add_row(str(count), rate.text(), rate.divided_by(_rate(found[name, counts[0]])), *shown)
        yield table
    table = Table("nodes", *_PROGRAMS, "ratio", title="nodes: env steps/s")
    for count in counts:
        rates = [_rate(found[name, count]) for name in _PROGRAMS]
        table.add_row(str(count), *(rate.text() for rate in rates), rates[0].divided_by(rates[1]))
    yield table


def _rate(turns: Sequence[Mapping[str, float]]) -> Spread:
    return Spread.of(turn["env_steps_per_s"] for turn in turns)
