"""bfloat16 inside the network, float32 outside; chosen by a rule."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from types import BuiltinFunctionType
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from levada.algorithms.impala import IMPALA
from levada.algorithms.ppo import PPO
from levada.algorithms.sac import SAC
from levada.cli import main
from levada.rl.acting.actor import Actor
from levada.rl.data.spaces import allocate, map_nest
from levada.rl.envs.task import Task
from levada.rl.policies import precision
from levada.rl.policies.critic import Critic
from levada.rl.policies.networks import NatureCNN
from levada.rl.policies.policy import ModelError, Policy
from levada.rl.policies.recurrent import RecurrentNet
from levada.run.storage.hashing import params_sha256
from levada.runners import Inline
from levada.runners.processes import Processes

IMAGES = spaces.Box(0, 255, (4, 84, 84), np.uint8)


class Own(NatureCNN):
    """A custom network."""


def policy(**options: Any) -> Policy:
    return Policy(observation_space=IMAGES, action_space=spaces.Discrete(6), **options)


def gradient(recipe: Policy) -> tuple[torch.Tensor, torch.Tensor]:
    """What the network gives for some images, and the gradient of all its parameters."""
    module = recipe.module(seed=1)
    obs = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (16, 4, 84, 84), np.uint8))
    row, value = module.row(obs)
    (row[:, 0].sum() + value.square().sum()).backward()
    return torch.cat([row, value[:, None]], dim=1).detach(), torch.cat([p.grad.flatten() for p in module.parameters()])


def test_the_numbers_are_those_of_float32_but_for_their_last_digits() -> None:
    (out, grad), (half_out, half_grad) = gradient(policy()), gradient(policy(precision="bfloat16"))
    assert half_out.dtype == half_grad.dtype == torch.float32
    assert not torch.equal(out, half_out)
    torch.testing.assert_close(half_out, out, rtol=0.05, atol=0.02)
    assert torch.nn.functional.cosine_similarity(grad, half_grad, dim=0) > 0.999


def test_acting_and_learning_compute_the_same() -> None:
    recipe = policy(precision="bfloat16")
    module, actor = recipe.module(seed=1), Actor(recipe)
    actor.load(recipe.weights(module))
    obs = np.random.default_rng(0).integers(0, 256, (8, 4, 84, 84), np.uint8)
    row, value = actor.forward(obs)
    expected_row, expected_value = module.row(torch.from_numpy(obs))
    np.testing.assert_allclose(row, expected_row.detach(), atol=1e-5)
    np.testing.assert_allclose(value, expected_value.detach(), atol=1e-5)


def test_parameters_stay_float32() -> None:
    weights = policy(precision="bfloat16").module(seed=0).state_dict()
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}


@pytest.mark.parametrize(
    ("space", "has_bfloat16", "fields", "chosen"),
    [
        (IMAGES, True, {}, "bfloat16"),
        (IMAGES, False, {}, "float32"),
        (spaces.Box(0, 255, (64, 64, 3), np.uint8), True, {}, "bfloat16"),
        (spaces.Box(0, 255, (63, 64, 3), np.uint8), True, {}, "float32"),
        (spaces.Box(0, 255, (36, 36, 3), np.uint8), True, {}, "float32"),
        (spaces.Dict({"image": IMAGES, "speed": spaces.Box(-1.0, 1.0, (2,))}), True, {}, "bfloat16"),
        (spaces.Box(-1.0, 1.0, (4,)), True, {}, "float32"),
        (IMAGES, True, {"rnn_type": "lstm"}, "float32"),
        (IMAGES, True, {"network": "levada.rl:NatureCNN"}, "bfloat16"),
        (IMAGES, True, {"network": "levada.rl:SmallCNN"}, "bfloat16"),
        (IMAGES, True, {"network": Own}, "float32"),
        (IMAGES, True, {"precision": "float32"}, "float32"),
        (IMAGES, False, {"precision": "bfloat16"}, "bfloat16"),
    ],
)
def test_auto_follows_from_the_processor_and_from_sizes(
    monkeypatch: pytest.MonkeyPatch, space: spaces.Space[Any], has_bfloat16: bool, fields: Any, chosen: str
) -> None:
    monkeypatch.setattr(precision, "prefers_bfloat16", lambda device="cpu": has_bfloat16)
    hp, task = PPO(device="cpu", **fields), Task(partial(Still, space))
    assert hp.policy(task).precision == fields.get("precision", "float32")
    resolved, reasons = hp.resolved(task)
    assert resolved.policy(task).precision == chosen
    assert resolved.precision == ("auto" if not reasons and not fields.get("precision") else chosen)


def test_the_reason_is_also_told_of_images_of_an_environment_in_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Task, "is_functional", True)
    monkeypatch.setattr("levada.algorithms.neural.missing_for_xla", lambda: None)
    resolved, reasons = PPO(device="cpu").resolved(Task(partial(Still, IMAGES)))
    assert (resolved.compile, resolved.precision != "auto") == ("xla", True)
    assert reasons.keys() == {"compile", "precision"}


def test_updates_compiled_by_xla_are_in_float32_on_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Task, "is_functional", True)
    monkeypatch.setattr("levada.algorithms.neural.missing_for_xla", lambda: None)
    monkeypatch.setattr(precision, "prefers_bfloat16", lambda device: True)
    resolved, reasons = PPO().resolved(Task(partial(Still, IMAGES)))
    assert (resolved.device, resolved.precision) == ("cpu", "float32")
    assert "JAX" in reasons["device"]


def test_updates_in_bfloat16_are_not_compiled_by_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Task, "is_functional", True)
    monkeypatch.setattr("levada.algorithms.neural.missing_for_xla", lambda: None)
    resolved, reasons = PPO(device="cpu", precision="bfloat16").resolved(Task(partial(Still, IMAGES)))
    assert (resolved.compile, resolved.precision) == ("auto", "bfloat16")
    assert "compile" not in reasons


class Still(gymnasium.Env[Any, Any]):
    """Shows one picture."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.observation_space = space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return map_nest(np.zeros_like, self.observation_space.sample()), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return map_nest(np.zeros_like, self.observation_space.sample()), 0.0, True, False, {}


