"""Q-learning finds the optimum of a random MDP through worker processes, however old the policy that acts.

It learns from each transition what the best policy would make of it, so it must not matter who acted. Here behavior is 0, 1,000
and 10,000 env steps old, by versions that the headers tell and the actions prove. That the age is felt by whoever takes the
actor's actions for its own, Sarsa shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from support.processes.tabular import (
    EPSILON,
    MDP_SEED,
    NUM_ACTIONS,
    NUM_STATES,
    STEPS_PER_UPDATE,
    TERMINAL,
    LiveTabularLearner,
    RandomMDP,
    random_mdp,
    tabular_flow,
)

from levada.flow.events import Consumed, Event
from levada.runners import Inline
from levada.runners.processes import Processes

NUM_UPDATES = 200
LAGS = (0, 1_000, 10_000)


@dataclass
class Versions:
    """An instrument: with which version each item was made, and its measured lag."""

    made_with: list[int] = field(default_factory=list)
    lag: list[int] = field(default_factory=list)

    def on_event(self, event: Event) -> None:
        if isinstance(event, Consumed):
            self.made_with.append(event.header.versions["policy"])
            self.lag.append(event.lag["policy"])


def learned(lag_steps: int, on: Any, *, sarsa: bool = False) -> tuple[LiveTabularLearner, Versions]:
    seen = Versions()
    with on.open(tabular_flow(lag_steps, sarsa=sarsa), seed=1, instruments=[seen]) as run:
        for report in run:
            if report.firing == NUM_UPDATES:
                return run.node_state("learn"), seen
    raise AssertionError


def shares(policies: Iterable[np.ndarray]) -> np.ndarray:
    """What policies ``[S]`` are worth, as shares of the optimum, exactly."""
    mdp = random_mdp(MDP_SEED)
    optimum = mdp.start @ mdp.best_values().max(axis=1)
    return np.array([mdp.value_of(policy) for policy in policies]) / optimum


def greedy(learner: LiveTabularLearner) -> Iterator[np.ndarray]:
    """The policies of all versions."""
    return (values.argmax(axis=1) for values in learner.versions)


def test_the_optimum_is_exact_and_hard_to_come_by() -> None:
    """Two ways to compute it agree, and who acts at random gets little of it."""
    rng = np.random.default_rng(0)
    assert shares([random_mdp(MDP_SEED).best_values().argmax(axis=1)])[0] == pytest.approx(1.0, abs=1e-9)
    by_chance = shares(rng.integers(0, NUM_ACTIONS, (500, NUM_STATES)))
    assert by_chance.max() < 0.95
    assert by_chance.mean() < 0.1


def test_the_environment_is_that_mdp() -> None:
    """Frequencies of what follows each action against the table."""
    env, mdp = RandomMDP(MDP_SEED), random_mdp(MDP_SEED)
    rng, counts = np.random.default_rng(0), np.zeros_like(mdp.transition)
    state, _ = env.reset(seed=0)
    for _ in range(40_000):
        action = int(rng.integers(NUM_ACTIONS))
        after, reward, terminated, truncated, _ = env.step(action)
        assert reward == mdp.reward[state, action]
        assert terminated == (after == TERMINAL)
        counts[state, action, after] += 1
        state = env.reset()[0] if terminated or truncated else after
    num_visits = counts.sum(axis=2, keepdims=True)
    assert (num_visits[:TERMINAL] > 50).all()
    deviation = np.sqrt(mdp.transition * (1 - mdp.transition) / np.maximum(num_visits, 1))
    assert (np.abs(counts / np.maximum(num_visits, 1) - mdp.transition)[:TERMINAL] <= 4.5 * deviation[:TERMINAL]).all()


@pytest.mark.parametrize("lag_steps", LAGS)
def test_q_learning_finds_the_optimum_however_old_the_behavior(lag_steps: int) -> None:
    learner, seen = learned(lag_steps, Processes(workers=2))
    assert shares(greedy(learner))[-1] >= 0.95

    # Update n consumes the two items that were made with version n - lag: so the headers say.
    lag = lag_steps // STEPS_PER_UPDATE
    updates = np.repeat(np.arange(NUM_UPDATES), 2)
    num_consumed = len(updates)  # more may be on its way already
    assert seen.made_with[:num_consumed] == np.maximum(0, updates - lag).tolist()
    assert seen.lag[:num_consumed] == np.minimum(updates, lag).tolist()
    assert all(len(states) == STEPS_PER_UPDATE for states, _ in learner.batches)

    # And so do the actions: they fit no other version's table as well, and that one but for epsilon.
    def share_greedy(age: int) -> float:
        tables = (learner.versions[max(0, n - age)] for n in range(NUM_UPDATES))
        pairs = zip(tables, learner.batches, strict=False)
        return float(np.mean([table[states].argmax(axis=1) == actions for table, (states, actions) in pairs]))

    ages = {0, lag // 2, max(0, lag - 1), lag, lag + 1}
    assert max(ages, key=share_greedy) == lag
    assert share_greedy(lag) == pytest.approx(1 - EPSILON + EPSILON / NUM_ACTIONS, abs=0.015)


def test_sarsa_bears_the_behavior_of_today_but_not_of_10_000_steps_ago() -> None:
    """A target that takes the actor's next action for the learner's: right on-policy, and it fails where that is not so."""
    learners = (learned(lag, Inline(), sarsa=True)[0] for lag in (0, 10_000))
    fresh, old = (shares(greedy(learner))[NUM_UPDATES // 2 :].mean() for learner in learners)
    assert fresh >= 0.9
    assert old < 0.75
