"""bfloat16 inside the network, float32 outside; chosen where it is quicker and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from levada.algorithms.ppo import PPO
from levada.rl import precision
from levada.rl.policy import Policy
from levada.rl.recurrent import RecurrentNet
from levada.rl.spaces import allocate, map_nest
from levada.rl.task import Task

IMAGES = spaces.Box(0, 255, (4, 84, 84), np.uint8)


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
    module, actor = recipe.module(seed=1), recipe.actor()
    actor.load(recipe.weights(module))
    obs = np.random.default_rng(0).integers(0, 256, (8, 4, 84, 84), np.uint8)
    row, value = actor.forward(obs)
    expected_row, expected_value = module.row(torch.from_numpy(obs))
    np.testing.assert_allclose(row, expected_row.detach(), atol=1e-5)
    np.testing.assert_allclose(value, expected_value.detach(), atol=1e-5)


def test_parameters_stay_float32() -> None:
    weights = policy(precision="bfloat16").module(seed=0).state_dict()
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}


@pytest.mark.parametrize(("gain", "chosen"), [(1.0, "float32"), (3.0, "bfloat16")])
def test_it_is_chosen_where_a_measurement_says_so(monkeypatch: pytest.MonkeyPatch, gain: float, chosen: str) -> None:
    monkeypatch.setattr(precision, "_chosen", {})
    monkeypatch.setattr(precision, "has_bfloat16", lambda device="cpu": True)
    monkeypatch.setattr(
        precision, "gradients_s", lambda *some: [1.0 if p.precision == "float32" else 1.0 / gain for p in some]
    )
    assert precision.choose_precision(policy()) == (chosen, f"bfloat16 makes a gradient {gain:.1f} times as quick")


def test_it_is_not_chosen_without_the_processor_or_without_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_chosen", {})
    monkeypatch.setattr(precision, "gradients_s", lambda *some: pytest.fail("there is nothing to measure"))
    monkeypatch.setattr(precision, "has_bfloat16", lambda device="cpu": False)
    assert precision.choose_precision(policy()) == ("float32", "this processor has no bfloat16")
    monkeypatch.setattr(precision, "has_bfloat16", lambda device="cpu": True)
    vectors = replace(policy(), observation_space=spaces.Box(-1.0, 1.0, (4,)))
    assert precision.choose_precision(vectors)[0] == "float32"


def test_the_measurement_is_one() -> None:
    assert min(precision.gradients_s(policy(), policy())) > 0.0


def test_other_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="precision is 'float16', expected 'float32' or 'bfloat16'"):
        policy(precision="float16")
    with pytest.raises(ValueError, match="precision"):
        PPO(precision="half")


def test_a_configuration_may_name_it() -> None:
    with pytest.raises(ValueError, match="precision is 'bfloat16', expected 'float32'"):
        PPO(precision="bfloat16").policy(Task("CartPole-v1"))
    assert PPO().policy(Task("CartPole-v1")).precision == "float32"


def test_only_images_are_computed_in_it() -> None:
    """What stands behind them, whatever kind of network it is, computes in float32; recurrent ones have no other operations."""
    both = spaces.Dict({"image": spaces.Box(0, 255, (36, 36, 3), np.uint8), "speed": spaces.Box(-1.0, 1.0, (2,))})
    recurrent = partial(RecurrentNet, cell="gru", num_units=8)
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
