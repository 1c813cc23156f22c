"""A random MDP whose optimum is known, and a table that learns it: at module level, for work crosses into workers by its name."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from torch import Tensor, nn

from levada.flow import Flow, Queue, Update
from levada.rl import NStep, Policy, StepSampler, Task, Transitions
from levada.rl.acting.exploration import EpsilonGreedy
from levada.rl.acting.step_sampler import Steps
from levada.rl.policies.layers import Dense, NumpyLayers

NUM_STATES, NUM_ACTIONS = 25, 4
TERMINAL = NUM_STATES - 1
DISCOUNT = 0.95
EPSILON = 0.3
MDP_SEED = 0
STEPS_PER_UPDATE = 100
"""Env steps of one update: those of two shards."""


class MDP(NamedTuple):
    """Everything that there is to know."""

    transition: np.ndarray
    """``[S, A, S]``, probabilities."""
    reward: np.ndarray
    """``[S, A]``."""
    start: np.ndarray
    """``[S]``, probabilities."""

    def value_of(self, action: np.ndarray) -> float:
        """What it is worth to take `action` ``[S]`` in each state, from the start on: the linear system, solved."""
        states = np.arange(NUM_STATES)
        after = self.transition[states, action] * (states != TERMINAL)  # nothing follows the last state
        return float(self.start @ np.linalg.solve(np.eye(NUM_STATES) - DISCOUNT * after, self.reward[states, action]))

    def best_values(self) -> np.ndarray:
        """Of the best policy, ``[S, A]``, by value iteration."""
        alive, values = np.arange(NUM_STATES) != TERMINAL, np.zeros((NUM_STATES, NUM_ACTIONS))
        for _ in range(600):  # 0.95 ** 600 is 4e-14
            values = self.reward + DISCOUNT * self.transition @ (values.max(axis=1) * alive)
        return values


@cache
def random_mdp(seed: int) -> MDP:
    """Two possible states after each action, and few rewards: whoever acts at random gets little.

    Archibald, McKinnon and Thomas 1995, "On the generation of Markov decision processes", for the kind.
    """
    rng = np.random.default_rng(seed)
    transition, reward = np.zeros((NUM_STATES, NUM_ACTIONS, NUM_STATES)), np.zeros((NUM_STATES, NUM_ACTIONS))
    for s, a in np.ndindex(reward.shape):
        transition[s, a, rng.choice(NUM_STATES, 2, replace=False)] = rng.dirichlet(np.ones(2))
    reward.flat[rng.choice(TERMINAL * NUM_ACTIONS, 2, replace=False)] = 1.0
    start = np.full(NUM_STATES, 1.0 / TERMINAL)
    start[TERMINAL] = 0.0
    return MDP(transition, reward, start)


class RandomMDP(gymnasium.Env[int, int]):
    """Terminates in the last state, and is cut off after 40 steps."""

    observation_space = spaces.Discrete(NUM_STATES)  # type: ignore[assignment]
    action_space = spaces.Discrete(NUM_ACTIONS)  # type: ignore[assignment]

    def __init__(self, seed: int) -> None:
        self.mdp = random_mdp(seed)
        self._until = self.mdp.transition.cumsum(axis=2).tolist()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self._num_steps = 0
        self._state = int(self.np_random.choice(NUM_STATES, p=self.mdp.start))
        return self._state, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        before, self._num_steps = self._state, self._num_steps + 1
        self._state = min(bisect(self._until[before][action], self.np_random.random()), TERMINAL)
        reward = float(self.mdp.reward[before, action])
        return self._state, reward, self._state == TERMINAL, self._num_steps == 40, {}


class Table(nn.Module):
    """Values of actions, a row of parameters for each."""

    def __init__(self, observation_space: spaces.Discrete, num_actions: int) -> None:
        super().__init__()
        self.values = nn.Linear(int(observation_space.n), num_actions, bias=False)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        values = self.values.weight.T[obs]
        return values, values[:, 0]

    def numpy_layers(self) -> NumpyLayers:
        return NumpyLayers((Dense("values.weight", None, None),))


@dataclass(frozen=True)
class TabularLearner:
    """Q-learning (Watkins 1989), or Sarsa (Rummery and Niranjan 1994), which takes the actor's actions for its own."""

    sarsa: bool = False
    policy_name: str = "policy"
    tolerates_staleness: bool = True

    def open(self, seed: int) -> LiveTabularLearner:
        return LiveTabularLearner(self.sarsa)


class LiveTabularLearner:
    """Keeps what it learned from, and every version of its table, for the test to look at."""

    def __init__(self, sarsa: bool) -> None:
        self.sarsa = sarsa
        self.values = np.zeros((NUM_STATES, NUM_ACTIONS))
        self.num_visits = np.zeros((NUM_STATES, NUM_ACTIONS), np.int64)
        self.versions = [self.values.astype(np.float32)]
        """``[S, A]`` each, as they were published."""
        self.batches: list[tuple[np.ndarray, np.ndarray]] = []
        """States and actions of each update."""

    def weights(self) -> dict[str, np.ndarray]:
        return {"network.values.weight": np.ascontiguousarray(self.values.T, np.float32)}

    def update(self, batch: Sequence[Transitions]) -> Update[dict[str, np.ndarray]]:
        for part in batch:
            columns: Any = part.columns
            rows = [columns[name] for name in ("obs", "action", "reward", "discount", "next_obs")]
            for s, a, r, discount, after, b in zip(*rows, columns.get("next_action", rows[1]), strict=True):
                best = self.values[after, b] if self.sarsa else self.values[after].max()
                self.num_visits[s, a] += 1
                step = self.num_visits[s, a] ** -0.6
                self.values[s, a] += step * (r + discount * best - self.values[s, a])
        obs, action = (np.concatenate([part.columns[name] for part in batch]) for name in ("obs", "action"))
        self.batches.append((obs, action))
        self.versions.append(self.values.astype(np.float32))
        return Update(self.weights(), {"mean": float(self.values.mean())})


def with_next_action(steps: Steps) -> Transitions:
    """Transitions with the action that followed; without those after which none did."""
    made, buffer = NStep(discount=DISCOUNT)(steps), steps.buffer
    followed = np.broadcast_to(np.arange(len(buffer.action))[:, None] < len(buffer.action) - 1, buffer.action.shape)
    kept = (followed & ~buffer.truncated).reshape(-1)
    columns: Any = made.columns | {"next_action": np.roll(buffer.action, -1, axis=0).reshape(-1)}
    return Transitions({name: column[kept] for name, column in columns.items()})


def tabular_flow(lag_steps: int, *, sarsa: bool = False) -> Flow:
    """Behavior that is exactly so many env steps old: in admission order a ticket names its version."""
    task = Task(RandomMDP, env_kwargs={"seed": MDP_SEED})
    policy = Policy(
        observation_space=task.observation_space, action_space=task.action_space, output="q_values", network=Table
    )
    explore = EpsilonGreedy(start=EPSILON, end=EPSILON)
    sampler = StepSampler(task=task, policy=policy, explore=explore, num_envs=5, num_steps=10)
    learner = TabularLearner(sarsa)
    flow = Flow("tabular")
    weights = flow.latest("weights", of=learner)
    steps = flow.source("step", sampler, reads=weights, shards=2)
    transitions = flow.map("one_step", with_next_action if sarsa else NStep(discount=DISCOUNT), steps)
    queue = Queue(max_lag=lag_steps // STEPS_PER_UPDATE)
    update = flow.learn("learn", learner, flow.batch("batch", transitions.via(queue), size=2))
    flow.publish(update.weights, to=weights)
    flow.report(update.stats)
    return flow
