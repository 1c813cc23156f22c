"""Turns of several consumers in exact proportions: whose turn it is depends on the number of turns so far, and on nothing else.

The next turn goes to the consumer that is furthest behind its proportion, and to the first of several. A consumer is therefore
never more than one turn ahead of its proportion, and after as many turns as the sum of the shares, each has had exactly its
share.

>>> turns = Turns({"critic": 5, "actor": 2})
>>> "".join(turns.of(number)[0] for number in range(14))
'cacccaccacccac'
>>> turns.num_before("actor", 100), turns.num_before("critic", 100)
(29, 71)
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd


class Turns:
    """Order of turns. Numbers of turns count from 0."""

    def __init__(self, shares: Mapping[str, int]) -> None:
        """`shares`: the share of each consumer."""
        common = gcd(*shares.values())
        self._shares = {name: share // common for name, share in shares.items()}
        self._length = sum(self._shares.values())
        self._round = list[str]()
        """Whose turn it is in one round, after which the order repeats."""
        self._num_before: dict[str, list[int]] = {name: [] for name in shares}
        taken = dict.fromkeys(shares, 0)
        for number in range(self._length):
            for name, before in self._num_before.items():
                before.append(taken[name])
            behind = {name: share * (number + 1) - taken[name] * self._length for name, share in self._shares.items()}
            due = max(behind, key=behind.__getitem__)
            taken[due] += 1
            self._round.append(due)

    def of(self, number: int) -> str:
        """Return whose turn it is."""
        return self._round[number % self._length]

    def num_before(self, name: str, number: int) -> int:
        """Return how many of the turns before this one are those of a consumer."""
        rounds, rest = divmod(number, self._length)
        return rounds * self._shares[name] + self._num_before[name][rest]
