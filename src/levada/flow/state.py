"""What a run goes on from: taken between two updates, given to any deployment that opens the same flow.

state = run.save()
run = deployment.open(flow, seed=seed, state=state)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray]


class Below(Arrays):
    """The arrays whose names begin with a prefix, without it; each is looked up when it is asked for.

    >>> below = Below({"rows/obs": np.zeros(3), "index": np.zeros(1)}, "rows/")
    >>> list(below), below["obs"].shape
    (['obs'], (3,))
    """

    def __init__(self, arrays: Arrays, prefix: str) -> None:
        self._arrays = arrays
        self._prefix = prefix

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[self._prefix + name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._prefix + name in self._arrays

    def __iter__(self) -> Iterator[str]:
        return (name.removeprefix(self._prefix) for name in self._arrays if name.startswith(self._prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass(frozen=True, slots=True, eq=False)
class RunState:
    """Everything of a run that its result depends on."""

    learners: Mapping[str, Arrays]
    """By learn node."""
    shards: Mapping[tuple[str, int], Arrays]
    """By source and shard; a shard that is missing has done nothing yet, or is in `unsaved`."""
    generations: Mapping[tuple[str, int], int]
    """Of the shards that had to begin anew."""
    registers: Mapping[str, Mapping[int, Arrays]]
    """Weights of older versions that tickets can still name."""
    schedule: Mapping[str, Any]
    """Of the schedule, as JSON-able data."""
    is_exact: bool
    """Whether the run that goes on is, bit for bit, the one that was not interrupted."""
    unsaved: Mapping[tuple[str, int], str] = field(default_factory=dict)
    """Shards that begin anew, and why."""
    replays: Mapping[str, tuple[Arrays, ...]] = field(default_factory=dict)
    """The content of each table: views, which the run changes when it goes on, or what is read when it is asked for."""
    unsaved_replays: Mapping[str, str] = field(default_factory=dict)
    """Replays that are filled anew, and why."""
