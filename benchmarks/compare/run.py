"""The command `benchmarks/compare.py`: what it accepts, what it runs in turn, and the tables it shows."""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.compare.common import RUNS, BenchmarkError, make_cache
from benchmarks.compare.environments import prepare_environment
from benchmarks.compare.execute import Run, execute
from benchmarks.compare.jobs import BENCHMARKS, Plan, make_jobs, peers_of
from benchmarks.compare.processes import adopt_orphans
from benchmarks.compare.report import as_json
from benchmarks.compare.screen import Screen
from benchmarks.compare.sides import LevadaSide
from benchmarks.compare.tables import (
    disturbances,
    efficiency_table,
    parts_table,
    shares_table,
    solve_table,
    threads_table,
    throughput_table,
)
from levada.rl.envs.functional.names import is_functional


def parse(arguments: Sequence[str] | None = None) -> Plan:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Time levada and other libraries on this machine, in turn.")
    parser.add_argument("name", metavar="BENCHMARK", choices=list(BENCHMARKS), help=", ".join(BENCHMARKS))
    parser.add_argument("--peers", help="comma-separated; default: all that the benchmark has")
    parser.add_argument(
        "--settings", action="append", metavar="NAME", help="run only these, as the tables name them; repeatable"
    )
    parser.add_argument("--runs", type=int, help="turns, each with its seed: default and least 3, with --quick 1")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first turn; each further one adds 1")
    parser.add_argument("--quick", action="store_true", help="short runs: does it work? The figures mean little")
    parser.add_argument("--only-peers", action="store_true", help="leave levada out")
    parser.add_argument("--compare-threads", action="store_true", help="time the peers alone with 1 and 2 threads")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run to this file")
    args = parser.parse_args(arguments)

    known = peers_of(args.name)
    args.peers = known if args.peers is None else tuple(args.peers.split(","))
    if unknown := [peer for peer in args.peers if peer not in known]:
        parser.error(f"{args.name} has no peer {', '.join(unknown)}; there are {', '.join(known)}")
    settings = [preset.name for preset in BENCHMARKS[args.name].presets if preset.peer in args.peers]
    args.settings = tuple(args.settings or settings)
    if unknown := [name for name in args.settings if name not in settings]:
        parser.error(
            f"{args.name} has no settings {', '.join(unknown)}; there are {', '.join(dict.fromkeys(settings))}"
        )
    least = 1 if args.quick else 3
    args.runs = least if args.runs is None else args.runs
    if args.runs < least:
        parser.error(f"--runs {args.runs}: it takes at least {least} to compare (1 with --quick)")
    args.only_peers |= args.compare_threads
    return Plan(**vars(args))


def run_all(plan: Plan, screen: Screen) -> list[Run]:
    """Prepare the peers, then run every process in turn."""
    for peer in plan.peers_to_run:
        prepare_environment(peer, screen)
    shutil.rmtree(RUNS, ignore_errors=True)
    runs: list[Run] = []
    jobs = list(make_jobs(plan))
    for number, job in enumerate(jobs, 1):
        run = execute(job, seed=plan.seed + job.turn, folder=RUNS / f"{number:03d}", screen=screen)
        screen.say(f"[{number}/{len(jobs)}] {job.title}: {run}")
        if job.part != "warm-up":
            runs.append(run)
    return runs


def show(runs: Sequence[Run], plan: Plan) -> None:
    """Print the tables."""
    console = Console()
    console.width = console.width if console.is_terminal else 130
    if plan.compare_threads:
        console.print(threads_table(runs, plan.benchmark))
    else:
        console.print(throughput_table(runs, plan.benchmark, plan.presets))
        if plan.benchmark.parts is not None and not plan.only_peers:
            console.print(parts_table(runs, plan.benchmark, plan.presets))
            console.print(efficiency_table(runs, plan.benchmark, plan.presets))
        if any(preset.share for preset in plan.presets) and not plan.only_peers:
            console.print(shares_table(runs, plan.benchmark, plan.presets))
        if plan.has_solve:
            console.print(solve_table(runs, plan.benchmark, plan.target_return))
    for line in disturbances(runs):
        console.print(line, highlight=False, markup=False)
    if plan.quick:
        console.print("Quick runs: they show that the benchmark works, nothing else.")


def _check_xla(plan: Plan) -> None:
    """Check that updates which are to be compiled by XLA can be: without it, levada would only warn."""
    needs_it = is_functional(plan.benchmark.env) or any(
        form.fields.get("compile") == "xla" for preset in plan.presets for form in preset.forms
    )
    missing = [name for name in ("jax", "torchax") if importlib.util.find_spec(name) is None]
    if needs_it and missing:
        msg = f"{' and '.join(missing)} not found, which updates compiled by XLA need: pip install 'levada[jax]'"
        raise BenchmarkError(msg)


def main() -> int:
    """Measure, then print the tables."""
    plan = parse()
    screen = Screen()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that child processes end too
    try:
        if not plan.only_peers:
            LevadaSide().executable()
            _check_xla(plan)
        make_cache()
        adopt_orphans()
        with screen.bars:
            runs = run_all(plan, screen)
    except BenchmarkError as error:
        screen.say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        screen.say("interrupted; no tables, because the turns are not complete")
        return 130
    show(runs, plan)
    if plan.json is not None:
        plan.json.write_text(as_json(runs, plan) + "\n")
    return 0
