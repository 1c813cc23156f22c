"""A policy by itself: it acts on one observation and on many, refuses what is none, and travels as a pickle."""

import pickle

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from support.envs import small as small_envs

from levada.rl.acting.evaluation import evaluate
from levada.rl.acting.network import WeightsError
from levada.rl.acting.trained_policy import TrainedPolicy
from levada.rl.envs.task import Task
from levada.rl.policies.policy import Policy
from levada.rl.policies.recurrent import RecurrentNet

THREE = Discrete(3)
IMAGE = Box(0, 255, (4, 4, 3), np.uint8)


def trained(observation_space, action_space=THREE, **more):
    policy = Policy(observation_space=observation_space, action_space=action_space, **more)
    return TrainedPolicy(policy, policy.weights(policy.module(seed=0)), version=0)


def batch_of(space, num=5):
    batched = gymnasium.vector.utils.batch_space(space, num)
    batched.seed(1)
    return batched.sample()


def row(obs, index):
    if isinstance(obs, dict):
        return {key: row(child, index) for key, child in obs.items()}
    return tuple(row(child, index) for child in obs) if isinstance(obs, tuple) else obs[index]


@pytest.mark.parametrize(
    ("observation_space", "action_space"),
    [
        (Box(-1.0, 1.0, (4,)), Discrete(3, start=7)), (Box(-1.0, 1.0, (4,)), Box(-0.5, 0.5, (2, 2))), (IMAGE, Discrete(2)),
        (Discrete(5, start=2), MultiDiscrete([2, 3])), (small_envs.DictObs.observation_space, Discrete(3)),
        (small_envs.TupleObs.observation_space, Box(-2.0, 3.0, ())), (Tuple((Discrete(3), IMAGE)), Discrete(2)),
    ],
)  # fmt: skip
def test_a_batch_is_acted_on_as_each_of_its_rows(observation_space, action_space):
    policy, obs = trained(observation_space, action_space), batch_of(observation_space)
    actions = policy.act_batch(obs)
    assert actions.shape == (5, *action_space.shape)
    for index, action in enumerate(actions):
        np.testing.assert_allclose(policy.act(row(obs, index)), action, rtol=1e-5, atol=1e-6)
    drawn = np.array([policy.act_batch(obs, deterministic=False) for _ in range(20)])
    assert (drawn != drawn[0]).any()


def test_a_recurrent_policy_remembers_each_row_until_its_episode_begins():
    space = Box(-1.0, 1.0, (4,))
    policy, single = (trained(space, Box(-9.0, 9.0, (2,)), network=RecurrentNet) for _ in range(2))
    obs = batch_of(space, 3)
    first, second = policy.act_batch(obs), policy.act_batch(obs)
    assert (first != second).any(axis=1).all()
    single.act(obs[1])
    np.testing.assert_allclose(single.act(obs[1]), second[1], rtol=1e-4, atol=1e-6)
    policy.reset(np.array([True, False, False]))
    third = policy.act_batch(obs)
    np.testing.assert_allclose(third[0], first[0], rtol=1e-6)
    assert not np.allclose(third[1], first[1])
    policy.reset()
    np.testing.assert_array_equal(policy.act_batch(obs), first)
    np.testing.assert_allclose(policy.act_batch(obs[:2]), first[:2], rtol=1e-5)  # another number of rows begins anew


@pytest.mark.parametrize(
    ("space", "obs", "said"),
    [
        (Box(-1.0, 1.0, (4,)), np.zeros((2, 4), np.float32), r"shape \(2, 4\), expected \(4,\).*act_batch"),
        (Box(-1.0, 1.0, (4,)), (np.zeros(4, np.float32), {}), "a tuple of 2, expected an array of float32 .*: give the first"),
        (Box(-1.0, 1.0, (4,)), np.zeros(3, np.float32), r"shape \(3,\), expected \(4,\) \(act takes one"),
        (Box(-1.0, 1.0, (4,)), np.full(4, np.nan, np.float32), "NaN"), (Box(-1.0, 1.0, (4,)), None, "None"),
        (Box(-1.0, 1.0, (4,)), np.full(4, 1e300), "NaN or infinity"), (Discrete(3), 3, "outside the declared space"),
        (Discrete(3), 1.0, "dtype float64"), (IMAGE, np.zeros((4, 4, 3)), "dtype float64"),
        (IMAGE, np.full((4, 4, 3), 300, np.uint16), "300.*which uint8 as declared cannot hold"),
        (Dict({"a": Discrete(2)}), {"b": 1}, "missing"), (Dict({"a": Discrete(2)}), 1, "expected a dict"),
    ],
)  # fmt: skip
def test_what_is_no_observation_is_refused(space, obs, said):
    with pytest.raises(ValueError, match=said):
        trained(space).act(obs)


