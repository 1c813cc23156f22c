"""DDPG: deep deterministic policy gradient (Lillicrap et al. 2015, arXiv 1509.02971).

This is TD3 with one critic, an actor update in each gradient step, and no noise on target actions. Exploration noise is
Gaussian, which performs as well as the paper's process (arXiv 1802.09477).
"""

from __future__ import annotations

from dataclasses import dataclass

from levada.algorithms.td3 import TD3


@dataclass(frozen=True, kw_only=True)
class DDPG(TD3):
    """Configuration of DDPG."""

    num_critics: int = 1
    """Number of critics; targets use the smallest value. With more than one, values are
    overestimated less, but the algorithm is no longer DDPG."""
    policy_delay: int = 1
    target_policy_noise: float = 0.0
