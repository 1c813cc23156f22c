"""A flow on several processes: the thin shell around the hub. Shards live in workers; this process learns and deals tickets.

Nothing here is on the way of the data: a worker writes its item into shared memory, and who consumes it looks at it there.
"""

from __future__ import annotations

import logging
import selectors
import warnings
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from time import perf_counter, process_time
from typing import Any, Self

from levada.flow.derive import Topology, derive
from levada.flow.errors import FlowWarning, LevadaError
from levada.flow.graph import Flow
from levada.flow.nodes import Node
from levada.flow.payload import Item, Shard, derive_seed
from levada.flow.protocols import close
from levada.flow.state import Arrays, RunState
from levada.flow.watch import Failed, Instrument, Report, Reported, Statistics
from levada.runners.accounts import Accounts
from levada.runners.processes.errors import unpack_error
from levada.runners.processes.messages import FromWorker, Made, Opened
from levada.runners.processes.process import WorkerProcess
from levada.runners.processes.ring import Ring
from levada.runners.processes.worker import Plan
from levada.runners.saving import (
    ShardKey,
    collect,
    first_history,
    plan_shards,
    renewed,
    restore_hub,
    restore_learner,
    restored_weights,
    save_rule,
)
from levada.runners.snapshots import History
from levada.runners.work import explain, perform, refuse_replays
from levada.schedule import Closed, Deal, Finished, Firing, Forget, Hub, HubInstruction, Publish, Start, Tell
from levada.schedule.shards import readers

log = logging.getLogger(__name__)


class WorkerError(LevadaError, RuntimeError):
    """A worker ended, more often than is allowed."""


