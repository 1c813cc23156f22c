"""Executes shards, in any thread or process: tickets in, results out, with no communication between two tickets."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from heapq import heapify, heappop, heappush
from time import perf_counter, process_time
from typing import Any, Final, Protocol

import numpy as np

from levada.flow.items import Item, Serve, Shard, serve_here
from levada.flow.mistakes import is_mistake
from levada.flow.protocols import close
from levada.flow.state import Arrays
from levada.flow.stopwatch import TRANSPORT, Stopwatch
from levada.runners.firing import explain, is_of_debugger, leave_if_forked, perform, read_weights
from levada.runners.saving import ShardKey, open_shard, renewed
from levada.runners.snapshots import Snapshots
from levada.runners.transport import HostEvent, Plan, ShardFailed, ShardOpened, Spent, TicketDone, WorkerTimes
from levada.schedule import Closed, Finished, Firing, ShardMachine, Start, Ticket
from levada.schedule.shards import readers

TIMES_EVERY_S: Final = 0.1
"""Least time between two reports of what the time of a worker went into."""


class Arena(Protocol):
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
        take_arena: Callable[[], Arena] | None = None,
        cpu_clock: Callable[[], float] = process_time,
        serve: Serve = serve_here,
        num_threads: int = 1,
        *,
        saves_on_request: bool = False,
        saves_before_next: bool = False,
        stopwatch: Stopwatch | None = None,
    ) -> None:
        """Prepare; nothing is opened yet.

        Args:
            plan: plan of the flow.
            shards: each shard with the state to resume from, if any.
            find_weights: returns the weights of a register, of a given version or the newest, and their version.
            newest: returns the newest version of a register.
            take_arena: returns the memory for a ticket's items. None: ordinary memory.
            cpu_clock: clock in seconds that measures the processor time of a firing.
            serve: creates the models that samplers act with.
            num_threads: threads that the shards compute with.
            saves_on_request: whether the caller can wait for the states of shards that do not run ahead of the learner, and
                asks for them with `state`. Otherwise they come with the tickets.
            saves_before_next: the same of shards that run ahead, if the caller asks for states with `state_before` as well.
            stopwatch: stopwatch of the thread in which the shards are executed, if that also does other things. None: a new one,
                whose times are reported with the tickets.
        """
        self._plan = plan
        self._find_weights = find_weights
        self._take_arena = take_arena
        self._cpu_clock = cpu_clock
        self._saves_on_request = saves_on_request
        self._saves_before_next = saves_before_next
        self.stopwatch: Stopwatch = Stopwatch(TRANSPORT) if stopwatch is None else stopwatch
        """What the time of the thread goes into."""
        self._next_times_s = math.inf if stopwatch is not None else 0.0
        found, stages = readers(plan.nodes), {stage.source: stage for stage in plan.stages}
        self._shards = {
            (shard.node, shard.index): _Shard(
                replace(shard, serve=serve, num_threads=num_threads, stopwatch=self.stopwatch),
                [(register, plan.policies[register]) for _, register in plan.nodes[shard.node].reads],
                newest,
                state,
                ShardMachine(plan.nodes, found, plan.stores, stages[shard.node], shard.index),
            )
            for shard, state in shards
        }
        self._waiting: list[tuple[int, int, _Shard, Firing]] = []  # a heap: items between nodes, then the oldest ticket
        self._num_started = 0
        self._process = os.getpid()

    def open(self) -> Iterator[HostEvent]:
        """Open the shards, one after the other."""
        for shard in self._shards.values():
            yield self._open(shard)
        if self._next_times_s < math.inf:
            self.stopwatch.restart()

    def submit(self, ticket: Ticket, *, first: bool) -> None:
        """Accept a ticket for one of the shards."""
        shard = self._shards[ticket.source, ticket.shard]
        for instruction in shard.machine.accept(ticket, first=first):
            assert isinstance(instruction, Start)
            self._start(shard, instruction.firing)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self._waiting

    @property
    def waiting(self) -> list[Firing]:
        """The firings that may be executed, the most urgent first."""
        return [firing for *_, firing in sorted(self._waiting, key=lambda entry: entry[:2])]

    @property
    def most_urgent(self) -> Firing | None:
        """The firing that `step` executes. None: there is nothing to do."""
        return self._waiting[0][-1] if self._waiting else None

    def step(self, chosen: Firing | None = None) -> Iterable[HostEvent]:
        """Execute a firing, and return what came of it. None: the most urgent one."""
        entry = self._waiting[0]
        if chosen is not None and chosen is not entry[-1]:
            entry = next(entry for entry in self._waiting if entry[-1] is chosen)
        *_, shard, firing = entry
        node = self._plan.nodes[firing.node]
        weights: Any = None
        versions: dict[str, int] = {}
        start_s, start_cpu_s = perf_counter(), self._cpu_clock()
        if firing.ticket is not None:  # that weights cannot be had is no failure of the shard
            weights, versions = read_weights(firing, self._plan.policies, self._find_weights)
            shard.last_ticket, shard.versions = firing.ticket, versions
        before = self.stopwatch.begin((firing.node, ""))
        try:
            if shard.arena is None and self._take_arena is not None:
                shard.arena = self._take_arena()
            outputs = perform(node, shard.work if node.kind == "source" else node.work, firing, weights)
            leave_if_forked(self._process, None)
        except (Exception, SystemExit) as error:  # sys.exit in an environment is an error like any other
            leave_if_forked(self._process, error)
            explain(error, self._plan.flow, firing, versions)
            if is_of_debugger(error):
                raise
            self._remove(entry)
            return self._restart(shard, error)
        except BaseException as error:
            leave_if_forked(self._process, error)
            explain(error, self._plan.flow, firing, versions)
            raise  # the firing is still waiting: the next step tries it again
        finally:
            self.stopwatch.begin(before)
        self._remove(entry)
        shard.spent.append(Spent(firing.node, firing.number, start_s, perf_counter(), self._cpu_clock() - start_cpu_s))
        events: list[HostEvent] = []
        for instruction in shard.machine.finished(Finished(firing, outputs, versions)):
            if isinstance(instruction, Start):
                self._start(shard, instruction.firing)
                continue
            could_be_saved = not shard.snapshots.why_not
            events.append(self._done(shard, instruction))
            if could_be_saved and shard.snapshots.why_not:
                known = shard.shard
                events.append(ShardOpened(known.node, known.index, shard.snapshots.why_not))
        if events and (now_s := perf_counter()) >= self._next_times_s:
            self._next_times_s = now_s + TIMES_EVERY_S
            events.append(WorkerTimes(sum(shard.num_done for shard in self._shards.values()), self.stopwatch.read()))
        return events

    def last_ticket(self, key: ShardKey) -> int:
        """Return the last ticket that a shard began with its current work; -1: none."""
        return self._shards[key].last_ticket

    def state(self, key: ShardKey) -> Arrays | None:
        """Return the current state of a shard's work. None: it cannot be saved."""
        return self._shards[key].snapshots.take()

    def state_before(self, firing: Firing) -> tuple[int, Arrays] | None:
        """Return the last ticket that a shard has done, and the state after it, if `firing` begins its next ticket. None: it does
        not, or the state was returned before, or takes too long, or cannot be saved.
        """
        if firing.ticket is None or firing.shard is None:
            return None
        shard = self._shards[firing.node, firing.shard]
        if (unsaved := shard.unsaved) is None:
            return None
        shard.unsaved = None
        number, worked_s = unsaved
        state = self._state_after(shard, firing.node, number, worked_s)
        return None if state is None else (number, state)

    def why_not_saved(self, key: ShardKey) -> str:
        """Return why a shard has no state that can be saved; empty if it has."""
        return self._shards[key].snapshots.why_not

    def work_of(self, source: str) -> list[Any]:
        """Return the live work of the shards of a source."""
        return [shard.work for (name, _), shard in self._shards.items() if name == source]

    def held(self, node: str) -> list[Item]:
        """Return the items that wait at a node of the shards."""
        waiting = [item for firing in self.waiting if firing.node == node for item in firing.inputs]
        return waiting + [item for shard in self._shards.values() for item in shard.machine.held(node)]

    def take_back_arena(self, key: ShardKey) -> Arena | None:
        """Detach and return the memory used for a shard's last ticket, whether completed or failed."""
        shard = self._shards[key]
        arena, shard.arena = shard.arena, None
        return arena

    def close(self) -> None:
        """Close all work, even if some of it fails to close."""
        with ExitStack() as closing:
            for shard in self._shards.values():
                closing.callback(close, shard.work)
            self._shards = {}

    # ---- internals

    def _open(self, shard: _Shard) -> ShardOpened | ShardFailed:
        name, index = shard.shard.node, shard.shard.index
        saved, shard.saved = shard.saved, None
        try:
            node = self._plan.nodes[name]
            shard.shard, shard.work, why_from_scratch = open_shard(
                node, shard.shard, saved, flow=self._plan.flow, seed=self._plan.seed
            )
            shard.snapshots = Snapshots(shard.work)
            shard.snapshots.take()  # only to find out whether it is possible
            leave_if_forked(self._process, None)
        except (Exception, SystemExit) as error:
            leave_if_forked(self._process, error)
            return ShardFailed(name, index, True, error)
        return ShardOpened(name, index, shard.snapshots.why_not, why_from_scratch)

    def _restart(self, shard: _Shard, error: BaseException) -> Iterator[ShardFailed | ShardOpened]:
        """Discard what the shard was working on, and continue with newly opened work."""
        shard.machine.lost()
        shard.spent.clear()
        shard.last_ticket, shard.unsaved = -1, None
        try:
            close(shard.work)
        except Exception as closing:
            error.add_note(f"closing the work of the shard failed too: {closing!r}")
        shard.work = None
        yield ShardFailed(shard.shard.node, shard.shard.index, False, error, is_mistake(error))
        shard.shard = renewed(shard.shard, self._plan.seed, shard.num_items)
        yield self._open(shard)

    def _start(self, shard: _Shard, firing: Firing) -> None:
        self._num_started += 1
        urgency = -1 if firing.ticket is None else firing.ticket
        heappush(self._waiting, (urgency, self._num_started, shard, firing))

    def _remove(self, entry: tuple[int, int, _Shard, Firing]) -> None:
        if self._waiting[0] is entry:
            heappop(self._waiting)
        else:
            self._waiting.remove(entry)
            heapify(self._waiting)

    def _done(self, shard: _Shard, closed: Closed) -> TicketDone | ShardFailed:
        spent, shard.spent = tuple(shard.spent), []
        shard.num_items += 1
        shard.num_done += 1
        rule = self._plan.save_rules[closed.ticket.source]
        if self._saves_on_request and not rule.runs_ahead:
            return TicketDone(closed, spent, None)
        worked_s = sum(firing.end_s - firing.start_s for firing in spent)
        if self._saves_before_next:
            shard.unsaved = closed.ticket.number, worked_s
            return TicketDone(closed, spent, None)
        try:
            state = self._state_after(shard, closed.ticket.source, closed.ticket.number, worked_s)
        except Exception as error:
            return ShardFailed(closed.ticket.source, closed.ticket.shard, True, error)
        return TicketDone(closed, spent, state)

    def _state_after(self, shard: _Shard, source: str, ticket: int, worked_s: float) -> Arrays | None:
        try:
            return shard.snapshots.take_if_cheap(worked_s, must=self._plan.save_rules[source].must(ticket))
        except Exception as error:
            error.add_note(f"while saving the state of shard {shard.shard.index} of {source!r}")
            raise


