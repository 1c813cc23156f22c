"""DQN and Rainbow on pixels: MinAtar, whose games are small enough for two cores.

    pip install --no-deps minatar==1.0.15
    python benchmarks/pixels.py                        # both, three seeds each, on Breakout
    python benchmarks/pixels.py rainbow --game space_invaders --seeds 1

Inline, on one thread, with the network of the MinAtar paper. At the end the policy plays 20 episodes deterministically.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._learning import learn, outcomes
from benchmarks._minatar import random_return, task
from levada.algorithms.dqn import DQN
from levada.algorithms.rainbow import Rainbow
from levada.rl.compute.threads import set_threads

SHARED = {
    "network": "benchmarks._minatar:SmallCNN", "num_envs": 8, "batch_size": 32, "samples_per_insert": 16.0,
    "learning_starts": 5_000,
    "target_update_interval": 1_000, "num_gradient_steps": 8,
}  # fmt: skip
ALGORITHMS = {
    "dqn": DQN(**SHARED, learning_rate=2.5e-4, epsilon_steps=50_000, epsilon_end=0.05),  # type: ignore[arg-type]
    "rainbow": Rainbow(**SHARED, learning_rate=5e-4, adam_eps=1e-8, v_min=0.0, v_max=20.0, noisy_std=0.1),  # type: ignore[arg-type]
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithms", nargs="*", default=list(ALGORITHMS), help=", ".join(ALGORITHMS))
    parser.add_argument("--game", default="breakout")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--max-steps", type=int, default=200_000)
    arguments = parser.parse_args()
    set_threads(1)
    console, table = Console(), outcomes()
    console.print(f"any actions: {random_return(arguments.game):.1f}")
    for name in arguments.algorithms:
        for seed in arguments.seeds:
            hp = ALGORITHMS[name]
            row = learn(hp, task(arguments.game), seed, max_steps=arguments.max_steps, target=None).words()
            console.print(name, seed, *row)
            table.add_row(name, str(seed), *row)
    console.print(table)


if __name__ == "__main__":
    main()
