"""Ape-X DDPG: many samplers and one learner with a prioritized replay (Horgan et al. 2018, arXiv 1803.00933, section 3.2).

This is `levada.algorithms.ddpg` with asynchronous samplers, as in `levada.algorithms.apex_dqn`. The samplers have no critic,
so a new transition enters the replay with the largest priority so far.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from levada.algorithms.ddpg import DDPG


@dataclass(frozen=True, kw_only=True)
class ApexDDPG(DDPG):
    """Configuration of Ape-X DDPG."""

    shards: int = 4
    tolerance: float = 10_000.0
    order: Literal["admission", "arrival"] = "arrival"
    tables: int = 2
    prioritized: bool = True
    n_step: int = 3
