"""An order of execution in one thread that delays items at random, for as long as the schedule allows."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from levada.runners.inline_transport import Undelivered
from levada.schedule import Firing


class Adversary:
    """Chooses at random what is executed and what is delivered; a disfavored stage starves while anything else can proceed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._favor: dict[tuple[str, int | None], float] = {}

    def choose(self, options: Sequence[Firing | Undelivered]) -> Firing | Undelivered | None:
        """Choose what happens next. None: nothing can."""
        if self._random.random() < 0.05:
            self._favor.clear()
        return max(options, key=self._rank, default=None)

    def _rank(self, option: Firing | Undelivered) -> float:
        late, firing = (0.5, option.firing) if isinstance(option, Undelivered) else (0.0, option)
        key = (firing.node, firing.shard)
        if key not in self._favor:
            self._favor[key] = self._random.random()
        return self._favor[key] - late * self._random.random()
