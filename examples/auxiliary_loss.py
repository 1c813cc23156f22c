"""PPO with an auxiliary loss: the network also predicts how each action changes the observation, which shapes its features.

python examples/auxiliary_loss.py [CONDITION], such as return=400
levada train examples/auxiliary_loss.py:PredictivePPO --env CartPole-v1
"""

import sys
from dataclasses import dataclass
from typing import Any

from torch import Tensor, arange, nn

import levada as lv
from levada.algorithms.gae import GAE
from levada.algorithms.ppo import PPO, PPOLoss


class Predictive(nn.Module):
    """A value, and on the features of the policy the predicted change of the observation by each action."""

    def __init__(self, observation_space: Any, num_params: int) -> None:
        super().__init__()
        size = observation_space.shape[0]
        self.features = nn.Sequential(nn.Linear(size, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.value = nn.Sequential(nn.Linear(size, 64), nn.Tanh(), nn.Linear(64, 1))
        self.policy = nn.Linear(64, num_params)
        self.change = nn.Sequential(nn.Linear(64, num_params * size), nn.Unflatten(1, (num_params, size)))

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        x = self.features(obs)
        return self.policy(x), self.value(obs).squeeze(-1), {"change": self.change(x)}


class PredictiveLoss(PPOLoss):
    hp: "PredictivePPO"

    def __call__(self, networks: Any, batch: Any, coefficients: Any) -> Any:
        ppo = super().__call__(networks, batch, coefficients)
        change = networks.policy(batch["obs"])[2]["change"]  # computed once for both losses
        error = change[arange(len(change)), batch["action"]] - (batch["next_obs"] - batch["obs"])
        ends = batch["terminated"] | batch["truncated"]  # there the next observation is another episode's
        loss = self.hp.change_coef * batch["weight"].dot(error.square().sum(dim=1) * ~ends)
        return ppo._replace(loss=ppo.loss + loss, stats={**ppo.stats, "change_loss": loss})


@dataclass(frozen=True, kw_only=True)
class PredictivePPO(PPO):
    network: Any = Predictive
    change_coef: float = 1.0  # of the auxiliary loss

    def prepare(self) -> GAE:
        return GAE(discount=self.discount, lambda_=self.gae_lambda, columns=("next_obs", "terminated", "truncated"))

    def make_loss(self) -> PredictiveLoss:
        return PredictiveLoss(self)


if __name__ == "__main__":
    print(lv.train(PredictivePPO(), "CartPole-v1", until=sys.argv[1] if sys.argv[1:] else "return=400", seed=1))
