"""Where the tables of a run are if each has a process of its own: started, spoken to, and started again when one was killed."""

from __future__ import annotations

import logging
import os
import socket
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from levada.flow.protocols import Table
from levada.flow.state import Arrays
from levada.runners.hub_run import WorkerError
from levada.runners.processes.child import Child
from levada.runners.processes.errors import unpack_error
from levada.runners.processes.forkserver import prepare
from levada.runners.processes.inference.messages import Exchange
from levada.runners.processes.memory import Arena, Segment
from levada.runners.processes.packet import NoRoomError, Packet, pack
from levada.runners.processes.pool import take_all
from levada.runners.processes.tables.forwarded import Forwarded
from levada.runners.processes.tables.memory import ShownMemory
from levada.runners.processes.tables.messages import (
    Draw,
    Drawn,
    Forget,
    FromTable,
    Held,
    Hold,
    Insert,
    Load,
    Loaded,
    Put,
    Refused,
    Reprioritise,
    Stored,
    ToTable,
)
from levada.runners.processes.tables.process import keep
from levada.runners.processes.wire import Wire
from levada.runners.tables import TableLostError, TableRecipe

log = logging.getLogger(__name__)


class TableProcesses:
    """A process for each table."""

    def __init__(self, *, max_restarts: int, hang_timeout_s: float | None) -> None:
        """`max_restarts`: how often in a row one may end; `hang_timeout_s`: after how long a silent one is killed."""
        self._max_restarts = max_restarts
        self._hang_timeout_s = hang_timeout_s
        self._tables: list[RemoteTable] = []

    def open(self, recipes: Sequence[TableRecipe]) -> list[Table]:
        """Start them."""
        prepare()
        self._tables = [RemoteTable(recipe, self._hang_timeout_s) for recipe in recipes]
        return [*self._tables]

    def lost(self) -> Sequence[TableRecipe]:
        """Those that have ended; others take their places.

        Raises:
            WorkerError: one has ended too often without anything being drawn from it.

        """
        lost = [table for table in self._tables if table.how_it_ended]
        for table in lost:
            who = f"the process of table {table.recipe.number} of replay {table.recipe.replay.name!r}"
            if table.num_failures > self._max_restarts:
                msg = f"{who} ended {table.num_failures} times in a row, now {table.how_it_ended}"
                raise WorkerError(msg)
            log.warning("%s ended %s; what it held is lost, and it is filled anew", who, table.how_it_ended)
            table.start()
        return [table.recipe for table in lost]

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes, for those who watch them."""
        return tuple(table.pid for table in self._tables if table.pid is not None)

    def close(self) -> None:
        """End them."""
        for table in self._tables:
            table.close()
        self._tables = []


class RemoteTable:
    """A table in a process of its own. It is told what to do, and waited for only where it has something to give."""

    def __init__(self, recipe: TableRecipe, hang_timeout_s: float | None) -> None:
        self.recipe = recipe
        self.num_failures = 0
        """How often it has ended since anything was drawn from it."""
        self._hang_timeout_s = hang_timeout_s
        self._generation = 0
        self._watched: set[int] = set()
        self._gone: list[int] = []
        self.start()

    def start(self) -> None:
        """Start the process, empty."""
        self._generation += 1
        self.how_it_ended = ""
        """In words, once it has."""
        self._exchange, self._shown = Exchange(), ShownMemory()
        self._known: set[tuple[int, int]] = set()
        self._unstored: deque[Any] = deque()
        self._refused: BaseException | None = None
        here, there = socket.socketpair()
        self._wire = Wire(here, FromTable)
        with there:
            self._child = Child(keep, (there,), (self.recipe,), name="table", daemon=True)
        if not self._child.has_started:
            self._end()

    @property
    def pid(self) -> int | None:
        """The number of the process; None: it could not be started."""
        return self._child.pid

    def insert(self, item: Any) -> None:
        """Copy an item in: from where a worker has made it, or from here."""
        self._unstored.append(item)  # it must not change until it is stored
        if isinstance(item, Forwarded):
            origin, segment = item.origin, item.segment
            descriptors = []
            if (origin.number, segment) not in self._known:
                self._known.add((origin.number, segment))
                descriptors = [origin.share(segment)]
                if origin.number not in self._watched:
                    self._watched.add(origin.number)
                    weakref.finalize(origin, self._gone.append, origin.number).atexit = False
            message = Insert(origin.number, item.slot, segment, origin.size_of(segment), item.packet)
            self._tell(message, descriptors)
        else:
            parcel, descriptors = self._exchange.pack(item)
            self._tell(Put(parcel), descriptors)

    def sample(self, size: int, minibatch_size: int) -> tuple[Sequence[Any], Any]:
        """Draw entries; waits for them.

        Raises:
            TableLostError: the process has ended.

        """
        parcel, descriptors = self._exchange.pack((size, minibatch_size))
        self._tell(Draw(parcel), descriptors)
        drawn, descriptors = self._answer(Drawn)
        batch, entries = self._exchange.unpack(drawn.parcel, descriptors)
        self.num_failures = 0
        return batch, (self._generation, entries)

    def reprioritise(self, entries: Any, priorities: Any) -> None:
        """New priorities of what was drawn, unless all of that is lost."""
        generation, drawn = entries
        if generation == self._generation and not self.how_it_ended:
            parcel, descriptors = self._exchange.pack((drawn, np.asarray(priorities)))
            self._tell(Reprioritise(parcel), descriptors)

    def state_dict(self) -> Arrays:
        """What it holds: views, which later inserts change.

        Raises:
            NotSavedError: it cannot be saved.
            TableLostError: the process has ended.

        """
        self._tell(Hold())
        held, descriptors = self._answer(Held)
        num_of_parcel = len(descriptors) - len({where.segment for where in held.arrays.values()} - self._shown.known)
        others = self._exchange.unpack(held.parcel, descriptors[:num_of_parcel])
        del descriptors[:num_of_parcel]
        arrays: dict[str, np.ndarray] = {name: np.array(array) for name, array in others.items()}
        for name, where in held.arrays.items():
            self._shown.add(where, descriptors)
            arrays[name] = self._shown.array(where)
        return arrays

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from what `state_dict` gave."""
        packet, segment = _pack_alone(state)
        self._tell(Load(packet, segment.size), [segment.duplicate()])
        with suppress(TableLostError):  # `lost` will say so
            self._answer(Loaded, may_take_long=True)

    def close(self) -> None:
        """End the process, and forget its memory."""
        self._end()
        self._exchange, self._shown = Exchange(), ShownMemory()

    # ---- inside

    def _tell(self, message: ToTable, descriptors: Sequence[int] = ()) -> None:
        """Send a message; if the process has ended, that is noted, and `lost` will say so. The descriptors are closed here."""
        unsent = descriptors
        try:
            if self.how_it_ended:
                raise BrokenPipeError
            self._take(self._wire.take())
            if self._refused is None:
                if self._hang_timeout_s is not None and not self._wire.wait(self._hang_timeout_s, to_send=True):
                    self._end(self._silence)
                    raise BrokenPipeError
                if self._gone:
                    self._forget()
                unsent = ()  # the wire closes them, whatever happens
                self._wire.send(message, descriptors)
        except (EOFError, ConnectionError):
            self._end()
        finally:
            _close(unsent)
        self._raise()

    def _forget(self) -> None:
        """Workers are gone, and so is all that they made."""
        gone = take_all(self._gone)
        self._watched -= {*gone}
        known = {number for number, _ in self._known}
        self._known = {(number, segment) for number, segment in self._known if number not in gone}
        self._wire.send(Forget(tuple(number for number in gone if number in known)))

    def _take(self, messages: Sequence[tuple[Any, list[int]]]) -> tuple[Any, list[int]] | None:
        """Note what is stored, and what was refused first; what else there is, is the answer."""
        answer = None
        for message, descriptors in messages:
            to = "item" if isinstance(message, Stored) else message.to if isinstance(message, Refused) else "question"
            if isinstance(message, Refused):
                self._refused = self._refused or unpack_error(message.error)
            if to == "item":
                self._unstored.popleft()
            elif to == "question":
                answer = message, descriptors
        return answer

    def _answer(self, kind: Any, *, may_take_long: bool = False) -> tuple[Any, list[int]]:
        """Wait for an answer. What was refused before is raised only then, so that no answer is left."""
        answer = None
        try:
            while answer is None and not self.how_it_ended:
                limit_s = None if may_take_long else self._hang_timeout_s
                if limit_s is not None and not self._wire.wait(limit_s):
                    self._end(self._silence)
                else:
                    answer = self._take(self._wire.receive())
        except (EOFError, ConnectionError):
            self._end()
        self._raise()
        if answer is None:
            raise TableLostError.of(self.recipe)
        assert isinstance(answer[0], kind), answer[0]
        return answer

    def _raise(self) -> None:
        """Raise what was refused first."""
        error, self._refused = self._refused, None
        if error is not None:
            raise error

    @property
    def _silence(self) -> str:
        return f"after {self._hang_timeout_s:g} s without a sign of life"

    def _end(self, why: str = "") -> None:
        """The process has ended, or does so now: it does when nobody is at the other end of its wire."""
        if self.how_it_ended:
            return
        self.num_failures += 1
        with suppress(EOFError, ConnectionError):
            answer = self._take(self._wire.take())  # it may have said why
            _close(answer[1] if answer is not None else ())  # and nobody looks at what it gave
        with suppress(ConnectionError):
            self._wire.close()
        if why:
            self._child.kill(why)
        self._child.end()
        self.how_it_ended = self._child.how_it_ended
        self._unstored.clear()


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _pack_alone(value: Any) -> tuple[Packet, Segment]:
    """A value in a segment of its own."""
    size = 1 << 12
    while True:
        segment = Segment.create(size)
        try:
            return pack(value, Arena(segment)), segment
        except NoRoomError as error:
            size = error.needed
