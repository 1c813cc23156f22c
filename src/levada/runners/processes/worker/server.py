"""A worker: a process that runs whole shards, with no communication between one ticket and the next.

It sleeps in the kernel while it has no ticket, and exits when the main process is gone, however that ended.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, cast

from levada.flow.items import Shard, serve_here
from levada.flow.patience import listening, telling_of_hangs
from levada.flow.state import Arrays
from levada.flow.stopwatch import WAITING
from levada.runners.processes.inference.client import InferenceClient
from levada.runners.processes.ipc.slots import Pool, Slot
from levada.runners.processes.ipc.weights_ring import RingReader
from levada.runners.processes.ipc.wire import Wire
from levada.runners.processes.worker.messages import Begin, Free, Made, MadeItem, Stop, Submit, ToWorker
from levada.runners.shard_host import ShardHost
from levada.runners.transport import HostEvent, Plan, ShardFailed, TicketDone, WorkerBegan, WorkerBusy

log: logging.Logger = logging.getLogger(__name__)

OOM_SCORE = 500
"""OOM score, of 1,000: how readily the kernel kills a worker when memory runs out."""
GIVE_WAY = 10
"""Niceness of workers relative to the learner. All of them wait for the learner, so it runs first if there are fewer cores
than processes. With two workers on two cores, sampling as expensive as learning: a sixth more updates per second."""


def work(
    end: socket.socket,
    inference: socket.socket | None,
    plan: Plan,
    num_threads: int,
    shards: Sequence[tuple[Shard, Arrays | None]],
) -> None:
    """Run a worker. `inference`: socket to the inference server, if any; `num_threads`: threads that the shards compute with."""
    os.nice(GIVE_WAY)
    _end_before_main()
    wire = Wire(end, ToWorker)
    with listening(lambda what: wire.send(WorkerBusy(what))), telling_of_hangs(log.warning):
        _Worker(wire, inference, plan, num_threads, shards).run()


def _end_before_main() -> None:
    """Let the kernel kill a worker, which is replaced, rather than the main process when memory runs out."""
    score = Path("/proc/self/oom_score_adj")
    with suppress(OSError, ValueError):  # not Linux, or not permitted
        if int(score.read_text()) < OOM_SCORE:
            score.write_text(str(OOM_SCORE))


class _Worker:
    """Shards behind a wire; their results are in slots."""

    def __init__(
        self,
        wire: Wire,
        inference: socket.socket | None,
        plan: Plan,
        num_threads: int,
        shards: Sequence[tuple[Shard, Arrays | None]],
    ) -> None:
        self._wire = wire
        self._inference = None if inference is None else InferenceClient(inference)
        serve = serve_here if self._inference is None else self._inference.serve
        self._pool = Pool()
        self._rings: dict[str, RingReader] = {}
        self._host = ShardHost(
            plan, shards, self._find_weights, lambda register: self._rings[register].newest, self._pool.take,
            serve=serve, num_threads=num_threads,
        )  # fmt: skip

    def run(self) -> None:
        """Run until `Stop`."""
        with closing(self._host):
            while self._listen():
                while not self._host.is_idle:
                    for event in self._host.step():
                        self._send(event)
                    if self._wire.is_ready and not self._listen():
                        return

    def _listen(self) -> bool:
        """Handle the messages that have arrived; sleeps until there is one. Return False to stop."""
        before = self._host.stopwatch.begin(WAITING)
        try:
            messages = self._wire.receive()
        except (EOFError, ConnectionError):  # the run is gone
            return False
        finally:
            self._host.stopwatch.begin(before)
        for message, descriptors in messages:
            match message:
                case Submit(tickets):
                    for ticket, first in tickets:
                        self._host.submit(ticket, first=first)
                case Free(slots):
                    for number in slots:
                        self._pool.give_back(number)
                case Begin(rings):
                    for register, place in rings.items():
                        self._rings[register] = RingReader(place, descriptors.pop(0))
                    self._wire.send(WorkerBegan())
                    for event in self._host.open():
                        self._send(event)
                case Stop():
                    return False
        return True

    def _send(self, event: HostEvent) -> None:
        if isinstance(event, TicketDone):
            ticket = event.closed.ticket
            try:
                made, descriptors = self._pack(event)
            except Exception as error:  # pickling calls methods of every object, which may raise anything
                error.add_note(
                    f"while sending what shard {ticket.shard} of {ticket.source!r} has made to another process"
                )
                self._wire.send(ShardFailed(ticket.source, ticket.shard, True, error))
            else:
                self._wire.send(made, descriptors)
            return
        if isinstance(event, ShardFailed):
            slot = cast("Slot | None", self._host.take_back_arena((event.source, event.shard)))
            if slot is not None:
                self._pool.give_back(slot.number)
        self._wire.send(event)

    def _pack(self, done: TicketDone) -> tuple[Made, list[int]]:
        closed = done.closed
        slot = cast("Slot", self._host.take_back_arena((closed.ticket.source, closed.ticket.shard)))
        values = [item.value for items in closed.made.values() for item in items]
        packets, slot = self._pool.pack([*values, done.state], slot)
        left = iter(packets)
        items = {
            channel: tuple(MadeItem(next(left), item.headers, getattr(item.value, "num_entries", 1)) for item in made)
            for channel, made in closed.made.items()
        }
        made = Made(
            closed.ticket, closed.header, items, slot.number, slot.segment_number, slot.arena.segment.size, done.spent,
            None if done.state is None else packets[-1],
        )  # fmt: skip
        return made, self._pool.introduce(slot)

    def _find_weights(self, register: str, version: int | None) -> tuple[int, Any]:
        found = self._rings[register].read(version)
        if self._inference is not None:
            self._inference.known[register] = found
        return found
