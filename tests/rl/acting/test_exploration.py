"""Exploration leaves the greedy policy as often as it says, among what is allowed, by env steps alone."""

import numpy as np
import pytest
from gymnasium import spaces
from scipy import stats

from levada.flow import Shard
from levada.rl.acting.exploration import EpsilonGreedy, GaussianNoise, PolicySampling, _any_allowed
from levada.rl.data.spaces import SpaceError
from levada.rl.policies.heads.make import action_head
from levada.rl.policies.heads.q_values import ValueHead

HEAD = ValueHead(spaces.Discrete(4))
PARAMS = np.tile(np.array([0.0, 3.0, 1.0, 2.0], np.float32), (50, 1))


def actions_of(explore, *, num_env_steps=0, num_steps=200, index=0, num_shards=1, mask=None, seed=0, head=HEAD):
    shard = Shard("step", index, num_shards, 0)
    choose = explore.plan(head, np.random.default_rng(seed), num_steps, 50, shard, num_env_steps)
    actions = np.empty((num_steps, 50), np.int64)
    for t in range(num_steps):
        choose(t, PARAMS, mask, actions[t])
    return actions


def test_epsilon_falls_with_the_env_steps_of_all_shards():
    explore = EpsilonGreedy(start=1.0, end=0.0, num_steps=40_000)
    share = (actions_of(explore, num_steps=400, num_shards=2) != 1).mean(axis=1)
    expected = 0.75 * np.clip(1.0 - np.arange(400) * 100 / 40_000, 0.0, 1.0)
    assert np.abs(share - expected).max() < 0.25
    assert stats.pearsonr(share, expected).statistic > 0.95
    assert (actions_of(explore, num_env_steps=40_000) == 1).all()


@pytest.mark.parametrize("num_actions", [1, 2, 3, 5, 100])
def test_without_a_mask_random_actions_are_those_of_one_that_allows_all(num_actions):
    which = np.append(np.random.default_rng(num_actions).random(500), [0.0, 1.0 - 2.0**-53, 1.0 / 3.0])
    head = ValueHead(spaces.Discrete(num_actions))
    expected = _any_allowed(which, head, np.ones((len(which), num_actions), np.int8))
    assert _any_allowed(which, head, None).tolist() == expected.tolist()


def test_random_actions_are_uniform_over_what_is_allowed():
    mask = np.ones((50, 4), np.int8)
    mask[:25, 1] = 0
    actions = actions_of(EpsilonGreedy(start=1.0, end=1.0), mask=mask)
    counts = np.bincount(actions[:, :25].ravel(), minlength=4)
    assert counts[1] == 0
    assert stats.chisquare(counts[[0, 2, 3]]).pvalue > 1e-3
    assert stats.chisquare(np.bincount(actions[:, 25:].ravel(), minlength=4)).pvalue > 1e-3


def test_greedy_actions_are_the_best_that_are_allowed():
    mask = np.ones((50, 4), np.int8)
    mask[:, 1] = 0
    assert (actions_of(EpsilonGreedy(start=0.0, end=0.0), mask=mask) == 3).all()


def test_the_ladder_of_apex():
    """Epsilon of actor i of N is 0.4 ** (1 + 7 i / (N - 1)) (arXiv 1803.00933, section 4), counted over all shards."""
    explore = EpsilonGreedy(base=0.4)
    shares = np.concatenate(
        [(actions_of(explore, index=i, num_shards=2, num_steps=4_000, seed=i) != 1).mean(axis=0) for i in (0, 1)]
    )
    expected = 0.75 * 0.4 ** (1.0 + 7.0 * np.arange(100) / 99)
    np.testing.assert_allclose(shares, expected, atol=0.03)


def test_the_ladder_of_two_actors_has_both_its_ends():
    """In which N - 1 is not nearly N."""
    for index, expected in ((0, 0.75 * 0.4), (1, 0.75 * 0.4**8)):
        choose = EpsilonGreedy(base=0.4).plan(HEAD, np.random.default_rng(0), 20_000, 1, Shard("step", index, 2, 0), 0)
        actions = np.empty((20_000, 1), np.int64)
        for t in range(len(actions)):
            choose(t, PARAMS[:1], None, actions[t])
        assert (actions != 1).mean() == pytest.approx(expected, abs=0.012)


@pytest.mark.parametrize(("options", "match"), [
    ({"start": 1.5}, "start=1.5.*a number from 0 to 1"), ({"end": -0.1}, "end"), ({"base": 2.0}, "base"),
        ({"alpha": -1.0}, "alpha=-1.0"),
    ({"num_steps": 0}, "num_steps=0"),
])  # fmt: skip
def test_numbers_that_cannot_be(options, match):
    with pytest.raises(ValueError, match=match):
        EpsilonGreedy(**options)


def test_other_actions_are_refused():
    with pytest.raises(SpaceError, match="Discrete action space, got Box"):
        EpsilonGreedy().check(action_head(spaces.Box(-1.0, 1.0, (2,))))


def test_choices_by_their_probabilities_after_some_at_random():
    """Random for 100 env steps of each of two shards, then as the softmax of what is allowed."""
    head = action_head(spaces.Discrete(4))
    mask = np.ones((50, 4), np.int8)
    mask[:, 1] = 0
    for allowed, where in ((None, [0, 1, 2, 3]), (mask, [0, 2, 3])):
        explore = PolicySampling(num_random_steps=20_000)
        actions = actions_of(explore, num_steps=400, num_shards=2, mask=allowed, head=head)
        early, late = (np.bincount(part.ravel(), minlength=4) for part in (actions[:200], actions[200:]))
        assert early[where].sum() == late[where].sum() == 10_000
        assert stats.chisquare(early[where]).pvalue > 1e-3
        weights = np.exp(PARAMS[0, where].astype(np.float64))
        assert stats.chisquare(late[where], 10_000 * weights / weights.sum()).pvalue > 1e-3


@pytest.mark.parametrize(("explore", "head", "match"), [
    (PolicySampling(), HEAD, "PolicySampling needs a policy with output.*did you mean EpsilonGreedy?"),
    (PolicySampling(), action_head(spaces.MultiDiscrete([2, 2])),
    "PolicySampling needs a Box action space with finite bounds, got Multi"),
    (GaussianNoise(), action_head(spaces.Discrete(2)), "GaussianNoise needs a Box action space with finite bounds"),
])  # fmt: skip
def test_policies_that_cannot_explore_so(explore, head, match):
    with pytest.raises(SpaceError, match=match):
        explore.check(head)
