"""Starting a run from the weights of another, with checks of names and shapes.

>>> check_fits({"policy.weight": np.zeros((2, 4))}, {"policy.weight": np.zeros((2, 8))})
Traceback (most recent call last):
    ...
levada.rl.learning.starting.StartError: policy.weight is (2, 8), expected (2, 4)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import numpy as np

from levada.flow.errors import LevadaError
from levada.rl.data.spaces import Array

_MOST = 3
"""Maximum number of listed differences."""


class StartError(LevadaError, ValueError):
    """A run cannot start from the weights of another."""


@runtime_checkable
class Startable(Protocol):
    """A learner that can start from the weights of another."""

    def start_from(self, state: Mapping[str, Array]) -> None:
        """Load the weights of a `state_dict` of the same kind of learner, and nothing else, or raise StartError."""


def check_fits(own: Mapping[str, Array], given: Mapping[str, Array]) -> None:
    """Raise StartError unless arrays have the same names and shapes."""
    found = []
    for name in dict.fromkeys((*own, *given)):
        if name not in given:
            found.append(f"{name} is missing")
        elif name not in own:
            found.append(f"{name} is not expected")
        elif np.shape(given[name]) != np.shape(own[name]):
            found.append(f"{name} is {np.shape(given[name])}, expected {np.shape(own[name])}")
    if found:
        more = f", and {len(found) - _MOST} more" if len(found) > _MOST else ""
        raise StartError(", ".join(found[:_MOST]) + more)


def weights_in(state: Mapping[str, Array]) -> dict[str, Array]:
    """Return the policy's weights from the `state_dict` of a learner."""
    prefix = "weights/"
    return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}
