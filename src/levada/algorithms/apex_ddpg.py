"""Ape-X DDPG: many samplers and one learner with a prioritised replay (Horgan et al. 2018, arXiv 1803.00933, section 4.2).

It is `levada.algorithms.ddpg` where nobody waits for anybody, as in `levada.algorithms.apex_dqn`. The samplers have no critic: a
new transition enters the replay with the largest priority that there was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from levada.algorithms.ddpg import DDPG


@dataclass(frozen=True, kw_only=True)
class ApexDDPG(DDPG):
    """Configuration of Ape-X DDPG."""

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
