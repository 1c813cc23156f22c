"""A worker: a process that carries whole shards. It asks nobody between one ticket and the next.

It sleeps in the kernel while it has no ticket, and ends by itself when the main process is gone, however that ended.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from levada.flow.derive import ShardStage
from levada.flow.nodes import Node
from levada.flow.payload import Shard
from levada.flow.protocols import close
from levada.flow.state import Arrays
from levada.runners.processes.errors import pack_error
from levada.runners.processes.messages import (
    Begin,
    Free,
    Give,
    Made,
    MadeItem,
    Opened,
    Raised,
    Spent,
    Stop,
    ToWorker,
)
from levada.runners.processes.pool import Pool, Slot
from levada.runners.processes.ring import RingReader
from levada.runners.processes.wire import Wire
from levada.runners.saving import open_shard, renewed
from levada.runners.snapshots import SaveRule, Snapshots
from levada.runners.work import explain, perform, read_weights
from levada.schedule import Closed, Finished, Firing, ShardMachine, Start
from levada.schedule.shards import readers


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a worker has to know; it is pickled."""

    flow: str
    nodes: Mapping[str, Node]
    """Those of the shards, and those that read from them."""
    stages: tuple[ShardStage, ...]
    policies: Mapping[str, str]
    """Register -> policy."""
    num_threads: int
    """For linear algebra."""
    seed: int
    """Of the run."""
    save_rules: Mapping[str, SaveRule]
    """By source."""


def work(end: socket.socket, plan: Plan, shards: Sequence[tuple[Shard, Arrays | None]]) -> None:
    """The life of a worker."""
    _leave_signals_to_main()
    threading.Thread(target=_end_with, args=(end.fileno(),), daemon=True).start()
    with threadpool_limits(plan.num_threads), ExitStack() as closing:
        _Worker(Wire(end, ToWorker), plan, closing).run(shards)


def _leave_signals_to_main() -> None:
    """Ctrl-C, a closed terminal and a SIGTERM go to a whole group of processes: the main process will say what to do.

    What an environment forks, or executes, gets its own signals as usual.
    """
    process = os.getpid()

    def ignore(number: int, frame: FrameType | None) -> None:
        if os.getpid() != process:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, ignore)


def _end_with(descriptor: int) -> None:
    """End this process when the other side of a socket is gone. Until then this thread sleeps."""
    hangup = select.poll()
    hangup.register(descriptor, select.POLLHUP)
    hangup.poll()
    os._exit(1)


class _Shard:
    """A shard of this worker: its machine and its work."""

    def __init__(self, shard: Shard, machine: ShardMachine) -> None:
        self.shard = replace(shard, empty=self.empty)
        self.machine = machine
        self.work: Any = None
        self.snapshots = Snapshots(None)
        self.slot: Slot | None = None
        """What its present ticket is made in."""
        self.spent: list[Spent] = []

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> np.ndarray:
        """Memory to make an item in: that of the slot."""
        return np.empty(shape, dtype) if self.slot is None else self.slot.arena.empty(shape, dtype)


