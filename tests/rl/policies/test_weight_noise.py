"""Noisy nets: noise by the paper's formulas, drawn per item and per gradient step, and none where it is not asked for."""

import math
import pickle

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn
from torch.func import functional_call

from levada.flow import Shard
from levada.rl.acting.actor import Actor
from levada.rl.acting.exploration import EpsilonGreedy
from levada.rl.acting.network import PolicyNetwork
from levada.rl.acting.step_sampler import StepSampler
from levada.rl.envs.task import Task
from levada.rl.learning.learner import Learner
from levada.rl.learning.loss import LossOutput
from levada.rl.policies.networks import MLP, value_network
from levada.rl.policies.policy import Policy
from levada.rl.policies.q_distributions import CategoricalValues
from levada.rl.policies.weight_noise import WeightNoise, add_deviations
from levada.rl.replay.transitions import Transitions

VECTOR, IMAGE = spaces.Box(-1.0, 1.0, (3,)), spaces.Box(0, 255, (12, 12, 3), np.uint8)


def noisy(space=VECTOR, std=0.5, **options):
    return Policy(
        observation_space=space, action_space=spaces.Discrete(4), output="q_values", network=value_network, weight_noise=std,
        **options,
    )  # fmt: skip


def noise_of(weights):
    return WeightNoise.of({name: tuple(weight.shape) for name, weight in weights.items()})


def test_weights_are_those_of_an_independent_count():
    """Equations 9 to 11 of arXiv 1706.10295."""
    rng = np.random.default_rng(0)
    shapes = {"b.weight": (2, 3), "b.bias": (2,), "a.weight": (3, 4)}  # a has no bias
    weights = {name + end: rng.normal(size=shape) for name, shape in shapes.items() for end in ("", "_sigma")}
    weights |= {name: rng.normal(size=(2, 2)) for name in ("conv.weight", "log_sigma")}
    noise = noise_of(weights)
    assert noise.size == 4 + 3 + 3 + 2
    drawn = noise.draw(rng)
    found = noise.apply(weights, drawn)
    a_in, a_out, b_in, b_out = np.split(drawn, np.cumsum([4, 3, 3]))
    for name, of_input, of_output in (("a", a_in, a_out), ("b", b_in, b_out)):
        mean, deviation = weights[f"{name}.weight"], weights[f"{name}.weight_sigma"]
        for i in range(mean.shape[0]):
            for j in range(mean.shape[1]):
                expected = mean[i, j] + deviation[i, j] * of_output[i] * of_input[j]
                assert found[f"{name}.weight"][i, j] == pytest.approx(expected)
    np.testing.assert_allclose(found["b.bias"], weights["b.bias"] + weights["b.bias_sigma"] * b_out)
    assert set(found) == {"a.weight", "b.weight", "b.bias", "conv.weight", "log_sigma"}
    assert all(found[name] is weights[name] for name in ("conv.weight", "log_sigma"))


def test_noise_is_the_signed_root_of_normal_numbers():
    noise = WeightNoise((("", 50_000, 50_000),))
    drawn = noise.draw(np.random.default_rng(0))
    assert drawn.dtype == np.float32
    x = np.random.default_rng(0).standard_normal(100_000, np.float32)
    np.testing.assert_allclose(np.sign(drawn) * drawn**2, x, rtol=1e-5, atol=1e-7)
    assert np.mean(drawn**2) == pytest.approx(math.sqrt(2.0 / math.pi), rel=0.01)  # E|x|
    assert noise.draw(np.random.default_rng(0), 3, 2).shape == (3, 2, 100_000)


def test_means_begin_as_without_noise_and_deviations_by_the_number_of_inputs():
    plain, with_noise = (noisy(std=std).module(seed=3) for std in (0.0, 0.4))
    own = dict(with_noise.named_parameters())
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter, own.pop(name))
    assert {name: tuple(sigma.shape) for name, sigma in own.items()} == {
        "network.shared.0.weight_sigma": (256, 3), "network.shared.0.bias_sigma": (256,),
        "network.shared.2.weight_sigma": (256, 256), "network.shared.2.bias_sigma": (256,),
        "network.policy.weight_sigma": (4, 256), "network.policy.bias_sigma": (4,),
    }  # fmt: skip
    for name, sigma in own.items():
        inputs = 3 if "shared.0" in name else 256
        torch.testing.assert_close(sigma, torch.full_like(sigma, 0.4 / math.sqrt(inputs)))


