"""Settings that all algorithms share: precision, gradient accumulation, activation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import levada as lv
from levada.algorithms.checks import ConfigError
from levada.algorithms.dqn import DQN
from levada.algorithms.ppo import PPO
from levada.algorithms.r2d2 import R2D2
from levada.algorithms.recurrent_sac import RecurrentSAC
from levada.algorithms.sac import SAC
from levada.algorithms.td3 import TD3
from levada.rl.policies import precision
from levada.rl.policies.images import Images

QUICK: dict[str, Any] = {
    "num_envs": 2, "num_steps": 4, "learning_starts": 20, "batch_size": 8, "num_gradient_steps": 2, "samples_per_insert": 4.0,
    "hidden_sizes": (16,),
}  # fmt: skip
SEQUENCES: dict[str, Any] = QUICK | {"learning_starts": 6, "sequence_length": 4, "burn_in": 2}
LARGE = "support.envs.small:SmallImage-v0"


def params(hp: Any, env: Any, updates: int = 3) -> np.ndarray:
    with lv.Inline().open(hp.flow(lv.Task(env)), seed=1) as run:
        for report in run:
            if report.firing == updates:
                return run.node_state("learn").state_dict()["step/params"]
    raise AssertionError


@pytest.mark.parametrize(("kind", "env", "fields"), [
    (SAC, "Pendulum-v1", QUICK), (SAC, "CartPole-v1", QUICK), (TD3, "Pendulum-v1", QUICK), (DQN, "CartPole-v1", QUICK),
    (R2D2, "CartPole-v1", SEQUENCES), (RecurrentSAC, "CartPole-v1", SEQUENCES),
    (PPO, "CartPole-v1", {"num_envs": 2, "num_steps": 16, "minibatch_size": 32, "normalize_advantage": False}),
])  # fmt: skip
def test_microbatches_change_only_the_rounding(kind: Any, env: str, fields: dict[str, Any]) -> None:
    # SGD: Adam makes a whole step of a gradient that is nothing but rounding
    whole, parts = (
        params(kind(**fields, microbatch_size=size, optimizer="sgd", learning_rate=1e-2), env, updates=1)
        for size in (None, 4)
    )
    np.testing.assert_allclose(parts, whole, rtol=1e-3, atol=1e-5)


def test_microbatches_divide_the_batch() -> None:
    with pytest.raises(
        ConfigError, match=r"SAC\(microbatch_size=100\) does not divide batch_size = 256; try 64 or 128"
    ):
        SAC(microbatch_size=100)
    with pytest.raises(ConfigError, match=r"PPO\(microbatch_size=100\) does not divide the minibatch = 256"):
        PPO(microbatch_size=100)


@pytest.mark.parametrize(("kind", "env"), [(SAC, LARGE), (DQN, LARGE), (R2D2, LARGE)])
def test_all_networks_compute_in_the_precision_asked_for(kind: Any, env: str) -> None:
    fields = SEQUENCES if kind is R2D2 else QUICK
    found = {}
    for name in ("float32", "bfloat16"):
        hp = kind(**fields, precision=name)
        modules = hp.flow(lv.Task(env)).learners()["learn"].modules(1)
        images = [part for part in modules.modules() if isinstance(part, Images)]
        assert images and all(part.in_bfloat16 == (name == "bfloat16") for part in images)
        found[name] = params(hp, env, updates=1)
    assert all(array.dtype == np.float32 and np.isfinite(array).all() for array in found.values())
    assert not np.array_equal(*found.values())
    assert np.allclose(*found.values(), atol=1e-2)


def test_critics_without_images_compute_in_it_too() -> None:
    policy = lv.Policy(
        observation_space=lv.Task("Pendulum-v1").observation_space, action_space=lv.Task("Pendulum-v1").action_space,
        network=lv.rl.ValueMLP, precision="bfloat16", tanh_squash=True,
    )  # fmt: skip
    critic, obs, action = lv.rl.Critic(policy), torch.randn(4, 3), torch.randn(4, 1)
    half = critic(obs, action)
    critic.set_precision("float32")
    whole = critic(obs, action)
    assert half.dtype == whole.dtype == torch.float32
    assert not torch.equal(half, whole) and torch.allclose(half, whole, atol=2e-2)


@pytest.mark.parametrize(
    ("kind", "env"), [(PPO, "CartPole-v1"), (DQN, "CartPole-v1"), (SAC, "Pendulum-v1"), (TD3, "Pendulum-v1")]
)
def test_default_networks_of_vectors_learn_in_it_where_it_is_asked_for(kind: Any, env: str) -> None:
    assert kind().flow(lv.Task(env)).learners()["learn"].policy.precision == "float32"
    assert kind(precision="bfloat16").flow(lv.Task(env)).learners()["learn"].policy.precision == "bfloat16"


def test_auto_is_decided_before_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "prefers_bfloat16", lambda device="cpu": True)
    monkeypatch.setattr(precision, "SIDE", 36)
    task = lv.Task(LARGE)
    assert DQN(precision="auto").resolved(task)[0].precision == "bfloat16"
    assert DQN().resolved(task)[0].precision == "float32"
    assert DQN(precision="auto", features_extractor=Images).resolved(task)[0].precision == "float32"


@pytest.mark.parametrize("kind", [SAC, TD3])
def test_activations_are_those_of_actor_and_critics(kind: Any) -> None:
    modules = kind(activation="tanh").flow(lv.Task("Pendulum-v1")).learners()["learn"].modules(1)
    kinds = {type(part) for part in modules.modules()}
    assert torch.nn.Tanh in kinds and torch.nn.ReLU not in kinds


def test_targets_follow_in_the_interval_asked_for() -> None:
    for hp, interval in (
        (SAC(target_update_interval=3), 3),
        (TD3(target_update_interval=3), 6),
        (DQN(), 500),
        (SAC(), 1),
    ):
        task = lv.Task("CartPole-v1" if isinstance(hp, DQN) else "Pendulum-v1")
        assert hp.flow(task).learners()["learn"].target_update_interval == interval


@pytest.mark.parametrize("env", ["Pendulum-v1", "CartPole-v1"])
def test_sac_has_as_many_critics_as_asked_for(env: str) -> None:
    modules = SAC(num_critics=3).flow(lv.Task(env)).learners()["learn"].modules(1)
    assert len(modules["critic"].networks) == 3
    assert np.isfinite(params(SAC(**QUICK, num_critics=3), env)).all()