@pytest.mark.parametrize(
    ("space", "obs", "said"),
    [
        (Box(-1.0, 1.0, (4,)), np.zeros(4, np.float32), r"shape \(4,\), expected \(B, 4\) with"),
        (Box(-1.0, 1.0, (4,)), np.zeros((2, 3), np.float32), r"shape \(2, 3\), expected \(2, 4\) \(act_batch takes"),
        (Discrete(2), 1, r"shape \(\), expected \(B,\) with"),
        (Box(-1.0, 1.0, (4,)), 1.0, r"shape \(\), expected \(B, 4\)"), (Box(-1.0, 1.0, (4,)), np.zeros((0, 4)), "B of 1"),
        (Dict({"a": Discrete(2)}), {"b": [1]}, "without 'a'"), (Dict({"a": Discrete(2)}), [1, 2], "without 'a'"),
        (Tuple((Discrete(2), Discrete(2))), (np.array([1, 0]), np.array([1])), r"\[1\] has shape \(1,\), expected \(2,\)"),
        (Box(-1.0, 1.0, (2,)), [[1.0, 2.0], [3.0]], r"shape \(\)"),
    ],
)  # fmt: skip
def test_what_is_no_batch_is_refused(space, obs, said):
    with pytest.raises(ValueError, match=said):
        trained(space).act_batch(obs)


def test_a_mask_without_an_action_is_refused_in_a_batch_too():
    policy = trained(small_envs.Masked.observation_space, small_envs.Masked.action_space)
    mask = np.array([[0, 1, 0, 0, 0], [0, 0, 0, 0, 1]], np.int8)
    obs = {"obs": np.zeros((2, 2), np.float32), "action_mask": mask}
    assert policy.act_batch(obs).tolist() == [1, 4]
    mask[1] = 0
    with pytest.raises(ValueError, match="allows no action"):
        policy.act_batch(obs)


@pytest.mark.parametrize("more", [{}, {"network": RecurrentNet}, {"normalize_obs": True}])
def test_a_pickled_policy_goes_on_as_the_original_does(more):
    space = Box(-1.0, 1.0, (4,))
    policy, obs = trained(space, Box(-9.0, 9.0, (2,)), **more), batch_of(space)
    policy.act(obs[0], deterministic=False)
    policy.act_batch(obs)
    again = pickle.loads(pickle.dumps(policy))
    for _ in range(3):
        np.testing.assert_array_equal(again.act(obs[1], deterministic=False), policy.act(obs[1], deterministic=False))
        np.testing.assert_array_equal(again.act_batch(obs), policy.act_batch(obs))
    assert again.version == policy.version


def test_weights_that_give_no_numbers_are_not_acted_by():
    """They are finite, each of them."""
    policy = trained(Box(-1.0, 1.0, (4,)))
    weights = {name: np.full_like(array, 3e38) for name, array in policy.weights.items()}
    huge = TrainedPolicy(policy.policy, weights, version=0)
    obs = np.array([1.0, -1.0, 1.0, -1.0], np.float32)
    for act in (huge.act, lambda obs: huge.act_batch(obs[None]), lambda obs: evaluate(Task("CartPole-v1"), huge)):
        with (
            np.errstate(all="ignore"),
            pytest.raises(WeightsError, match=r"NaN or infinity: its weights, or .* are infinite, or not those"),
        ):
            act(obs)
