"""Effect of recurrent networks: CartPole with hidden velocities, learned with and without them.

    python benchmarks/memory.py                        # recurrent PPO and IMPALA, R2D2, recurrent SAC, DQN; three seeds each
    python benchmarks/memory.py r2d2 --seeds 1 2

A run ends when the mean return of the last 100 episodes reaches 475, or after a number of env steps. It is inline, on one
thread. Then the policy plays 20 episodes deterministically.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._hidden import hidden_cartpole
from benchmarks._learning import learn, outcomes
from levada.algorithms.algorithm import Algorithm
from levada.algorithms.dqn import DQN
from levada.algorithms.impala import IMPALA
from levada.algorithms.ppo import PPO
from levada.algorithms.presets import preset
from levada.algorithms.r2d2 import R2D2
from levada.algorithms.recurrent_sac import RecurrentSAC
from levada.rl.compute.threads import set_threads
from levada.rl.envs.task import Task

ALGORITHMS: dict[str, Algorithm] = {
    "ppo": PPO(
        rnn_type="gru",
        num_envs=8,
        num_steps=64,
        num_epochs=10,
        minibatch_size=512,
        learning_rate=1e-3,
        anneal_steps=300_000,
        anneal_clip_range=True,
        discount=0.98,
        gae_lambda=0.9,
        normalize_reward=True,
    ),
    "impala": IMPALA(
        rnn_type="gru",
        shards=2,
        num_envs=4,
        learning_rate=1.5e-3,
        anneal_steps=400_000,
        discount=0.98,
        entropy_coef=0.003,
        normalize_reward=True,
    ),
    "r2d2": R2D2(samples_per_insert=32.0, epsilon_end=0.01, anneal_steps=250_000),
    "recurrent_sac": RecurrentSAC(samples_per_insert=32.0, n_step=5),
    "dqn": DQN(**preset("dqn", "CartPole-v1")),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithms", nargs="*", default=list(ALGORITHMS), help=", ".join(ALGORITHMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--max-steps", type=int, default=300_000)
    arguments = parser.parse_args()
    set_threads(1)
    console, table = Console(), outcomes()
    for name in arguments.algorithms:
        for seed in arguments.seeds:
            row = learn(
                ALGORITHMS[name], Task(hidden_cartpole), seed, max_steps=arguments.max_steps, target=475.0
            ).words()
            console.print(name, seed, *row)
            table.add_row(name, str(seed), *row)
    console.print(table)


if __name__ == "__main__":
    main()
