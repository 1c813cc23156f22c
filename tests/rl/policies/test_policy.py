"""The policy: a recipe that makes equal modules, refuses wrong networks, and can be traced and compiled."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.fx.experimental.proxy_tensor import make_fx

from levada.flow.errors import LevadaError
from levada.rl.data.normalize import Moments, merge, merge_all, moments, observation_moments
from levada.rl.data.spaces import SpaceError
from levada.rl.policies.networks import MLP
from levada.rl.policies.policy import ModelError, Policy, PolicyModule

torch.set_num_threads(1)

VECTOR = spaces.Box(-1.0, 1.0, (4,))
MASKED = spaces.Dict({"obs": VECTOR, "action_mask": spaces.MultiBinary(3)})
DICT = spaces.Dict({"speed": VECTOR, "gear": spaces.Discrete(3), "camera": spaces.Box(0, 255, (8, 8, 3), np.uint8)})


class Tiny(nn.Module):
    """A network as a user would write it."""

    def __init__(self, observation_space: Space[Any], num_params: int) -> None:
        super().__init__()
        assert observation_space.shape is not None
        self.policy = nn.Linear(observation_space.shape[0], num_params)
        self.value = nn.Linear(observation_space.shape[0], 1)

    def forward(self, obs: Tensor) -> Any:
        return self.policy(obs), self.value(obs).squeeze(-1)


class Unsqueezed(Tiny):
    def forward(self, obs: Tensor) -> Any:
        return self.policy(obs), self.value(obs)


class OnlyParams(Tiny):
    def forward(self, obs: Tensor) -> Any:
        return self.policy(obs)


class TooMany(Tiny):
    def __init__(self, observation_space: Space[Any], num_params: int) -> None:
        super().__init__(observation_space, num_params + 1)


class Triple(Tiny):
    def forward(self, obs: Tensor) -> Any:
        return self.policy(obs), self.value(obs).squeeze(-1), None


class Chosen(Tiny):
    def forward(self, obs: Tensor) -> Any:
        return self.policy(obs).argmax(-1, keepdim=True).expand(-1, 2), self.value(obs).squeeze(-1)


class Misfit(Tiny):
    def forward(self, obs: Tensor) -> Any:
        return self.policy(obs[:, :2]), self.value(obs).squeeze(-1)


class Counting(Tiny):
    """With a buffer of integers, and batch normalization, which a dry run must not disturb."""

    def __init__(self, observation_space: Space[Any], num_params: int) -> None:
        super().__init__(observation_space, num_params)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, obs: Tensor) -> Any:
        return super().forward(self.norm(obs))


def make(**settings: Any) -> Policy:
    return Policy(**{"observation_space": VECTOR, "action_space": spaces.Discrete(2), **settings})


def random_obs(num: int = 6) -> Tensor:
    return torch.randn(num, 4, generator=torch.Generator().manual_seed(0))


def test_equal_seeds_make_equal_modules_and_leave_the_global_generator_alone() -> None:
    for policy in (make(), make(network=Tiny)):
        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
        first, second, other = (policy.weights(policy.module(seed)) for seed in (1, 1, 2))
        torch.testing.assert_close(torch.rand(3), expected)
        assert all(np.array_equal(first[name], second[name]) for name in first)
        assert not all(np.array_equal(first[name], other[name]) for name in first)


def test_a_recipe_survives_pickling() -> None:
    policy = make(network=Tiny, normalize_obs=True, action_space=spaces.Box(-1.0, 1.0, (2,)), tanh_squash=True)
    copy = pickle.loads(pickle.dumps(policy))
    assert copy == policy
    weights, others = (p.weights(p.module(3)) for p in (policy, copy))
    assert all(np.array_equal(weights[name], others[name]) for name in weights)


def test_weights_are_copies_of_parameters_and_buffers() -> None:
    policy = make(network=Counting, action_space=spaces.Box(-1.0, 1.0, (2,)), normalize_obs=True, normalize_reward=True)
    module = policy.module(0)
    weights = policy.weights(module)
    assert set(weights) == {
        "log_std", "network.policy.weight", "network.policy.bias", "network.value.weight", "network.value.bias",
        "network.norm.weight", "network.norm.bias", "network.norm.running_mean", "network.norm.running_var",
        "network.norm.num_batches_tracked", "normalizers.0.mean", "normalizers.0.var", "normalizers.0.count",
        "returns.mean", "returns.var", "returns.count",
    }  # fmt: skip
    assert weights["network.norm.num_batches_tracked"] == 0
    assert weights["network.policy.weight"].dtype == np.float32
    assert all(array.flags.c_contiguous for array in weights.values())
    before = weights["log_std"].copy()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1.0)
    np.testing.assert_array_equal(weights["log_std"], before)
    assert module.training and module.network.training


def test_half_precision_weights_become_float32() -> None:
    policy = make()
    weights = policy.weights(policy.module(0).bfloat16())
    assert {array.dtype for array in weights.values()} == {np.dtype(np.float32)}


def test_a_box_starts_with_the_log_std_of_the_recipe() -> None:
    policy = make(action_space=spaces.Box(-1.0, 1.0, (3,)), log_std_init=-0.5)
    module = policy.module(0)
    assert policy.head.num_params == 3 and policy.head.row_size == 6
    assert policy.weights(module)["log_std"].tolist() == [-0.5] * 3
    distribution, _ = module(random_obs())
    torch.testing.assert_close(distribution.entropy(), torch.full((6,), 3 * (0.5 * np.log(2 * np.pi) + 0.5 - 0.5)))


def test_spaces_are_brought_into_canonical_form() -> None:
    policy = make(observation_space=spaces.Box(-1.0, 1.0, (4,), np.float64), action_space=spaces.Discrete(3, start=5))
    assert policy.observation_space == VECTOR and policy.action_space == spaces.Discrete(3)
    distribution, _ = policy.module(0)(random_obs().double())
    assert distribution.mode().max() < 3


def test_masked_actions_get_no_probability() -> None:
    module = make(observation_space=MASKED, action_space=spaces.Discrete(3)).module(0)
    mask = torch.tensor([[1, 0, 1]], dtype=torch.int8).expand(6, -1)
    distribution, value = module({"obs": random_obs(), "action_mask": mask})
    assert value.shape == (6,)
    assert (distribution.log_prob(torch.ones(6, dtype=torch.int64)).exp() == 0.0).all()
    half = distribution.log_prob(torch.zeros(6, dtype=torch.int64)).exp()
    torch.testing.assert_close(half, torch.full((6,), 0.5), rtol=0.1, atol=0.0)


def test_observations_are_normalized_by_their_running_moments_and_clipped() -> None:
    policy = make(observation_space=DICT, normalize_obs=True)
    module = policy.module(0)
    seen: list[Any] = []
    module.network.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    batch = np.random.default_rng(0).normal(5.0, [1.0, 2.0, 3.0, 4.0], (50, 4, 4)).astype(np.float32)
    zeros = {"gear": np.zeros((50, 4), np.int64), "camera": np.zeros((50, 4, 8, 8, 3), np.uint8)}
    found = observation_moments(policy.observation_space, {"speed": batch, **zeros})
    with torch.no_grad():
        for name, array in policy.buffers_of(found).items():
            module.get_buffer(name).copy_(torch.from_numpy(array))
    speed = torch.from_numpy(batch[0]).clone()
    speed[0, 0] = 1e6
    obs = {
        "speed": speed,
        "gear": torch.ones(4, dtype=torch.int64),
        "camera": torch.zeros(4, 8, 8, 3, dtype=torch.uint8),
    }
    module(obs)
    flat = batch.reshape(-1, 4).astype(np.float64)
    expected = ((speed.numpy() - flat.mean(0)) / flat.std(0)).clip(-10.0, 10.0)
    np.testing.assert_allclose(seen[0]["speed"].numpy(), expected, rtol=1e-4, atol=1e-5)
    assert seen[0]["speed"][0, 0] == 10.0
    assert seen[0]["gear"].dtype == torch.int64 and seen[0]["camera"].dtype == torch.uint8


def test_buffers_hold_the_moments_of_all_batches() -> None:
    policy = make(normalize_obs=True, normalize_reward=True)
    buffers = dict(policy.weights(policy.module(0)))
    rng = np.random.default_rng(0)
    batches = [rng.normal(3.0, 2.0, (20, 2, 4)) for _ in range(5)]
    rewards = [rng.normal(1.0, 7.0, (20, 2)) for _ in range(5)]
    running = policy.moments_of(buffers)
    for obs, reward in zip(batches, rewards, strict=True):
        running = merge_all([running, {"obs": moments(obs), "return": moments(reward)}])
        changed = policy.buffers_of(running)
        assert {array.dtype for array in changed.values()} == {np.dtype(np.float32)}
        assert all(changed[name].shape == buffers[name].shape for name in changed)
        buffers |= changed
    whole = moments(np.concatenate(batches))
    assert buffers["normalizers.0.count"] == whole.count
    np.testing.assert_allclose(buffers["normalizers.0.mean"], whole.mean, rtol=1e-6)
    np.testing.assert_allclose(buffers["normalizers.0.var"], whole.var, rtol=1e-6)
    np.testing.assert_allclose(buffers["returns.var"], moments(np.concatenate(rewards)).var, rtol=1e-6)
    np.testing.assert_allclose(policy.moments_of(buffers)["obs"].mean, whole.mean, rtol=1e-6)


def test_moments_that_the_policy_does_not_normalize_are_refused() -> None:
    policy = make(normalize_obs=True)
    some = merge(Moments(1.0, np.zeros(()), np.zeros(())), Moments(1.0, np.ones(()), np.zeros(())))
    with pytest.raises(ValueError, match=r"got moments of 'return', policy 'policy' normalizes \['obs'\]"):
        policy.buffers_of({"return": some})


CASES: dict[str, tuple[dict[str, Any], Any]] = {
    "mlp": ({}, torch.ones(5, 4)),
    "own network": ({"network": Tiny}, torch.ones(5, 4)),
    "box, normalized": ({"action_space": spaces.Box(-1.0, 1.0, (2,)), "normalize_obs": True}, torch.ones(5, 4)),
    "squashed": ({"action_space": spaces.Box(-1.0, 1.0, (2, 2)), "tanh_squash": True}, torch.ones(5, 4)),
    "multidiscrete": ({"action_space": spaces.MultiDiscrete([2, 3])}, torch.ones(5, 4)),
    "multibinary of a choice": (
        {"observation_space": spaces.Discrete(3), "action_space": spaces.MultiBinary(2)}, torch.ones(5, dtype=torch.int64),
    ),
    "masked": (
        {"observation_space": MASKED, "action_space": spaces.Discrete(3)},
        {"obs": torch.ones(5, 4), "action_mask": torch.ones(5, 3, dtype=torch.int8)},
    ),
    "dict": (
        {"observation_space": DICT, "normalize_obs": True},
        {
            "speed": torch.ones(5, 4), "gear": torch.ones(5, dtype=torch.int64),
            "camera": torch.ones(5, 8, 8, 3, dtype=torch.uint8),
        },
    ),
}  # fmt: skip


def make_loss(module: PolicyModule, obs: Any, action: Tensor) -> Any:
    def loss(tensors: dict[str, Tensor]) -> Tensor:
        distribution, value = functional_call(module, tensors, (obs,))
        return (distribution.log_prob(action) + 0.1 * distribution.entropy() + value.square()).mean()

    return loss


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_can_be_traced_and_compiled_whole(name: str) -> None:
    settings, obs = CASES[name]
    module = make(**settings).module(0)
    action = module(obs)[0].sample(torch.Generator().manual_seed(0))
    tensors = {key: tensor.detach().clone() for key, tensor in module.named_parameters()}
    function = grad(make_loss(module, obs, action))
    expected = function(tensors)
    assert any(gradient.abs().sum() > 0 for gradient in expected.values())
    traced = make_fx(function)(tensors)(tensors)
    compiled = torch.compile(function, fullgraph=True, backend="eager")(tensors)
    for key, gradient in expected.items():
        torch.testing.assert_close(traced[key], gradient)
        torch.testing.assert_close(compiled[key], gradient)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (Unsqueezed, r"network Unsqueezed of policy 'policy' gives params \(2, 2\) and value \(2, 1\).*squeeze\(-1\)"),
        (OnlyParams, r"gives a Tensor, expected \(params \[2, 2\], value \[2\]\).*return both"),
        (TooMany, r"gives params \(2, 3\) and value \(2,\).*num_params outputs"),
        (Triple, "gives a tuple of 3, expected"),
        (Chosen, "gives params of torch.int64 and value of torch.float32, expected floating ones"),
    ],
)
def test_a_network_with_the_wrong_output_is_refused_when_it_is_built(network: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        _ = make(network=network).state_size
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, LevadaError)


def test_a_network_with_a_frozen_parameter_is_refused() -> None:
    def frozen(*args: Any) -> torch.nn.Module:
        network = MLP(*args)
        next(network.parameters()).requires_grad_(False)
        return network

    with pytest.raises(ModelError, match=r"parameter '.*' requires no gradient, but all .*register_buffer"):
        _ = make(network=frozen).state_size


def test_a_network_that_raises_is_named_with_the_line_and_what_it_was_given() -> None:
    with pytest.raises(
        ModelError, match=r"network Misfit of policy 'policy' cannot take observations \{'obs': \(2, 4\)\}"
    ) as caught:
        _ = make(network=Misfit).state_size
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert "mat1 and mat2 shapes cannot be multiplied" in str(caught.value)
    assert "in forward: return self.policy(obs[:, :2])" in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": ""}, r"Policy\(name=''\): expected a name"),
        ({"hidden_sizes": (64, 0)}, r"hidden_sizes=\(64, 0\)\): expected a sequence of integers >= 1"),
        ({"hidden_sizes": (64.0,)}, "expected a sequence of integers >= 1"),
        ({"activation": "softsign"}, "activation='softsign'.: expected"),
        ({"log_std_init": float("nan")}, "log_std_init=nan"),
        ({"normalize_reward": True, "standardize_reward": True}, "are both True, expected one of them"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**settings)


def test_spaces_that_cannot_be_are_refused() -> None:
    with pytest.raises(SpaceError, match="tanh_squash=True needs a Box"):
        make(tanh_squash=True)
    with pytest.raises(SpaceError, match="only Discrete and MultiDiscrete actions can be masked"):
        make(observation_space=MASKED, action_space=spaces.Box(-1.0, 1.0, (3,)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"network": Tiny, "hidden_sizes": (8,)}, "hidden_sizes has no effect: the policy has a network of its own"),
        ({"network": Tiny, "activation": "relu"}, "activation has no effect"),
        ({"observation_space": spaces.Discrete(3), "normalize_obs": True}, "normalize_obs has no effect"),
        ({"log_std_init": 1.0}, "log_std_init has no effect: the action space is no Box"),
    ],
)
def test_settings_without_effect_are_warned_of(settings: dict[str, Any], message: str) -> None:
    with pytest.warns(UserWarning, match=message):
        make(**settings)
