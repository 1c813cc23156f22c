"""Overlap, scaling and idle cost, measured with components that take a known time.

    python benchmarks/scaling.py                       # all but `nodes`, 3 minutes
    python benchmarks/scaling.py sleep overlap idle efficiency stragglers
    python benchmarks/scaling.py nodes                 # 30 minutes; needs levada[ray]
    python benchmarks/scaling.py nodes --quick         # does it work? 5 minutes

sleep: PPO in environments of 5 ms a step, with 8 shards: env steps/s with 8 workers divided by those with one.
overlap: sampling and learning that take equally long, asleep and busy: updates/s with lag 1 divided by those with lag 0.
idle: processor time of all processes together, while everything waits 10 s for a slow environment.
efficiency: the processor time per env step of environments, inference and learning alone, in one thread, times the env
    steps/s of all cores together: the fraction of the cores' time that was useful work. Beside it, the fraction that nodes
    report.
stragglers: 2 % of the items take 200 times as long: bound and measured lag, and items/s, for each rule.
nodes: IMPALA on Ray clusters of 1, 2, 4 and 8 nodes, all on this machine, each with two samplers in an environment of 20 ms a
    step: env steps/s divided by those of one node. RLlib's IMPALA in the same turns, with an interpreter of its own and the same
    environments, rollouts, batches and network. Three turns; each run starts a cluster, and leaves out the ten seconds after the
    first update. `samplers idle`: the share of the time in which they made no rollout, `held back`: in which the schedule did
    not let them. `hub`: cores that the process kept busy which started the run; learners are other processes. `all`: cores that
    its processes kept busy together, Ray's included. `others`: cores that anything else kept busy meanwhile; the figures mean
    something only where that is little.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._proc import cpu_s, family
from benchmarks._scaling.envs import Sleepy
from benchmarks._scaling.flows import How, Learning, Taking, timed_flow
from benchmarks._scaling.nodes import nodes
from benchmarks.compare.common import BenchmarkError
from levada.algorithms.ppo import PPO
from levada.flow import Flow, Queue
from levada.flow.deployment import Deployment, Run
from levada.flow.events import ChannelStatistics
from levada.rl.compute.threads import set_threads
from levada.rl.envs.task import Task
from levada.runners import Inline
from levada.runners.malloc import keep_freed_memory
from levada.runners.processes import Processes
from levada.runners.statistics import num_cores
from levada.runners.threads import Threads

SEED = 1
IDLE_S = 10.0


def seconds_per_update(flow: Flow, place: Deployment, *, num_updates: int, num_warm: int = 3) -> float:
    """Mean seconds between reports."""
    with _closing(place.open(flow, seed=SEED)) as run:
        reports, start_s = iter(run), 0.0
        for number in range(num_warm + num_updates + 1):
            next(reports)
            if number == num_warm:
                start_s = time.perf_counter()
        return (time.perf_counter() - start_s) / num_updates


class _closing:
    def __init__(self, run: Run) -> None:
        self._run = run

    def __enter__(self) -> Run:
        return self._run

    def __exit__(self, *exc: object) -> None:
        self._run.close()


def sleep(console: Console) -> None:
    table = Table(
        "deployment", "lag", "env steps/s", "times one worker", title="sleep: 8 shards, 5 ms a step; target 7"
    )
    for lag in (0, 1):
        config = PPO(shards=8, num_envs=1, num_steps=20, minibatch_size=160, num_epochs=1, max_lag=lag, compile=False)
        flow, first_s = config.flow(Task(Sleepy)), 0.0
        places: list[Deployment] = [Processes(workers=1), Processes(workers=8), Threads(workers=8)]
        for place in places:
            update_s = seconds_per_update(flow, place, num_updates=3 if not first_s else 20)
            first_s = first_s or update_s
            table.add_row(str(place), str(lag), f"{160 / update_s:,.0f}", f"{first_s / update_s:.2f}")
    console.print(table)


def overlap(console: Console) -> None:
    table = Table("both take", "how", "updates/s, lag 0", "lag 1", "ratio", title="overlap: equal cost; target 1.7")
    hows: tuple[How, ...] = ("asleep", "busy")
    for how in hows:
        for seconds in (0.005, 0.05):
            updates_s = [
                1.0
                / seconds_per_update(
                    timed_flow(Taking(seconds, how), Learning(seconds, how), Queue(max_lag=lag), shards=1),
                    Processes(workers=1),
                    num_updates=round(3.0 / seconds / 2),
                )
                for lag in (0, 1)
            ]
            ratio = updates_s[1] / updates_s[0]
            table.add_row(f"{1e3 * seconds:g} ms", how, *(f"{u:.1f}" for u in updates_s), f"{ratio:.2f}")
    console.print(table)


def idle(console: Console) -> None:
    table = Table("deployment", "processes", "processor seconds", title=f"idle: {IDLE_S:g} s of waiting; target 0.2")
    flow = timed_flow(Taking(IDLE_S + 2.0), Learning(0.0), Queue(max_lag=0), shards=2)
    places: list[Deployment] = [
        Processes(workers=2), Processes(workers=2, inference="worker"), Processes(workers=2, hang_timeout_s=60.0),
        Processes(workers=2, learner="worker"), Threads(workers=2),
    ]  # fmt: skip
    for place in places:
        with _closing(place.open(flow, seed=SEED)) as run:
            found: list[float] = []
            watch = threading.Thread(target=_watch, args=(found,))
            watch.start()
            next(iter(run))
            watch.join()
        table.add_row(str(place), f"{found[1]:.0f}", f"{found[0]:.3f}")
    console.print(table)


def _watch(found: list[float]) -> None:
    time.sleep(1.0)
    pids = family(os.getpid())
    before_s = cpu_s(pids)
    time.sleep(IDLE_S)
    found += [cpu_s(pids) - before_s, float(len(pids))]


def efficiency(console: Console) -> None:
    table = Table(
        "network", "deployment", "env steps/s", "of the cores, alone", "as measured in the run",
        title="efficiency: PPO on CartPole-v1, one epoch; target 0.8",
    )  # fmt: skip
    fields = {"num_envs": 20, "num_steps": 64, "minibatch_size": 512, "num_epochs": 1, "normalize_advantage": True}
    for name, more in (("64-64", {}), ("512-512", {"network": "benchmarks.compare.levada.networks:SampleFactory"})):
        config = PPO(**fields, **more, shards=2, max_lag=4, order="arrival")  # type: ignore[arg-type]
        flow = config.flow(Task("CartPole-v1"))
        places: list[Deployment] = [Inline(), Processes(workers=1), Inline(), Processes(workers=2), Inline()]
        rates, cores = zip(*(_spent(flow, place, steps_per_update=2 * 20 * 64) for place in places), strict=True)
        alone_s = statistics.mean(cores[at] / rates[at] for at in (0, 2, 4))  # per env step
        table.add_row(name, "alone", f"{1.0 / alone_s:,.0f}", "", "")
        for at in (1, 3):
            shares = (alone_s * rates[at], cores[at])
            table.add_row(
                name, str(places[at]), f"{rates[at]:,.0f}", *(f"{share / num_cores():.2f}" for share in shares)
            )
    console.print(table)


def _spent(
    flow: Flow, place: Deployment, *, steps_per_update: int, warm_s: float = 4.0, seconds: float = 10.0
) -> tuple[float, float]:
    """Env steps/s, and number of cores that the nodes' own work kept busy."""
    with _closing(place.open(flow, seed=SEED)) as run:
        marks: list[tuple[float, int, float]] = []
        begun_s = time.perf_counter()
        for report in run:
            now_s = time.perf_counter()
            if now_s - begun_s >= (warm_s, warm_s + seconds)[len(marks)]:
                spent_s = sum(node.cpu_s for node in run.statistics().nodes.values())
                marks.append((now_s, report.firing, spent_s))
                if len(marks) == 2:
                    break
    (start_s, first, before_s), (end_s, last, after_s) = marks
    return (last - first) * steps_per_update / (end_s - start_s), (after_s - before_s) / (end_s - start_s)


