"""The main process's view of a worker: the process, the wire to it, its slots, and pending messages.

The worker may send at any time, so this side only posts: it never blocks on a worker that does not read.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from multiprocessing import util
from typing import Any

import numpy as np

from levada.flow.items import Item, Shard
from levada.flow.state import Arrays
from levada.runners.processes.ipc.child import PATIENCE_S, Child
from levada.runners.processes.ipc.forwarded import Forwarded, Origin
from levada.runners.processes.ipc.packet import unpack
from levada.runners.processes.ipc.slots import Slots, take_all
from levada.runners.processes.ipc.weights_ring import Ring
from levada.runners.processes.ipc.wire import Wire
from levada.runners.processes.worker.messages import Begin, Free, FromWorker, Made, MadeItem, Stop, Submit
from levada.runners.processes.worker.server import work
from levada.runners.transport import Plan, TicketDone, WorkerEvent
from levada.schedule import Closed, Ticket


class WorkerProcess(Child):
    """A worker process."""

    def __init__(
        self,
        plan: Plan,
        num_threads: int,
        shards: Sequence[tuple[Shard, Arrays | None]],
        rings: Mapping[str, Ring],
        inference: socket.socket | None,
        forwarded: frozenset[str] = frozenset(),
    ) -> None:
        """Start the process.

        Args:
            plan: plan of the flow.
            num_threads: threads for linear algebra.
            shards: each shard with the state to resume from, if any.
            rings: the registers.
            inference: the worker's end of a socket to the inference server, closed here. None: inference runs in the
                worker.
            forwarded: replays whose tables are in other processes.
        """
        self.shards: tuple[Shard, ...] = tuple(shard for shard, _ in shards)
        here, there = socket.socketpair()
        self.wire: Wire = Wire(here, FromWorker)
        self._freed: list[int] = []
        self._slots = Slots(self._freed.append)
        self._forwarded = forwarded
        self._origin = Origin()
        self._tickets: list[tuple[Ticket, bool]] = []
        # otherwise this process would wait for the worker
        self._at_exit = util.Finalize(self, self.wire.close, exitpriority=1)
        with there, inference or nullcontext():  # not a daemon: environments may start their own processes
            args = (plan, num_threads, shards)
            super().__init__(work, (there, inference), args, name="worker", num_threads=num_threads)
        if not self.has_started:
            here.shutdown(socket.SHUT_RDWR)
        places = {register: ring.place for register, ring in rings.items()}
        with suppress(ConnectionError):  # it could not even start: its end will be noticed
            self.wire.post(Begin(places), [ring.share() for ring in rings.values()])

    def submit(self, tickets: Iterable[Ticket], *, first: bool = False) -> None:
        """Add tickets for the next `flush`."""
        self._tickets += [(ticket, first) for ticket in tickets]

    def forget_tickets(self) -> None:
        """Discard the tickets for the next `flush`."""
        self._tickets.clear()

    def flush(self) -> None:
        """Send everything pending.

        Raises:
            ConnectionError: the process is gone.
        """
        if self._freed:
            self.wire.post(Free(take_all(self._freed)))
        if self._tickets:
            tickets, self._tickets = tuple(self._tickets), []
            self.wire.post(Submit(tickets))

    def receive(self) -> list[WorkerEvent]:
        """Return the messages that have arrived; empty if only a part of one has.

        Raises:
            EOFError, ConnectionError: the process is gone, and there are no more messages.
        """
        events: list[WorkerEvent] = []
        message: FromWorker
        for message, descriptors in self.wire.take():
            for descriptor in descriptors:  # of the segment that a `Made` names for the first time
                assert isinstance(message, Made)
                if self._forwarded:
                    self._origin.add(message.segment, descriptor, message.segment_size)
                self._slots.add(message.segment, descriptor, message.segment_size)
            events.append(self._unpack(message) if isinstance(message, Made) else message)
        return events

    def _unpack(self, message: Made) -> TicketDone:
        anchor = self._slots.anchor(message.slot, message.segment)
        state: Arrays | None = None
        if message.state is not None:
            views = unpack(message.state, anchor.data)
            state = {name: np.array(array) for name, array in views.items()}  # it outlives the slot

        def value(item: MadeItem, channel: str) -> Any:
            if channel not in self._forwarded:
                return unpack(item.packet, anchor.data)
            return Forwarded(self._origin, message.slot, message.segment, item.packet, item.num_entries, anchor)

        made = {
            channel: [Item(value(item, channel), item.headers) for item in items]
            for channel, items in message.items.items()
        }
        return TicketDone(Closed(message.ticket, made, message.header), message.spent, state)

    def stop(self) -> None:
        """Request it to end."""
        with suppress(ConnectionError):
            self.wire.post(Stop())

    def end(self, patience_s: float = PATIENCE_S) -> None:
        """Wait until it has ended; kill it if that takes too long. Release what it had."""
        super().end(patience_s)
        self._slots.close()
        self._at_exit()  # closes the wire