class ProcessesRun:
    """A flow that is executed by several processes; made by `Processes().open(flow)`, closed at the end of a `with` block."""

    def __init__(
        self,
        flow: Flow,
        *,
        seed: int,
        instruments: Sequence[Instrument],
        state: RunState | None,
        save_every: int | None,
        num_workers: int,
        num_threads: int,
        max_restarts: int,
        hang_timeout_s: float | None,
    ) -> None:
        for problem in flow.check(crosses_processes=True, reports=True):
            warnings.warn(str(problem), FlowWarning, stacklevel=3)
        refuse_replays(flow)
        self.flow = flow
        found, topology = readers(flow.nodes), derive(flow)
        self._hub = Hub(flow, topology, found)
        self._accounts = Accounts(flow, self._hub, instruments)
        self._plan = Plan(
            flow=flow.name, nodes=_of_shards(flow, topology), stages=topology.shard_stages, num_threads=num_threads,
            policies={name: register.policy for name, register in flow.registers.items()}, seed=seed,
            save_rules={stage.source: save_rule(self._hub, stage.source, save_every) for stage in topology.shard_stages},
        )  # fmt: skip
        self._max_restarts = max_restarts
        self._hang_timeout_s = hang_timeout_s
        self._num_failures: Counter[tuple[str, int]] = Counter()
        self._waiting: deque[Firing] = deque()
        self._reports: deque[Report] = deque()
        self._learners: dict[str, Any] = {}
        self._rings: dict[str, Ring] = {}
        self._weights: dict[str, dict[int, Any]] = {}
        self._shards: dict[ShardKey, _Shard] = {}
        self._selector = selectors.DefaultSelector()
        self._workers: list[WorkerProcess] = []
        self._carrier: dict[tuple[str, int], WorkerProcess] = {}
        try:
            self._open(seed, num_workers, state)
        except BaseException:
            self.close()
            raise
        self._accounts.begin()
        self._follow(self._hub.begin())

    # ---- running

    def __iter__(self) -> Iterator[Report]:
        while True:
            while self._reports:
                yield self._reports.popleft()
            self._send_all()
            if self._waiting:
                self._execute(self._waiting[0])
            else:
                self._listen()

    def statistics(self) -> Statistics:
        """The run at this moment, as plain data."""
        self._accounts.note_blocked(perf_counter())
        return self._accounts.statistics()

    def node_state(self, node: str) -> Any:
        """The live learner of a learn node; shards live elsewhere."""
        if node not in self._learners:
            msg = f"the state of node {node!r} is not in this process; here are: {', '.join(self._learners)}"
            raise ValueError(msg)
        return self._learners[node]

    def save(self) -> RunState:
        """What the run can go on from, if it is between two updates, as it is when it yields a report."""
        cut = self._hub.cut(self._waiting)
        return collect(
            self.flow, cut, learners=self._learners, weights=self._weights,
            histories={key: shard.history for key, shard in self._shards.items()},
            generations={key: shard.shard.generation for key, shard in self._shards.items()},
            why_not=lambda key: self._shards[key].why_not,
        )  # fmt: skip

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """The process numbers of the workers, for those who watch processes."""
        return tuple(worker.pid for worker in self._workers)

    def close(self) -> None:
        """End the workers, all of them, and close what this process has opened."""
        with ExitStack() as closing:
            closing.callback(self._selector.close)
            for learner in self._learners.values():
                closing.callback(close, learner)
            for worker in self._workers:
                closing.callback(worker.join)
            for worker in self._workers:
                worker.stop()
            self._workers, self._learners, self._rings = [], {}, {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- inside

    def _open(self, seed: int, num_workers: int, state: RunState | None) -> None:
        WorkerProcess.prepare()
        cut = None if state is None else restore_hub(self._hub, state)
        for name, recipe in self.flow.learners().items():
            learner = self._learners[name] = recipe.open(derive_seed(seed, name))
            restore_learner(learner, name, state)
            for register in self.flow.registers.values():
                if register.policy == recipe.policy_name:
                    weights = restored_weights(cut, register.name, state, learner.weights())
                    self._open_register(register.name, weights)
        shards = plan_shards(self.flow, seed, state)
        for shard, saved in shards:
            history = first_history(self._hub, shard, cut, saved)
            self._shards[shard.node, shard.index] = _Shard(shard, history)
        for number in range(num_workers):
            self._start_worker(shards[number::num_workers])
        while any(worker.unopened for worker in self._workers):
            self._listen()

    def _open_register(self, name: str, weights: dict[int, Any]) -> None:
        """Write the versions that there are, oldest first."""
        (oldest, first), *newer = weights.items()
        ring = self._rings[name] = Ring(self._hub.registers[name].keep, first, oldest)
        for version, value in newer:
            ring.write(version, value)
        self._weights[name] = weights

    def _start_worker(self, shards: Sequence[tuple[Shard, Arrays | None]]) -> WorkerProcess:
        worker = WorkerProcess(self._plan, shards, self._rings)
        self._workers.append(worker)
        self._selector.register(worker.wire, selectors.EVENT_READ, worker)
        for shard in worker.shards:
            self._carrier[shard.node, shard.index] = worker
        return worker

    def _listen(self) -> None:
        """Take what workers have to say; sleeps until one has, or has been silent for too long."""
        said = self._selector.select(self._patience_s())
        if not said:
            self._kill_the_silent()
        for key, _ in said:
            worker: WorkerProcess = key.data
            worker.heard_s = perf_counter()
            try:
                messages = worker.receive()
            except (EOFError, ConnectionError):
                self._replace(worker)
                continue
            for message in messages:
                self._take(worker, message)

    def _patience_s(self) -> float | None:
        """How long to wait for the worker that has been silent the longest; None: as long as it takes."""
        if self._hang_timeout_s is None:
            return None
        owing = [worker.heard_s for worker in self._workers if self._owes(worker)]
        return max(0.0, min(owing) + self._hang_timeout_s - perf_counter()) if owing else None

    def _owes(self, worker: WorkerProcess) -> bool:
        return bool(worker.unopened) or any(self._hub.tickets(shard.node, shard.index) for shard in worker.shards)

    def _kill_the_silent(self) -> None:
        assert self._hang_timeout_s is not None
        limit_s = perf_counter() - self._hang_timeout_s
        for worker in self._workers:
            if self._owes(worker) and worker.heard_s <= limit_s:
                worker.kill(f"after {self._hang_timeout_s:g} s without a sign of life")

    def _take(self, worker: WorkerProcess, message: FromWorker) -> None:
        if isinstance(message, Made):
            self._num_failures.pop((message.ticket.source, message.ticket.shard), None)
            for spent in message.spent:
                self._accounts.fired(
                    spent.node, message.ticket.shard, spent.number, spent.start_s, spent.end_s, spent.cpu_s
                )
            found, state = worker.unpack(message)
            values = iter(found)
            self._shards[message.ticket.source, message.ticket.shard].did(message.ticket.number, state)
            made = {
                channel: [Item(next(values), item.headers) for item in items]
                for channel, items in message.items.items()
            }
            del found, values  # they would keep the last slot in use
            self._follow(self._hub.closed(Closed(message.ticket, made, message.header)))
        elif isinstance(message, Opened):
            worker.unopened.discard((message.source, message.shard))
            self._shards[message.source, message.shard].why_not = message.why_not_saved
        else:
            error = unpack_error(message.error)
            if message.opening or self._has_failed_too_often(message.source, message.shard):
                raise error
            self._shards[message.source, message.shard].renew(self._plan.seed)  # as the worker did
            self._tell_failure([(message.source, message.shard)], f"{type(error).__name__}: {error}")
            self._follow(self._hub.lost(message.source, message.shard))

    def _has_failed_too_often(self, source: str, shard: int) -> bool:
        self._num_failures[source, shard] += 1
        return self._num_failures[source, shard] > self._max_restarts

    def _tell_failure(self, shards: Sequence[ShardKey], why: str) -> None:
        names = ", ".join(f"{source} {index}" for source, index in shards)
        count = max(self._num_failures[key] for key in shards)
        log.warning("%s: %s; it is made again (failure %d of %d in a row)", names, why, count, self._max_restarts)
        for source, index in shards:
            self._accounts.show(Failed(source, index, why))

    def _replace(self, dead: WorkerProcess) -> None:
        """A worker has ended: a new one gets its shards, and their tickets; what they were working on is lost."""
        self._selector.unregister(dead.wire)
        self._workers.remove(dead)
        dead.join()
        failed = [self._has_failed_too_often(shard.node, shard.index) for shard in dead.shards]
        if any(failed):
            names = ", ".join(f"{shard.node} {shard.index}" for shard in dead.shards)
            msg = f"the worker of the shards {names} ended {self._max_restarts + 1} times in a row, now {dead.how_it_ended}"
            raise WorkerError(msg)
        self._tell_failure(
            [(shard.node, shard.index) for shard in dead.shards], f"the worker ended {dead.how_it_ended}"
        )
        fresh = self._start_worker([self._going_on(shard) for shard in dead.shards])
        for shard in dead.shards:
            if self._hub.tickets(shard.node, shard.index):
                self._follow(self._hub.lost(shard.node, shard.index))
        fresh.forget_tickets()
        for shard in dead.shards:
            fresh.give(self._hub.tickets(shard.node, shard.index))

    def _going_on(self, shard: Shard) -> tuple[Shard, Arrays | None]:
        """A shard of a worker that is gone, with the state after its last ticket.

        It begins anew if that was not saved, and after some attempts that led to nothing.
        """
        known = self._shards[shard.node, shard.index]
        if known.last_ticket is None:  # it has done nothing yet
            return known.shard, None
        state = known.history.after(known.last_ticket)
        if state is None or self._num_failures[shard.node, shard.index] > (self._max_restarts + 1) // 2:
            known.renew(self._plan.seed)
            return known.shard, None
        return known.shard, state

    def _execute(self, firing: Firing) -> None:
        node = self.flow.nodes[firing.node]
        start_s, start_cpu_s = perf_counter(), process_time()
        try:
            outputs = perform(node, self._learners.get(node.name, node.work), firing)
        except BaseException as error:
            made_with = {p: v for item in firing.inputs for h in item.headers for p, v in h.versions.items()}
            explain(error, self.flow.name, firing, made_with)
            raise  # the firing is still waiting
        self._waiting.popleft()
        cpu_s = process_time() - start_cpu_s
        self._accounts.fired(firing.node, None, firing.number, start_s, perf_counter(), cpu_s)
        self._follow(self._hub.finished(Finished(firing, outputs)))

    def _follow(self, instructions: Sequence[HubInstruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Start):
                self._waiting.append(instruction.firing)
            elif isinstance(instruction, Deal):
                ticket = instruction.ticket
                self._carrier[ticket.source, ticket.shard].give([ticket], first=instruction.first)
            elif isinstance(instruction, Publish):
                self._rings[instruction.register].write(instruction.version, instruction.weights)
                self._weights[instruction.register][instruction.version] = instruction.weights
            elif isinstance(instruction, Forget):
                del self._weights[instruction.register][instruction.version]
            elif isinstance(instruction, Tell):
                if isinstance(instruction.event, Reported):
                    self._reports.append(instruction.event.report)
                self._accounts.show(instruction.event)

    def _send_all(self) -> None:
        """Tickets and free slots go out together, once what names a version is written."""
        for worker in self._workers:
            with suppress(ConnectionError):  # it is gone: the selector will say so
                worker.flush()


class _Shard:
    """A shard as this process knows it."""

    def __init__(self, shard: Shard, history: History) -> None:
        self.shard = shard
        self.history = history
        self.last_ticket = history.last_ticket if history.last_ticket >= 0 else None
        """The last that it has done with its present environments."""
        self.why_not = ""

    def did(self, ticket: int, state: Arrays | None) -> None:
        """It has done a ticket, and was left in a state, if that was saved."""
        self.last_ticket = ticket
        if state is not None:
            self.history.add(ticket, state)

    def renew(self, seed: int) -> None:
        """It begins anew."""
        self.shard = renewed(self.shard, seed)
        self.history.clear()
        self.last_ticket = None


def _of_shards(flow: Flow, topology: Topology) -> dict[str, Node]:
    """The nodes of the shards as they are, and who reads from them, without their work, which stays here."""
    at_shards = {name for stage in topology.shard_stages for name in stage.nodes}
    readers = {n.name for n in flow.nodes.values() if any(edge.node in at_shards for edge in n.inputs)}
    return {
        name: node if name in at_shards else replace(node, work=None)
        for name, node in flow.nodes.items()
        if name in at_shards | readers
    }
