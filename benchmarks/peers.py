"""Speed of levada and of other libraries on this machine.

    python benchmarks/peers.py ppo-cartpole --json peers.json     # 8 minutes
    python benchmarks/peers.py ppo-cartpole --quick               # does it work? 1 minute
    python benchmarks/peers.py ppo-cartpole --only-peers          # without levada
    python benchmarks/peers.py ppo-cartpole --compare-threads     # the figures in `_peers/presets.py`
    python benchmarks/peers.py async-cartpole --json async.json   # 6 minutes; takes the same options
    python benchmarks/peers.py dqn-cartpole --json dqn.json       # 6 minutes
    python benchmarks/peers.py sac-halfcheetah --json sac.json    # 7 minutes; the SBX environment takes another one, once
    python benchmarks/peers.py pong --json pong.json              # 40 minutes; needs levada[atari]

Every peer has its own virtual environment in `.bench/`, recreated when its pins in `peers/requirements-<peer>.txt` change;
levada is the one installed for the interpreter that runs this file. Processes run one at a time, in turn (A B A B ...), with
a new seed in each turn, after a short uncounted run of each program. All use the CPU only. Levada writes all its files, as in
a user's run; the peers write none, or as few as they can.

A ratio is levada's median divided by the peer's; beside it are the smallest and the largest ratio of any run of levada to any
run of the peer. A run is disturbed if other processes kept more than 0.15 cores busy while it ran.

**steps/s** (`ppo-cartpole`, `async-cartpole`): equal hyper-parameters, those of the peer. In `async-cartpole` these are the
same network, number of environments, passes over the data and minibatch size; levada then runs on processes, in several
forms. `_peers/async_presets.py` lists the differences.

- *training*: `(steps at the end - steps at A) / (seconds from A to the end)`, where A is the first line of progress after the
  first update has finished and another tenth of all steps have been taken. Imports and the recording of the update are
  excluded, and only whole iterations of rollout and update are included.
- *whole process*: all steps / seconds from the start of the process to its exit.

Steps are those that were learned from; resets are not counted.

**gradient steps/s** (`dqn-cartpole`, `sac-halfcheetah`): the same for gradient steps, with the peer's network, batch size,
and ratio of gradient steps to env steps. A is after the filling of the replay. `_peers/off_policy_presets.py` lists the forms
in which levada runs. TianJi cannot be installed beside the others: figures measured elsewhere, on a machine of the same kind,
are quoted, and levada's ratio is that to the largest figure.

**steps/s** (`pong`): Atari's Pong; a step is one action and four frames. Peers and levada may take a different number of
steps. `_peers/atari_presets.py` lists what is equal and what is not. In addition, once per turn, levada's components are
measured alone, each with all cores: environment steps, and observations per second of inference and of training. The *serial
ceiling* is their throughput if each had all cores in turn and nothing else took any time: 1 / (1 / environment + 1 /
inference + passes / training). *Efficiency* is levada's rate of training divided by it. Memory is that of all processes of a
run together, with shared memory divided among the processes that share it, libraries included, at the maximum of about one
sample per second.

**seconds to a return of 475** (`ppo-cartpole`): each library with its own settings for the task: SB3 and CleanRL with their
tuned ones, levada out of the box. Measured from the start of the process to its exit, which follows as soon as the mean
return of the last 100 episodes has reached 475 (50 in --quick).

The lines of progress, from which all this is computed, are kept in `.bench/runs/`.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._peers.common import RUNS, BenchmarkError, make_cache
from benchmarks._peers.environments import prepare_environment
from benchmarks._peers.execute import Run, execute
from benchmarks._peers.jobs import BENCHMARKS, Plan, make_jobs, peers_of
from benchmarks._peers.processes import adopt_orphans
from benchmarks._peers.report import as_json
from benchmarks._peers.screen import Screen
from benchmarks._peers.sides import LevadaSide
from benchmarks._peers.tables import (
    disturbances,
    efficiency_table,
    parts_table,
    solve_table,
    threads_table,
    throughput_table,
)


def parse(arguments: Sequence[str] | None = None) -> Plan:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Time levada and other libraries on this machine, in turn.")
    parser.add_argument("name", metavar="BENCHMARK", choices=list(BENCHMARKS), help=", ".join(BENCHMARKS))
    parser.add_argument("--peers", help="comma-separated; default: all that the benchmark has")
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
        if plan.has_solve:
            console.print(solve_table(runs, plan.target_return))
    for line in disturbances(runs):
        console.print(line, highlight=False, markup=False)
    if plan.quick:
        console.print("Quick runs: they show that the benchmark works, nothing else.")


def main() -> int:
    """Measure, then print the tables."""
    plan = parse()
    screen = Screen()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that child processes end too
    try:
        if not plan.only_peers:
            LevadaSide().executable()
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


if __name__ == "__main__":
    sys.exit(main())
