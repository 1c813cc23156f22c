"""The server: one loop over the calls of all samplers."""

from __future__ import annotations

import pickle
import selectors
import socket
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from levada.runners.processes.inference.messages import (
    Answer,
    Call,
    Connect,
    Exchange,
    FromServer,
    Missing,
    Model,
    Ping,
    Pong,
    Refused,
    Rings,
    ToControl,
    ToServer,
)
from levada.runners.processes.ipc.weights_ring import RingReader
from levada.runners.processes.ipc.wire import Wire

SPARE_VERSIONS = 2
"""Number of models kept loaded beyond the versions of the ring: samplers with unbounded lag may request older ones."""


@dataclass
class _Connection:
    wire: Wire
    exchange: Exchange = field(default_factory=Exchange)
    factories: dict[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class _Asked:
    """A call that waits for its answer."""

    connection: _Connection
    factory: bytes
    call: Call
    args: tuple[Any, ...]
    weights: Any


class InferenceServer:
    """Answers the calls of all samplers. It sleeps while there are none."""

    def __init__(self, control: socket.socket, *, is_batched: bool) -> None:
        """`control` announces connections and the end; `is_batched`: calls that wait at the same time are computed together."""
        self._control = Wire(control, ToControl)
        self._is_batched = is_batched
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._control, selectors.EVENT_READ, None)
        self._rings: dict[str, RingReader] = {}
        self._num_versions = 1
        self._loaded: defaultdict[bytes, OrderedDict[tuple[str, int], Any]] = defaultdict(OrderedDict)

    def run(self) -> None:
        """Serve until the control socket sends `End`, or is closed."""
        try:
            while True:
                asked: list[_Asked] = []
                for key, _ in self._selector.select():
                    if key.data is not None:
                        asked += self._receive(key.data)
                    elif not self._obey():
                        return
                for group in self._groups(asked):
                    self._answer(group)
        finally:
            for key in list(self._selector.get_map().values()):
                key.fileobj.close()  # type: ignore[union-attr]
            self._selector.close()

    def _obey(self) -> bool:
        try:
            messages = self._control.receive()
        except (EOFError, ConnectionError):
            return False
        for message, descriptors in messages:
            if isinstance(message, Rings):
                for register, place in message.rings.items():
                    self._rings[register] = RingReader(place, descriptors.pop(0))
                    self._num_versions = max(self._num_versions, place.num_slots)
            elif isinstance(message, Connect):
                connection = _Connection(Wire(socket.socket(fileno=descriptors[0]), ToServer))
                self._selector.register(connection.wire, selectors.EVENT_READ, connection)
            elif isinstance(message, Ping):
                self._control.send(Pong())
            else:
                return False
        return True

    def _receive(self, connection: _Connection) -> list[_Asked]:
        try:
            messages = connection.wire.receive()
        except (EOFError, ConnectionError):  # a sampler has ended
            self._selector.unregister(connection.wire)
            connection.wire.close()
            return []
        asked = []
        for message, descriptors in messages:
            if isinstance(message, Model):
                connection.factories[message.number] = message.factory
            else:
                args, weights = connection.exchange.unpack(message.parcel, descriptors)
                asked.append(_Asked(connection, connection.factories[message.model], message, args, weights))
        return asked

    def _groups(self, asked: Sequence[_Asked]) -> list[list[_Asked]]:
        """Group calls that are computed together."""
        if not self._is_batched:
            return [[one] for one in asked]
        groups: defaultdict[tuple[Any, ...], list[_Asked]] = defaultdict(list)
        for one in asked:
            groups[one.factory, one.call.method, one.call.register, one.call.version].append(one)
        return list(groups.values())

    def _answer(self, group: Sequence[_Asked]) -> None:
        first = group[0]
        weights = next((one.weights for one in group if one.weights is not None), None)
        try:
            model = self._model(first.factory, first.call.register, first.call.version, weights)
            if model is None:
                for one in group:
                    _send(one.connection, Missing())
                return
            call = getattr(model, first.call.method)
            if len(group) == 1:
                answers = [call(*first.args)]
            else:
                found = call(*_concatenate([one.args for one in group]))
                ends = list(accumulate(_num_rows(one.args) for one in group))
                answers = [_rows(found, start, end) for start, end in pairwise([0, *ends])]
            parcels = [one.connection.exchange.pack(answer) for one, answer in zip(group, answers, strict=True)]
        except Exception as error:  # of the model, which is the user's code; the samplers raise it
            for one in group:
                _send(one.connection, Refused(error))
            return
        for one, (parcel, descriptors) in zip(group, parcels, strict=True):
            _send(one.connection, Answer(parcel), descriptors)

    def _model(self, factory: bytes, register: str, version: int, weights: Any) -> Any:
        """Return the model with these weights. None: the weights are not available."""
        loaded = self._loaded[factory]
        if (register, version) not in loaded:
            if weights is None:
                weights = self._rings[register].copy(version)
                if weights is None:
                    return None
            is_full = len(loaded) >= self._num_versions + SPARE_VERSIONS
            model = loaded.popitem(last=False)[1] if is_full else pickle.loads(factory)()
            model.load(weights)
            loaded[register, version] = model
        loaded.move_to_end((register, version))
        return loaded[register, version]


def _send(connection: _Connection, message: FromServer, descriptors: Sequence[int] = ()) -> None:
    with suppress(ConnectionError):  # a sampler has ended meanwhile: the selector will report it
        connection.wire.send(message, descriptors)


def _concatenate(nests: Sequence[Any]) -> Any:
    """Concatenate nested arrays."""
    first = nests[0]
    if isinstance(first, dict):
        return {key: _concatenate([nest[key] for nest in nests]) for key in first}
    if isinstance(first, tuple):
        return tuple(_concatenate([nest[i] for nest in nests]) for i in range(len(first)))
    return np.concatenate(nests)


def _rows(nest: Any, start: int, end: int) -> Any:
    if isinstance(nest, dict):
        return {key: _rows(child, start, end) for key, child in nest.items()}
    if isinstance(nest, tuple):
        return tuple(_rows(child, start, end) for child in nest)
    return None if nest is None else nest[start:end]


def _num_rows(nest: Any) -> int:
    while not isinstance(nest, np.ndarray):
        nest = next(iter(nest.values() if isinstance(nest, dict) else nest))
    return len(nest)
