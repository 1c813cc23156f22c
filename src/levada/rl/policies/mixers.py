"""Mixers: from the values of a team's agents to the value of their joint action.

Both are nondecreasing in the value of every agent, so the agents' best actions are together the best joint action.

>>> from gymnasium import spaces
>>> policy = Policy(observation_space=spaces.Box(-1.0, 1.0, (3,)), action_space=spaces.Discrete(4), output="q_values")
>>> values, obs, there = torch.ones(5, 2), torch.zeros(5, 2, 3), torch.ones(5, 2, dtype=torch.bool)
>>> SumMixer()(values, obs, there).tolist()
[2.0, 2.0, 2.0, 2.0, 2.0]
>>> MonotonicMixer(policy, 2)(values, obs, there).shape
torch.Size([5])
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from levada.rl.data.nest import flat
from levada.rl.policies.module import ObservationModule
from levada.rl.policies.networks import FeaturesExtractor, TensorNest, make_encoder
from levada.rl.policies.policy import Policy


class SumMixer(nn.Module):
    """Sum of the agents' values (Sunehag et al. 2017, arXiv 1706.05296, section 3)."""

    def forward(self, values: Tensor, obs: TensorNest, there: Tensor) -> Tensor:
        """Return joint values ``[N]``, from the agents' values ``[N, n]`` and which of them take part ``[N, n]``."""
        return values.masked_fill(~there, 0.0).sum(dim=1)


class MonotonicMixer(ObservationModule):
    """Network with a hidden layer whose weights are nonnegative functions of the state (Rashid et al. 2018, arXiv 1803.11485,
    section 4).

    Q_tot = ELU(q |W_1(s)| + b_1(s)) |w_2(s)| + b_2(s), where the hypernetworks W_1, b_1 and w_2 are linear, and b_2 has a hidden
    layer. The state s is the concatenated features of the agents' observations, zeros for those that do not take part. The
    features of a vector are the vector itself; see `levada.rl.policies.networks.make_encoder`.

    Args:
        policy: gives the observation space, the normalization and the precision.
        num_agents: n.
        embed_size: number of units of the hidden layers.
        features_extractor: custom feature extractor of an observation.
    """

    def __init__(
        self,
        policy: Policy,
        num_agents: int,
        *,
        embed_size: int = 32,
        features_extractor: FeaturesExtractor | None = None,
    ) -> None:
        super().__init__(policy)
        self.encoder: nn.Module
        self.encoder, size = make_encoder(policy.inner_space, features_extractor)
        state_size = num_agents * size
        self.weights_1: nn.Linear = nn.Linear(state_size, num_agents * embed_size)
        self.bias_1: nn.Linear = nn.Linear(state_size, embed_size)
        self.weights_2: nn.Linear = nn.Linear(state_size, embed_size)
        self.bias_2: nn.Sequential = nn.Sequential(
            nn.Linear(state_size, embed_size), nn.ReLU(), nn.Linear(embed_size, 1)
        )
        self.set_precision(policy.acting_precision)  # its outputs are values, too large for bfloat16

    def forward(self, values: Tensor, obs: TensorNest, there: Tensor) -> Tensor:
        """Return joint values ``[N]``.

        Args:
            values: values of the agents' actions ``[N, n]``.
            obs: raw observations of the agents ``[N, n, ...]``.
            there: bool ``[N, n]``, which agents take part; those that do not have no effect.
        """
        [joint] = self.computed(self._joint, values.masked_fill(~there, 0.0), self.split(flat(obs))[0], there)
        return joint

    def _joint(self, values: Tensor, obs: TensorNest, there: Tensor) -> tuple[Tensor]:
        num, num_agents = values.shape
        features = self.encoder(obs).view(num, num_agents, -1)
        state = features.masked_fill(~there[..., None], 0.0).flatten(1)
        weights_1 = self.weights_1(state).abs().view(num, num_agents, -1)
        hidden = functional.elu(torch.einsum("ni,nie->ne", values, weights_1) + self.bias_1(state))
        joint = (hidden * self.weights_2(state).abs()).sum(dim=1) + self.bias_2(state)[:, 0]
        return (joint,)
