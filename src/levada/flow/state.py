"""State for resuming a run: taken between two updates, and accepted by any deployment that opens the same flow.

state = run.save()
run = deployment.open(flow, seed=seed, state=state)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray]
_WORD = (1 << 64) - 1


class PrefixView(Arrays):
    """The arrays whose names start with a prefix, under their names without it; each is looked up on access.

    >>> below = PrefixView({"rows/obs": np.zeros(3), "index": np.zeros(1)}, "rows/")
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
    """Everything in a run that its result depends on."""

    learners: Mapping[str, Arrays]
    """Arrays of each learner, by learn node."""
    shards: Mapping[tuple[str, int], Arrays]
    """Arrays of each shard, by source and shard. A missing shard has done nothing yet, or is in `unsaved`."""
    generations: Mapping[tuple[str, int], int]
    """Generations of the shards that were restarted."""
    registers: Mapping[str, Mapping[int, Arrays]]
    """Weights of older versions that tickets can still name, and weights that are fixed."""
    schedule: Mapping[str, Any]
    """State of the schedule, as JSON-able data."""
    is_exact: bool
    """Whether the resumed run is bit-for-bit identical to the uninterrupted one."""
    unsaved: Mapping[tuple[str, int], str] = field(default_factory=dict)
    """Shards that restart, and why."""
    replays: Mapping[str, tuple[Arrays, ...]] = field(default_factory=dict)
    """Contents of each table: views that the run modifies once it continues, or arrays that are read on access."""
    unsaved_replays: Mapping[str, str] = field(default_factory=dict)
    """Replays that are filled again, and why."""
    evaluations: tuple[tuple[str, int, Arrays], ...] = ()
    """Evaluations to make again: node, version, and its weights."""


def rng_array(rng: np.random.Generator) -> np.ndarray:
    """Return the state of numpy's default generator ``[6]``, uint64: state and increment of PCG64, low words first, then the
    unused half word.

    >>> one, other = np.random.default_rng(1), np.random.default_rng(2)
    >>> set_rng(other, rng_array(one))
    >>> other.random() == one.random()
    True
    """
    known = rng.bit_generator.state
    state, inc = known["state"]["state"], known["state"]["inc"]
    words = [state & _WORD, state >> 64, inc & _WORD, inc >> 64, known["has_uint32"], known["uinteger"]]
    return np.array(words, np.uint64)


def set_rng(rng: np.random.Generator, state: np.ndarray) -> None:
    """Restore a state."""
    words = [int(word) for word in state]
    rng.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": words[0] | words[1] << 64, "inc": words[2] | words[3] << 64},
        "has_uint32": words[4],
        "uinteger": words[5],
    }