@pytest.mark.parametrize("space", [VECTOR, IMAGE], ids=["numpy", "torch"])
def test_acting_with_noise_is_the_module_with_those_weights(space):
    policy = noisy(space, values=CategoricalValues(num_atoms=5), dueling=True)
    module = policy.module(seed=0)
    weights, obs = policy.weights(module), np.random.default_rng(1).random((4, *space.shape)).astype(space.dtype)
    actor, rng = Actor(policy), np.random.default_rng(5)
    actor.load(weights)
    means = actor.params(obs).copy()
    actor.draw_weight_noise(rng)
    first = actor.params(obs).copy()
    np.testing.assert_array_equal(actor.params(obs), first)
    noise = noise_of(weights)
    drawn = torch.from_numpy(noise.draw(np.random.default_rng(5)))
    tensors = noise.apply(dict(module.named_parameters()), drawn)
    expected = functional_call(module, tensors, (torch.from_numpy(obs),))[0]
    np.testing.assert_allclose(
        policy.head.distribution(torch.from_numpy(first)).atoms, expected.atoms.detach(), rtol=1e-3, atol=1e-5
    )
    assert np.abs(first - means).max() > 0.01
    actor.draw_weight_noise(rng)
    assert np.abs(actor.params(obs) - first).max() > 0.01
    actor.value(obs)  # by the means, and it does not stay
    assert np.abs(actor.params(obs) - means).max() > 0.01
    actor.load(weights)  # noise belongs to the weights that were loaded before
    np.testing.assert_array_equal(actor.params(obs), means)


def test_noise_is_taken_from_memory_that_is_used_again():
    """As in an inference server."""
    policy = noisy()
    network, obs = PolicyNetwork(policy), np.ones((2, 3), np.float32)
    weights = policy.weights(policy.module(seed=0))
    network.load(weights)
    memory = noise_of(weights).draw(np.random.default_rng(0))
    first = network.forward(obs, memory)[0].copy()
    memory[...] = 0.0
    np.testing.assert_array_equal(network.forward(obs, memory)[0], network.forward(obs)[0])
    memory[...] = noise_of(weights).draw(np.random.default_rng(0))
    weights["network.policy.bias"][...] = 99.0  # was copied
    np.testing.assert_array_equal(network.forward(obs, memory)[0], first)


def test_a_policy_without_noise_draws_none():
    policy = noisy(std=0.0)
    actor, rng = Actor(policy), np.random.default_rng(0)
    actor.load(policy.weights(policy.module(seed=0)))
    actor.draw_weight_noise(rng)
    assert rng.random() == np.random.default_rng(0).random()


def test_networks_of_two_shards_are_not_one_where_they_are_served():
    asked = []

    def serve(factory):
        asked.append(pickle.dumps(factory))
        return factory()

    for policy, num in ((noisy(), 2), (noisy(std=0.0), 1)):
        asked.clear()
        for owner in ("step/0", "step/1"):
            Actor(policy, serve, 1, owner)
        assert len(set(asked)) == num


def test_a_sampler_draws_for_each_item_and_goes_on_where_it_was_saved():
    task = Task("CartPole-v1")
    policy = Policy(
        observation_space=task.observation_space, action_space=task.action_space, output="q_values", network=value_network,
        weight_noise=3.0,
    )  # fmt: skip
    recipe = StepSampler(task=task, policy=policy, explore=EpsilonGreedy(start=0.0, end=0.0), num_envs=2, num_steps=8)
    live, other = (recipe(Shard(node="step", index=0, num_shards=1, seed=seed)) for seed in (1, 2))
    weights = policy.weights(policy.module(seed=0))
    noises = []
    for _ in range(3):
        live(weights)
        noises.append(live.actor._noise)
    assert not np.array_equal(noises[0], noises[1])
    other.load_state_dict(live.state_dict())
    for _ in range(3):
        np.testing.assert_array_equal(live(weights).buffer.action, other(weights).buffer.action)
    live.close()
    other.close()


# ---- the learner


def learner(loss, seed=0, *, std=0.5, **options):
    return Learner(
        policy=noisy(std=std), loss=loss, coefficients=lambda num_steps: {"learning_rate": 1e-2}, minibatch_size=4, shuffle=False,
        **{"targets": ("policy",), "compile": False} | options,
    ).open(seed)  # fmt: skip


def batch(num_rows=4, seed=0):
    rng = np.random.default_rng(seed)
    return [
        Transitions({"obs": rng.normal(size=(num_rows, 3)).astype(np.float32), "reward": np.ones(num_rows, np.float32)})
    ]


def gap(networks, rows, coefficients):
    """Zero but for noise, in the first step."""
    fast, slow = networks.policy(rows["obs"])[0].values, networks.target.policy(rows["obs"])[0].values
    return LossOutput((fast - slow).square().mean(), {"fast": fast[0, 0], "slow": slow[0, 0]})


def test_each_step_has_noise_of_its_own_and_the_target_other():
    live = learner(gap)
    weights, rng = live.weights(), np.random.default_rng(0)
    state = live.state_dict()
    module = noisy().module(seed=0)
    obs = torch.from_numpy(batch(seed=0)[0].columns["obs"])
    stats = live.update(batch(seed=0)).stats
    noise = noise_of(weights)
    expected = []
    for drawn in noise.draw(rng, 1, 2)[0]:
        tensors = noise.apply(
            {name: torch.from_numpy(weight) for name, weight in weights.items()}, torch.from_numpy(drawn)
        )
        expected.append(float(functional_call(module, tensors, (obs,))[0].values[0, 0].detach()))
    assert [stats["losses/fast"], stats["losses/slow"]] == pytest.approx(expected, rel=1e-4)
    assert abs(expected[0] - expected[1]) > 0.01
    live.load_state_dict(state)
    assert live.update(batch(seed=0)).stats == stats
    again = live.update(batch(seed=0)).stats
    assert abs(again["losses/slow"] - stats["losses/slow"]) > 1e-3


