"""QMIX: monotonic mixing of agents' values (Rashid et al. 2018, arXiv 1803.11485), for teams of agents with a common reward.

    step x shards -> by_policy -> joint ==> [replay] -> sample -> learn
        ^                                                          |
        +------------------------ [weights] <----------------------+

The value of a joint action is a nondecreasing function of the agents' values, which depends on the state: a small network whose
weights are the outputs of others. The state is the concatenation of the agents' observations. Agents share a network of linear
layers; the paper's has a recurrent layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import nn

from levada.algorithms.user_classes import find_network
from levada.algorithms.value_decomposition import ValueDecomposition
from levada.rl.policies.mixers import MonotonicMixer
from levada.rl.policies.policy import Policy
from levada.validation import PositiveInt


@dataclass(frozen=True, kw_only=True)
class QMIX(ValueDecomposition):
    """Configuration of QMIX."""

    mixing_size: PositiveInt = 32
    """Number of units of the mixing network. With more units, the joint value can depend on the agents' values in more ways."""

    def make_mixer(self, policy: Policy, num_agents: int) -> Callable[[], nn.Module]:
        """Factory of the mixing network."""
        features = find_network(self.features_extractor, "features_extractor")
        return partial(MonotonicMixer, policy, num_agents, embed_size=self.mixing_size, features_extractor=features)
