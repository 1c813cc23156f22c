"""Presets: settings by algorithm and environment, as differences from the algorithm's defaults.

The command line and arguments take precedence over a preset; config.json records the origin of each value. docs/results.md
lists the results of the presets that were measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from levada.algorithms.algorithm import Algorithm

_ATARI: Mapping[str, Any] = {
    "shards": 2,
    "num_envs": 8,
    "num_steps": 64,
    "num_epochs": 3,
    "minibatch_size": 256,
    "learning_rate": 1.5e-3,
    "anneal_steps": 3_000_000,
    "entropy_coef": 0.02,
    "anneal_entropy_coef": True,
    "network": "levada.rl:SmallCNN",
}

_ATARI_APPO: Mapping[str, Any] = {
    "shards": 2,
    "num_envs": 32,
    "num_steps": 16,
    "num_rollouts": 2,
    "num_epochs": 3,
    "minibatch_size": 256,
    "learning_rate": 1e-3,
    "anneal_steps": 4_000_000,
    "entropy_coef": 0.01,
    "clip_c": 0.95,
    "normalize_advantage": True,
    "network": "levada.rl:SmallCNN",
}

_ATARI_IMPALA: Mapping[str, Any] = {
    "shards": 2,
    "num_envs": 8,
    "num_steps": 32,
    "replay_ratio": 2.0,
    "replay_buffer_size": 16,
    "learning_rate": 7e-4,
    "anneal_steps": 3_000_000,
    "entropy_coef": 0.004,
    "anneal_entropy_coef": True,
    "clip_c": 0.95,
    "network": "levada.rl:SmallCNN",
}

_ATARI_GAMES = (
    "ALE/BeamRider-v5",
    "ALE/Boxing-v5",
    "ALE/Breakout-v5",
    "ALE/MsPacman-v5",
    "ALE/Pong-v5",
    "ALE/Qbert-v5",
    "ALE/Seaquest-v5",
    "ALE/SpaceInvaders-v5",
)

_TABULAR_DQN: Mapping[str, Any] = {
    "hidden_sizes": (),
    "learning_rate": 0.05,
    "target_update_interval": 100,
    "epsilon_end": 0.0,
    "epsilon_steps": 20_000,
}

_MUJOCO: Mapping[str, Any] = {
    "num_envs": 8,
    "num_steps": 256,
    "num_epochs": 10,
    "minibatch_size": 64,
    "learning_rate": 3e-4,
    "anneal_steps": 1_000_000,
    "normalize_obs": True,
    "normalize_reward": True,
}

_MUJOCO_TASKS = (
    "HalfCheetah-v5",
    "Hopper-v5",
    "InvertedDoublePendulum-v5",
    "InvertedPendulum-v5",
    "Pusher-v5",
    "Reacher-v5",
    "Walker2d-v5",
)

_SPEAKER = "pettingzoo:mpe2.simple_speaker_listener_v4"
_SPREAD, _FORAGING = "pettingzoo:mpe2.simple_spread_v3", "gymnasium:lbforaging:Foraging-8x8-2p-2f-coop-v3"

_SPREAD_PPO: Mapping[str, Any] = {
    "num_envs": 16,
    "num_steps": 25,
    "num_minibatches": 4,
    "learning_rate": 1e-3,
    "discount": 0.9,
    "entropy_coef": 0.003,
}

_SPREAD_VALUES: Mapping[str, Any] = {
    "num_envs": 16,
    "num_steps": 16,
    "learning_rate": 1e-3,
    "discount": 0.9,
    "batch_size": 256,
    "samples_per_insert": 16.0,
    "num_gradient_steps": 16,
    "tau": 0.01,
    "target_update_interval": 1,
    "epsilon_steps": 20_000,
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
            "target_update_interval": 4,
            "learning_rate": 1e-3,
            "anneal_steps": 250_000,
            "clip_range": 0.4,
            "discount": 0.98,
        },
        **dict.fromkeys(_ATARI_GAMES, _ATARI_APPO),
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
        **dict.fromkeys(_ATARI_GAMES, _ATARI_IMPALA),
    },
    "dqn": {
        "CartPole-v1": {
            "hidden_sizes": (128, 128),
            "learning_rate": 2e-3,
            "samples_per_insert": 16.0,
            "n_step": 3,
            "target_update_interval": 100,
            "anneal_steps": 100_000,
            "epsilon_end": 0.02,
            "epsilon_steps": 8_000,
        },
        "Acrobot-v1": {
            "hidden_sizes": (128, 128),
            "samples_per_insert": 32.0,
            "n_step": 3,
            "target_update_interval": 200,
            "epsilon_end": 0.02,
            "epsilon_steps": 8_000,
        },
        "MountainCar-v0": {
            "hidden_sizes": (128, 128),
            "learning_rate": 2e-3,
            "samples_per_insert": 32.0,
            "anneal_steps": 200_000,
            "n_step": 5,
            "target_update_interval": 300,
            "epsilon_start": 0.1,
            "epsilon_end": 0.01,
            "epsilon_steps": 40_000,
        },
        "Taxi-v4": _TABULAR_DQN,
        "CliffWalking-v1": _TABULAR_DQN,
        "CliffWalkingSlippery-v1": {
            **_TABULAR_DQN,
            "learning_rate": 0.1,
            "batch_size": 256,
            "samples_per_insert": 16.0,
            "anneal_steps": 150_000,
            "huber_delta": None,
            "max_grad_norm": None,
        },
        "FrozenLake-v1": {
            **_TABULAR_DQN,
            "learning_rate": 2e-3,
            "batch_size": 256,
            "samples_per_insert": 32.0,
            "anneal_steps": 150_000,
            "epsilon_steps": 60_000,
        },
        "FrozenLake8x8-v1": {
            **_TABULAR_DQN,
            "num_envs": 32,
            "learning_rate": 2e-3,
            "batch_size": 256,
            "buffer_size": 300_000,
            "samples_per_insert": 16.0,
            "anneal_steps": 300_000,
            "discount": 0.995,
            "epsilon_steps": 150_000,
        },
        "Blackjack-v1": {
            "hidden_sizes": (64, 64),
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
            "hidden_sizes": (128, 128),
            "learning_rate": 2e-3,
            "samples_per_insert": 16.0,
            "target_update_interval": 100,
            "anneal_steps": 100_000,
            "epsilon_base": 0.1,
        },
    },
    "ippo": {_SPREAD: _SPREAD_PPO},
    "maddpg": {key: {"num_envs": 16, "num_steps": 16} for key in (_SPEAKER, _SPREAD)},
    "mappo": {_SPREAD: _SPREAD_PPO, _FORAGING: {"num_envs": 32, "num_steps": 50, "anneal_steps": 800_000}},
    "ppo": {
        "CartPole-v1": {
            "num_envs": 8,
            "num_steps": 32,
            "num_epochs": 10,
            "minibatch_size": 256,
            "learning_rate": 1.5e-3,
            "anneal_steps": 100_000,
            "anneal_clip_range": True,
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
            "normalize_obs": True,
        },
        "MountainCar-v0": {
            "num_envs": 16,
            "num_steps": 32,
            "num_epochs": 8,
            "minibatch_size": 256,
            "learning_rate": 3e-3,
            "anneal_steps": 400_000,
            "gae_lambda": 0.98,
            "normalize_obs": True,
            "normalize_reward": True,
        },
        "MountainCarContinuous-v0": {
            "num_envs": 16,
            "num_steps": 256,
            "num_epochs": 8,
            "minibatch_size": 512,
            "learning_rate": 1e-3,
            "discount": 0.999,
            "normalize_obs": True,
            "normalize_reward": True,
            "log_std_init": 1.5,
        },
        "CliffWalking-v1": {
            "num_steps": 64,
            "num_epochs": 8,
            "minibatch_size": 128,
            "learning_rate": 3e-3,
            "normalize_reward": True,
        },
        "CliffWalkingSlippery-v1": {
            "num_envs": 16,
            "num_steps": 64,
            "num_epochs": 8,
            "minibatch_size": 128,
            "learning_rate": 3e-3,
            "anneal_steps": 200_000,
            "entropy_coef": 0.003,
            "normalize_reward": True,
        },
        "FrozenLake-v1": {
            "num_envs": 16,
            "num_steps": 64,
            "learning_rate": 0.03,
            "hidden_sizes": (),
        },
        "FrozenLake8x8-v1": {
            "num_envs": 64,
            "num_steps": 64,
            "minibatch_size": 512,
            "learning_rate": 0.015,
            "anneal_steps": 500_000,
            "discount": 0.995,
            "entropy_coef": 5e-4,
            "normalize_advantage": False,
            "hidden_sizes": (),
        },
        "Taxi-v4": {
            "num_envs": 64,
            "num_steps": 64,
            "minibatch_size": 512,
            "learning_rate": 0.03,
            "anneal_steps": 400_000,
            "entropy_coef": 0.01,
            "normalize_reward": True,
            "hidden_sizes": (),
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
            "normalize_reward": True,
        },
        **dict.fromkeys(_MUJOCO_TASKS, _MUJOCO),
        # with a standard deviation of 1, the torques of so many joints are mostly noise
        **{key: {**_MUJOCO, "log_std_init": -1.0} for key in ("Ant-v5", "Humanoid-v5", "HumanoidStandup-v5")},
        "Swimmer-v5": {**_MUJOCO, "discount": 0.9999},
        "BipedalWalker-v3": {
            "num_envs": 16,
            "num_steps": 256,
            "num_epochs": 10,
            "minibatch_size": 128,
            "learning_rate": 3e-4,
            "anneal_steps": 2_000_000,
            "discount": 0.999,
            "normalize_obs": True,
            "normalize_reward": True,
        },
        **dict.fromkeys(_ATARI_GAMES, _ATARI),
        "LunarLander-v3": {
            "num_envs": 16,
            "num_steps": 128,
            "num_epochs": 8,
            "minibatch_size": 256,
            "learning_rate": 1e-3,
            "discount": 0.995,
            "gae_lambda": 0.98,
            "entropy_coef": 0.005,
            "normalize_obs": True,
            "normalize_reward": True,
        },
    },
    "qmix": {_SPREAD: _SPREAD_VALUES},
    "rainbow": {
        "CartPole-v1": {
            "hidden_sizes": (128, 128),
            "samples_per_insert": 16.0,
            "target_update_interval": 100,
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
            "buffer_size": 100_000,
            "samples_per_insert": 16.0,
            "batch_size": 64,
            "hidden_sizes": (128, 128),
            "n_step": 5,
        },
        "HalfCheetah-v5": {"learning_rate": 3e-4, "learning_starts": 10_000},
    },
    "td3": {
        "MountainCarContinuous-v0": {
            "num_envs": 8,
            "learning_starts": 5_000,
            "samples_per_insert": 128.0,
            "exploration_noise": 3.0,
            "hidden_sizes": (64, 64),
        },
    },
    "vdn": {
        _SPREAD: _SPREAD_VALUES,
        _FORAGING: {
            "num_envs": 32,
            "num_steps": 16,
            "buffer_size": 500_000,
            "learning_starts": 10_000,
            "batch_size": 512,
            "samples_per_insert": 32.0,
            "num_gradient_steps": 16,
            "hidden_sizes": (128, 128),
            "activation": "relu",
            "discount": 0.97,
            "standardize_reward": True,
            "tau": 0.01,
            "target_update_interval": 1,
            "epsilon_steps": 200_000,
        },
    },
}


def kept_beside(cls: type[Algorithm], values: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a preset that these fields leave: neither their alternatives, nor what has no effect beside them."""
    dropped: set[str] = set()
    for together in cls.alternatives():
        if any(fields.get(name) is not None for name in together):
            dropped.update(together)
    for needed, dependents in cls.dependents().items():
        if needed in fields and fields[needed] is None:
            dropped.update(dependents)
    return {name: value for name, value in values.items() if name in fields or name not in dropped}


def preset(algorithm: str, env: str) -> Mapping[str, Any]:
    """The preset of an algorithm for an environment; empty if there is none."""
    return PRESETS.get(algorithm, {}).get(env, {})
