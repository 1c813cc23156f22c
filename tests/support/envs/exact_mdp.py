"""A small Markov decision process that is known exactly, to compare estimates and counts with.

    mdp = SMALL
    v = mdp.value(mdp.uniform_policy(), discount=0.9)            # V^pi [S], by a linear solve
    task = Task(make_exact_env, env_kwargs={"max_episode_steps": 6})

Five states, two actions, stochastic transitions. Entering state 4 always terminates the episode, and so does going from 2 to 0;
everything else goes on until a TimeLimit truncates it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, kw_only=True)
class ExactMDP:
    """Tables over states S and actions A."""

    start: Floats
    """[S] probability that an episode starts there."""
    probability: Floats
    """[S, A, S'] of going from s with a to s'."""
    reward: Floats
    """[S, A, S']"""
    terminal: npt.NDArray[np.bool_]
    """[S, A, S'] whether that transition ends the episode."""

    @property
    def num_states(self) -> int:
        return self.probability.shape[0]

    @property
    def num_actions(self) -> int:
        return self.probability.shape[1]

    def uniform_policy(self) -> Floats:
        """[S, A]"""
        return np.full((self.num_states, self.num_actions), 1.0 / self.num_actions)

    def value(self, policy: Floats, discount: float) -> Floats:
        """V^pi [S] without a time limit: what bootstrapping from a truncated episode must give, too."""
        going_on = np.einsum("sa,sat->st", policy, self.probability * ~self.terminal)
        mean_reward = np.einsum("sa,sat,sat->s", policy, self.probability, self.reward)
        return np.linalg.solve(np.eye(self.num_states) - discount * going_on, mean_reward)

    def action_value(self, policy: Floats, discount: float) -> Floats:
        """Q^pi [S, A]"""
        v = self.value(policy, discount)
        return np.einsum("sat,sat->sa", self.probability, self.reward + discount * ~self.terminal * v)

    def occupancy(self, policy: Floats, max_episode_steps: int) -> Floats:
        """[S, A, S'] expected number of times a transition happens in an episode with this time limit."""
        d, count = self.start, np.zeros_like(self.probability)
        for _ in range(max_episode_steps):
            now = d[:, None, None] * policy[:, :, None] * self.probability
            count += now
            d = (now * ~self.terminal).sum(axis=(0, 1))
        return count


def _small() -> ExactMDP:
    probability = np.array(
        [
            [[0.2, 0.5, 0.3, 0.0, 0.0], [0.1, 0.1, 0.2, 0.5, 0.1]],
            [[0.0, 0.3, 0.4, 0.3, 0.0], [0.6, 0.0, 0.0, 0.2, 0.2]],
            [[0.3, 0.2, 0.1, 0.2, 0.2], [0.1, 0.4, 0.4, 0.1, 0.0]],
            [[0.0, 0.2, 0.2, 0.3, 0.3], [0.3, 0.3, 0.0, 0.3, 0.1]],
            [[0.2, 0.2, 0.2, 0.2, 0.2], [0.2, 0.2, 0.2, 0.2, 0.2]],  # only by starting there
        ]
    )
    s, a, t = np.indices(probability.shape)
    terminal = (t == 4) | ((s == 2) & (t == 0))
    reward = 0.5 * s - 1.0 * a + 0.25 * t + 2.0 * (t == 4)
    return ExactMDP(
        start=np.array([0.4, 0.3, 0.1, 0.1, 0.1]), probability=probability, reward=reward, terminal=terminal
    )


SMALL = _small()


class ExactEnv(gymnasium.Env[Any, Any]):
    """The process as an environment; observes the state's number, or one-hot."""

    def __init__(self, mdp: ExactMDP = SMALL, *, one_hot: bool = False) -> None:
        self.mdp = mdp
        self.one_hot = one_hot
        self.state = 0
        self.action_space = spaces.Discrete(mdp.num_actions)
        self.observation_space = (
            spaces.Box(0.0, 1.0, (mdp.num_states,), np.float32) if one_hot else spaces.Discrete(mdp.num_states)
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = int(self.np_random.choice(self.mdp.num_states, p=self.mdp.start))
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        s, a = self.state, int(action)
        t = int(self.np_random.choice(self.mdp.num_states, p=self.mdp.probability[s, a]))
        self.state = t
        return self._observe(), float(self.mdp.reward[s, a, t]), bool(self.mdp.terminal[s, a, t]), False, {}

    def _observe(self) -> Any:
        return np.eye(self.mdp.num_states, dtype=np.float32)[self.state] if self.one_hot else self.state


def make_exact_env(max_episode_steps: int = 6, one_hot: bool = False) -> gymnasium.Env[Any, Any]:
    """For `Task(make_exact_env, env_kwargs=...)`."""
    return TimeLimit(ExactEnv(one_hot=one_hot), max_episode_steps)
