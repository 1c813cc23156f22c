"""Ape-X DQN: many samplers, each with its own share of random actions, and one learner (Horgan et al. 2018, arXiv 1803.00933).

It is `levada.algorithms.dqn` with double and dueling targets over several steps and a prioritised replay, where nobody waits for
anybody: transitions are stored as they come, with first priorities by the network that acted, and the balance of inserts and
samples may be off by as much as `tolerance`. With several tables, each can have a process of its own:

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
    """Logical samplers, each with its own environments. More can use more cores."""
    tolerance: float = 10_000.0
    """By how many samples the balance may be off before one side waits."""
    order: Literal["admission", "arrival"] = "arrival"
    """Transitions are stored in the order of their tickets, or as they come: then nobody waits for a slow shard, and the result
    depends on timing."""
    tables: int = 2
    """Tables that the replay consists of; each may have a process of its own. More are filled and drawn from in turn."""
    prioritised: bool = True
    """Sample more often what was more surprising."""
    lookahead: int = 3
    """Steps whose rewards a target adds up before it trusts a network. More learn sooner, from actions of older policies."""
    dueling: bool = True
    """A value and advantages in place of values: learns sooner where actions matter little."""
    ladder: float | None = 0.4
    """In place of epsilons that fall, each environment keeps a share of random actions of its own, from this down to its 8th
    power: some explore, others do what is best."""
    first_priorities: bool = True
    """A new transition's priority is its error by the network that acted; else it is the largest of all."""
