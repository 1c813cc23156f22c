"""Inference elsewhere: samplers ask, one server answers for all of them, in a process or in a thread.

What a shard has served (`Shard.serve`) is made by the server, once for each version of the weights that is in use. A call's
arrays, and those of its answer, are in shared memory; what is sent says where. Where a flow's result does not depend on
timing, each call is computed as it came, so that the result is the same bits as in the sampler: a batch of other rows would
round differently. Elsewhere, calls that wait for the same weights are computed together.
"""

from __future__ import annotations

import os
import pickle
import selectors
import socket
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn, TypeAlias

import numpy as np
from msgspec import Struct

from levada.flow.errors import LevadaInternalError
from levada.runners.processes.errors import pack_error, unpack_error
from levada.runners.processes.packet import Packet
from levada.runners.processes.pool import Pool, Slots
from levada.runners.processes.ring import RingPlace, RingReader
from levada.runners.processes.wire import Wire

GONE = 4
"""Exit code of a worker whose inference is gone: what it was working on cannot be finished."""
SPARE_VERSIONS = 2
"""Models that are kept loaded beyond the versions of the ring: samplers without a bound may ask for older ones."""


class Parcel(Struct, frozen=True):
    """A value in shared memory. The descriptor of the segment comes with it the first time."""

    slot: int
    segment: int
    segment_size: int
    packet: Packet
    free: tuple[int, ...]
    """Slots of the other side that nobody looks at any more."""


class Exchange:
    """One side of a connection on which values go both ways."""

    def __init__(self) -> None:
        self._pool = Pool()
        self._freed: list[int] = []
        self._slots = Slots(self._freed.append)

    def pack(self, value: Any) -> tuple[Parcel, list[int]]:
        """Put a value into a slot; the message about it, and descriptors that go with that."""
        [packet], slot = self._pool.pack([value], self._pool.take())
        freed = tuple(self._freed)
        self._freed.clear()
        parcel = Parcel(slot.number, slot.segment_number, slot.arena.segment.size, packet, freed)
        return parcel, self._pool.introduce(slot)

    def unpack(self, parcel: Parcel, descriptors: Sequence[int]) -> Any:
        """The value; its arrays are views."""
        for number in parcel.free:
            self._pool.give_back(number)
        for descriptor in descriptors:
            self._slots.add(parcel.segment, descriptor, parcel.segment_size)
        [value] = self._slots.unpack(parcel.slot, parcel.segment, [parcel.packet])
        return value


# ---- messages


class Model(Struct, frozen=True, tag=True):
    """What calls with this number are for."""

    number: int
    factory: bytes
    """Pickled; two that are equal are one."""


class Call(Struct, frozen=True, tag=True):
    """A call of a method, with these weights; the parcel holds its arguments, and the weights, if they had to come along."""

    model: int
    method: str
    register: str
    version: int
    parcel: Parcel


class Answer(Struct, frozen=True, tag=True):
    """What a call gave."""

    parcel: Parcel


class Missing(Struct, frozen=True, tag=True):
    """The weights of a call are not to be had any more: send them along. The parcel is empty."""

    parcel: Parcel


class Refused(Struct, frozen=True, tag=True):
    """The error that a call raised, pickled with its traceback. The parcel is empty."""

    error: bytes
    parcel: Parcel


class Rings(Struct, frozen=True, tag=True):
    """The registers; their descriptors come with it."""

    rings: Mapping[str, RingPlace]


class Connect(Struct, frozen=True, tag=True):
    """Another sampler; its socket comes with it."""


class End(Struct, frozen=True, tag=True):
    """No more calls will come."""


ToServer: TypeAlias = Model | Call
FromServer: TypeAlias = Answer | Missing | Refused
ToControl: TypeAlias = Rings | Connect | End


# ---- the side of the samplers


