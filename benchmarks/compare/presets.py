"""What a benchmark is made of, and what `ppo-cartpole` compares: each peer with its settings on CartPole-v1, and the same
settings in levada's words.

Every field of levada's PPO that has to do with learning is given, also where it is the default: levada has a preset of
its own for CartPole-v1, which would fill the gaps. What cannot be given is not the same: CleanRL takes the time limit of
an episode for a terminal state, levada and SB3 do not; levada spends one row of a rollout on each reset where it steps
eight environments, does not count it as a step, and so learns a little more often per step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal


@dataclass(frozen=True, kw_only=True)
class Form:
    """A way in which levada runs: where, how far apart sampling and learning may be, and what compiles its updates.

    One that computes in bfloat16 is left out where the processor does not.
    """

    name: str
    on: str
    fields: Mapping[str, object] = field(default_factory=dict)
    """Further fields of levada's algorithm."""
    threads: int = 1
    """Of the learner."""
    target_ratio: float | None = None
    """Its own, in place of that of the preset."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """The rate of training in one form of levada, divided by that in another one of the same turns."""

    form: str
    of: str
    target: float
    """What it is meant to be, at least."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A peer with one of its settings, and the same settings in levada's words."""

    name: str
    peer: str
    script: str | None
    """None: it cannot be run here; `quoted` is what is known."""
    arguments: tuple[str, ...] = ()
    threads: int = 1
    """Of the peer."""
    num_env_steps: int
    """How long it is timed for."""
    levada_steps: int | None = None
    """How long levada is timed for; None: as long as the peer."""
    algorithm: str | None = None
    """Of levada; None: that of the benchmark."""
    quoted: tuple[float, float] | None = None
    """Least and largest rate of training that were measured elsewhere, on a machine of the same kind."""
    solve_steps: int | None = None
    """Steps within which it should reach the target; None: it is not asked to."""
    levada: Mapping[str, object]
    """Fields of levada's algorithm."""
    forms: tuple[Form, ...] = (Form(name="inline", on="inline"),)
    """Levada is timed in each."""
    target_ratio: float | None = None
    """How many times as fast as the peer levada is meant to train, at least; as the largest rate that is quoted."""
    share: Share | None = None
    """None: the forms are compared with the peer alone."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What the parts of levada do alone is measured, too, and how much memory every run takes."""

    script: str
    """It prints environment steps, and observations of inference and training, per second."""
    target_efficiency: float
    """Share of the serial ceiling that levada is meant to reach, at least."""
    target_memory_mb: float
    """What levada's processes are meant to stay below together."""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Peers on the same task."""

    algorithm: str
    """As `levada train` calls it."""
    env: str
    presets: tuple[Preset, ...]
    counts: Literal["env steps", "gradient steps"] = "env steps"
    """What is counted per second: where a step is learned from many times, it is the gradient steps that take the time."""
    warm_up_steps: int = 4_096
    quick_steps: int = 12_288
    """Env steps with --quick."""
    solve_steps: int = 200_000
    """Env steps within which levada should reach the target, with settings of its own."""
    parts: Parts | None = None
    """None: levada is compared with its peers alone."""
    is_pinned: bool = False
    """Whether the peers keep themselves to as many cores as they have threads. Where that is one, levada is kept to it, too."""
    is_watched: bool = False
    """Whether all processes of a run are looked at once a second, as with `parts`: the system forgets what Ray's have taken."""


_SAME_IN_ALL: Final[Mapping[str, object]] = {
    "shards": 1,
    "max_lag": 0,
    "order": "admission",
    "clip_range": 0.2,
    "max_grad_norm": 0.5,
    "adam_eps": 1e-5,
    "normalize_advantage": True,
    "target_kl": None,
    "normalize_obs": False,
    "normalize_reward": False,
    "hidden_sizes": (64, 64),
    "activation": "tanh",
}
# The loss of the value is value_coef * 0.5 * error^2 in levada and in CleanRL, and vf_coef * error^2 in SB3: its 0.5 is a 1.
_SAME_IN_SB3: Final[Mapping[str, object]] = {
    **_SAME_IN_ALL,
    "value_coef": 1.0,
    "clip_range_vf": None,
    "entropy_coef": 0.0,
}

_FORMS: Final = (
    Form(name="inline", on="inline"),
    Form(name="inline, compiled by XLA", on="inline", fields={"compile": "xla"}),
)

# Threads, set by OMP_NUM_THREADS and torch.set_num_threads: the better of 1 and 2 in --compare-threads, on a machine with
# 2 cores (AMD EPYC, torch 2.13.0+cpu, Python 3.11.7). Training steps/s, median (min - max) of 3:
#                  1 thread                  2 threads
#   SB3 default     2,877 ( 2,770 -  2,927)   1,489 (   278 -  2,748), each disturbed by other processes
#   SB3 tuned       6,899 ( 6,700 -  6,946)   6,947 ( 6,419 -  6,956)
#   CleanRL        10,236 ( 9,819 - 10,375)   9,098 ( 8,945 -  9,295)
# A second thread doubles the processor time for nothing, and stalls where something else needs its core. (SB3 default
# undisturbed, one short run each: 2,886 and 2,862.)
_PRESETS: Final = (
    Preset(
        name="SB3 default",
        peer="sb3",
        script="sb3_ppo.py",
        arguments=("--preset", "default"),
        threads=1,
        num_env_steps=51_200,
        forms=_FORMS,
        levada={
            **_SAME_IN_SB3,
            "num_envs": 1,
            "num_steps": 2048,
            "num_epochs": 10,
            "minibatch_size": 64,
            "learning_rate": 3e-4,
            "anneal_steps": None,
            "anneal_learning_rate": False,
            "anneal_clip_range": False,
            "discount": 0.99,
            "gae_lambda": 0.95,
        },
    ),
    Preset(
        name="SB3 tuned",
        peer="sb3",
        script="sb3_ppo.py",
        arguments=("--preset", "tuned"),
        threads=1,
        num_env_steps=100_000,
        solve_steps=100_000,
        forms=_FORMS,
        levada={
            **_SAME_IN_SB3,
            "num_envs": 8,
            "num_steps": 32,
            "num_epochs": 20,
            "minibatch_size": 256,
            "learning_rate": 1e-3,
            "anneal_steps": 100_000,
            "anneal_learning_rate": True,
            "anneal_clip_range": True,
            "discount": 0.98,
            "gae_lambda": 0.8,
        },
    ),
    Preset(
        name="CleanRL",
        peer="cleanrl",
        script="cleanrl_ppo.py",
        threads=1,
        num_env_steps=153_600,
        solve_steps=500_000,
        forms=_FORMS,
        levada={
            **_SAME_IN_ALL,
            "num_envs": 4,
            "num_steps": 128,
            "num_epochs": 4,
            "minibatch_size": 128,
            "learning_rate": 2.5e-4,
            "anneal_steps": 500_000,
            "anneal_learning_rate": True,
            "anneal_clip_range": False,
            "discount": 0.99,
            "gae_lambda": 0.95,
            "clip_range_vf": 0.2,
            "entropy_coef": 0.01,
            "value_coef": 0.5,
        },
    ),
)

PPO_CARTPOLE: Final = Benchmark(algorithm="ppo", env="CartPole-v1", presets=_PRESETS)