def test_deviations_learn_by_the_chain_rule():
    """The gradient of a deviation is that of its weight times the noise."""

    def loss(networks, rows, coefficients):
        return LossOutput(
            (networks.policy(rows["obs"])[0].values[:, 0] - rows["reward"]).square().mean(), {"x": rows["reward"].sum()}
        )

    live = learner(loss, optimizer=_plain_adam())
    before, module = live.weights(), noisy().module(seed=0)
    after = live.update(batch()).weights
    noise = noise_of(before)
    drawn = torch.from_numpy(noise.draw(np.random.default_rng(0), 1, 2)[0, 0])
    tensors = noise.apply({name: torch.from_numpy(weight) for name, weight in before.items()}, drawn)
    tensors = {name: tensor.requires_grad_() for name, tensor in tensors.items()}
    rows = batch()[0].columns
    q = functional_call(module, tensors, (torch.from_numpy(rows["obs"]),))[0].values[:, 0]
    (q - torch.from_numpy(rows["reward"])).square().mean().backward()
    start = 0
    for name, num_in, num_out in noise.layers:
        of_input, of_output = drawn[start : start + num_in], drawn[start + num_in : start + num_in + num_out]
        start += num_in + num_out
        gradient = tensors[name + "weight"].grad
        for end, slope in (("weight", gradient), ("weight_sigma", gradient * of_output[:, None] * of_input)):
            step = torch.from_numpy(after[name + end] - before[name + end])
            large = slope.abs() > 1e-4  # the first step of Adam is the sign of the gradient
            assert bool(large.any())
            torch.testing.assert_close(step[large], -1e-2 * slope.sign()[large], rtol=1e-2, atol=1e-5)


def _plain_adam():
    from levada.rl.learning.optimizers import Adam

    return Adam(eps=1e-12)


def test_updates_in_one_call_are_those_one_by_one():
    one, many = learner(gap), learner(gap)
    for part in np.split(batch(12)[0].columns["obs"], 3):
        one.update([Transitions({"obs": part, "reward": np.ones(4, np.float32)})])
    many.update(batch(12))
    np.testing.assert_array_equal(one.state_dict()["step/params"], many.state_dict()["step/params"])


# ---- what cannot be


@pytest.mark.parametrize(("options", "match"), [
    ({"weight_noise": -1.0}, r"weight_noise=-1.0.: expected a finite number >= 0"),
    ({"weight_noise": math.nan}, "weight_noise=nan"),
    ({"weight_noise": 0.5, "network": None, "output": "distribution"}, "expected 0 with output='distribution', which explores"),
])  # fmt: skip
def test_policies_that_cannot_be(options, match):
    fields = {"output": "q_values", "network": value_network} | options
    with pytest.raises(ValueError, match=match):
        Policy(observation_space=VECTOR, action_space=spaces.Discrete(2), **fields)


@pytest.mark.parametrize("option", [{"dueling": True}, {"values": CategoricalValues()}], ids=str)
def test_values_of_a_policy_that_does_not_act_by_them(option):
    with pytest.warns(UserWarning, match="has no effect: the policy does not act by values"):
        Policy(observation_space=VECTOR, action_space=spaces.Discrete(2), **option)


def test_a_network_without_linear_layers_is_refused():
    with pytest.raises(ValueError, match="Sequential has no linear layer, whose weights could have noise"):
        add_deviations(nn.Sequential(nn.Conv2d(1, 1, 1)), 0.5)


class PolicySampling(MLP):
    """Makes its noise itself."""

    def __init__(self, space, num_params):
        super().__init__(space, num_params, hidden_sizes=(8,))
        self.weight_sigma = nn.Parameter(torch.ones(2, 3))


def test_a_network_with_deviations_of_its_own_gets_no_others():
    fields = {
        "observation_space": VECTOR,
        "action_space": spaces.Discrete(2),
        "output": "q_values",
        "network": PolicySampling,
    }
    with pytest.raises(
        ValueError, match="PolicySampling has a parameter 'weight_sigma' of its own; is it noisy already"
    ):
        Policy(**fields, weight_noise=0.5).module(seed=0)
    policy = Policy(**fields)
    network, weights = PolicyNetwork(policy), policy.weights(policy.module(seed=0))
    network.load(weights)
    assert network._weight_noise.size == 0
    live = Learner(
        policy=policy, loss=gap, coefficients=lambda _: {"learning_rate": 1e-2}, minibatch_size=4, shuffle=False
    ).open(0)
    assert live._weight_noise.size == 0


def test_any_network_of_linear_layers_can_have_noise():
    policy = Policy(
        observation_space=VECTOR, action_space=spaces.Discrete(2), output="q_values", network=MLP, weight_noise=0.5
    )
    weights = policy.weights(policy.module(seed=0))
    assert noise_of(weights).size == 2 * (3 + 64 + 64 + 64 + 64) + 2 + 1
