"""Map node from rollouts to transitions with the columns `advantage` and `target`, computed beside the sampler."""

from __future__ import annotations

from dataclasses import dataclass, replace

from levada.math.returns_numpy import gae_numpy
from levada.rl.acting.rollout import Rollout
from levada.rl.data.normalize import moments
from levada.rl.replay.transitions import Transitions


@dataclass(frozen=True, kw_only=True)
class GAE:
    """Generalized advantage estimation (Schulman et al. 2015, arXiv 1506.02438)."""

    discount: float
    """Discount factor gamma per step."""
    lambda_: float
    """Lambda. 0: one-step advantages, biased by the value function. 1: full returns, with high variance."""
    columns: tuple[str, ...] = ()
    """Further columns for the loss: attributes of a `Rollout` ``[T, B, ...]``, such as `reward` and `next_obs`."""
    value_moments: bool = False
    """Add the moments of the targets, for `Policy(normalize_value=True)`."""

    def __call__(self, rollout: Rollout) -> Transitions:
        """Transitions with two more columns: `advantage` and `target`, the target of the value function."""
        advantage, target = gae_numpy(
            rollout.reward, rollout.value, rollout.next_value, rollout.terminated, rollout.truncated,
            discount=self.discount, lambda_=self.lambda_,
        )  # fmt: skip
        more = {name: getattr(rollout, name) for name in self.columns}
        made = rollout.transitions(advantage=advantage, target=target, **more)
        if self.value_moments:
            made = replace(made, moments={**made.moments, "value": moments(target, rollout.mask)})
        return made
