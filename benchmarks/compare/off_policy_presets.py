"""What `dqn-cartpole` and `sac-halfcheetah` compare: gradient steps per second with the peer's network, batch, and ratio of
gradient steps to env steps.

Levada runs in several forms, all with that ratio. *Step by step* interleaves as the peers do: one environment, and the new
weights act in the very next step. DQN's update is also compiled by XLA there. *As it comes* groups as levada does by default:
several env steps, then the gradient steps that are due for them, on weights that are published once.

SAC has two threads inline, and one with a worker. In one form, XLA computes two halves of a minibatch at a time, one in each
thread. In another, levada's layers are bfloat16; the peers and all other forms compute in float32, where the matrix products of a
gradient step alone take most of its time (`sac_limit.py`).

Not equal: SB3 changes the target of its DQN every 10,000 env steps, levada every 2,500 gradient steps, which is as often. The
peers take a deviation of SAC's actor from a clipped logarithm, each in its own bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from benchmarks.compare.presets import Benchmark, Form, Preset

_AS_IT_COMES: Final[Mapping[str, object]] = {"num_steps": 8, "num_gradient_steps": 8}
_FROM_THE_START: Final[Mapping[str, object]] = {
    "buffer_size": 1_000_000,
    "learning_starts": 100,
    "tolerance": 0.0,
    "anneal_steps": None,
    "discount": 0.99,
    "n_step": 1,
    "adam_eps": 1e-8,
    "shards": 1,
    "compile": "auto",
}


def _dqn_forms(samples_per_insert: float) -> tuple[Form, ...]:
    """`samples_per_insert` / 32 gradient steps for each env step."""
    gap = round(32 / samples_per_insert)
    ratio: Mapping[str, object] = {"samples_per_insert": samples_per_insert}
    step_by_step = {**ratio, "num_envs": 1, "num_steps": gap, "num_gradient_steps": 1}
    as_it_comes = {**ratio, **_AS_IT_COMES, "num_envs": 8}
    return (
        Form(name="step by step, inline", on="inline", fields=step_by_step, target_ratio=1.5),
        Form(
            name="step by step, inline, XLA", on="inline", fields={**step_by_step, "compile": "xla"}, target_ratio=1.5
        ),
        Form(name="as it comes, inline", on="inline", fields=as_it_comes),
        Form(name="as it comes, 1 worker", on="processes:1", fields=as_it_comes),
    )


_SAC_FORMS: Final = (
    Form(
        name="step by step, inline", on="inline", threads=2,
        fields={"num_envs": 1, "num_steps": 1, "num_gradient_steps": 1},
    ),
    Form(name="as it comes, inline", on="inline", threads=2, fields={"num_envs": 1, **_AS_IT_COMES}),
    Form(name="as it comes, 1 worker", on="processes:1", fields={"num_envs": 1, **_AS_IT_COMES}),
)  # fmt: skip
_SAC_BFLOAT16: Final = Form(
    name="as it comes, inline, bfloat16",
    on="inline",
    fields={"num_envs": 1, **_AS_IT_COMES, "precision": "bfloat16"},
    threads=2,
)
_SAC_XLA: Final = Form(
    name="as it comes, inline, XLA",
    on="inline",
    fields={"num_envs": 1, **_AS_IT_COMES, "compile": "xla", "microbatch_size": 128},
    threads=2,
)
_DQN: Final[Mapping[str, object]] = {
    **_FROM_THE_START,
    "batch_size": 32,
    "learning_rate": 1e-4,
    "tau": 1.0,
    "target_update_interval": 2_500,
    "double": False,
    "prioritized": False,
    "epsilon_start": 1.0,
    "epsilon_end": 0.05,
    "epsilon_steps": 6_000,
    "huber_delta": 1.0,
    "max_grad_norm": 10.0,
    "activation": "relu",
}
_SAC: Final[Mapping[str, object]] = {
    **_FROM_THE_START,
    "batch_size": 256,
    "samples_per_insert": 256.0,
    "learning_rate": 3e-4,
    "tau": 0.005,
    "max_grad_norm": None,
    "hidden_sizes": (256, 256),
    "log_alpha_init": 0.0,
}

DQN_CARTPOLE: Final = Benchmark(
    algorithm="dqn",
    env="CartPole-v1",
    counts="gradient steps",
    presets=(
        Preset(
            name="SB3",
            peer="sb3",
            script="sb3_dqn.py",
            threads=1,
            num_env_steps=60_000,
            target_ratio=3.0,
            forms=_dqn_forms(samples_per_insert=8.0),
            levada={**_DQN, "hidden_sizes": (64, 64), "dueling": False},
        ),
        # TianJi (arXiv 2502.20190) cannot be installed beside the others. Its own DQN on CartPole-v1, batches of 32 and a
        # dueling network with one hidden layer of 256, made 2,800 to 4,800 env steps/s and 170 to 264 gradient steps/s: about
        # one for 16 env steps, which is nothing that it lets its user choose.
        Preset(
            name="TianJi",
            peer="tianji",
            script=None,
            num_env_steps=120_000,
            quoted=(170.0, 264.0),
            target_ratio=8.0,
            forms=_dqn_forms(samples_per_insert=2.0)[2:],
            levada={**_DQN, "hidden_sizes": (256,), "dueling": True},
        ),
    ),
)
SAC_HALFCHEETAH: Final = Benchmark(
    algorithm="sac",
    env="HalfCheetah-v5",
    counts="gradient steps",
    warm_up_steps=300,
    quick_steps=600,
    presets=(
        Preset(
            name="SB3",
            peer="sb3",
            script="sb3_sac.py",
            threads=2,
            num_env_steps=1_500,
            target_ratio=2.0,
            forms=_SAC_FORMS,
            levada=_SAC,
        ),
        Preset(
            name="SBX",
            peer="sbx",
            script="sbx_sac.py",
            threads=2,
            num_env_steps=1_500,
            target_ratio=1.3,
            forms=(*_SAC_FORMS[1:], _SAC_XLA, _SAC_BFLOAT16),
            levada=_SAC,
        ),
    ),
)
