"""What `mappo-spread` and `two-policies` compare: algorithms for several agents.

**mappo-spread**: MAPPO on MPE's simple_spread_v3 of the package mpe2, with three agents that share a policy, discrete actions and
games of 25 steps. With one thread each, both step the copies of the environment one after the other, in one process. With two
threads each, levada has the copies in two workers, and each thread computes half of a minibatch; BenchMARL has threads for its
updates alone. Equal are the environment, the number of its copies, the steps of a batch, the passes over it, the size of a
minibatch (400 steps are 1,200 transitions, one of each agent), the widths of the networks, and the critic, which gives one value
for each state. Levada's normalization of values and advantages is off, as in BenchMARL. BenchMARL takes all cores for its updates
unless it is told not to, so the target is for two threads on two cores. With one thread each the ratio has no target: gradient
steps in plain PyTorch and the environment alone would give one of 3 (`mappo_limit.py`). Levada is timed in float32, as BenchMARL
computes, and with layers in bfloat16.

**two-policies**: PPO for two policies, each with two agents of four CartPoles. Equal are the network (64-64, tanh, one each for
policy and value), the env steps of a batch (4,000; 4,096), the passes over it (30) and the minibatches (128 transitions), RLlib's
defaults. Different:

- RLlib has one environment in each of its env runners, levada 8 copies; an iteration of RLlib has at least 4,000 steps.
- RLlib's loss has a KL penalty.
- An agent whose pole has fallen waits for the others. Levada's rollouts have masked rows for it, which take part in the passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from benchmarks.compare.presets import Benchmark, Form, Preset

_MAPPO: Final[Mapping[str, object]] = {
    "shards": 1,
    "max_lag": 0,
    "order": "admission",
    "anneal_steps": None,
    "discount": 0.99,
    "gae_lambda": 0.9,
    "clip_range": 0.2,
    "clip_range_vf": None,
    "entropy_coef": 0.0,
    "value_coef": 1.0,
    "max_grad_norm": 5.0,
    "adam_eps": 1e-6,
    "normalize_value": False,
    "normalize_advantage": False,
    "target_kl": None,
    "activation": "tanh",
    "value_per": "state",
}
_DEFAULT: Final[Mapping[str, object]] = {
    **_MAPPO,
    "num_envs": 10,
    "num_steps": 600,
    "num_epochs": 45,
    "num_minibatches": 15,
    "learning_rate": 5e-5,
    "hidden_sizes": (256, 256),
}
_TWO_WORKERS: Final[Mapping[str, object]] = {"shards": 2, "num_envs": 5, "microbatch_size": 600}
_SPREAD: Final = (
    Preset(
        name="BenchMARL default, 2 threads",
        peer="benchmarl",
        script="benchmarl_mappo.py",
        arguments=("--preset", "default"),
        threads=2,
        num_env_steps=24_000,
        levada_steps=48_000,
        target_ratio=3.0,
        forms=(
            Form(name="2 workers", on="processes:2", threads=2, fields=_TWO_WORKERS),
            Form(
                name="2 workers, bfloat16",
                on="processes:2",
                threads=2,
                fields={**_TWO_WORKERS, "precision": "bfloat16"},
            ),
        ),
        levada=_DEFAULT,
    ),
    Preset(
        name="BenchMARL default",
        peer="benchmarl",
        script="benchmarl_mappo.py",
        arguments=("--preset", "default"),
        num_env_steps=24_000,
        levada_steps=24_000,
        forms=(
            Form(name="inline", on="inline"),
            Form(name="inline, bfloat16", on="inline", fields={"precision": "bfloat16"}),
        ),
        levada=_DEFAULT,
    ),
    Preset(
        name="BenchMARL, MAPPO's paper",
        peer="benchmarl",
        script="benchmarl_mappo.py",
        arguments=("--preset", "paper"),
        num_env_steps=8_000,
        levada_steps=80_000,
        target_ratio=3.0,
        levada={
            **_MAPPO,
            "num_envs": 32,
            "num_steps": 25,
            "num_epochs": 10,
            "num_minibatches": 1,
            "learning_rate": 5e-4,
            "hidden_sizes": (64, 64),
        },
    ),
)
MAPPO_SPREAD: Final = Benchmark(
    algorithm="levada.algorithms.mappo:MAPPO", env="pettingzoo:mpe2.simple_spread_v3", presets=_SPREAD,
    warm_up_steps=6_000, quick_steps=18_000,
)  # fmt: skip

_PPO: Final[Mapping[str, object]] = {
    "num_epochs": 30,
    "minibatch_size": 128,
    "max_lag": 0,
    "order": "admission",
    "learning_rate": 5e-5,
    "anneal_steps": None,
    "discount": 0.99,
    "gae_lambda": 1.0,
    "clip_range": 0.3,
    "entropy_coef": 0.0,
    "value_coef": 1.0,
    "max_grad_norm": None,
    "hidden_sizes": (64, 64),
    "activation": "tanh",
}
_POLICIES: Final[Mapping[str, object]] = {
    "policy": ("p0=ppo:agent_0,agent_2", "p1=ppo:agent_1,agent_3"),
    "policy_kwargs": {f"{policy}.{name}": value for policy in ("p0", "p1") for name, value in _PPO.items()},
}
_TWO: Final = (
    Preset(
        name="RLlib, one process",
        peer="rllib",
        script="rllib_two_policies.py",
        arguments=("--preset", "local"),
        num_env_steps=16_000,
        levada_steps=48_000,
        target_ratio=3.0,
        levada={**_POLICIES, "shards": 1, "num_envs": 8, "num_steps": 512},
    ),
    Preset(
        name="RLlib, 2 env runners",
        peer="rllib",
        script="rllib_two_policies.py",
        arguments=("--preset", "runners"),
        num_env_steps=16_000,
        levada_steps=48_000,
        target_ratio=3.0,
        forms=(Form(name="2 workers", on="processes:2"),),
        levada={**_POLICIES, "shards": 2, "num_envs": 4, "num_steps": 512},
    ),
)
TWO_POLICIES: Final = Benchmark(
    algorithm="multi", env="pettingzoo:benchmarks._cartpoles", presets=_TWO, warm_up_steps=4_000, quick_steps=12_000,
    is_watched=True,
)  # fmt: skip
