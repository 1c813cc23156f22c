"""Action heads: numpy acts by the law that torch learns from."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from levada.rl.data.spaces import SpaceError
from levada.rl.policies.heads.make import ActionHead, action_head

torch.set_num_threads(1)

HEADS = {
    "discrete": action_head(spaces.Discrete(5)),
    "discrete with one action": action_head(spaces.Discrete(1)),
    "multidiscrete": action_head(spaces.MultiDiscrete([3, 1, 4])),
    "multibinary": action_head(spaces.MultiBinary(6)),
    "box": action_head(spaces.Box(-1.0, 1.0, (3,))),
    "box of two dimensions": action_head(spaces.Box(-1.0, 1.0, (2, 3))),
    "box without dimension": action_head(spaces.Box(-1.0, 1.0, ())),
    "squashed": action_head(spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 9.0], np.float32)), True),
    "squashed of two dimensions": action_head(spaces.Box(-3.0, 1.0, (2, 2)), tanh_squash=True),
}


def make_params(head: ActionHead, num_rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.0, 0.7, (num_rows, head.row_size)).astype(np.float32)


def sample_many(head: ActionHead, row: np.ndarray, num: int, mask: np.ndarray | None = None) -> np.ndarray:
    noise = head.draw(np.random.default_rng(7), 1, num)[0]
    masks = None if mask is None else np.tile(mask, (num, 1))
    return head.sample(np.tile(row, (num, 1)), noise, masks)


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
def test_actions_have_the_shape_and_dtype_that_is_stored(head: ActionHead) -> None:
    params = make_params(head, 4)
    noise = head.draw(np.random.default_rng(0), num_steps=6, num_envs=4)
    expected = {"i": np.int64, "f": np.float32}
    dtype = np.int8 if isinstance(head.space, spaces.MultiBinary) else expected[head.space.dtype.kind]
    assert noise.shape[:2] == (6, 4) and noise.dtype == np.float32
    for action in (head.sample(params, noise[0]), head.mode(params)):
        assert action.shape == (4, *head.space.shape)
        assert action.dtype == dtype
    sampled = head.distribution(torch.from_numpy(params)).sample()
    assert tuple(sampled.shape) == (4, *head.space.shape)
    assert sampled.numpy().dtype == dtype


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
def test_log_prob_and_mode_equal_torch(head: ActionHead) -> None:
    params = make_params(head, 64)
    action = head.sample(params, head.draw(np.random.default_rng(1), 1, 64)[0])
    distribution = head.distribution(torch.from_numpy(params))
    log_prob = head.log_prob(params, action)
    assert log_prob.dtype == np.float32 and log_prob.shape == (64,)
    np.testing.assert_allclose(log_prob, distribution.log_prob(torch.from_numpy(action)).numpy(), rtol=1e-5, atol=2e-5)
    np.testing.assert_allclose(head.mode(params), distribution.mode().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
def test_noise_is_reproducible_and_sampling_writes_where_it_is_told(head: ActionHead) -> None:
    params = make_params(head, 4)
    first, second = (head.draw(np.random.default_rng(3), 2, 4) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    rollout = np.zeros((2, *head.sample(params, first[0]).shape), head.sample(params, first[0]).dtype)
    for t in range(2):
        head.sample(params, first[t], out=rollout[t])
        np.testing.assert_array_equal(rollout[t], head.sample(params, first[t]))


def chi_square_p(counts: np.ndarray, probabilities: np.ndarray) -> float:
    return float(stats.chisquare(counts, probabilities / probabilities.sum() * counts.sum()).pvalue)


def test_discrete_samples_follow_the_softmax() -> None:
    head = HEADS["discrete"]
    row = make_params(head, 1)
    counts = np.bincount(sample_many(head, row, 20_000), minlength=5)
    probabilities = torch.softmax(torch.from_numpy(row[0]).double(), 0).numpy()
    assert chi_square_p(counts, probabilities) > 0.01


def test_masked_actions_are_never_sampled_and_the_others_keep_their_ratios() -> None:
    head, mask = HEADS["discrete"], np.array([1, 0, 1, 1, 0], np.int8)
    row = make_params(head, 1)
    row[0, 1] = 50.0
    counts = np.bincount(sample_many(head, row, 20_000, mask), minlength=5)
    allowed = np.exp(row[0, [0, 2, 3]].astype(np.float64))
    assert counts[[1, 4]].sum() == 0
    assert chi_square_p(counts[[0, 2, 3]], allowed) > 0.01
    assert head.mode(row, mask[None])[0] in (0, 2, 3)


def test_masked_log_prob_equals_torch() -> None:
    for name in ("discrete", "multidiscrete"):
        head = HEADS[name]
        params = make_params(head, 32)
        mask = np.random.default_rng(2).random(params.shape) < 0.6
        mask[:, [0, 3, 4]] = True
        action = head.sample(params, head.draw(np.random.default_rng(1), 1, 32)[0], mask)
        expected = head.distribution(torch.from_numpy(params), torch.from_numpy(mask)).log_prob(
            torch.from_numpy(action)
        )
        np.testing.assert_allclose(head.log_prob(params, action, mask), expected.numpy(), rtol=1e-5, atol=1e-5)
        assert expected.min() > -20.0


@pytest.mark.parametrize("logits", [
    [-3e9, -2e9, 0.0, -4e9], [-3e30, -2e30, 0.0, -5e30], [-np.inf, 2.0, 1.0, 0.0], [-np.inf, -np.inf, 0.0, 0.0],
    [1.0, 2.0, 3.0, -np.inf], [-1.5e38, -np.inf, 3.0, -np.inf], [-np.inf, -np.inf, 3.0, -np.inf],
    [-1.5e38, -1.5e38, -1.5e38, -2e38],
])  # fmt: skip
def test_extreme_logits_forbid_the_same_as_in_torch(logits: list[float]) -> None:
    row, mask = np.array([logits], np.float32), np.array([[True, True, False, True]])
    for head in (action_head(spaces.Discrete(4)), action_head(spaces.MultiDiscrete([4, 1]))):
        params = np.pad(row, ((0, 0), (0, head.row_size - 4)))
        allowed = np.pad(mask, ((0, 0), (0, head.row_size - 4)), constant_values=True)
        for some in (None, allowed):
            theirs = head.distribution(torch.from_numpy(params), None if some is None else torch.from_numpy(some))
            best = head.mode(params, some)
            assert best.tolist() == theirs.mode().tolist()
            assert some is None or best.ravel()[0] != 2
            tiled = [None if x is None else np.tile(x, (200, 1)) for x in (params, some)]
            actions = head.sample(tiled[0], head.draw(np.random.default_rng(1), 1, 200)[0], tiled[1])
            for number in range(4):
                action = np.array([number]) if best.ndim == 1 else np.array([[number, 0]])
                log_prob = head.log_prob(params, action, some)
                np.testing.assert_allclose(log_prob, theirs.log_prob(torch.from_numpy(action)).numpy(), rtol=1e-6)
                if log_prob[0] < -100.0:
                    assert not (actions.reshape(200, -1)[:, 0] == number).any()


@pytest.mark.parametrize("name", ["box", "squashed"])
def test_a_huge_deviation_gives_finite_actions(name: str) -> None:
    head = HEADS[name]
    params = np.zeros((100, head.row_size), np.float32)
    params[:, head.row_size // 2 :] = 89.0
    action = head.sample(params, head.draw(np.random.default_rng(1), 1, 100)[0])
    assert np.isfinite(action).all()
    assert np.isfinite(head.log_prob(params, action)).all()


@pytest.mark.parametrize("name", ["box", "squashed"])
def test_a_tiny_deviation_gives_a_density_as_in_torch(name: str) -> None:
    head = HEADS[name]
    params = np.zeros((1, head.row_size), np.float32)
    params[:, head.row_size // 2 :] = -95.0
    action = head.mode(params)
    theirs = head.distribution(torch.from_numpy(params)).log_prob(torch.from_numpy(action))
    np.testing.assert_allclose(head.log_prob(params, action), theirs.numpy(), rtol=1e-6)
    assert np.isfinite(theirs.numpy()).all()


def test_a_row_that_allows_nothing_is_uniform_as_in_torch() -> None:
    head, mask = HEADS["discrete"], np.zeros(5, np.int8)
    row = make_params(head, 1)
    counts = np.bincount(sample_many(head, row, 10_000, mask), minlength=5)
    assert chi_square_p(counts, np.ones(5)) > 0.01
    np.testing.assert_allclose(head.log_prob(row, np.array([3]), mask[None]), -np.log(5.0), rtol=1e-6)


def test_multidiscrete_samples_follow_the_softmax_of_each_set_independently() -> None:
    head = action_head(spaces.MultiDiscrete([2, 4]))
    row = make_params(head, 1)
    actions = sample_many(head, row, 20_000)
    first, second = (torch.softmax(torch.from_numpy(part).double(), 0).numpy() for part in (row[0, :2], row[0, 2:]))
    counts = np.bincount(actions[:, 0] * 4 + actions[:, 1], minlength=8)
    assert chi_square_p(counts, np.outer(first, second).ravel()) > 0.01


def test_multibinary_samples_follow_the_sigmoids_independently() -> None:
    head = action_head(spaces.MultiBinary(3))
    row = make_params(head, 1)
    counts = np.bincount(sample_many(head, row, 20_000) @ [4, 2, 1], minlength=8)
    on = 1.0 / (1.0 + np.exp(-row[0].astype(np.float64)))
    joint = [np.prod(np.where([(i >> 2) & 1, (i >> 1) & 1, i & 1], on, 1.0 - on)) for i in range(8)]
    assert chi_square_p(counts, np.array(joint)) > 0.01


@pytest.mark.parametrize("name", ["box", "squashed"])
def test_box_samples_follow_the_law_of_torch(name: str) -> None:
    head = HEADS[name]
    row = make_params(head, 1)
    actions = sample_many(head, row, 8_000)
    distribution = head.distribution(torch.from_numpy(np.tile(row, (8_000, 1))))
    others = distribution.sample(torch.Generator().manual_seed(1)).numpy()
    for column, other in zip(actions.T, others.T, strict=True):
        assert stats.ks_2samp(column, other).pvalue > 0.01
    if name == "box":
        standard = (actions[:, 0] - row[0, 0]) / np.exp(row[0, 3])
        assert stats.kstest(standard, "norm").pvalue > 0.01


def test_squashed_actions_stay_within_the_bounds_however_large_the_mean() -> None:
    head = HEADS["squashed"]
    row = np.array([[30.0, -30.0, 2.0, 2.0]], np.float32)
    actions = sample_many(head, row, 1_000)
    assert all(head.space.contains(action) for action in actions)
    assert np.isfinite(head.log_prob(np.tile(row, (1_000, 1)), actions)).all()


def test_squashed_actions_stay_within_bounds_that_do_not_round_well() -> None:
    ends = np.random.default_rng(0).uniform(-1.0, 1.0, (2, 500)).astype(np.float32)
    head = action_head(spaces.Box(ends.min(0), ends.max(0)), tanh_squash=True)
    for mean in (-30.0, 30.0):
        assert head.space.contains(head.mode(np.full((1, head.row_size), mean, np.float32))[0])


def test_noise_of_rare_actions_is_finite_and_reaches_far() -> None:
    noise = HEADS["discrete"].draw(np.random.default_rng(0), 400, 500)
    assert np.isfinite(noise).all()
    # Of a million Gumbel numbers the largest is about log(1e6) = 13.8.
    assert 12.0 < noise.max() < 25.0


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 2**31))
def test_multidiscrete_of_any_sizes(sizes: list[int], seed: int) -> None:
    head = action_head(spaces.MultiDiscrete(sizes))
    params = make_params(head, 8, seed)
    action = head.sample(params, head.draw(np.random.default_rng(seed), 1, 8)[0])
    assert (action >= 0).all() and (action < sizes).all()
    distribution = head.distribution(torch.from_numpy(params))
    expected = distribution.log_prob(torch.from_numpy(action)).numpy()
    np.testing.assert_allclose(head.log_prob(params, action), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(head.mode(params), distribution.mode().numpy())


def test_a_shaped_box_has_entropy_and_divergence_of_its_numbers() -> None:
    for squash in (False, True):
        shaped = action_head(spaces.Box(-1.0, 1.0, (2, 3)), squash)
        flat = action_head(spaces.Box(-1.0, 1.0, (6,)), squash)
        one, two = (torch.from_numpy(make_params(flat, 4, seed)) for seed in (0, 1))
        torch.testing.assert_close(shaped.distribution(one).entropy(), flat.distribution(one).entropy())
        torch.testing.assert_close(
            shaped.distribution(one).kl(shaped.distribution(two)), flat.distribution(one).kl(flat.distribution(two))
        )


def test_spaces_that_have_no_head_are_refused() -> None:
    with pytest.raises(SpaceError, match=r"tanh_squash=True needs a Box action space, got Discrete\(2\)"):
        action_head(spaces.Discrete(2), tanh_squash=True)
    with pytest.raises(SpaceError, match="tanh_squash=True needs finite bounds"):
        action_head(spaces.Box(-np.inf, np.inf, (2,)), tanh_squash=True)
    with pytest.raises(SpaceError, match="supports Discrete, MultiDiscrete"):
        action_head(spaces.Dict({"a": spaces.Discrete(2)}))


@pytest.mark.parametrize("name", ["box", "multibinary"])
def test_a_mask_where_none_makes_sense_is_refused(name: str) -> None:
    head = HEADS[name]
    params, mask = make_params(head, 2), np.ones((2, head.num_params), np.int8)
    action, noise = head.mode(params), head.draw(np.random.default_rng(0), 1, 2)[0]
    calls = [
        lambda: head.sample(params, noise, mask),
        lambda: head.mode(params, mask),
        lambda: head.log_prob(params, action, mask),
        lambda: head.distribution(torch.from_numpy(params), torch.from_numpy(mask) != 0),
    ]
    for call in calls:
        with pytest.raises(SpaceError, match="an action mask needs a Discrete or MultiDiscrete action space"):
            call()