class _Worker:
    def __init__(self, wire: Wire, plan: Plan, closing: ExitStack) -> None:
        self._wire = wire
        self._plan = plan
        self._closing = closing
        self._pool = Pool()
        self._rings: dict[str, RingReader] = {}
        self._shards: dict[tuple[str, int], _Shard] = {}
        self._waiting: list[tuple[_Shard, Firing]] = []

    def run(self, shards: Sequence[tuple[Shard, Arrays | None]]) -> None:
        """Until `Stop`."""
        found = readers(self._plan.nodes)
        stages = {stage.source: stage for stage in self._plan.stages}
        for shard, _ in shards:
            machine = ShardMachine(self._plan.nodes, found, stages[shard.node], shard.index)
            self._shards[shard.node, shard.index] = _Shard(shard, machine)
        self._saved = {(shard.node, shard.index): state for shard, state in shards}
        self._closing.callback(self._close)
        while self._listen():
            while self._waiting:
                self._execute(*self._waiting.pop(self._most_urgent()))
                if self._wire.is_ready and not self._listen():
                    return

    def _listen(self) -> bool:
        """Take the messages that have come; sleeps until there are some. False: stop."""
        for message, descriptors in self._wire.receive():
            if isinstance(message, Give):
                for ticket, first in message.tickets:
                    shard = self._shards[ticket.source, ticket.shard]
                    self._follow(shard, shard.machine.deal(ticket, first=first))
            elif isinstance(message, Free):
                for number in message.slots:
                    self._pool.give_back(number)
            elif isinstance(message, Begin):
                for register, place in message.rings.items():
                    mine = [descriptors.pop(0) for _ in range(place.num_slots + 1)]
                    self._rings[register] = RingReader(place, mine)
                for shard in self._shards.values():
                    self._open(shard)
            else:
                assert isinstance(message, Stop)
                return False
        return True

    def _open(self, shard: _Shard) -> None:
        name, index = shard.shard.node, shard.shard.index
        saved = self._saved.pop((name, index), None)
        try:
            shard.work = open_shard(
                self._plan.nodes[name], shard.shard, saved, flow=self._plan.flow, seed=self._plan.seed
            )
        except (Exception, SystemExit) as error:
            self._wire.send(Raised(name, index, True, pack_error(error)))
            return
        shard.snapshots = Snapshots(shard.work)
        shard.snapshots.take()  # only to know whether it can be done
        self._wire.send(Opened(name, index, shard.snapshots.why_not))

    def _most_urgent(self) -> int:
        """What lies between nodes goes first, then the oldest ticket."""
        numbers = [-1 if firing.ticket is None else firing.ticket for _, firing in self._waiting]
        return numbers.index(min(numbers))

    def _execute(self, shard: _Shard, firing: Firing) -> None:
        node = self._plan.nodes[firing.node]
        if shard.slot is None:
            shard.slot = self._pool.take()
        weights: Any = None
        versions: dict[str, int] = {}
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        try:
            if node.kind == "source":
                weights, versions = read_weights(firing, self._plan.policies, self._find_weights)
            outputs = perform(node, shard.work if node.kind == "source" else node.work, firing, weights)
        except (Exception, SystemExit) as error:  # sys.exit in an environment is an error like any other
            explain(error, self._plan.flow, firing, versions)
            self._restart(shard, error)
            return
        shard.spent.append(
            Spent(firing.node, firing.number, start_s, time.perf_counter(), time.process_time() - start_cpu_s)
        )
        self._follow(shard, shard.machine.finished(Finished(firing, outputs, versions)))

    def _restart(self, shard: _Shard, error: BaseException) -> None:
        """Lose what the shard was working on, and begin anew with fresh work."""
        shard.machine.lost()
        if shard.slot is not None:
            self._pool.give_back(shard.slot.number)
            shard.slot = None
        try:
            close(shard.work)
        except Exception as closing:
            error.add_note(f"closing the work of the shard failed too: {closing!r}")
        self._wire.send(Raised(shard.shard.node, shard.shard.index, False, pack_error(error)))
        shard.shard = renewed(shard.shard, self._plan.seed)
        self._open(shard)

    def _follow(self, shard: _Shard, instructions: list[Start | Closed]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Start):
                self._waiting.append((shard, instruction.firing))
            else:
                self._send(shard, instruction)

    def _send(self, shard: _Shard, closed: Closed) -> None:
        slot, shard.slot = shard.slot, None
        assert slot is not None
        values = [item.value for items in closed.made.values() for item in items]
        worked_s = sum(spent.end_s - spent.start_s for spent in shard.spent)
        must = self._plan.save_rules[closed.ticket.source].must(closed.ticket.number)
        state = shard.snapshots.take_if_cheap(worked_s, must=must)
        packets, slot = self._pool.pack([*values, state], slot)
        left = iter(packets)
        items = {
            channel: tuple(MadeItem(next(left), item.headers) for item in made) for channel, made in closed.made.items()
        }
        spent, shard.spent = tuple(shard.spent), []
        segment_size = slot.arena.segment.size
        made = Made(
            closed.ticket, closed.header, items, slot.number, slot.segment_number, segment_size, spent,
            None if state is None else packets[-1],
        )  # fmt: skip
        self._wire.send(made, self._pool.introduce(slot))

    def _find_weights(self, register: str, version: int | None) -> tuple[int, Any]:
        return self._rings[register].read(version)

    def _close(self) -> None:
        with ExitStack() as closing:
            for shard in self._shards.values():
                closing.callback(close, shard.work)
