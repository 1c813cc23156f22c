"""Ape-X DQN: many samplers, each with its own epsilon, and one learner (Horgan et al. 2018, arXiv 1803.00933).

This is `levada.algorithms.dqn` with double Q-learning, dueling networks, n-step returns, prioritized replay and asynchronous
samplers. Transitions are stored in arrival order, with initial priorities from the network that acted, and the balance of
inserts and samples may be off by up to `tolerance`. With several tables, each can have its own process:

    levada train apex_dqn --env CartPole-v1 --on processes:4,replays=worker
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from levada.algorithms.dqn import DQN


@dataclass(frozen=True, kw_only=True)
class ApexDQN(DQN):
    """Configuration of Ape-X DQN."""

    shards: int = 4
    tolerance: float = 10_000.0
    order: Literal["admission", "arrival"] = "arrival"
    tables: int = 2
    prioritized: bool = True
    n_step: int = 3
    dueling: bool = True
    epsilon_base: float | None = 0.4
    initial_priorities: bool = True
