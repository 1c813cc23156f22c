"""Settings that are known to work: per algorithm and environment, what differs from the algorithm's defaults.

A preset is used where neither the command line nor an argument says otherwise; config.json tells which value came from
where. docs/results.md has what each reaches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ATARI: Mapping[str, Any] = {
    "shards": 2,
    "num_envs": 16,
    "num_steps": 32,
    "num_epochs": 3,
    "minibatch_size": 256,
    "learning_rate": 5e-4,
    "anneal_steps": 3_000_000,
    "entropy_coef": 0.01,
    "max_lag": 1,
}

PRESETS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "a2c": {
        "CartPole-v1": {
            "num_steps": 16,
            "learning_rate": 5e-3,
            "anneal_steps": 150_000,
            "value_coef": 1.0,
            "discount": 0.98,
            "gae_lambda": 0.8,
        },
    },
    "a3c": {
        "CartPole-v1": {
            "num_envs": 4,
            "num_steps": 16,
            "learning_rate": 3e-3,
            "value_coef": 1.0,
            "discount": 0.98,
            "gae_lambda": 0.9,
        },
    },
    "appo": {
        "CartPole-v1": {
            "shards": 4,
            "num_envs": 4,
            "num_steps": 16,
            "num_epochs": 2,
            "target_every": 4,
            "learning_rate": 1e-3,
            "anneal_steps": 250_000,
            "clip": 0.4,
            "discount": 0.98,
        },
    },
    "impala": {
        "CartPole-v1": {
            "shards": 4,
            "num_envs": 4,
            "learning_rate": 3e-3,
            "anneal_steps": 250_000,
            "entropy_coef": 0.003,
            "discount": 0.98,
        },
    },
    "dqn": {
        "CartPole-v1": {
            "hidden": (128, 128),
            "learning_rate": 2e-3,
            "samples_per_insert": 16.0,
            "lookahead": 3,
            "target_every": 100,
            "anneal_steps": 100_000,
            "epsilon_end": 0.02,
            "epsilon_steps": 8_000,
        },
        "Acrobot-v1": {
            "hidden": (128, 128),
            "samples_per_insert": 32.0,
            "lookahead": 3,
            "target_every": 200,
            "epsilon_end": 0.02,
            "epsilon_steps": 8_000,
        },
        "MountainCar-v0": {
            "hidden": (128, 128),
            "learning_rate": 2e-3,
            "samples_per_insert": 32.0,
            "anneal_steps": 200_000,
            "discount": 0.98,
            "lookahead": 5,
            "target_every": 300,
            "epsilon_end": 0.01,
            "epsilon_steps": 40_000,
        },
        "Taxi-v4": {
            "hidden": (),
            "learning_rate": 0.05,
            "target_every": 100,
            "epsilon_end": 0.0,
            "epsilon_steps": 20_000,
        },
        "CliffWalking-v1": {
            "hidden": (),
            "learning_rate": 0.05,
            "target_every": 100,
            "epsilon_end": 0.0,
            "epsilon_steps": 20_000,
        },
        "FrozenLake-v1": {
            "hidden": (),
            "learning_rate": 2e-3,
            "batch_size": 256,
            "samples_per_insert": 32.0,
            "anneal_steps": 150_000,
            "target_every": 100,
            "epsilon_end": 0.0,
            "epsilon_steps": 60_000,
        },
        "Blackjack-v1": {
            "hidden": (64, 64),
            "batch_size": 256,
            "samples_per_insert": 16.0,
            "anneal_steps": 150_000,
            "epsilon_end": 0.1,
            "epsilon_steps": 100_000,
        },
    },
    "apex_dqn": {
        "CartPole-v1": {
            "num_envs": 2,
            "hidden": (128, 128),
            "learning_rate": 2e-3,
            "samples_per_insert": 16.0,
            "target_every": 100,
            "anneal_steps": 100_000,
            "ladder": 0.1,
        },
    },
    "ppo": {
        "CartPole-v1": {
            "num_envs": 8,
            "num_steps": 32,
            "num_epochs": 10,
            "minibatch_size": 256,
            "learning_rate": 1.5e-3,
            "anneal_steps": 100_000,
            "anneal_clip": True,
            "value_coef": 1.0,
            "discount": 0.98,
            "gae_lambda": 0.8,
        },
        "Acrobot-v1": {
            "num_envs": 16,
            "num_steps": 64,
            "num_epochs": 8,
            "minibatch_size": 256,
            "learning_rate": 1e-3,
            "gae_lambda": 0.94,
            "normalise_obs": True,
        },
        "MountainCar-v0": {
            "num_envs": 16,
            "num_steps": 32,
            "num_epochs": 8,
            "minibatch_size": 256,
            "learning_rate": 3e-3,
            "anneal_steps": 400_000,
            "gae_lambda": 0.98,
            "normalise_obs": True,
            "normalise_reward": True,
        },
        "MountainCarContinuous-v0": {
            "num_envs": 16,
            "num_steps": 256,
            "num_epochs": 8,
            "minibatch_size": 512,
            "learning_rate": 1e-3,
            "discount": 0.999,
            "normalise_obs": True,
            "normalise_reward": True,
            "log_std_init": 1.5,
        },
        "CliffWalking-v1": {
            "num_steps": 64,
            "num_epochs": 8,
            "minibatch_size": 128,
            "learning_rate": 3e-3,
            "normalise_reward": True,
        },
        "FrozenLake-v1": {
            "num_envs": 16,
            "num_steps": 64,
            "learning_rate": 0.03,
            "hidden": (),
        },
        "Blackjack-v1": {
            "num_envs": 16,
            "num_steps": 64,
            "learning_rate": 3e-3,
            "anneal_steps": 200_000,
            "entropy_coef": 0.01,
        },
        "Pendulum-v1": {
            "num_envs": 8,
            "num_steps": 256,
            "num_epochs": 10,
            "minibatch_size": 256,
            "learning_rate": 1e-3,
            "discount": 0.9,
            "normalise_reward": True,
        },
        "ALE/Boxing-v5": _ATARI,
        "ALE/Pong-v5": _ATARI,
        "LunarLander-v3": {
            "num_envs": 16,
            "num_steps": 128,
            "num_epochs": 8,
            "minibatch_size": 256,
            "learning_rate": 1e-3,
            "discount": 0.995,
            "gae_lambda": 0.98,
            "entropy_coef": 0.005,
            "normalise_obs": True,
            "normalise_reward": True,
        },
    },
    "rainbow": {
        "CartPole-v1": {
            "hidden": (128, 128),
            "samples_per_insert": 16.0,
            "target_every": 100,
            "anneal_steps": 200_000,
            "adam_eps": 1e-8,
            "v_min": 0.0,
            "v_max": 100.0,
            "noisy_std": 0.1,
        },
    },
    "sac": {
        "CartPole-v1": {
            "num_envs": 8,
            "capacity": 100_000,
            "samples_per_insert": 16.0,
            "batch_size": 64,
            "hidden": (128, 128),
            "lookahead": 5,
        },
        "HalfCheetah-v5": {"learning_rate": 3e-4, "min_size": 10_000},
    },
}


def preset(algorithm: str, env: str) -> Mapping[str, Any]:
    """The preset of an algorithm for an environment; empty if there is none."""
    return PRESETS.get(algorithm, {}).get(env, {})