def refusing(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("called while a flow is built")


CLOCKS = [name for name in dir(time) if isinstance(getattr(time, name), BuiltinFunctionType) and name != "sleep"]


def test_showing_a_flow_reads_no_clock_and_builds_no_network(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is timed can come out otherwise the next time; what is built takes time and memory."""
    main(["show", "ppo", "--env", "ALE/Pong-v5"])  # imports
    expected = capsys.readouterr().out
    for name in CLOCKS:
        monkeypatch.setattr(time, name, refusing)
    monkeypatch.setattr(nn.Module, "__init__", refusing)
    assert main(["show", "ppo", "--env", "ALE/Pong-v5"]) == 0
    assert capsys.readouterr().out == expected


def test_a_custom_network_is_not_built_with_the_flow() -> None:
    flow = PPO(network=refusing).flow(Task("CartPole-v1"))
    with pytest.raises(ModelError, match="called while a flow is built"):
        flow.check()


def test_equal_flows_have_equal_hashes_whatever_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    task, hashes = Task(partial(Still, IMAGES)).resolved(), set()
    for has_bfloat16 in (True, False):
        monkeypatch.setattr(precision, "prefers_bfloat16", lambda device="cpu", found=has_bfloat16: found)
        for kind in (PPO, IMPALA):
            resolved, reasons = kind(device="cpu").resolved(task)
            assert resolved.precision == ("bfloat16" if has_bfloat16 else "float32")
            assert reasons.keys() == {"precision"}
            hashes.add(resolved.flow(task).hash())
    assert len(hashes) == 2  # one for each algorithm


def test_other_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"precision='float16'.: expected 'float32' or 'bfloat16'"):
        policy(precision="float16")
    with pytest.raises(ValueError, match="precision"):
        PPO(precision="half")


def test_a_configuration_may_name_it() -> None:
    assert PPO(precision="bfloat16").policy(Task("CartPole-v1")).precision == "bfloat16"
    assert PPO().policy(Task("CartPole-v1")).precision == "float32"


VECTORS = spaces.Box(-1.0, 1.0, (7,))
BOX = spaces.Box(-1.0, 1.0, (2,))


def of_vectors(**options: Any) -> Policy:
    return Policy(observation_space=VECTORS, action_space=BOX, hidden_sizes=(64, 64), **options)


def test_a_network_of_vectors_learns_in_it_and_acts_in_float32() -> None:
    recipe = of_vectors(precision="bfloat16")
    module, actor = recipe.module(seed=1), Actor(recipe)
    full = of_vectors().module(seed=1)
    actor.load(recipe.weights(module))
    obs = np.random.default_rng(0).uniform(-1.0, 1.0, (32, 7)).astype(np.float32)
    (row, value), (full_row, full_value) = module.row(torch.from_numpy(obs)), full.row(torch.from_numpy(obs))
    acted_row, _ = actor.forward(obs)
    np.testing.assert_allclose(acted_row, full_row.detach(), atol=1e-6)
    np.testing.assert_allclose(actor.value(obs), full_value.detach(), atol=1e-5)
    assert not torch.equal(value, full_value)
    torch.testing.assert_close(row, full_row, rtol=0.02, atol=0.002)
    torch.testing.assert_close(value, full_value, rtol=0.02, atol=0.02)
    assert not torch.equal(value, value.bfloat16().float()), "the last layer is float32"


def test_critics_compute_in_it_too() -> None:
    obs, action = torch.rand(32, 7), torch.rand(32, 2)
    found = []
    for name in ("float32", "bfloat16"):
        torch.manual_seed(0)
        found.append(Critic(of_vectors(precision=name))(obs, action))
    full, half = found
    assert half.dtype == torch.float32
    assert not torch.equal(full, half)
    assert not torch.equal(half, half.bfloat16().float())
    torch.testing.assert_close(half, full, rtol=0.02, atol=0.01)


@pytest.mark.parametrize("compile", [False, "auto"])
@pytest.mark.parametrize(
    ("algorithm", "env"),
    [
        (PPO(shards=1, num_envs=4, num_steps=16, minibatch_size=64), "CartPole-v1"),
        (SAC(num_envs=1, learning_starts=64, batch_size=64, hidden_sizes=(64, 64)), "Pendulum-v1"),
    ],
    ids=["PPO", "SAC"],
)
def test_the_bits_of_a_run_in_it_are_the_same_in_processes(algorithm: Any, env: str, compile: Any) -> None:  # noqa: A002
    def learned(on: Any, name: str) -> str:
        flow = replace(algorithm, precision=name, compile=compile).flow(Task(env))
        with on.open(flow, seed=1) as run:
            for _ in zip(range(3), run, strict=False):
                pass
            return params_sha256(run.node_state("learn").weights())

    inline = learned(Inline(), "bfloat16")
    assert learned(Processes(workers=1), "bfloat16") == inline
    assert learned(Inline(), "float32") != inline


def test_only_images_are_computed_in_it() -> None:
    """What stands behind them, whatever kind of network it is, computes in float32; recurrent ones have no other operations."""
    both = spaces.Dict({"image": spaces.Box(0, 255, (36, 36, 3), np.uint8), "speed": spaces.Box(-1.0, 1.0, (2,))})
    recurrent = partial(RecurrentNet, rnn_type="gru", rnn_size=8)
    for space, network in ((both, None), (IMAGES, recurrent), (both, recurrent)):
        recipe = Policy(observation_space=space, action_space=spaces.Discrete(3), network=network, precision="bfloat16")
        module = recipe.module(seed=1)
        obs = map_nest(torch.from_numpy, allocate(space, 5, make=np.ones))
        state = [torch.zeros(5, recipe.state_size)] if recipe.state_size else []
        row, value, *_ = module.row(obs, *state)
        full = replace(recipe, precision="float32").module(seed=1)
        expected_row, expected_value, *_ = full.row(obs, *state)
        assert row.dtype == value.dtype == torch.float32
        assert not torch.equal(value, value.bfloat16().float())
        torch.testing.assert_close(row, expected_row, rtol=0.05, atol=0.01)
        assert not torch.equal(value, expected_value)
