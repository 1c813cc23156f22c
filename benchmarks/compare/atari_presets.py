"""What `pong` compares: env steps per second on Atari's Pong, where a step is one action and four frames, with the network of
Mnih et al. (2015) and images of 84 x 84, gray, in stacks of four.

The peers run with the settings that they publish for Atari, or have by default; levada's are the same in its words, as far as
it has them. Sample-Factory and RLlib are asynchronous: levada's IMPALA is compared with them, and learns from each step once, as
they do, of 32 environments in two workers. SB3 and CleanRL alternate between eight environments and four passes over the data:
levada's PPO does the same with as large batches and minibatches. Not equal is the rest:

- Levada's numbers are bfloat16 where the processor has them and a measurement says that they are quicker; parameters and losses
  are float32. The peers' are float32.
- Levada's environments repeat an action with probability 0.25, which is what the id stands for, as do RLlib's. The others' never
  do. Each preprocesses in its own way: levada and EnvPool in C++, SB3, RLlib and Sample-Factory in Python. A life that is lost
  ends an episode of the peers; in Pong there are none.
- Sample-Factory's learner is PPO without V-trace, with rollouts of 128 steps, 1,024 steps in an update, and minibatches of 256 of
  them. Levada's rollouts have 20 steps, and it makes one gradient step for each rollout of 16 environments: 320. Sample-Factory
  scales images and returns by their running deviation, levada does not. Its learning rate falls to zero over its run.
- RLlib by default has one environment in each of its two env runners, rollouts of 50 steps and batches of 500. Vectorized it has
  16, as levada's workers, and batches of 320, one rollout of a worker. Its images are float32.
- On processes, levada's PPO has 32 environments and rollouts of 32 steps, which make a batch of 1,024 as 8 of 128 do, and samples
  the next batch while it learns from one. Inline it does what SB3 and CleanRL do.
- In EnvPool, the step after the end of an episode only resets, and CleanRL counts it.

Peers and levada take a different number of steps, so that each is timed for 40 to 60 s on two cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from benchmarks.compare.presets import Benchmark, Form, Parts, Preset

_IMPALA_FORMS: Final = (
    Form(
        name="2 workers, arrival, lag 4",
        on="processes:2",
        fields={"shards": 2, "num_envs": 16, "num_steps": 20, "max_lag": 4, "order": "arrival"},
    ),
)
_PPO_FORMS: Final = (
    Form(name="inline", on="inline", fields={"shards": 1, "num_envs": 8, "num_steps": 128, "max_lag": 0}),
    Form(
        name="2 workers, lag 1",
        on="processes:2",
        fields={"shards": 2, "num_envs": 16, "num_steps": 32, "max_lag": 1},
    ),
)
_SAME_IN_ALL: Final[Mapping[str, object]] = {
    "discount": 0.99,
    "entropy_coef": 0.01,
    "normalize_obs": False,
    "normalize_reward": False,
}
_IMPALA: Final[Mapping[str, object]] = {
    **_SAME_IN_ALL,
    "num_rollouts": 1,
    "microbatch_size": 320,
    "anneal_steps": None,
    "on_new_weights": "continue",
    "clip_rho": 1.0,
    "clip_c": 1.0,
}
_LIKE_RLLIB: Final[Mapping[str, object]] = {
    **_IMPALA,
    "learning_rate": 5e-4,
    "value_coef": 0.5,
    "max_grad_norm": 40.0,
    "adam_eps": 1e-8,
}
_PPO: Final[Mapping[str, object]] = {
    **_SAME_IN_ALL,
    "order": "admission",
    "num_epochs": 4,
    "minibatch_size": 256,
    "learning_rate": 2.5e-4,
    "anneal_steps": 10_000_000,
    "anneal_learning_rate": True,
    "gae_lambda": 0.95,
    "clip_range": 0.1,
    "max_grad_norm": 0.5,
    "adam_eps": 1e-5,
    "normalize_advantage": True,
    "target_kl": None,
}

# Threads: SB3 and CleanRL, which do one thing after the other, have one for each of two cores. RLlib's learner has one beside two
# runners, and Sample-Factory decides by itself.
#
# The loss of the value is value_coef * 0.5 * error^2 in levada, RLlib and CleanRL, and coefficient * error^2 in Sample-Factory
# and SB3: their 0.5 is a 1.
_PRESETS: Final = (
    Preset(
        name="Sample-Factory",
        peer="sample-factory",
        script="sample_factory_atari.py",
        threads=1,
        num_env_steps=40_960,
        levada_steps=100_000,
        algorithm="impala",
        target_ratio=2.5,
        forms=_IMPALA_FORMS,
        levada={**_IMPALA, "learning_rate": 2.5e-4, "value_coef": 1.0, "max_grad_norm": 0.5, "adam_eps": 1e-5},
    ),
    Preset(
        name="RLlib",
        peer="rllib",
        script="rllib_impala_atari.py",
        arguments=("--preset", "default"),
        threads=1,
        num_env_steps=6_000,
        levada_steps=100_000,
        algorithm="impala",
        target_ratio=10.0,
        forms=_IMPALA_FORMS,
        levada=_LIKE_RLLIB,
    ),
    Preset(
        name="RLlib, vectorized",
        peer="rllib",
        script="rllib_impala_atari.py",
        arguments=("--preset", "vector"),
        threads=1,
        num_env_steps=10_240,
        levada_steps=100_000,
        algorithm="impala",
        forms=_IMPALA_FORMS,
        levada=_LIKE_RLLIB,
    ),
    Preset(
        name="CleanRL",
        peer="cleanrl",
        script="cleanrl_ppo_atari.py",
        threads=2,
        num_env_steps=20_480,
        levada_steps=40_960,
        target_ratio=2.2,
        forms=_PPO_FORMS,
        levada={**_PPO, "value_coef": 0.5, "clip_range_vf": 0.1, "anneal_clip_range": False},
    ),
    Preset(
        name="SB3",
        peer="sb3",
        script="sb3_ppo_atari.py",
        threads=2,
        num_env_steps=15_360,
        levada_steps=40_960,
        target_ratio=2.2,
        forms=_PPO_FORMS,
        levada={**_PPO, "value_coef": 1.0, "clip_range_vf": None, "anneal_clip_range": True},
    ),
)

PONG: Final = Benchmark(
    algorithm="ppo",
    env="ALE/Pong-v5",
    presets=_PRESETS,
    warm_up_steps=1_024,
    quick_steps=3_072,
    parts=Parts(script="levada/atari_parts.py", target_efficiency=0.8, target_memory_mb=1_500),
)
