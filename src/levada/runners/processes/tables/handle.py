"""Replay tables in separate processes: starts the processes, communicates with them, and restarts them after a kill."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from levada.flow.protocols import Table
from levada.flow.state import Arrays
from levada.runners.processes.inference.messages import Exchange, Parcel
from levada.runners.processes.ipc.child import Child
from levada.runners.processes.ipc.forkserver import prepare
from levada.runners.processes.ipc.forwarded import Forwarded, Introductions
from levada.runners.processes.ipc.packet import NoRoomError, Packet, pack
from levada.runners.processes.ipc.shared_memory import Arena, Segment
from levada.runners.processes.ipc.wire import Wire
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
    Reprioritize,
    Stored,
    ToTable,
)
from levada.runners.processes.tables.server import keep
from levada.runners.tables import TableLostError, TableRecipe, replace_ended


class TableProcesses:
    """Runs each table in its own process."""

    def __init__(self, *, max_restarts: int, hang_timeout_s: float | None) -> None:
        """`max_restarts`: allowed consecutive failures of one process; `hang_timeout_s`: silence after which it is killed."""
        self._max_restarts = max_restarts
        self._hang_timeout_s = hang_timeout_s
        self._tables: list[RemoteTable] = []

    def open(self, recipes: Sequence[TableRecipe]) -> list[Table]:
        """Start the processes."""
        prepare()
        self._tables = [RemoteTable(recipe, self._hang_timeout_s) for recipe in recipes]
        return [*self._tables]

    def lost(self) -> Sequence[TableRecipe]:
        """Return the tables whose processes have ended; new processes replace them.

        Raises:
            WorkerError: one has ended too often without any draw from it.
        """
        return replace_ended(self._tables, self._max_restarts)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids, for observers."""
        return tuple(table.pid for table in self._tables if table.pid is not None)

    def close(self) -> None:
        """Stop the processes."""
        for table in self._tables:
            table.close()
        self._tables = []


class RemoteTable:
    """A table in a separate process. It receives messages, and the caller waits only for results."""

    def __init__(self, recipe: TableRecipe, hang_timeout_s: float | None) -> None:
        self.recipe = recipe
        self.num_failures: int = 0
        """Number of failures since the last draw."""
        self._hang_timeout_s = hang_timeout_s
        self._generation = 0
        self.start()

    def start(self) -> None:
        """Start the process, with an empty table."""
        self._generation += 1
        self.how_it_ended: str = ""
        """How the process ended, as text; empty while it runs."""
        self._exchange, self._shown = Exchange(), ShownMemory()
        self._introductions = Introductions()
        self._unstored: deque[Any] = deque()
        self._refused: BaseException | None = None
        here, there = socket.socketpair()
        self._wire = Wire(here, FromTable)
        with there:
            self._child = Child(keep, (there,), (self.recipe,), name="table", num_threads=1, daemon=True)
        if not self._child.has_started:
            self._end()

    @property
    def name(self) -> str:
        """What it is, for messages."""
        return f"the process of table {self.recipe.number} of replay {self.recipe.replay.name!r}"

    @property
    def recipes(self) -> tuple[TableRecipe]:
        """Its recipe."""
        return (self.recipe,)

    @property
    def pid(self) -> int | None:
        """Process id. None: it could not be started."""
        return self._child.pid

    def insert(self, item: Any) -> None:
        """Insert a copy of an item, from where a worker made it or from this process."""
        self._unstored.append(item)  # it must not change until it is stored
        if isinstance(item, Forwarded):
            place, descriptors = self._introductions.introduce(item)
            self._tell(Insert(place), descriptors)
        else:
            self._tell_of(Put, item)

    def sample(self, size: int, minibatch_size: int) -> tuple[Sequence[Any], Any]:
        """Draw entries, and wait for them.

        Raises:
            TableLostError: the process has ended.
        """
        self._tell_of(Draw, (size, minibatch_size))
        drawn, descriptors = self._answer(Drawn)
        batch, entries = self._exchange.unpack(drawn.parcel, descriptors)
        self.num_failures = 0
        return batch, (self._generation, entries)

    def reprioritize(self, entries: Any, priorities: Any) -> None:
        """Set new priorities of drawn entries, unless they are lost."""
        generation, drawn = entries
        if generation == self._generation and not self.how_it_ended:
            self._tell_of(Reprioritize, (drawn, np.asarray(priorities)))

    def state_dict(self) -> Arrays:
        """Return the contents, as views that later inserts modify.

        Raises:
            NotSavedError: the table cannot be saved.
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
        """Resume from the result of `state_dict`."""
        packet, segment = _pack_alone(state)
        self._tell(Load(packet, segment.size), [segment.duplicate()])
        with suppress(TableLostError):  # `lost` will report it
            self._answer(Loaded, may_take_long=True)

    def close(self) -> None:
        """Stop the process, and release its memory."""
        self._end()
        self._exchange, self._shown = Exchange(), ShownMemory()

    # ---- internals

    def _tell_of(self, kind: Callable[[Parcel], ToTable], value: Any) -> None:
        parcel, descriptors = self._exchange.pack(value)
        self._tell(kind(parcel), descriptors)

    def _tell(self, message: ToTable, descriptors: Sequence[int] = ()) -> None:
        """Send a message; the descriptors are closed here. If the process has ended, that is recorded for `lost`."""
        unsent = descriptors
        try:
            if self.how_it_ended:
                raise BrokenPipeError
            self._take(self._wire.take())
            if self._refused is None:
                if self._hang_timeout_s is not None and not self._wire.wait(self._hang_timeout_s, to_send=True):
                    self._end(self._silence)
                    raise BrokenPipeError
                if gone := self._introductions.take_gone():
                    self._wire.send(Forget(gone))
                unsent = ()  # the wire closes them, whatever happens
                self._wire.send(message, descriptors)
        except (EOFError, ConnectionError):
            self._end()
        finally:
            _close(unsent)
        self._raise()

    def _take(self, messages: Sequence[tuple[Any, list[int]]]) -> tuple[Any, list[int]] | None:
        """Record stored items and the first error; return any other message as the answer."""
        answer = None
        for message, descriptors in messages:
            to = "item" if isinstance(message, Stored) else message.to if isinstance(message, Refused) else "question"
            if isinstance(message, Refused):
                self._refused = self._refused or message.error
            if to == "item":
                self._unstored.popleft()
            elif to == "question":
                answer = message, descriptors
        return answer

    def _answer(self, kind: Any, *, may_take_long: bool = False) -> tuple[Any, list[int]]:
        """Wait for an answer. Earlier errors are raised only afterwards, so that no answer is left unread."""
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
        """Raise the first recorded error."""
        error, self._refused = self._refused, None
        if error is not None:
            raise error

    @property
    def _silence(self) -> str:
        return f"after {self._hang_timeout_s:g} s without a sign of life"

    def _end(self, why: str = "") -> None:
        """Record that the process has ended, or end it: it exits when its wire is closed."""
        if self.how_it_ended:
            return
        self.num_failures += 1
        with suppress(EOFError, ConnectionError):
            answer = self._take(self._wire.take())  # it may have sent the reason
            _close(answer[1] if answer is not None else ())  # its answer is not used
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
    """Pack a value into a separate segment."""
    size = 1 << 12
    while True:
        segment = Segment.create(size)
        try:
            return pack(value, Arena(segment)), segment
        except NoRoomError as error:
            size = error.needed
