"""levada's transport, and the limits, memcpy and a byte: `python -m benchmarks._transport.ours ADDRESS`.

Rollouts go from a worker to the main process, so the reader here does what the latter does: it looks at the arrays
where they are, and sends the slot back when they are gone. Weights go through a ring. The messages are those of a run;
only the way back carries the answer too.
"""

from __future__ import annotations

import multiprocessing
import socket
from typing import Any, Final

import numpy as np
from msgspec import Struct

from benchmarks._transport.payloads import Arrays, answer, in_one_buffer
from benchmarks._transport.turns import Local, Writer, serve
from levada.flow.items import Header
from levada.runners.processes.ipc.slots import Pool, Slot, Slots
from levada.runners.processes.ipc.weights_ring import Ring, RingReader
from levada.runners.processes.ipc.wire import Wire
from levada.runners.processes.worker.messages import Begin, Made, MadeItem
from levada.runners.transport import Spent
from levada.schedule import Ticket

_TICKET: Final = Ticket("rollout", 0, 1, {"policy": 1})
_HEADER: Final = Header({"policy": 1}, "rollout", 0, 1, 1024, ())
_SPENT: Final = (Spent("rollout", 1, 0.25, 0.5, 0.25),)
_NUM_VERSIONS: Final = 2


class Published(Struct, frozen=True, tag=True):
    """A version can be read."""

    version: int


class Back(Struct, frozen=True, tag=True):
    """These slots are free, and the answer."""

    slots: tuple[int, ...]
    answer: int


def read(end: socket.socket) -> None:
    """The life of the reader."""
    wire = Wire(end, Made | Begin | Published)
    freed: list[int] = []
    slots = Slots(freed.append)
    ring: RingReader | None = None
    while True:
        try:
            messages = wire.receive()
        except EOFError:
            return
        for message, descriptors in messages:
            if isinstance(message, Begin):
                ring = RingReader(message.rings["policy"], *descriptors)
                continue
            if isinstance(message, Made):
                for descriptor in descriptors:
                    slots.add(message.segment, descriptor, message.segment_size)
                packets = [item.packet for items in message.items.values() for item in items]
                value = answer(*slots.unpack(message.slot, message.segment, packets))
            else:
                assert ring is not None
                value = answer(ring.read(message.version)[1])
            wire.send(Back(tuple(freed), value))
            freed.clear()


class Levada(Writer):
    """One reader process, and the wire to it."""

    def __init__(self) -> None:
        here, there = socket.socketpair()
        self._wire = Wire(here, Back)
        self._pool = Pool()
        self._process = multiprocessing.get_context("spawn").Process(target=read, args=(there,), daemon=True)
        with there:
            self._process.start()

    @property
    def pid(self) -> int | None:
        """Process id of the reader."""
        return self._process.pid

    def close(self) -> None:
        """The reader ends when the wire does."""
        self._wire.close()
        self._process.join()

    def _send(self, slot: Slot, arrays: Arrays) -> int:
        packets, slot = self._pool.pack([arrays], slot)
        items = {"rollouts": tuple(MadeItem(packet, (_HEADER,), 1) for packet in packets)}
        size = slot.arena.segment.size
        made = Made(_TICKET, _HEADER, items, slot.number, slot.segment_number, size, _SPENT, None)
        self._wire.send(made, self._pool.introduce(slot))
        return self._answer()

    def _answer(self) -> int:
        ((message, _),) = self._wire.receive()
        for number in message.slots:
            self._pool.give_back(number)
        return int(message.answer)


class OneCopy(Levada):
    """The arrays are in ordinary memory: `pack` copies them into the slot, where the reader looks at them."""

    def send(self, item: Arrays) -> int:
        """Take a slot, pack, send."""
        return self._send(self._pool.take(), item)


class InPlace(Levada):
    """The arrays were made in the slot: nothing is copied."""

    def begin(self, payload: str, arrays: Arrays) -> None:
        """Do the work in a slot, which comes back for the first item."""
        slot, item = self._take(arrays)
        for name, array in arrays.items():
            item[name][:] = array
        self._filled = slot.number
        self._pool.give_back(slot.number)

    def fresh(self, arrays: Arrays) -> tuple[Slot, Arrays]:
        """Make the arrays anew; they lie where they lay before."""
        slot, item = self._take(arrays)
        assert slot.number == self._filled
        item["stamp"][:] = arrays["stamp"]
        return slot, item

    def _take(self, arrays: Arrays) -> tuple[Slot, Arrays]:
        slot = self._pool.take()
        return slot, {name: slot.arena.empty(array.shape, array.dtype) for name, array in arrays.items()}

    def send(self, item: tuple[Slot, Arrays]) -> int:
        """Pack, send."""
        return self._send(*item)


class Publish(Levada):
    """Weights: the writer copies them into the ring, the reader out of it."""

    def __init__(self) -> None:
        super().__init__()
        self._ring: Ring | None = None
        self._version = 0

    def fresh(self, arrays: Arrays) -> Arrays:
        """The ring is made for the first weights, as in a run."""
        if self._ring is None:
            self._ring = Ring(_NUM_VERSIONS, arrays)
            self._wire.send(Begin({"policy": self._ring.place}), [self._ring.share()])
        return arrays

    def send(self, item: Arrays) -> int:
        """Write, and say so."""
        assert self._ring is not None
        self._version += 1
        self._ring.write(self._version, item)
        self._wire.send(Published(self._version))
        return self._answer()


class Byte(Writer):
    """One byte over a socket there and one back: what it takes to wake a process, and to be woken by it."""

    def __init__(self) -> None:
        self._here, there = socket.socketpair()
        self._process = multiprocessing.get_context("spawn").Process(target=echo, args=(there,), daemon=True)
        with there:
            self._process.start()

    def close(self) -> None:
        """The reader ends when the socket does."""
        self._here.close()
        self._process.join()

    def send(self, item: Arrays) -> Arrays:
        """A byte."""
        self._here.send(b"x")
        self._here.recv(1)
        return item

    def answer(self, reply: Arrays) -> int:
        """Nothing was sent."""
        return answer(reply)


def echo(end: socket.socket) -> None:
    """The life of its other side."""
    while data := end.recv(1):
        end.send(data)


class Memcpy(Local):
    """From one warm buffer into another, in this process."""

    def begin(self, payload: str, arrays: Arrays) -> None:
        """Make the buffers, and fill the first."""
        self._source, self._sent = in_one_buffer(payload)
        self._target, self._arrived = in_one_buffer(payload)
        for name, array in arrays.items():
            self._sent[name][:] = array

    def fresh(self, arrays: Arrays) -> None:
        """Only the stamp is new."""
        self._sent["stamp"][:] = arrays["stamp"]

    def send(self, item: Any) -> Arrays:
        """Copy it into the second."""
        np.copyto(self._target, self._source)
        return self._arrived


if __name__ == "__main__":
    serve(
        {
            "memcpy": Memcpy(), "one byte": Byte(), "levada, in place": InPlace(), "levada, one copy": OneCopy(),
            "levada, ring": Publish(),
        }
    )  # fmt: skip