class _Shard:
    """One of the shards: its machine and its work."""

    def __init__(
        self,
        shard: Shard,
        registers: Sequence[tuple[str, str]],
        newest: Callable[[str], int],
        saved: Arrays | None,
        machine: ShardMachine,
    ) -> None:
        """`registers`: those that it reads, each with its policy."""
        self.shard = replace(shard, empty=self.empty, has_newer=self.has_newer)
        self.versions: Mapping[str, int] = {}
        """Versions read by its current firing, by policy."""
        self._registers = registers
        self._newest = newest
        self.saved = saved
        self.machine = machine
        self.work: Any = None
        self.snapshots = Snapshots(None)
        self.arena: Arena | None = None
        """Memory for the results of its current ticket."""
        self.spent: list[Spent] = []
        self.num_items = shard.num_items
        self.num_done = 0
        """Number of tickets that it has finished here."""
        self.last_ticket = -1
        """The last ticket that it began with its current work; -1: none."""
        self.unsaved: tuple[int, float] | None = None
        """The last ticket that it has done, and the time that it worked on it, until its state is asked for."""

    def has_newer(self) -> bool:
        """Whether a register has a newer version than the current firing has read."""
        return any(self._newest(register) > self.versions[policy] for register, policy in self._registers)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Allocate memory for an item."""
        return np.empty(shape, dtype) if self.arena is None else self.arena.empty(shape, dtype)
