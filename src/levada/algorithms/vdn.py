"""VDN: value-decomposition networks (Sunehag et al. 2017, arXiv 1706.05296), for teams of agents with a common reward.

    step x shards -> by_policy -> joint ==> [replay] -> sample -> learn
        ^                                                          |
        +------------------------ [weights] <----------------------+

The value of a joint action is the sum of the agents' values. Agents share a network of linear layers; the paper's has a recurrent
layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from levada.algorithms.value_decomposition import ValueDecomposition
from levada.rl.policies.mixers import SumMixer
from levada.rl.policies.policy import Policy


@dataclass(frozen=True, kw_only=True)
class VDN(ValueDecomposition):
    """Configuration of VDN."""

    def make_mixer(self, policy: Policy, num_agents: int) -> Callable[[], nn.Module]:
        """Factory of the sum."""
        return SumMixer