class InferenceClient:
    """Asks the server; for one worker."""

    def __init__(self, end: socket.socket) -> None:
        self._wire = Wire(end, FromServer)
        self._exchange = Exchange()
        self._num_models = 0
        self.known: dict[str, tuple[int, Any]] = {}
        """Register -> the weights that a sampler was given last, and their version."""

    def serve(self, factory: Callable[[], Any]) -> Any:
        """What stands for the object that `factory` makes at the server."""
        self._num_models += 1
        try:
            self._wire.send(Model(self._num_models, pickle.dumps(factory)))
        except ConnectionError:
            _end()
        return _Remote(self, self._num_models)

    def call(self, model: int, method: str, register: str, args: tuple[Any, ...]) -> Any:
        """Call a method with the weights that were given last."""
        version, weights = self.known[register]
        answer, found = self._ask(model, method, register, version, (args, None))
        if isinstance(answer, Missing):
            answer, found = self._ask(model, method, register, version, (args, weights))
        if isinstance(answer, Refused):
            raise unpack_error(answer.error)
        return found

    def _ask(self, model: int, method: str, register: str, version: int, value: Any) -> tuple[FromServer, Any]:
        parcel, descriptors = self._exchange.pack(value)
        try:
            self._wire.send(Call(model, method, register, version, parcel), descriptors)
            [(answer, received)] = self._wire.receive()
        except (EOFError, ConnectionError):
            _end()
        return answer, self._exchange.unpack(answer.parcel, received)


def _end() -> NoReturn:
    os._exit(GONE)


class _Remote:
    """Stands for an object at the server."""

    def __init__(self, client: InferenceClient, model: int) -> None:
        self._client = client
        self._model = model
        self._register = ""

    def load(self, weights: Any) -> None:
        """The next calls are to use these weights."""
        for register, (_, known) in self._client.known.items():
            if known is weights:
                self._register = register
                return
        msg = "a served model was given other weights than those that its source was called with"
        raise LevadaInternalError(msg)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return partial(self._call, method)

    def _call(self, method: str, *args: Any) -> Any:
        return self._client.call(self._model, method, self._register, args)


# ---- the server


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
        """Prepare.

        Args:
            control: on which the run says who connects, and when it is over.
            is_batched: whether calls that wait at the same time are computed together.

        """
        self._control = Wire(control, ToControl)
        self._is_batched = is_batched
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._control, selectors.EVENT_READ, None)
        self._rings: dict[str, RingReader] = {}
        self._num_versions = 1
        self._loaded: defaultdict[bytes, OrderedDict[tuple[str, int], Any]] = defaultdict(OrderedDict)

    def run(self) -> None:
        """Until the control says that it is over, or is gone."""
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
                    mine = [descriptors.pop(0) for _ in range(place.num_slots + 1)]
                    self._rings[register] = RingReader(place, mine)
                    self._num_versions = max(self._num_versions, place.num_slots)
            elif isinstance(message, Connect):
                connection = _Connection(Wire(socket.socket(fileno=descriptors[0]), ToServer))
                self._selector.register(connection.wire, selectors.EVENT_READ, connection)
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
        """Calls that are computed together."""
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
                    _send(one.connection, Missing, None)
                return
            call = getattr(model, first.call.method)
            if len(group) == 1:
                _send(first.connection, Answer, call(*first.args))
                return
            found = call(*_concatenate([one.args for one in group]))
        except Exception as error:
            packed = pack_error(error)
            for one in group:
                _send(one.connection, partial(Refused, packed), None)
            return
        start = 0
        for one in group:
            end = start + _num_rows(one.args)
            _send(one.connection, Answer, _rows(found, start, end))
            start = end

    def _model(self, factory: bytes, register: str, version: int, weights: Any) -> Any:
        """The model with these weights; None: they are not to be had."""
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


def _send(connection: _Connection, kind: Callable[[Parcel], FromServer], value: Any) -> None:
    parcel, descriptors = connection.exchange.pack(value)
    try:
        connection.wire.send(kind(parcel), descriptors)
    except ConnectionError:  # a sampler has ended meanwhile: the selector will say so
        return


def _concatenate(nests: Sequence[Any]) -> Any:
    """One behind the other."""
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
