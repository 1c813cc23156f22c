"""Test that memory does not grow: PPO on CartPole at full speed on several processes.

    python benchmarks/soak.py --minutes 20

A run as a user starts it, with metrics, TensorBoard and checkpoints, is observed from outside. Every five seconds the memory
of all its processes together (PSS: shared memory counts once) and the descriptors of the main process are read. Printed is
the slope of memory after the first two minutes, by least squares; it must stay below 1 MB per minute.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._proc import marked, num_descriptors, pss_mb
from levada.run.summary import Summary

EVERY_S = 5.0
SETTLED_S = 120.0
LIMIT_MB_PER_MINUTE = 1.0


def main() -> int:
    parser = argparse.ArgumentParser(description="Watch the memory of a long run.")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--lag", type=int, default=1)
    args = parser.parse_args()
    if args.minutes * 60.0 < SETTLED_S + 60.0:
        parser.error("--minutes: at least 3, for the first 2 do not count")
    mark, console = uuid.uuid4().hex, Console()
    seconds, memory_mb, descriptors = [], [], []
    with tempfile.TemporaryDirectory() as folder, Progress(console=console) as progress:
        path = Path(folder) / "run"
        words = ["train", "ppo", "--env", "CartPole-v1", "--shards", "2", "--on", "processes:2", "--lag", str(args.lag)]
        words += ["--until", f"minutes={args.minutes}", "--quiet", "--out", str(path)]
        start_s = time.perf_counter()
        with subprocess.Popen(
            [sys.executable, "-m", "levada.cli", *words], env={**os.environ, "LEVADA_SOAK": mark}
        ) as run:
            bar = progress.add_task("minutes", total=args.minutes)
            while run.poll() is None:
                time.sleep(EVERY_S)
                elapsed_s = time.perf_counter() - start_s
                if run.poll() is None and elapsed_s < 60.0 * args.minutes - EVERY_S:
                    seconds.append(elapsed_s)
                    memory_mb.append(pss_mb(marked(mark)))
                    descriptors.append(num_descriptors(run.pid))
                progress.update(bar, completed=elapsed_s / 60.0)
        if run.returncode != 0:
            return run.returncode
        summary = Summary.from_json((path / "summary.json").read_bytes())
    settled = [index for index, second in enumerate(seconds) if second >= SETTLED_S]
    minutes = np.array([seconds[index] for index in settled]) / 60.0
    slope = float(np.polyfit(minutes, [memory_mb[index] for index in settled], 1)[0])
    speed = f"{summary.steps_per_s or 0.0:,.0f} steps/s, efficiency {summary.efficiency or 0.0:.2f}"
    console.print(f"{summary.env_steps:,} env steps, {summary.updates:,} updates, {speed}")
    console.print(f"memory {memory_mb[settled[0]]:.1f} MB after 2 minutes, {memory_mb[-1]:.1f} MB at the end")
    console.print(f"slope {slope:+.3f} MB/min (limit {LIMIT_MB_PER_MINUTE:g})")
    console.print(f"descriptors {descriptors[settled[0]]} and {descriptors[-1]}")
    return 0 if slope < LIMIT_MB_PER_MINUTE else 1


if __name__ == "__main__":
    sys.exit(main())
