"""Main function of a process that holds a table: it handles messages in order, and sleeps in between."""

from __future__ import annotations

import socket
from typing import Any, Literal, TypeAlias

import numpy as np

from levada.flow.errors import NotSavedError
from levada.flow.protocols import Stateful
from levada.runners.processes.inference.messages import Exchange
from levada.runners.processes.ipc.forwarded import Places
from levada.runners.processes.ipc.packet import unpack
from levada.runners.processes.ipc.shared_memory import Segment
from levada.runners.processes.ipc.wire import Wire
from levada.runners.processes.tables.memory import TableMemory
from levada.runners.processes.tables.messages import (
    Draw,
    Drawn,
    Forget,
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
from levada.runners.tables import TableRecipe


def keep(end: socket.socket, recipe: TableRecipe) -> None:
    """Serve a table until the run is gone."""
    wire = Wire(end, ToTable)
    try:
        server = _TableServer(wire, recipe)
    except Exception as error:
        error.add_note(f"while opening table {recipe.number} of the replay {recipe.replay.name!r}")
        wire.send(Refused("other", error))
        return
    server.run()


_Kind: TypeAlias = Literal["item", "question", "other"]
_DOING: tuple[tuple[Any, tuple[_Kind, str]], ...] = (
    ((Insert, Put), ("item", "inserting an item into")),
    (Draw, ("question", "drawing from")),
    (Hold, ("question", "saving")),
    (Reprioritize, ("other", "giving new priorities to samples of")),
)
_ELSE: tuple[_Kind, str] = ("other", "restoring")


class _TableServer:
    """A table behind a wire."""

    def __init__(self, wire: Wire, recipe: TableRecipe) -> None:
        self._wire = wire
        self._memory = TableMemory()
        self._table = recipe.open(self._memory.zeros)
        self._name = recipe.replay.name
        self._exchange = Exchange()
        self._places = Places()

    def run(self) -> None:
        while True:
            try:
                messages = self._wire.receive()
            except (EOFError, ConnectionError):  # the run is gone
                return
            for message, descriptors in messages:
                try:
                    self._obey(message, descriptors)
                except ConnectionError:
                    return
                except Exception as error:
                    kind, doing = next((what for types, what in _DOING if isinstance(message, types)), _ELSE)
                    error.add_note(f"while {doing} the replay {self._name!r}")
                    self._wire.send(Refused(kind, error))

    def _obey(self, message: ToTable, descriptors: list[int]) -> None:
        if isinstance(message, Insert):
            self._places.add(message.place, descriptors)
            self._store(self._places.value(message.place))
        elif isinstance(message, Put):
            self._store(self._exchange.unpack(message.parcel, descriptors))
        elif isinstance(message, Draw):
            batch, entries = self._table.sample(*self._exchange.unpack(message.parcel, descriptors))
            parcel, new = self._exchange.pack((batch, entries))
            self._wire.send(Drawn(parcel), new)
        elif isinstance(message, Reprioritize):
            entries, priorities = self._exchange.unpack(message.parcel, descriptors)
            self._table.reprioritize(entries, priorities)
        elif isinstance(message, Hold):
            self._hold()
        elif isinstance(message, Load):
            segment = Segment.open(descriptors[0], message.size)
            assert isinstance(self._table, Stateful)
            self._table.load_state_dict(unpack(message.packet, memoryview(segment.memory)))
            self._wire.send(Loaded())
        else:
            assert isinstance(message, Forget)
            self._places.forget(message.workers)

    def _store(self, item: Any) -> None:
        self._table.insert(item)
        self._wire.send(Stored())

    def _hold(self) -> None:
        if not isinstance(self._table, Stateful):
            msg = f"{type(self._table).__name__} has no state_dict"
            raise NotSavedError(msg)
        arrays, others = {}, {}
        for name, array in self._table.state_dict().items():
            where = self._memory.where(np.asarray(array))
            if where is None:
                others[name] = array
            else:
                arrays[name] = where
        parcel, descriptors = self._exchange.pack(others)
        for where in arrays.values():
            descriptors += self._memory.introduce(where.segment)
        self._wire.send(Held(arrays, parcel), descriptors)
