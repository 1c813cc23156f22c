"""The writer's end of a transport, and how it is timed: `serve` is the life of every program that is compared."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Client
from typing import Any, Final

from benchmarks._transport.payloads import Arrays, answer, checksum, make

_NUM_WARM: Final = 3
_LEAST: Final = 3
_MOST: Final = 2000


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What a program is asked to do."""

    transport: str
    """One of those that the program has."""
    payload: str
    seconds: float
    """For how long items are sent, apart from what is not timed; at least three are."""
    seed: int


class Writer(ABC):
    """The end of a transport that items are put into. At the other end is a process which answers each of them."""

    def begin(self, payload: str, arrays: Arrays) -> None:  # noqa: B027
        """Before the items of a turn. Who wants them elsewhere puts them there now."""

    def fresh(self, arrays: Arrays) -> Any:
        """An item as it is when its work is finished: the arrays of `begin`, with a new stamp. Not timed."""
        return arrays

    @abstractmethod
    def send(self, item: Any) -> Any:
        """What is timed: send an item, and sleep until its answer is here."""

    def answer(self, reply: Any) -> int:
        """The answer in what `send` returned. Not timed."""
        return int(reply)

    def end(self) -> None:  # noqa: B027
        """After the items of a turn."""

    def close(self) -> None:  # noqa: B027
        """End the other process."""


class Local(Writer):
    """Memory alone: no other process, so the answer is read here."""

    def answer(self, reply: Arrays) -> int:
        """From what has arrived."""
        return answer(reply)


def measure(writer: Writer, turn: Turn) -> list[float]:
    """Seconds of each item. The first and the last, which are not timed, are compared byte by byte."""
    arrays = make(turn.payload, turn.seed)
    number = 0

    def one(*, check: bool = False) -> float:
        nonlocal number
        number += 1
        arrays["stamp"][:] = number, check
        item = writer.fresh(arrays)
        began_s = time.perf_counter()
        reply = writer.send(item)
        took_s = time.perf_counter() - began_s
        if writer.answer(reply) != (checksum(arrays) if check else number):
            raise SystemExit(f"{turn.transport}: what arrived is not what was sent ({turn.payload}, item {number})")
        return took_s

    writer.begin(turn.payload, arrays)
    one(check=True)
    for _ in range(_NUM_WARM):
        one()
    seconds: list[float] = []
    while len(seconds) < _LEAST or (sum(seconds) < turn.seconds and len(seconds) < _MOST):
        seconds.append(one())
    one(check=True)
    writer.end()
    return seconds


def serve(writers: Mapping[str, Writer]) -> None:
    """Take turns until the benchmark, whose address is the first argument, hangs up."""
    with Client(sys.argv[1], "AF_UNIX") as benchmark:
        benchmark.send(list(writers))
        try:
            while True:
                turn = benchmark.recv()
                benchmark.send(measure(writers[turn.transport], turn))
        except (EOFError, ConnectionError):
            pass
        finally:
            for writer in writers.values():
                writer.close()
