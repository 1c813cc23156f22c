"""Groups that average: DQN on CartPole in two groups, with and without compression of what they send.

    python benchmarks/groups.py                                # uncompressed, int8 and top_k; three seeds each; 15 minutes
    python benchmarks/groups.py --variants nesterov --seeds 1

Inline, one thread, with the preset of DQN. A run ends after a number of env steps of all groups together. "solved" is the
number of env steps at which the mean return of the last 100 episodes first reached 475; MB are what the groups have sent. The
directories of the runs stay, for `benchmarks/curves.py`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

import levada as lv
from levada.run.storage.directory import RunDirectory

ENV, TARGET, NUM_EPISODES = "CartPole-v1", 475.0, 20

VARIANTS: dict[str, dict[str, Any]] = {
    "uncompressed": {},
    "int8": {"compression": "int8"},
    "top_k": {"compression": "top_k"},
    "nesterov": {"outer_learning_rate": 0.7, "outer_momentum": 0.9},
    "lag 1": {"max_lag": 1},
    "1 of 2": {"round_size": 1},
}
"""Settings of DiLoCo, by name."""


class Outcome(NamedTuple):
    """Result of a run."""

    num_env_steps: int
    solved: int | None
    last: float
    """Mean return of the last 100 episodes."""
    evaluated: float
    """Mean return of the global policy."""
    num_bytes: float
    share: float
    """Bytes sent, as a fraction of those uncompressed."""
    wall_s: float


def run_once(settings: dict[str, Any], seed: int, max_steps: int, out: Path) -> Outcome:
    """Train for a number of env steps."""
    result = lv.train(
        "diloco", ENV, of="dqn", num_groups=2, num_local_updates=20, seed=seed, until=f"steps={max_steps}", out=out,
        display="quiet", **settings,
    )  # fmt: skip
    lines = RunDirectory.open(out).metrics()
    solved = [line["step"] for line in lines if line.get("charts/episodic_return", 0.0) >= TARGET]
    sent = sum(line["averaging/num_bytes"] for line in lines)
    found = lv.evaluate(result, num_episodes=NUM_EPISODES, seed=seed)
    return Outcome(
        num_env_steps=int(lines[-1]["step"]), solved=int(solved[0]) if solved else None,
        last=lines[-1]["charts/episodic_return"], evaluated=found.mean, num_bytes=sent,
        share=sent / sum(line["averaging/num_bytes_uncompressed"] for line in lines), wall_s=lines[-1]["charts/wall_s"],
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=["uncompressed", "int8", "top_k"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=200_000, help="env steps of all groups together")
    parser.add_argument("--out", type=Path, default=Path("runs/groups"), help="directory of the runs")
    arguments = parser.parse_args()
    headings = "env steps", "solved", "return of the last 100", f"{NUM_EPISODES} episodes", "MB", "share", "s"
    table = Table("variant", "seed", *headings)
    for name in arguments.variants:
        for seed in arguments.seeds:
            where = arguments.out / f"{name.replace(' ', '-')}-{seed}"
            out = run_once(VARIANTS[name], seed, arguments.steps, where)
            table.add_row(
                name, str(seed), f"{out.num_env_steps:,}", "never" if out.solved is None else f"{out.solved:,}",
                f"{out.last:.1f}", f"{out.evaluated:.1f}", f"{out.num_bytes / 1e6:.2f}", f"{out.share:.3f}", f"{out.wall_s:.0f}",
            )  # fmt: skip
            Console().print(table)


if __name__ == "__main__":
    main()
