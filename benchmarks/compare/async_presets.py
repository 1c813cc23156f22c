"""What `async-cartpole` compares: peers that are made for throughput, and levada with the same network and the same work.

Equal are the network, the number of environments, the size of a minibatch, the passes over the data, and what else of the
hyper-parameters both have. Different is the rest:

- Sample-Factory learns from 512 steps at a time, which come from any 16 of its 40 environments, 32 steps from each. Levada's
  batch has as many steps from each environment: 64, so that the batch divides into minibatches of 512. It makes five
  gradient steps in an update, Sample-Factory one; per step taken they are as many. So a lag of one update is one of five
  gradient steps in levada. Sample-Factory scales returns, levada rewards, both by a running deviation.
- PuffeRL draws the trajectories of its minibatch by the size of their advantages, some of them twice. It corrects advantages
  with V-trace.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from benchmarks.compare.presets import Benchmark, Form, Preset


def _forms(num_envs: int) -> tuple[Form, ...]:
    """Sampling and learning overlap in all of them. `num_envs`: all environments."""
    one: Mapping[str, object] = {"shards": 1, "num_envs": num_envs}
    two: Mapping[str, object] = {"shards": 2, "num_envs": num_envs // 2}
    in_turn: Mapping[str, object] = {"max_lag": 1, "order": "admission"}
    asynchronous: Mapping[str, object] = {"max_lag": 4, "order": "arrival"}
    return (
        Form(name="1 worker, lag 1", on="processes:1", fields={**one, **in_turn}),
        Form(name="2 workers, lag 1", on="processes:2", fields={**two, **in_turn}),
        Form(name="2 workers, arrival, lag 4", on="processes:2", fields={**two, **asynchronous}),
    )


# The loss of the value is value_coef * 0.5 * error^2 in levada and in PuffeRL, and coefficient * error^2 in
# Sample-Factory: its 0.5 is a 1.
_PRESETS: Final = (
    Preset(
        name="Sample-Factory",
        peer="sample-factory",
        script="sample_factory_appo.py",
        threads=1,
        num_env_steps=122_880,
        forms=_forms(num_envs=40),
        target_ratio=3.0,
        levada={
            "network": "benchmarks.compare.levada.networks:SampleFactory",
            "num_steps": 64,
            "num_epochs": 1,
            "minibatch_size": 512,
            "learning_rate": 1e-4,
            "anneal_steps": None,
            "anneal_clip_range": False,
            "discount": 0.99,
            "gae_lambda": 0.95,
            "clip_range": 0.1,
            "clip_range_vf": 1.0,
            "entropy_coef": 0.003,
            "value_coef": 1.0,
            "max_grad_norm": 4.0,
            "adam_eps": 1e-6,
            "normalize_advantage": True,
            "target_kl": None,
            "normalize_obs": True,
            "normalize_reward": True,
        },
    ),
    Preset(
        name="PuffeRL",
        peer="pufferlib",
        script="pufferlib_ppo.py",
        threads=1,
        num_env_steps=200_704,
        forms=_forms(num_envs=8),
        levada={
            "network": "benchmarks.compare.levada.networks:PufferLib",
            "num_steps": 64,
            "num_epochs": 1,
            "minibatch_size": 512,
            "learning_rate": 2.5e-3,
            "anneal_steps": None,
            "anneal_clip_range": False,
            "discount": 0.995,
            "gae_lambda": 0.9,
            "clip_range": 0.2,
            "clip_range_vf": 0.2,
            "entropy_coef": 0.001,
            "value_coef": 2.0,
            "max_grad_norm": 1.5,
            "adam_eps": 1e-12,
            "normalize_advantage": True,
            "target_kl": None,
            "normalize_obs": False,
            "normalize_reward": False,
        },
    ),
)

ASYNC_CARTPOLE: Final = Benchmark(algorithm="ppo", env="CartPole-v1", presets=_PRESETS)
