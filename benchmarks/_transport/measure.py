"""All turns, and what they give."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks._transport.payloads import LARGE, PAYLOADS, SMALL, WEIGHTS, num_bytes
from benchmarks._transport.programs import Program
from benchmarks._transport.turns import Turn
from benchmarks.compare.tables import Spread

IN_PLACE: Final = "levada, in place"
ONE_COPY: Final = "levada, one copy"
RING: Final = "levada, ring"
OURS: Final = (IN_PLACE, ONE_COPY, RING)
BYTE: Final = "one byte"
"""No transport: what it takes to wake two processes, whatever is sent."""
_NOT_FOR: Final = {SMALL: (RING,), LARGE: (RING, BYTE), WEIGHTS: (IN_PLACE, ONE_COPY, BYTE)}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is measured."""

    peers: tuple[str, ...]
    turns: int
    turn_s: float
    """Seconds for which each transport sends items of each payload, in each turn."""
    quick: bool


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One transport with one payload."""

    transport: str
    payload: str
    num_bytes: int
    seconds: list[list[float]]
    """Of each item, by turn."""

    @property
    def of_turns(self) -> list[float]:
        """Seconds: the median of each turn."""
        return [statistics.median(turn) for turn in self.seconds]

    @property
    def microseconds(self) -> Spread:
        """For an item."""
        return Spread.of(1e6 * seconds for seconds in self.of_turns)

    @property
    def gigabytes_per_s(self) -> float:
        """By the median."""
        return self.num_bytes / statistics.median(self.of_turns) / 1e9

    def times_faster_than(self, other: Cell) -> Spread:
        """The ratio in each turn."""
        return Spread.of(theirs / ours for ours, theirs in zip(self.of_turns, other.of_turns, strict=True))


Job = tuple[Program, Cell]


def jobs(programs: Sequence[Program]) -> list[Job]:
    """Every transport with every payload that it is for."""
    return [
        (program, Cell(transport=transport, payload=payload, num_bytes=num_bytes(payload), seconds=[]))
        for payload in PAYLOADS
        for program in programs
        for transport in program.transports
        if transport not in _NOT_FOR[payload]
    ]


def measure(jobs: Sequence[Job], plan: Plan, note: Callable[[str, int], None]) -> list[Cell]:
    """Take every turn, there and back: the last of one is the first of the next."""
    num_done = 0
    for number in range(plan.turns):
        for program, cell in reversed(jobs) if number % 2 else jobs:
            note(f"turn {number + 1} of {plan.turns}: {cell.payload}, {cell.transport}", num_done)
            turn = Turn(transport=cell.transport, payload=cell.payload, seconds=plan.turn_s, seed=number)
            cell.seconds.append(program.take(turn))
            num_done += 1
    return [cell for _, cell in jobs]
