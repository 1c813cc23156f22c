"""What `jax-cartpole`, `jax-ant` and `jax-craftax` compare: PPO in JAX from end to end (rejax), and levada on the same
environment in JAX.

Equal are the environment (of gymnax, Brax, Craftax), the network (64-64, tanh, one each for policy and value), the number of
environments and steps, the passes, the minibatches, and the clip range. Different:

- rejax has an optimizer for the policy and one for the value, and clips each entry of a gradient, levada its norm.
- rejax takes the time limit of an episode for a terminal state.
- rejax writes nothing, and reports nothing; levada writes all its files.
- Where both have one core, each process is kept to the same one. With two cores, rejax is one process with two threads in XLA's
  pool, and levada has two workers with one thread each.
- rejax checks the target by 128 episodes of evaluation after every 8,192 env steps, levada by the last 100 episodes of training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from benchmarks.compare.presets import Benchmark, Form, Preset

_SAME: Final[Mapping[str, object]] = {
    "shards": 1,
    "max_lag": 0,
    "order": "admission",
    "learning_rate": 2.5e-4,
    "anneal_steps": None,
    "discount": 0.99,
    "gae_lambda": 0.95,
    "clip_range": 0.2,
    "clip_range_vf": 0.2,
    "value_coef": 0.5,
    "entropy_coef": 0.01,
    "max_grad_norm": 0.5,
    "normalize_advantage": True,
    "target_kl": None,
    "normalize_obs": False,
    "normalize_reward": False,
    "hidden_sizes": (64, 64),
    "activation": "tanh",
}


def _preset(
    name: str, preset: str, target_ratio: float, num_env_steps: int, env: str = "CartPole-v1", *,
    solve_steps: int | None = None, **fields: object,
) -> Preset:  # fmt: skip
    return Preset(
        name=name,
        peer="rejax",
        script="rejax_ppo.py",
        arguments=("--env", env, "--preset", preset),
        num_env_steps=num_env_steps,
        target_ratio=target_ratio,
        solve_steps=solve_steps,
        levada={**_SAME, **fields},
    )


_CLEANRL: Final[dict[str, Any]] = {"num_envs": 4, "num_steps": 128, "num_epochs": 4, "num_minibatches": 4}
_TUNED: Final[dict[str, Any]] = {"num_envs": 8, "num_steps": 32, "num_epochs": 20, "num_minibatches": 1}
_WIDE: Final[dict[str, Any]] = {"num_envs": 64, "num_steps": 128, "num_epochs": 4, "num_minibatches": 4}
_PRESETS: Final = (
    _preset("CleanRL's", "cleanrl", 0.6, 1_000_000, solve_steps=2_000_000, **_CLEANRL),
    _preset("20 epochs of one minibatch", "tuned", 0.9, 500_000, solve_steps=1_000_000, **_TUNED),
    _preset("64 environments", "wide", 0.8, 2_000_000, solve_steps=5_000_000, **_WIDE),
    Preset(
        name="64 environments, two cores",
        peer="rejax",
        script="rejax_ppo.py",
        arguments=("--env", "CartPole-v1", "--preset", "wide"),
        threads=2,
        num_env_steps=2_000_000,
        target_ratio=1.0,
        forms=(
            Form(name="2 workers", on="processes:2", fields={"shards": 2, "num_envs": 32, "max_lag": 1}, threads=1),
        ),
        levada={**_SAME, **_WIDE},
    ),
)

_BATCH: Final = {"num_envs": 64, "num_steps": 32, "num_epochs": 4, "num_minibatches": 4}

JAX_CARTPOLE: Final = Benchmark(
    algorithm="ppo", env="gymnax:CartPole-v1", presets=_PRESETS, warm_up_steps=50_000, quick_steps=100_000,
    solve_steps=1_000_000, is_pinned=True,
)  # fmt: skip
JAX_ANT: Final = Benchmark(
    algorithm="ppo",
    env="brax:ant",
    presets=(_preset("64 environments x 32 steps", "batch", 0.9, 131_072, "brax/ant", **_BATCH),),
    warm_up_steps=16_384,
    quick_steps=16_384,
    is_pinned=True,
)
JAX_CRAFTAX: Final = Benchmark(
    algorithm="ppo",
    env="craftax:Craftax-Classic-Symbolic-v1",
    presets=(
        _preset("64 environments x 32 steps", "batch", 0.9, 32_768, "craftax/Craftax-Classic-Symbolic-v1", **_BATCH),
    ),
    warm_up_steps=16_384,
    quick_steps=16_384,
    is_pinned=True,
)
