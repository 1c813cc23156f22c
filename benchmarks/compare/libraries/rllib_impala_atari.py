"""RLlib's IMPALA on Atari's Pong, timed as a peer of levada.

    python rllib_impala_atari.py --preset default --steps 10240 --seed 0 --threads 1

Two env runners and a learner, each a process; its own preprocessing of Atari, and of its settings those that it has by default:
one environment in a runner, rollouts of 50 steps, batches of 500. `--preset vector` has 16 environments in a runner, and
batches of 320, one rollout of 20 steps of a runner's environments. The network is that of Mnih et al. (2015), of layers that its
configuration knows: the last convolution is as large as what is left of the image, and so is the linear layer.

A step is one action, that is four frames.
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium as gym
from _progress import Progress
from _rllib import cluster, train
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.wrappers.atari_wrappers import wrap_atari_for_new_api_stack
from ray.tune.registry import register_env

ENV = "pong"
NUM_RUNNERS = 2
PRESETS = {"default": (1, 50, 500), "vector": (16, 20, 320)}
"""Environments in a runner, steps of a rollout, steps of a batch."""
NATURE = [[32, 8, 4, "valid"], [64, 4, 2, "valid"], [64, 3, 1, "valid"], [512, 7, 1, "valid"]]


def _make_env(_config: Any) -> gym.Env:
    import ale_py

    gym.register_envs(ale_py)
    env = gym.make("ALE/Pong-v5", frameskip=1)
    env = wrap_atari_for_new_api_stack(env, dim=84, frameskip=4, framestack=4)
    return gym.wrappers.TransformReward(env, lambda reward: max(-1.0, min(1.0, float(reward))))


def _config(preset: str, seed: int) -> IMPALAConfig:
    num_envs, num_steps, batch_size = PRESETS[preset]
    return (
        IMPALAConfig()
        .environment(ENV)
        .env_runners(num_env_runners=NUM_RUNNERS, num_envs_per_env_runner=num_envs, rollout_fragment_length=num_steps)
        .learners(num_learners=1, num_gpus_per_learner=0)
        .training(train_batch_size_per_learner=batch_size)
        .rl_module(model_config=DefaultModelConfig(conv_filters=NATURE, conv_activation="relu", vf_share_layers=True))
        .debugging(seed=seed, log_level="ERROR")
    )


def main() -> None:
    """Train once."""
    parser = argparse.ArgumentParser(description="RLlib's IMPALA on Pong")
    parser.add_argument("--preset", choices=list(PRESETS), default="vector")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="of the learner, by OMP_NUM_THREADS")
    args = parser.parse_args()

    progress = Progress(stop_return=None)
    register_env(ENV, _make_env)
    with cluster(NUM_RUNNERS + 2, threads=args.threads):
        train(_config(args.preset, args.seed), progress, args.steps)


if __name__ == "__main__":
    main()
