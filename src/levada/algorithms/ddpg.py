"""DDPG: deep deterministic policy gradient (Lillicrap et al. 2015, arXiv 1509.02971).

It is what TD3 makes more careful: one critic, an actor that learns in each step, and targets that take their actions without
noise. The noise on actions that are taken is Gaussian, which does as well as the process of the paper (arXiv 1802.09477).
"""

from __future__ import annotations

from dataclasses import dataclass

from levada.algorithms.td3 import TD3


@dataclass(frozen=True, kw_only=True)
class DDPG(TD3):
    """Configuration of DDPG."""

    num_critics: int = 1
    """Critics, of which the smallest is believed. With two and more it is no longer DDPG, but more careful."""
    actor_every: int = 1
    """Gradient steps of the critic for each one of the actor."""
    target_noise: float = 0.0
    """Deviation of the noise on actions that targets take."""
