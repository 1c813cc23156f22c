"""Whether returns have risen: noise never counts as learning, learning is never taken for noise."""

import numpy as np
import pytest

from levada.run.returns import CAPACITY, ReturnHistory


def history(returns):
    made = ReturnHistory()
    for step, value in enumerate(returns):
        made.add([value], env_steps=step + 1)
    return made


def ramp(num, top, noise, rng):
    return np.linspace(0.0, top, num) + noise * rng.standard_normal(num)


def rare(num, share, rng):
    return (rng.random(num) < share).astype(float)


FLAT = {
    "constant": lambda n, rng: np.full(n, -200.0),
    "constant, not exact in binary": lambda n, rng: np.full(n, 0.1),
    "noise": lambda n, rng: 20.0 + 10.0 * rng.standard_normal(n),
    "rare rewards": lambda n, rng: rare(n, 0.015, rng),
    "one lucky episode": lambda n, rng: np.where(np.arange(n) == n - 5, -150.0, -200.0),
    "it falls": lambda n, rng: -ramp(n, 100.0, 10.0, rng),
    "it rises and comes back": lambda n, rng: (
        np.where(np.abs(np.arange(n) / n - 0.25) < 0.1, 50.0, 0.0) + rng.standard_normal(n)
    ),
}
LEARNED = {
    "steadily": lambda n, rng: ramp(n, 100.0, 20.0, rng),
    "in the first tenth": lambda n, rng: np.where(np.arange(n) < 0.1 * n, 20.0, 475.0) + 10.0 * rng.standard_normal(n),
    "at the very end": lambda n, rng: np.where(np.arange(n) < 0.95 * n, -200.0, -120.0),
    "from rare to frequent": lambda n, rng: np.where(np.arange(n) < 0.6 * n, rare(n, 0.015, rng), rare(n, 0.6, rng)),
    "slowly, as in Pong": lambda n, rng: -20.5 + ramp(n, 2.0, 0.8, rng),
}


@pytest.mark.parametrize("num", [100, 1_000, 5_000])
@pytest.mark.parametrize("name", FLAT)
def test_what_does_not_rise_is_flat(name, num):
    risen = [history(FLAT[name](num, np.random.default_rng(seed))).since(0).has_risen for seed in range(5)]
    assert not any(risen)


@pytest.mark.parametrize("num", [400, 1_000, 5_000])
@pytest.mark.parametrize("name", LEARNED)
def test_what_is_learned_has_risen(name, num):
    assert all(history(LEARNED[name](num, np.random.default_rng(seed))).since(0).has_risen for seed in range(5))


def test_a_small_gain_under_much_noise_is_seen_where_there_are_many_episodes():
    """As in Blackjack: from -0.4 to -0.05, where a single episode is -1 or 1."""

    def play(num, mean):
        return np.where(np.random.default_rng(1).random(num) < (1 + mean) / 2, 1.0, -1.0)

    returns = np.concatenate([play(2_000, -0.4), play(18_000, -0.05)])
    assert history(returns).since(0).has_risen


def test_only_the_stretch_that_is_asked_for_counts():
    returns = np.concatenate([np.zeros(500), np.full(1_000, 9.0)])
    made = history(returns)
    assert made.since(0).has_risen
    late = made.since(700)
    assert not late.has_risen
    assert late.first.mean == late.later[0].mean == 9.0
    assert made.since(1_499) is None


def test_memory_is_bounded_and_nothing_is_lost():
    made = history(np.arange(10_000.0))
    blocks = made.state()
    assert len(blocks) <= CAPACITY
    assert sum(num for num, *_ in blocks) == 10_000
    assert sum(total for _, total, *_ in blocks) == pytest.approx(np.arange(10_000.0).sum())


def test_a_history_goes_on_from_its_state():
    returns = np.random.default_rng(0).standard_normal(3_000)
    again = ReturnHistory()
    again.restore(history(returns[:1_234]).state())
    for step, value in enumerate(returns[1_234:], start=1_235):
        again.add([value], env_steps=step)
    assert again.state() == history(returns).state()


def test_returns_that_are_not_finite_are_left_out():
    made = history([1.0, float("nan"), float("inf"), 1e200, 2.0])
    assert [total for _, total, *_ in made.state()] == [1.0, 2.0]