def stragglers(console: Console) -> None:
    table = Table(
        "queue", "bound", "max", "mean", "dropped", "items/s",
        title="stragglers: 8 shards on 8 workers, items of 1 ms, 2 % of them 200 ms; updates of 8 items",
    )  # fmt: skip
    queues = [
        Queue(max_lag=lag, **more)  # type: ignore[arg-type]
        for lag in (0, 1, 4)
        for more in ({}, {"order": "arrival"}, {"on_stale": "drop"})
    ]
    for queue in queues:
        flow = timed_flow(Taking(0.001, straggling=0.02), Learning(0.001), queue, shards=8)
        with _closing(Processes(workers=8).open(flow, seed=SEED)) as run:
            reports, num_updates, start_s = iter(run), 0, time.perf_counter()
            while time.perf_counter() - start_s < 4.0:
                next(reports)
                num_updates += 1
            seconds = time.perf_counter() - start_s
            [channel] = run.statistics().channels.values()
        table.add_row(
            str(queue), *_lag(channel), f"{sum(channel.ledger.dropped.values()):,}", f"{8 * num_updates / seconds:,.0f}"
        )
        assert channel.ledger.balanced
    console.print(table)


def _lag(channel: ChannelStatistics) -> tuple[str, str, str]:
    lag = channel.lag["policy"]
    if lag.bound is not None and lag.max > lag.bound:
        return str(lag.bound), f"[bold red]{lag.max}", f"{lag.mean:.3f}"
    return str(lag.bound), str(lag.max), f"{lag.mean:.3f}"


PARTS: dict[str, Callable[[Console], None]] = {
    "sleep": sleep,
    "overlap": overlap,
    "idle": idle,
    "efficiency": efficiency,
    "stragglers": stragglers,
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure how parts that take a known time overlap.")
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}, nodes; default: all but nodes"
    )
    parser.add_argument("--quick", action="store_true", help="of nodes: two sizes, one short turn: does it work?")
    args = parser.parse_args()
    known: dict[str, Callable[[Console], None]] = {**PARTS, "nodes": partial(nodes, is_quick=args.quick)}
    parts = args.parts or list(PARTS)
    if unknown := [part for part in parts if part not in known]:
        parser.error(f"there is no part {unknown[0]!r}; there are {', '.join(known)}")
    set_threads(1)
    keep_freed_memory()  # as `levada train` does
    console = Console(width=120)
    for part in parts:
        with console.status(part):
            try:
                known[part](console)
            except BenchmarkError as error:
                console.print(f"error: {error}", markup=False)
                return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
