"""Acting equals the module that the learner trains, whichever way it is computed."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces
from scipy import stats
from torch import Tensor, nn

from levada.flow.errors import LevadaError
from levada.rl.acting.actor import Actor
from levada.rl.acting.exploration import PolicySampling
from levada.rl.acting.network import WeightsError
from levada.rl.acting.sampler import Sampler
from levada.rl.acting.step_sampler import StepSampler
from levada.rl.acting.trained_policy import TrainedPolicy
from levada.rl.data.spaces import Nest, leaf_spaces, map_nest
from levada.rl.envs.task import Task
from levada.rl.policies.layers import Dense, NumpyLayers, dense_layers
from levada.rl.policies.networks import MLP
from levada.rl.policies.policy import ModelError, Policy, PolicyModule, Weights

torch.set_num_threads(1)

CARTPOLE = Task("CartPole-v1")
VECTOR = spaces.Box(-1.0, 1.0, (4,))
BOX = spaces.Box(-2.0, 2.0, (2,))


def masked(space: Space[Any], size: int) -> spaces.Dict:
    return spaces.Dict({"obs": space, "action_mask": spaces.Box(0, 1, (size,), np.int8)})


class Plain(nn.Module):
    """A network of a user, computed by torch; stacks of different depth, one without bias."""

    def __init__(self, observation_space: Space[Any], num_params: int) -> None:
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(4, 16, bias=False), nn.ReLU(), nn.Linear(16, num_params), nn.Tanh())
        self.value = nn.Linear(4, 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return self.policy(obs), self.value(obs).squeeze(-1)


class Described(Plain):
    """The same, its policy computed in numpy and its value by torch."""

    def numpy_layers(self) -> NumpyLayers:
        return NumpyLayers(dense_layers("policy", self.policy))


class Normalized(nn.Module):
    """Layer normalization before, between and after linear layers, in one shared stack."""

    def __init__(self, observation_space: Space[Any], num_params: int) -> None:
        super().__init__()
        self.shared = nn.Sequential(
            nn.LayerNorm(4),
            nn.Linear(4, 16),
            nn.LayerNorm(16),
            nn.GELU("tanh"),
            nn.Linear(16, 8),
            nn.ELU(),
            nn.LayerNorm(8),
        )
        self.policy = nn.Sequential(
            nn.Linear(8, num_params), nn.LayerNorm(num_params, elementwise_affine=False), nn.SiLU()
        )
        self.value = nn.Sequential(nn.Linear(8, 1))

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        features = self.shared(obs)
        return self.policy(features), self.value(features).squeeze(-1)

    def numpy_layers(self) -> NumpyLayers:
        shared = dense_layers("shared", self.shared)
        return NumpyLayers(
            (*shared, *dense_layers("policy", self.policy)), (*shared, *dense_layers("value", self.value))
        )


class Undescribed(Plain):
    def numpy_layers(self) -> None:
        return None


class Wrong(Plain):
    """Describes its layers, but does something more."""

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return 2.0 * self.policy(obs) + 1.0, self.value(obs).squeeze(-1)

    def numpy_layers(self) -> NumpyLayers:
        return NumpyLayers(dense_layers("policy", self.policy))


class Misnamed(Plain):
    def numpy_layers(self) -> NumpyLayers:
        return NumpyLayers((Dense("actor.0.weight", None, None),))


POLICIES: dict[str, dict[str, Any]] = {
    "discrete": {},
    "relu": {"activation": "relu", "hidden_sizes": (32, 16, 8)},
    "elu": {"activation": "elu"},
    "gelu": {"activation": "gelu"},
    "silu": {"activation": "silu"},
    "linear": {"hidden_sizes": ()},
    "box": {"action_space": BOX, "log_std_init": -0.3},
    "box, normalized": {"action_space": BOX, "normalize_obs": True, "normalize_reward": True},
    "box of two dimensions": {"action_space": spaces.Box(-1.0, 1.0, (2, 2))},
    "squashed": {"action_space": BOX, "tanh_squash": True},
    "multidiscrete": {"action_space": spaces.MultiDiscrete([2, 4])},
    "multibinary": {"action_space": spaces.MultiBinary(3)},
    "masked": {"observation_space": masked(VECTOR, 2), "normalize_obs": True},
    "masked multidiscrete": {"observation_space": masked(VECTOR, 5), "action_space": spaces.MultiDiscrete([2, 3])},
    "matrix": {"observation_space": spaces.Box(-1.0, 1.0, (2, 3)), "normalize_obs": True},
    "memory": {"observation_space": spaces.Box(0, 255, (16,), np.uint8)},
    "choice": {"observation_space": spaces.Discrete(5)},
    "choices": {"observation_space": spaces.MultiDiscrete([3, 2])},
    "switches": {"observation_space": spaces.MultiBinary(3)},
    "image": {"observation_space": spaces.Box(0, 255, (10, 10, 3), np.uint8)},
    "dict": {
        "observation_space": spaces.Dict({"speed": VECTOR, "gear": spaces.Discrete(3)}),
        "normalize_obs": True,
        "action_space": BOX,
    },
    "masked dict": {"observation_space": masked(spaces.Tuple([VECTOR, spaces.Discrete(3)]), 2)},
    "own network": {"network": Plain},
    "own network, described": {"network": Described, "action_space": BOX, "normalize_obs": True},
    "own network, normalized layers": {"network": Normalized, "action_space": BOX, "log_std_init": -0.3},
    "own network, not described": {"network": Undescribed},
}
IN_NUMPY = set(POLICIES) - {"image", "dict", "masked dict", "own network", "own network, not described"}


def make(name: str) -> Policy:
    return Policy(**{"observation_space": VECTOR, "action_space": spaces.Discrete(2), **POLICIES[name]})


def random_obs(space: Space[Any], num_rows: int, seed: int = 0) -> Any:
    """Observations of a canonical space, with about half of the actions masked, never all."""
    rng = np.random.default_rng(seed)
    if isinstance(space, spaces.Dict):
        nest = {key: random_obs(child, num_rows, seed) for key, child in space.spaces.items()}
        if "action_mask" in nest:
            nest["action_mask"] = (rng.random(nest["action_mask"].shape) < 0.5).astype(np.int8)
            nest["action_mask"][:, [0, -1]] = 1
        return nest
    if isinstance(space, spaces.Tuple):
        return tuple(random_obs(child, num_rows, seed) for child in space.spaces)
    assert space.shape is not None and space.dtype is not None
    if isinstance(space, spaces.Box) and space.dtype.kind == "f":
        return rng.normal(0.3, 1.5, (num_rows, *space.shape)).astype(np.float32)
    sizes = space.n if isinstance(space, spaces.Discrete) else getattr(space, "nvec", None)
    high = space.high + 1 if isinstance(space, spaces.Box) and space.high.max() < 255 else 255
    return rng.integers(0, high if sizes is None else sizes, (num_rows, *space.shape)).astype(space.dtype)


def trained_module(policy: Policy) -> PolicyModule:
    """A module whose every parameter and buffer differs from its initial one."""
    module = policy.module(0)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            tensor.add_(0.2 * torch.rand(tensor.shape, generator=generator))
    return module.eval()


def loaded(name: str) -> tuple[Actor, PolicyModule, Weights]:
    policy = make(name)
    module = trained_module(policy)
    actor = Actor(policy)
    weights = policy.weights(module)
    actor.load(weights)
    return actor, module, weights


def in_torch(module: PolicyModule, obs: Nest) -> tuple[Any, Tensor]:
    with torch.inference_mode():
        distribution, value = module(map_nest(torch.from_numpy, obs))
    return distribution, value


def frozen(nest: Any) -> Any:
    def freeze(leaf: np.ndarray) -> np.ndarray:
        leaf.flags.writeable = False
        return leaf

    return map_nest(freeze, nest)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("num_rows", [1, 8, 300])
def test_acting_equals_the_module(name: str, num_rows: int) -> None:
    actor, module, _ = loaded(name)
    obs = random_obs(actor.policy.observation_space, num_rows)
    distribution, value = in_torch(module, obs)
    noise = actor.head.draw(np.random.default_rng(0), 2, num_rows)
    action = actor.sample(obs, noise[0])
    assert action.shape == (num_rows, *actor.policy.action_space.shape)
    log_prob = actor.evaluate(obs, action)
    assert log_prob.dtype == np.float32 and log_prob.shape == (num_rows,)
    expected = distribution.log_prob(torch.from_numpy(action)).numpy()
    # Inverting tanh near the ends multiplies the rounding of the action itself.
    rtol, atol = (1e-3, 1e-3) if actor.policy.tanh_squash else (1e-5, 1e-5)
    np.testing.assert_allclose(log_prob, expected, rtol=rtol, atol=atol)
    np.testing.assert_allclose(actor.value(obs), value.numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(actor.mode(obs), distribution.mode().numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", POLICIES)
def test_parameters_equal_those_of_the_module(name: str) -> None:
    actor, module, _ = loaded(name)
    policy = actor.policy
    obs = random_obs(policy.observation_space, 8)
    inner = obs["obs"] if policy.inner_space is not policy.observation_space else obs
    with torch.inference_mode():
        row, value = module.row(map_nest(torch.from_numpy, inner))
    params, free_value = actor.forward(obs)
    assert params.dtype == np.float32
    np.testing.assert_allclose(params, row.numpy(), rtol=1e-5, atol=1e-6)
    assert (free_value is None) == (name in IN_NUMPY)
    if free_value is not None:
        np.testing.assert_allclose(free_value, value.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["discrete", "multidiscrete", "multibinary", "masked"])
def test_samples_follow_the_distribution_of_the_module(name: str) -> None:
    actor, module, _ = loaded(name)
    num = 20_000
    one = random_obs(actor.policy.observation_space, 1)
    obs = map_nest(lambda leaf: np.repeat(leaf, num, axis=0), one)
    actions = actor.sample(obs, actor.head.draw(np.random.default_rng(5), 1, num)[0]).reshape(num, -1)
    kinds, counts = np.unique(actions, axis=0, return_counts=True)
    distribution, _ = in_torch(module, map_nest(lambda leaf: np.repeat(leaf, len(kinds), axis=0), one))
    seen = torch.from_numpy(kinds.reshape(len(kinds), *actor.policy.action_space.shape))
    probabilities = distribution.log_prob(seen).exp().numpy().astype(np.float64)
    assert probabilities.sum() == pytest.approx(1.0, abs=1e-3)
    expected = probabilities / probabilities.sum() * num
    assert stats.chisquare(counts, expected).pvalue > 0.01


@pytest.mark.parametrize("name", ["box", "squashed"])
def test_continuous_samples_follow_the_distribution_of_the_module(name: str) -> None:
    actor, module, _ = loaded(name)
    num = 8_000
    obs = np.repeat(random_obs(VECTOR, 1), num, axis=0)
    actions = actor.sample(obs, actor.head.draw(np.random.default_rng(5), 1, num)[0])
    others = in_torch(module, obs)[0].sample(torch.Generator().manual_seed(1)).numpy()
    for column, other in zip(actions.T, others.T, strict=True):
        assert stats.ks_2samp(column, other).pvalue > 0.01


@pytest.mark.parametrize("name", ["discrete", "box, normalized", "own network", "own network, described"])
def test_weights_are_taken_when_loaded_and_not_later(name: str) -> None:
    actor, module, weights = loaded(name)
    obs = random_obs(VECTOR, 8)
    params, value = actor.params(obs).copy(), actor.value(obs)
    for array in weights.values():
        array[...] = 0.0
    np.testing.assert_array_equal(actor.params(obs), params)
    np.testing.assert_array_equal(actor.value(obs), value)
    actor.load(frozen(dict(weights)))
    assert (actor.value(obs) == 0.0).all()
    other = frozen(dict(actor.policy.weights(module)))
    actor.load(other)
    np.testing.assert_array_equal(actor.params(obs), params)


@pytest.mark.parametrize("name", ["discrete", "image", "dict"])
def test_observations_may_be_read_only_or_views(name: str) -> None:
    actor, _, _ = loaded(name)
    obs = random_obs(actor.policy.observation_space, 8)
    expected = actor.params(obs).copy()
    backwards = map_nest(lambda leaf: leaf[::-1].copy()[::-1], obs)
    np.testing.assert_allclose(actor.params(backwards), expected, rtol=1e-6)
    np.testing.assert_array_equal(actor.params(frozen(obs)), expected)


@pytest.mark.parametrize("outlier", [1e3, -1e3])
def test_outliers_are_clipped_as_in_the_module(outlier: float) -> None:
    actor, module, _ = loaded("box, normalized")
    obs = random_obs(VECTOR, 8)
    obs[3, 2] = outlier
    np.testing.assert_allclose(actor.mode(obs), in_torch(module, obs)[0].mode().numpy(), rtol=1e-5, atol=1e-6)


def test_an_environments_double_precision_is_accepted() -> None:
    actor, _, _ = loaded("box, normalized")
    obs = random_obs(VECTOR, 8)
    np.testing.assert_array_equal(actor.params(obs).copy(), actor.params(obs.astype(np.float64)))


def test_a_step_in_numpy_keeps_no_memory() -> None:
    actor, _, _ = loaded("box, normalized")
    obs = random_obs(VECTOR, 64)
    actor.params(obs)
    tracemalloc.start()
    for _ in range(100):
        actor.params(obs)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert np.shares_memory(actor.params(obs), actor.params(obs))
    # One array of activations is 16 kB: none is allocated, not even for a moment.
    assert peak < 8_000 and kept < 8_000


def test_memory_of_many_batch_sizes_is_given_back() -> None:
    actor, module, _ = loaded("discrete")
    for num_rows in [*range(1, 30), 3]:
        obs = random_obs(VECTOR, num_rows)
        np.testing.assert_allclose(actor.value(obs), in_torch(module, obs)[1].numpy(), rtol=1e-5, atol=1e-6)
    assert actor.network._numpy is not None and actor.network._numpy._value is not None
    assert len(actor.network._numpy._value._buffers) <= 8


def test_values_and_log_probs_are_kept_across_calls() -> None:
    actor, _, _ = loaded("discrete")
    first, second = random_obs(VECTOR, 8, seed=1), random_obs(VECTOR, 8, seed=2)
    action = np.zeros(8, np.int64)
    value, log_prob = actor.value(first), actor.evaluate(first, action)
    copies = value.copy(), log_prob.copy()
    actor.value(second), actor.evaluate(second, action)
    np.testing.assert_array_equal(value, copies[0])
    np.testing.assert_array_equal(log_prob, copies[1])


@pytest.mark.parametrize("name", POLICIES)
def test_one_observation_without_batch(name: str) -> None:
    actor, _, weights = loaded(name)
    first, second = (TrainedPolicy(actor.policy, weights, version=0, seed=9) for _ in range(2))
    obs = random_obs(actor.policy.observation_space, 1)
    one = map_nest(lambda leaf: leaf[0], obs)
    action = first.act(one)
    space, expected = actor.policy.action_space, actor.mode(obs)[0]
    if isinstance(space, spaces.Box):
        expected = np.clip(expected, space.low, space.high)
    np.testing.assert_array_equal(action, expected)
    sampled, again = (policy.act(one, deterministic=False) for policy in (first, second))
    np.testing.assert_array_equal(sampled, again)
    assert space.contains(np.asarray(sampled))


def test_the_scale_of_rewards_comes_with_the_weights() -> None:
    policy = Policy(observation_space=VECTOR, action_space=BOX, normalize_reward=True)
    actor, weights = Actor(policy), dict(policy.weights(policy.module(0)))
    assert actor.reward_scale == 1.0
    actor.load(weights)
    assert actor.reward_scale == pytest.approx(1.0)
    actor.load(weights | {"returns.var": np.float32(25.0)})
    assert actor.reward_scale == pytest.approx(0.2)


def test_acting_without_weights_is_refused() -> None:
    for name in ("discrete", "own network"):
        actor = Actor(make(name))
        with pytest.raises(WeightsError, match=r"Actor of policy 'policy' has no weights; did you forget actor\.load"):
            actor.params(random_obs(VECTOR, 2))
        with pytest.raises(WeightsError, match="has no weights"):
            actor.value(random_obs(VECTOR, 2))


def test_weights_of_another_policy_are_refused() -> None:
    actor, _, weights = loaded("discrete")
    missing = {name: array for name, array in weights.items() if "value.2" not in name}
    with pytest.raises(WeightsError, match=r"'network.value.2.weight' is missing, expected shape \(64, 64\)") as caught:
        actor.load(missing)
    assert isinstance(caught.value, LevadaError) and isinstance(caught.value, ValueError)
    with pytest.raises(WeightsError, match=r"is of shape \(64,\), expected shape \(64, 64\); are these the weights"):
        actor.load({**weights, "network.policy.2.weight": np.zeros(64, np.float32)})


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (Wrong, "numpy_layers of network Wrong of policy 'policy' describes another function than forward computes"),
        (Misnamed, r"names 'actor.0.weight', the network's parameters are \['policy.0.weight'"),
    ],
)
def test_a_network_that_describes_itself_wrongly_is_refused(network: Any, message: str) -> None:
    policy = Policy(observation_space=CARTPOLE.observation_space, action_space=CARTPOLE.action_space, network=network)
    with pytest.raises(ModelError, match=message):
        Actor(policy)
    with pytest.raises(ModelError, match=message):
        Sampler(task=CARTPOLE, policy=policy, num_envs=1, num_steps=1).verify()
    with pytest.raises(ModelError, match=message):
        StepSampler(task=CARTPOLE, policy=policy, num_envs=1, num_steps=1, explore=PolicySampling()).verify()


def test_a_subclass_that_does_something_else_is_refused() -> None:
    class Doubled(MLP):
        def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
            params, value = super().forward(obs)
            return params, value + 1.0

    with pytest.raises(ModelError, match="another function than forward"):
        Actor(Policy(observation_space=VECTOR, action_space=spaces.Discrete(2), network=Doubled))


def test_the_test_covers_both_ways_of_computing() -> None:
    assert {name for name in POLICIES if Actor(make(name)).network._numpy is not None} == IN_NUMPY
    assert all(leaf_spaces(make(name).observation_space) for name in POLICIES)
