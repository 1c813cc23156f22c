"""What the live page costs, with a flow of 160 nodes and 40 channels, each of which has an event ten times per second.

    python benchmarks/page.py --minutes 10

Measures the fraction of its time that the run spends on events and frames for the page, the processor time of the page's
process, how much both grow, and the frames per second of a real browser that shows the page. Needs `levada[watch]`, Chromium, and
Playwright for Python.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import levada as lv
from levada.flow import Flow, Queue, Shard, Update
from levada.run.frames.recorder import Recorder
from levada.run.identity import Identity
from levada.run.monitor import Monitor
from levada.run.storage.directory import RunDirectory

NUM_LOOPS = 40
"""Number of loops of a source, a channel, a batch, a learner and a report."""
ROUND_S = 0.1
"""Seconds in which every node fires once."""
T = TypeVar("T")


@dataclass(frozen=True)
class Beat:
    """A source that makes a number; the first one waits, so that each node fires ten times per second."""

    is_first: bool

    def __call__(self, shard: Shard) -> Callable[[Any], float]:
        """Open it."""
        due_s = time.perf_counter()

        def make(weights: Any) -> float:
            nonlocal due_s
            if self.is_first:
                due_s = max(due_s + ROUND_S, time.perf_counter() - ROUND_S)
                time.sleep(max(0.0, due_s - time.perf_counter()))
            return 1.0

        return make


@dataclass(frozen=True)
class Count:
    """A learner that counts its updates."""

    policy_name: str
    tolerates_staleness: bool = True

    def open(self, seed: int) -> LiveCount:
        """Open it."""
        return LiveCount()


class LiveCount:
    """Its state."""

    def __init__(self) -> None:
        self.num_updates = 0

    def update(self, batch: Any) -> Update[np.ndarray]:
        """Count."""
        self.num_updates += 1
        return Update(self.weights(), {"updates": float(self.num_updates)})

    def weights(self) -> np.ndarray:
        """Return the number as an array."""
        return np.array([self.num_updates])

    def state_dict(self) -> Mapping[str, np.ndarray]:
        """Return it."""
        return {"num_updates": self.weights()}

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Set it."""
        self.num_updates = int(state["num_updates"][0])


def large_flow() -> Flow:
    """Make the flow: loops that have nothing to do with each other."""
    flow = Flow("large")
    for number in range(NUM_LOOPS):
        learner = Count(f"policy{number}")
        weights = flow.latest(f"weights{number}", of=learner)
        beats = flow.source(f"source{number}", Beat(number == 0), reads=weights)
        update = flow.learn(
            f"learn{number}", learner, flow.batch(f"batch{number}", beats.via(Queue(max_lag=0)), size=1)
        )
        flow.publish(update.weights, to=weights)
        flow.report(update.stats, name=f"report{number}")
    return flow


def run_it(out: Path, seconds: float) -> None:
    """Run the flow as `levada train` runs one, and print what its recorder took."""
    flow = large_flow()
    identity = Identity(algorithm="large", env="beat", seed=0, deployment="inline", flow_hash=flow.hash())
    directory = RunDirectory.create(out, identity, {})
    directory.write_flow(flow.svg())
    recorder, monitor = Recorder(directory.path, 1), Monitor()
    spent_s = 0.0
    num_events = 0

    def timed(function: Callable[..., T]) -> Callable[..., T]:
        def call(*args: Any) -> T:
            nonlocal spent_s, num_events
            began_s = time.perf_counter()
            result = function(*args)
            spent_s += time.perf_counter() - began_s
            num_events += function is on_event
            return result

        return call

    on_event = recorder.on_event
    recorder.on_event = timed(on_event)  # type: ignore[method-assign]
    look = timed(recorder.look)
    with directory.locked():
        run = lv.Inline().open(flow, instruments=[monitor, recorder])
        before_nbytes = resident(os.getpid())
        began_s = time.perf_counter()
        for _ in run:
            look(run, monitor)
            if time.perf_counter() - began_s > seconds:
                break
        wall_s = time.perf_counter() - began_s
        firings = sum(node.firings for node in run.statistics().nodes.values())
        grown = resident(os.getpid()) - before_nbytes
        recorder.close()
        run.close()
    print(
        json.dumps(
            {
                "share": spent_s / wall_s,
                "firings_per_s": firings / wall_s,
                "events_per_s": num_events / wall_s,
                "grown_nbytes": grown,
            }
        )
    )


def resident(pid: int) -> int:
    """Return the memory of a process in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu_s(pid: int) -> float:
    """Return the processor time of a process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def shown(url: str) -> Iterator[Callable[[], float]]:
    """Open a browser with the page; yields what measures its frames per second over five seconds."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.goto(url)

        def frames_per_s() -> float:
            count = """() => new Promise(done => { let num = 0; const end = performance.now() + 5000;
                const step = now => { num += 1; now < end ? requestAnimationFrame(step) : done(num / 5); };
                requestAnimationFrame(step); })"""
            return float(page.evaluate(count))

        try:
            yield frames_per_s
            notice = page.locator(".notice").first
            print("notice of the page:", notice.inner_text() or "none")
        finally:
            browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long to watch")
    parser.add_argument("--run", nargs=2, metavar=("DIR", "SECONDS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        run_it(Path(options.run[0]), float(options.run[1]))
        return
    if shutil.which("chromium") is None:
        parser.error("chromium is not installed, or not on PATH")
    seconds = 60.0 * options.minutes
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, __file__, "--run", str(out), str(seconds + 20.0)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
            while not (out / "frames.bin").exists():
                time.sleep(0.1)
            watch = [sys.executable, "-m", "levada.watch", str(out)]
            with subprocess.Popen(watch, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
                assert server.stdout is not None
                assert server.stdin is not None
                with shown(server.stdout.readline().strip()) as frames_per_s:
                    time.sleep(10.0)
                    before_s, before_nbytes, began_s = cpu_s(server.pid), resident(server.pid), time.perf_counter()
                    rates = []
                    while time.perf_counter() - began_s < seconds - 15.0:
                        rates.append(frames_per_s())
                        time.sleep(5.0)
                    wall_s = time.perf_counter() - began_s
                    used_s, grown = cpu_s(server.pid) - before_s, resident(server.pid) - before_nbytes
                server.stdin.close()
            assert run.stdout is not None
            of_run = json.loads(run.stdout.read())
    print(
        f"run: {of_run['firings_per_s']:.0f} firings/s of {4 * NUM_LOOPS / ROUND_S:.0f}, {of_run['events_per_s']:.0f} events/s, "
        f"{of_run['share']:.2%} of its time for the page, "
        f"grown by {of_run['grown_nbytes'] / 2**20:.1f} MiB"
    )
    print(
        f"process of the page: {used_s / wall_s:.1%} of a core, grown by {grown / 2**20:.1f} MiB in {wall_s / 60:.1f} minutes"
    )
    print(f"browser: {min(rates):.0f} to {max(rates):.0f} frames/s, median {sorted(rates)[len(rates) // 2]:.0f}")


if __name__ == "__main__":
    main()
