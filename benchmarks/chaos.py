"""Kill processes and check that nothing breaks: algorithms on CartPole on several processes.

    python benchmarks/chaos.py workers --kills 200     # SIGKILL random workers of one run; --algorithm impala: of another one
    python benchmarks/chaos.py tables --kills 100      # SIGKILL workers and tables of one run of Ape-X
    python benchmarks/chaos.py learners --kills 50     # SIGKILL one of the two learners of one run
    python benchmarks/chaos.py main --kills 30         # SIGKILL the main process of runs, and resume them

workers: one run, whose workers are killed one by one at random moments, until the number of kills is reached and the task is
    solved. Then the same flow runs inline, undisturbed, for the same number of updates. The parameters must be bitwise equal,
    except for algorithms that learn in arrival order. Memory (of all processes) and descriptors at the end are compared with
    those after the first kills.

tables: the same with Ape-X DQN, whose tables have their own processes, which get one kill in three. The content of a killed
    table is lost, and the ledger must report it; training must reach its target nevertheless. Parameters need not be equal.

learners: PPO with two learners that add gradients exactly. One is killed at a random moment, the next once it is replaced and an
    update is done.
    Replicas compare hashes after every update. The parameters at the end must be those of one undisturbed learner.

main: each run is a `levada train` process, killed at a random moment (perhaps during its start), resumed, and sometimes
    killed again. Three seconds after a kill none of its processes and named shared memory may be left. All runs must end with
    the parameters of an undisturbed run.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._proc import marked, num_descriptors, pss_mb, segments
from levada.algorithms.apex_dqn import ApexDQN
from levada.algorithms.ppo import PPO
from levada.algorithms.presets import PRESETS
from levada.algorithms.registry import find_algorithm
from levada.rl.compute.threads import set_threads
from levada.rl.envs.task import Task
from levada.run.monitor import Monitor
from levada.run.storage.hashing import params_sha256
from levada.run.summary import Summary
from levada.runners.flow_run import FlowRun
from levada.runners.inline import Inline
from levada.runners.processes import Processes
from levada.runners.processes.replicas.handle import LearnerProcesses
from levada.runners.processes.tables.handle import TableProcesses

SEED = 1
TARGET = 475.0
WARM_UP = 10
"""Number of kills before memory and descriptors are first read."""
LEFT_BEHIND_S = 3.0


class Killer(threading.Thread):
    """Kills random processes of a run at random times."""

    def __init__(
        self,
        num_kills: int,
        least_s: float,
        most_s: float,
        pids: Callable[[], Sequence[int]],
        killed: set[int] | None = None,
    ) -> None:
        """Prepare; `pids`: processes that may currently be killed; `killed`: gets those that were."""
        super().__init__(daemon=True)
        self._pids = pids
        self._killed = set[int]() if killed is None else killed
        self._num_kills = num_kills
        self._least_s, self._most_s = least_s, most_s
        self.num_killed = 0
        self.stopped = threading.Event()

    def run(self) -> None:
        """Main loop of the thread."""
        dice = random.Random(SEED)
        while self.num_killed < self._num_kills:
            if self.stopped.wait(dice.uniform(self._least_s, self._most_s)):
                return
            with suppress(ProcessLookupError, IndexError, ValueError):  # it has just exited, or is being replaced
                pid = dice.choice(self._pids())
                self._killed.add(pid)
                os.kill(pid, signal.SIGKILL)
                self.num_killed += 1


def workers(num_kills: int, console: Console, algorithm: str = "ppo") -> bool:
    """Kill many workers of one run."""
    settings = {**PRESETS[algorithm]["CartPole-v1"], "shards": 4, "num_envs": 2}
    if algorithm == "ppo":
        settings["max_lag"] = 1
    config = find_algorithm(algorithm)(**settings)
    is_exact = getattr(config, "order", "admission") == "admission"
    flow, monitor = config.flow(Task("CartPole-v1")), Monitor(target_return=475.0)
    usage: list[tuple[float, int]] = []
    start_s = time.perf_counter()
    with (
        Processes(workers=2).open(flow, seed=SEED, instruments=[monitor]) as run,
        Progress(console=console) as progress,
    ):
        bar = progress.add_task("workers killed", total=num_kills)
        killer = Killer(num_kills, 0.15, 0.4, lambda: run.worker_pids)
        killer.start()
        for report in run:
            progress.update(bar, completed=killer.num_killed)
            if killer.num_killed >= WARM_UP and report.firing % 20 == 0:
                usage.append((pss_mb([os.getpid(), *run.worker_pids]), num_descriptors(os.getpid())))
            if monitor.solved_at_s is not None and killer.num_killed >= num_kills:
                break
        killer.stopped.set()
        killer.join()
        num_updates, found = report.firing, params_sha256(run.node_state("learn").weights())
        known = run.statistics()
        ledgers = [c.ledger for c in known.channels.values()] + [r.ledger for r in known.replays.values()]
        [ledger] = ledgers
    first, last = ([statistics.median(part) for part in zip(*some, strict=True)] for some in (usage[:20], usage[-20:]))
    expected = found
    if is_exact:
        with Inline().open(flow, seed=SEED) as undisturbed:
            expected = next(
                params_sha256(undisturbed.node_state("learn").weights()) for r in undisturbed if r.firing == num_updates
            )
    console.print(
        f"{killer.num_killed} workers killed in {time.perf_counter() - start_s:.0f} s; 475 reached after "
        f"{monitor.solved_at_steps:,} env steps, {num_updates:,} updates in all\n"
        f"ledger: produced {ledger.produced:,} = consumed {ledger.consumed:,} + lost {ledger.lost:,} + in flight "
        f"{ledger.in_flight}: {'balanced' if ledger.balanced else 'NOT BALANCED'}\n"
        f"memory {first[0]:.0f} -> {last[0]:.0f} MB, descriptors {first[1]:.0f} -> {last[1]:.0f}\n"
        + (f"parameters {found[:12]}, undisturbed {expected[:12]}" if is_exact else "parameters depend on timing")
    )
    steady = last[0] <= 1.05 * first[0] and last[1] <= 1.05 * first[1] + 1
    return ledger.balanced and steady and found == expected


def tables(num_kills: int, console: Console) -> bool:
    """Kill many workers and tables of one run of Ape-X."""
    hp = ApexDQN(**PRESETS["apex_dqn"]["CartPole-v1"])
    monitor, usage = Monitor(target_return=TARGET), list[tuple[float, int]]()
    start_s = time.perf_counter()
    place = Processes(workers=2, replays="worker", max_restarts=10)
    with (
        place.open(hp.flow(Task("CartPole-v1")), seed=SEED, instruments=[monitor]) as run,
        Progress(console=console) as progress,
    ):
        assert isinstance(run, FlowRun)
        assert isinstance(run.table_place, TableProcesses)
        apart = run.table_place
        bar = progress.add_task("processes killed", total=num_kills)
        # as many tables as workers, so each worker is in the list twice
        killer = Killer(num_kills, 0.3, 0.9, lambda: (*run.worker_pids, *run.worker_pids, *apart.pids))
        killer.start()
        for report in run:
            progress.update(bar, completed=killer.num_killed)
            if killer.num_killed >= WARM_UP and report.firing % 20 == 0:
                pids = [os.getpid(), *run.worker_pids, *apart.pids]
                usage.append((pss_mb(pids), num_descriptors(os.getpid())))
            if monitor.solved_at_s is not None and killer.num_killed >= num_kills:
                break
        killer.stopped.set()
        killer.join()
        replay = run.statistics().replays["replay"]
    first, last = ([statistics.median(part) for part in zip(*some, strict=True)] for some in (usage[:20], usage[-20:]))
    ledger = replay.ledger
    console.print(
        f"{killer.num_killed} workers and tables killed in {time.perf_counter() - start_s:.0f} s; {TARGET:g} reached after "
        f"{monitor.solved_at_steps:,} env steps\n"
        f"ledger: produced {ledger.produced:,} = consumed {ledger.consumed:,} + lost {ledger.lost:,} + in flight "
        f"{ledger.in_flight}: {'balanced' if ledger.balanced else 'NOT BALANCED'}; of {replay.inserted:,} entries "
        f"{replay.lost:,} lost with their tables\n"
        f"memory {first[0]:.0f} -> {last[0]:.0f} MB, descriptors {first[1]:.0f} -> {last[1]:.0f}"
    )
    return ledger.balanced and replay.lost > 0 and last[1] <= 1.1 * first[1] + 2


def learners(num_kills: int, console: Console) -> bool:
    """Kill many learners of one run, one at a time."""
    settings = {**PRESETS["ppo"]["CartPole-v1"], "shards": 4, "num_envs": 2, "max_lag": 1}
    config = PPO(**settings)
    config = replace(config, microbatch_size=config.resolved_minibatch_size // 4)
    flow, killed = config.flow(Task("CartPole-v1")), set[int]()
    start_s = time.perf_counter()
    place = Processes(workers=1, learners=2, reduce="exact", max_restarts=10)
    with place.open(flow, seed=SEED) as run, Progress(console=console) as progress:
        assert isinstance(run, FlowRun)
        assert isinstance(run.learner_place, LearnerProcesses)
        group = run.learner_place
        bar = progress.add_task("learners killed", total=num_kills)

        num_updates, at_last_kill = 0, (0, 0)

        def pids() -> Sequence[int]:
            """None while one is being replaced, and until the new group has finished an update."""
            nonlocal at_last_kill
            if len(killed) > at_last_kill[0]:
                at_last_kill = len(killed), num_updates
            if killed.isdisjoint(group.pids) and len(group.pids) == 2 and num_updates > at_last_kill[1]:
                return group.pids
            return ()

        killer = Killer(num_kills, 0.2, 1.0, pids, killed)
        killer.start()
        for report in run:
            num_updates = report.firing
            progress.update(bar, completed=killer.num_killed)
            if killer.num_killed >= num_kills and killed.isdisjoint(group.pids):
                break
        killer.stopped.set()
        killer.join()
        found = params_sha256(run.node_state("learn").weights())
        [channel] = run.statistics().channels.values()
    with Inline().open(flow, seed=SEED) as undisturbed:
        expected = next(
            params_sha256(undisturbed.node_state("learn").weights()) for r in undisturbed if r.firing == num_updates
        )
    console.print(
        f"{killer.num_killed} learners killed in {time.perf_counter() - start_s:.0f} s, {num_updates:,} updates; ledger "
        f"{'balanced' if channel.ledger.balanced else 'NOT BALANCED'}; parameters {found[:12]}, undisturbed {expected[:12]}"
    )
    return channel.ledger.balanced and found == expected


class Main:
    """Runs of the command line that are killed."""

    def __init__(self, folder: Path, num_updates: int) -> None:
        self.folder = folder
        self.temporary = folder / "tmp"
        """Directory of their temporary files, such as addresses of sockets."""
        self.temporary.mkdir()
        self._goal = f"updates={num_updates}"
        self._train = [
            "train", "ppo", "--env", "CartPole-v1", "--shards", "4", "--num-envs", "2", "--max-lag", "1", "--seed", str(SEED),
            "--on", "processes:2", "--until", self._goal, "--checkpoint-every-updates", "10", "--quiet",
        ]  # fmt: skip

    def start(self, name: str, mark: str) -> subprocess.Popen[str]:
        """Train, or resume if there is a checkpoint."""
        path = self.folder / name
        words = (
            ["resume", str(path), "--quiet"] if (path / "config.json").exists() else [*self._train, "--out", str(path)]
        )
        return subprocess.Popen(
            [sys.executable, "-m", "levada.cli", *words], text=True,
            env={**os.environ, "LEVADA_CHAOS": mark, "TMPDIR": str(self.temporary)},
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip

    def summary(self, name: str) -> Summary:
        """Read the summary of a run."""
        return Summary.from_json((self.folder / name / "summary.json").read_bytes())


def main_process(num_kills: int, console: Console) -> bool:
    """Kill and resume many runs."""
    dice, faults, num_killed = random.Random(SEED), list[str](), 0
    with tempfile.TemporaryDirectory() as folder, Progress(console=console) as progress:
        runs = Main(Path(folder), num_updates=200)
        begun_s = time.perf_counter()
        whole = runs.start("whole", "undisturbed")
        _, said = whole.communicate()
        assert whole.returncode == 0, said
        whole_s = time.perf_counter() - begun_s
        expected = runs.summary("whole").params_sha256
        bar = progress.add_task("main processes killed", total=num_kills)
        for number in range(num_kills):
            name, mark = f"run{number}", uuid.uuid4().hex
            before = segments()
            process = runs.start(name, mark)
            for _ in range(dice.choice([1, 1, 2])):  # some are killed again after they are resumed
                try:
                    process.communicate(timeout=dice.uniform(0.1, whole_s))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.communicate()
                    num_killed += 1
                    faults += _left_behind(name, mark, before, runs.temporary)
                    process = runs.start(name, mark)
            _, said = process.communicate()
            if process.returncode != 0:
                faults.append(f"{name} ended with {process.returncode}: {said}")
            elif runs.summary(name).params_sha256 != expected:
                faults.append(f"{name} ended with other parameters: {said}")
            progress.advance(bar)
    console.print(f"{num_kills} runs, {num_killed} kills; undisturbed {whole_s:.1f} s, parameters {str(expected)[:12]}")
    console.print("\n".join(faults) or "all ended with these parameters, and nothing was left behind")
    return not faults


def _left_behind(name: str, mark: str, before: set[str], temporary: Path) -> list[str]:
    """Remaining processes, files, and names in shared memory. (Unnamed memory is freed with the last process that maps it.)"""
    deadline_s = time.perf_counter() + LEFT_BEHIND_S
    while (left := [*marked(mark), *temporary.iterdir(), *(segments() - before)]) and time.perf_counter() < deadline_s:
        time.sleep(0.05)
    return [f"{name}: after {LEFT_BEHIND_S:g} s there are left {left}"] if left else []


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill workers, or main processes, and see that nothing breaks.")
    parser.add_argument("what", choices=["workers", "tables", "learners", "main"])
    parser.add_argument(
        "--kills", type=int, help="default: 200 workers, 100 workers and tables, 50 learners, 30 main processes"
    )
    parser.add_argument(
        "--algorithm", choices=["ppo", "dqn", "impala", "appo"], default="ppo", help="whose workers are killed"
    )
    args = parser.parse_args()
    set_threads(1)
    logging.getLogger("levada").setLevel(logging.ERROR)  # otherwise each killed worker is logged
    console = Console()
    if args.what == "workers":
        return 0 if workers(args.kills or 200, console, args.algorithm) else 1
    if args.what == "tables":
        return 0 if tables(args.kills or 100, console) else 1
    if args.what == "learners":
        return 0 if learners(args.kills or 50, console) else 1
    return 0 if main_process(args.kills or 30, console) else 1


if __name__ == "__main__":
    sys.exit(main())
