"""A network for the policies of tests, named by its path."""

from typing import Any

from torch import nn


class SharedTrunk(nn.Module):
    """A network that only torch can compute: value and action parameters from one trunk."""

    def __init__(self, space: Any, num_outputs: int) -> None:
        super().__init__()
        self.trunk = nn.Linear(space.shape[0], 16)
        self.policy, self.value = nn.Linear(16, num_outputs), nn.Linear(16, 1)

    def forward(self, obs: Any) -> Any:
        hidden_sizes = self.trunk(obs).relu()
        return self.policy(hidden_sizes), self.value(hidden_sizes)[:, 0]
