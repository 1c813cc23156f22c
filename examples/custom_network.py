"""A network of your own, and a feature extractor of your own.

    python examples/custom_network.py [--until return=475]
    levada train ppo --env CartPole-v1 --network examples/custom_network.py:Shared
    levada train ppo --env CartPole-v1 --features-extractor examples/custom_network.py:Trigonometric

`Shared` is the whole network: its layers are shared by the policy and the value function. `Trigonometric` is only the first part:
levada's layers, of the sizes in `hidden_sizes`, go on from its features. Both solve CartPole-v1 within 100,000 env steps.
"""

import argparse
from typing import Any

import gymnasium
import torch
from torch import Tensor, nn

import levada as lv


class Shared(nn.Module):
    """A body with a residual block, and two heads."""

    def __init__(self, observation_space: gymnasium.spaces.Box, num_params: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(observation_space.shape[0], 64), nn.SiLU())
        self.block = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.SiLU())
        self.policy, self.value = nn.Linear(64, num_params), nn.Linear(64, 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the parameters of the action distribution ``[N, num_params]`` and the values ``[N]``."""
        features = self.first(obs)
        features = features + self.block(features)
        return self.policy(features), self.value(features).squeeze(-1)


class Trigonometric(nn.Module):
    """The pole's angle as sine and cosine; the rest as it is."""

    def __init__(self, observation_space: gymnasium.spaces.Box) -> None:
        super().__init__()

    def forward(self, obs: Tensor) -> Tensor:
        """Return features ``[N, F]``; levada finds F by trying it."""
        position, velocity, angle, angular_velocity = obs.unbind(dim=1)
        return torch.stack([position, velocity, angle.sin(), angle.cos(), angular_velocity], dim=1)


def main() -> None:
    """Train PPO with each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--until", default="return=475 steps=100_000", help="stopping condition of each training")
    args = parser.parse_args()
    settings: list[dict[str, Any]] = [{"network": Shared}, {"features_extractor": Trigonometric}]
    for setting in settings:
        run = lv.train("ppo", "CartPole-v1", until=args.until, seed=1, **setting)
        num_parameters = sum(array.size for array in run.policy.weights.values())
        print(f"{[*setting]}: {num_parameters:,} parameters, mean return {run.summary.return_mean_100:.1f}")


if __name__ == "__main__":
    main()
