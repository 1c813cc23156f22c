"""Advantages beside the producer: a map node from rollouts to transitions with `advantage` and `target`."""

from __future__ import annotations

from dataclasses import dataclass

from levada.math.returns_numpy import gae_numpy
from levada.rl.rollout import Rollout
from levada.rl.transitions import Transitions


@dataclass(frozen=True, kw_only=True)
class GAE:
    """Generalised advantage estimation (Schulman et al. 2015, arXiv 1506.02438)."""

    discount: float
    """What a reward loses each step."""
    lambda_: float
    """0: one-step, biased by the value function; 1: the whole return, noisy."""

    def __call__(self, rollout: Rollout) -> Transitions:
        """Transitions with two more columns: `advantage`, and `target`, which is what the value should have been."""
        advantage, target = gae_numpy(
            rollout.reward, rollout.value, rollout.next_value, rollout.terminated, rollout.truncated,
            discount=self.discount, lambda_=self.lambda_,
        )  # fmt: skip
        return rollout.transitions(advantage=advantage, target=target)
