"""RLlib's IMPALA on CartPole-v1, timed as a peer of levada.

    python rllib_impala_cartpole.py --preset default --steps 20480 --seed 0 --threads 1

Two env runners and a learner, each a process, with the settings that RLlib has by default: one environment in a runner, rollouts
of 50 steps, batches of 500. `--preset vector` has 16 environments in a runner, and batches of 800, one rollout of a runner's
environments. The network is 64-64, tanh, a stack each for policy and value, as levada's.
"""

from __future__ import annotations

import argparse

from _progress import Progress
from _rllib import cluster, train
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

NUM_RUNNERS = 2
PRESETS = {"default": (1, 50, 500), "vector": (16, 50, 800)}
"""Environments in a runner, steps of a rollout, steps of a batch."""


def _config(preset: str, seed: int) -> IMPALAConfig:
    num_envs, num_steps, batch_size = PRESETS[preset]
    network = DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False)
    return (
        IMPALAConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=NUM_RUNNERS, num_envs_per_env_runner=num_envs, rollout_fragment_length=num_steps)
        .learners(num_learners=1, num_gpus_per_learner=0)
        .training(train_batch_size_per_learner=batch_size)
        .rl_module(model_config=network)
        .debugging(seed=seed, log_level="ERROR")
    )


def main() -> None:
    """Train once."""
    parser = argparse.ArgumentParser(description="RLlib's IMPALA on CartPole-v1")
    parser.add_argument("--preset", choices=list(PRESETS), default="default")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="of the learner, by OMP_NUM_THREADS")
    args = parser.parse_args()

    progress = Progress(stop_return=None)
    with cluster(NUM_RUNNERS + 2, threads=args.threads):
        train(_config(args.preset, args.seed), progress, args.steps)


if __name__ == "__main__":
    main()
