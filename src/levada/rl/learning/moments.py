"""Mean and variance of sampled batches, for the running statistics of normalization.

Rollouts carry their moments (count, mean and variance) with them. A replay stores raw observations and rewards, and its moments
are computed from the samples that the learner gets, so they are the same under every deployment.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from levada.rl.data.frames import as_array
from levada.rl.data.normalize import Moments, moments, observation_moments
from levada.rl.data.spaces import Array, map_nest
from levada.rl.policies.policy import Policy
from levada.rl.replay.transitions import IS_STEP, RETURN, REWARD, Transitions


@dataclass(frozen=True, kw_only=True)
class SampledMoments:
    """Computes the moments of sampled transitions, or of the steps of sampled sequences; see `Learner.sampled_moments`."""

    policy: Policy
    """Policy; it says what is normalized."""
    burn_in: int = 0
    """Number of steps of a sequence before those that are learned from."""

    def __call__(self, data: Transitions) -> dict[str, Moments]:
        """Return the moments of observations, discounted returns and rewards, by the keys of `Policy.buffers_of`."""
        is_step = data.columns.get(IS_STEP)
        mask = is_step if isinstance(is_step, np.ndarray) else None

        def steps(leaf: Array) -> Array:
            array = as_array(leaf)
            return array[None] if mask is None else array[:, self.burn_in : self.burn_in + mask.shape[1]]

        found: dict[str, Moments] = {}
        if self.policy.normalize_obs:
            found |= observation_moments(self.policy.observation_space, map_nest(steps, data.columns["obs"]), mask)
        if self.policy.normalize_reward:
            returns = np.asarray(data.columns[RETURN])
            found["return"] = moments(returns, mask, num_leading=returns.ndim)
        if self.policy.standardize_reward:
            rewards = np.asarray(data.columns[REWARD])
            found["reward"] = moments(rewards, mask, num_leading=rewards.ndim)
        return found
