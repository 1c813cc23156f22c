"""Executes shards, in any thread or process: tickets in, results out, with no communication between two tickets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from time import perf_counter, process_time
from typing import Any, Protocol

import numpy as np

from levada.flow.items import Serve, Shard, serve_here
from levada.flow.protocols import close
from levada.flow.state import Arrays
from levada.runners.firing import explain, leave_if_forked, perform, read_weights
from levada.runners.saving import ShardKey, open_shard, renewed
from levada.runners.snapshots import Snapshots
from levada.runners.transport import Plan, ShardFailed, ShardOpened, Spent, TicketDone
from levada.schedule import Closed, Finished, Firing, ShardMachine, Start, Ticket
from levada.schedule.shards import readers


class Room(Protocol):
    """Memory for the results of a ticket."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return an uninitialized array."""
        ...


class ShardHost:
    """A set of shards, executed one firing at a time."""

    def __init__(
        self,
        plan: Plan,
        shards: Sequence[tuple[Shard, Arrays | None]],
        find_weights: Callable[[str, int | None], tuple[int, Any]],
        newest: Callable[[str], int],
        take_room: Callable[[], Room] | None = None,
        cpu_clock: Callable[[], float] = process_time,
        serve: Serve = serve_here,
        num_threads: int = 1,
    ) -> None:
        """Prepare; nothing is opened yet.

        Args:
            plan: plan of the flow.
            shards: each shard with the state to resume from, if any.
            find_weights: returns the weights of a register, of a given version or the newest, and their version.
            newest: returns the newest version of a register.
            take_room: returns the memory for a ticket's items. None: ordinary memory.
            cpu_clock: clock in seconds that measures the processor time of a firing.
            serve: creates the models that samplers act with.
            num_threads: threads that the shards compute with.

        """
        self._plan = plan
        self._find_weights = find_weights
        self._take_room = take_room
        self._cpu_clock = cpu_clock
        found, stages = readers(plan.nodes), {stage.source: stage for stage in plan.stages}
        self._shards = {
            (shard.node, shard.index): _Shard(
                replace(shard, serve=serve, num_threads=num_threads),
                newest,
                state,
                ShardMachine(plan.nodes, found, plan.stores, stages[shard.node], shard.index),
            )
            for shard, state in shards
        }
        self._waiting: list[tuple[_Shard, Firing]] = []
        self._process = os.getpid()

    def open(self) -> Iterator[ShardOpened | ShardFailed]:
        """Open the shards, one after the other."""
        for shard in self._shards.values():
            yield self._open(shard)

    def give(self, ticket: Ticket, *, first: bool) -> None:
        """Accept a ticket for one of the shards."""
        shard = self._shards[ticket.source, ticket.shard]
        self._follow(shard, shard.machine.deal(ticket, first=first))

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self._waiting

    def step(self) -> Iterator[TicketDone | ShardFailed | ShardOpened]:
        """Execute the most urgent firing: items between nodes first, then the oldest ticket."""
        numbers = [-1 if firing.ticket is None else firing.ticket for _, firing in self._waiting]
        shard, firing = self._waiting.pop(numbers.index(min(numbers)))
        node = self._plan.nodes[firing.node]
        weights: Any = None
        versions: dict[str, int] = {}
        start_s, start_cpu_s = perf_counter(), self._cpu_clock()
        try:
            if shard.room is None and self._take_room is not None:
                shard.room = self._take_room()
            if node.kind == "source":
                weights, versions = read_weights(firing, self._plan.policies, self._find_weights)
                shard.reads = {read.register: versions[self._plan.policies[read.register]] for read in firing.reads}
            outputs = perform(node, shard.work if node.kind == "source" else node.work, firing, weights)
            leave_if_forked(self._process, None)
        except (Exception, SystemExit) as error:  # sys.exit in an environment is an error like any other
            leave_if_forked(self._process, error)
            explain(error, self._plan.flow, firing, versions)
            yield from self._begin_anew(shard, error)
            return
        shard.spent.append(Spent(firing.node, firing.number, start_s, perf_counter(), self._cpu_clock() - start_cpu_s))
        for closed in self._follow(shard, shard.machine.finished(Finished(firing, outputs, versions))):
            could_be_saved = not shard.snapshots.why_not
            yield self._done(shard, closed)
            if could_be_saved and shard.snapshots.why_not:
                known = shard.shard
                yield ShardOpened(known.node, known.index, shard.snapshots.why_not)

    def take_back_room(self, key: ShardKey) -> Room | None:
        """Detach and return the room used for a shard's last ticket, whether completed or failed."""
        shard = self._shards[key]
        room, shard.room = shard.room, None
        return room

    def close(self) -> None:
        """Close all work, even if some of it fails to close."""
        with ExitStack() as closing:
            for shard in self._shards.values():
                closing.callback(close, shard.work)

    # ---- internals

    def _open(self, shard: _Shard) -> ShardOpened | ShardFailed:
        name, index = shard.shard.node, shard.shard.index
        saved, shard.saved = shard.saved, None
        try:
            node = self._plan.nodes[name]
            shard.shard, shard.work, why_anew = open_shard(
                node, shard.shard, saved, flow=self._plan.flow, seed=self._plan.seed
            )
            shard.snapshots = Snapshots(shard.work)
            shard.snapshots.take()  # only to find out whether it is possible
            leave_if_forked(self._process, None)
        except (Exception, SystemExit) as error:
            leave_if_forked(self._process, error)
            return ShardFailed(name, index, True, error)
        return ShardOpened(name, index, shard.snapshots.why_not, why_anew)

    def _begin_anew(self, shard: _Shard, error: BaseException) -> Iterator[ShardFailed | ShardOpened]:
        """Discard what the shard was working on, and continue with newly opened work."""
        shard.machine.lost()
        shard.spent.clear()
        try:
            close(shard.work)
        except Exception as closing:
            error.add_note(f"closing the work of the shard failed too: {closing!r}")
        yield ShardFailed(shard.shard.node, shard.shard.index, False, error)
        shard.shard = renewed(shard.shard, self._plan.seed, shard.num_items)
        yield self._open(shard)

    def _follow(self, shard: _Shard, instructions: Iterable[Start | Closed]) -> list[Closed]:
        """Queue the firings that may start; return the finished tickets."""
        done = []
        for instruction in instructions:
            if isinstance(instruction, Start):
                self._waiting.append((shard, instruction.firing))
            else:
                done.append(instruction)
        return done

    def _done(self, shard: _Shard, closed: Closed) -> TicketDone | ShardFailed:
        spent, shard.spent = tuple(shard.spent), []
        shard.num_items += 1
        must = self._plan.save_rules[closed.ticket.source].must(closed.ticket.number)
        try:
            state = shard.snapshots.take_if_cheap(sum(firing.end_s - firing.start_s for firing in spent), must=must)
        except Exception as error:
            error.add_note(f"while saving the state of shard {closed.ticket.shard} of {closed.ticket.source!r}")
            return ShardFailed(closed.ticket.source, closed.ticket.shard, True, error)
        return TicketDone(closed, spent, state)


class _Shard:
    """One of the shards: its machine and its work."""

    def __init__(self, shard: Shard, newest: Callable[[str], int], saved: Arrays | None, machine: ShardMachine) -> None:
        self.shard = replace(shard, empty=self.empty, has_newer=self.has_newer)
        self.reads: Mapping[str, int] = {}
        """Versions read by its current firing, by register."""
        self._newest = newest
        self.saved = saved
        self.machine = machine
        self.work: Any = None
        self.snapshots = Snapshots(None)
        self.room: Room | None = None
        """Memory for the results of its current ticket."""
        self.spent: list[Spent] = []
        self.num_items = shard.num_items

    def has_newer(self) -> bool:
        """Whether a register has a newer version than the current firing has read."""
        return any(self._newest(register) > version for register, version in self.reads.items())

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Allocate memory for an item."""
        return np.empty(shape, dtype) if self.room is None else self.room.empty(shape, dtype)
