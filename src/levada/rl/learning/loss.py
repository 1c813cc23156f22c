"""Losses: what a learner passes to them, and what they return.

def loss(networks: Networks, batch: Mapping[str, Any], coefficients: Mapping[str, Tensor]) -> LossOutput:
distribution, value = networks.policy(batch["obs"])
error = (value - batch["target"]).square()
return LossOutput((batch["weight"] * error).sum(), {"value_loss": error.mean()})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from torch import Tensor

from levada.rl.compute.functional import Net
from levada.rl.replay.transitions import IMPORTANCE

POLICY = "policy"
"""Name of the network that acts."""


class LossOutput(NamedTuple):
    """Result of a loss."""

    loss: Tensor
    """Scalar to minimize."""
    stats: Mapping[str, Tensor]
    """Scalars to report, by name."""
    priorities: Tensor | None = None
    """``[N]``, nonnegative: new priorities of the rows, for prioritized replay."""


class Networks:
    """The networks of one gradient step by name: `networks.policy`, `networks.critic`, and `networks.target.critic`.

    `target` holds the target networks, which have no gradient.

    >>> networks = Networks({}, {})
    >>> networks.critic
    Traceback (most recent call last):
        ...
    AttributeError: there is no network 'critic'; there are: none
    """

    def __init__(self, networks: Mapping[str, Net], targets: Mapping[str, Net] | None = None) -> None:
        self._networks = dict(networks)
        self._targets = targets

    def __getattr__(self, name: str) -> Net:
        networks = self.__dict__.get("_networks", {})
        if name not in networks:
            msg = f"there is no network {name!r}; there are: {', '.join(networks) or 'none'}"
            raise AttributeError(msg)
        net: Net = networks[name]
        return net

    @property
    def target(self) -> Networks:
        """The target networks."""
        return Networks(self._targets or {})


Loss: TypeAlias = Callable[[Networks, Mapping[str, Any], Mapping[str, Tensor]], LossOutput]
"""(networks, batch of tensors ``[N, ...]``, coefficients) -> `LossOutput`, differentiated with respect to all networks."""


@runtime_checkable
class HasBatchStats(Protocol):
    """A loss that also has statistics of whole batches, such as how well the values of the old policy fit their targets."""

    def batch_stats(self, batch: Mapping[str, Any]) -> Mapping[str, Tensor]:
        """Return scalars to report, by name, from the columns of an update's batch; those that are not finite are left out."""


def apply_importance_weights(losses: Tensor, batch: Mapping[str, Any]) -> Tensor:
    """Weight losses ``[..., N]`` by the importance-sampling weights of their rows, if a prioritized replay provides them."""
    return losses * batch[IMPORTANCE] if IMPORTANCE in batch else losses
