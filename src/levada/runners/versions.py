"""The versions of one register's weights, in this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Versions:
    """Versions of one register's weights."""

    def __init__(self, keep: int, weights: Mapping[int, Any]) -> None:
        """`keep`: number of versions kept; `weights`: the existing ones, oldest first."""
        self._keep = keep
        self._weights = dict(weights)
        self._newest = max(weights.items(), key=lambda each: each[0])

    def publish(self, version: int, weights: Any) -> None:
        """Add a version; the one that was published first is removed."""
        self._weights.pop(version, None)  # what is published again counts as new
        self._weights[version] = weights
        if version > self._newest[0]:
            self._newest = (version, weights)
        while len(self._weights) > self._keep:
            del self._weights[next(iter(self._weights))]

    def replace(self, weights: Any) -> None:
        """Replace every version by these weights."""
        self._weights = dict.fromkeys(self._weights, weights)
        self._newest = (self._newest[0], weights)

    def read(self, version: int | None) -> tuple[int, Any]:
        """Return a version, or the newest."""
        return self._newest if version is None else (version, self._weights[version])
