"""What `ray-impala-cartpole` compares: IMPALA of RLlib and of levada on Ray, and levada's on processes.

Equal are the task, the network (64-64, tanh, a stack each for policy and value), two samplers and one learner, the environments
of a sampler, the steps of a rollout and of a batch, the passes over the data (one), and the hyper-parameters, which are RLlib's
defaults. Different is the rest:

- RLlib by default has one environment in each of its env runners, rollouts of 50 steps and batches of 500. Vectorized it has 16,
  and batches of 800, one rollout of a runner's environments. With batches of 500 they would be as large, because RLlib puts
  whole rollouts together.
- Both learners are actors. The process that started the run looks for finished rollouts without a pause in RLlib; in levada it
  sleeps while there is nothing to do. On processes, levada's learner is in the process that started the run.
- RLlib's lag has no bound. Levada's is at most 16 updates, or 128 where an update is of one rollout, so that several rollouts can
  go into each call of Ray.
- In levada a reset is a row of a rollout, which is not counted as a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from benchmarks.compare.presets import Benchmark, Form, Preset, Share

_RAY: Final = "Ray, 2 actors"
_PROCESSES: Final = "2 workers"
_FORMS: Final = (Form(name=_RAY, on="ray:2"), Form(name=_PROCESSES, on="processes:2"))
_SHARE: Final = Share(form=_RAY, of=_PROCESSES, target=0.8)
_SAME_IN_ALL: Final[Mapping[str, object]] = {
    "shards": 2,
    "num_steps": 50,
    "max_lag": 16,
    "order": "arrival",
    "on_new_weights": "continue",
    "hidden_sizes": (64, 64),
    "activation": "tanh",
    "learning_rate": 5e-4,
    "anneal_steps": None,
    "discount": 0.99,
    "entropy_coef": 0.01,
    "value_coef": 0.5,
    "max_grad_norm": 40.0,
    "adam_eps": 1e-8,
    "clip_rho": 1.0,
    "clip_c": 1.0,
    "normalize_obs": False,
    "normalize_reward": False,
}
_PRESETS: Final = (
    Preset(
        name="RLlib",
        peer="rllib",
        script="rllib_impala_cartpole.py",
        arguments=("--preset", "default"),
        threads=1,
        num_env_steps=20_000,
        levada_steps=300_000,
        target_ratio=3.0,
        forms=_FORMS,
        share=_SHARE,
        levada={**_SAME_IN_ALL, "num_envs": 1, "num_rollouts": 10},
    ),
    Preset(
        name="RLlib, vectorized",
        peer="rllib",
        script="rllib_impala_cartpole.py",
        arguments=("--preset", "vector"),
        threads=1,
        num_env_steps=150_000,
        levada_steps=1_000_000,
        target_ratio=3.0,
        forms=_FORMS,
        share=_SHARE,
        levada={**_SAME_IN_ALL, "num_envs": 16, "num_rollouts": 1, "max_lag": 128},
    ),
)

RAY_IMPALA_CARTPOLE: Final = Benchmark(
    algorithm="impala", env="CartPole-v1", presets=_PRESETS, quick_steps=20_000, is_watched=True
)
