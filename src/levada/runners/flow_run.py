"""The run loop of every deployment: a thin shell around the hub, which executes learners, issues tickets and handles the events
of workers.

Items reach this process through the transport; here they are only passed by reference to learners and tables.
"""

from __future__ import annotations

import os
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Self

from levada.flow.deployment import Goal
from levada.flow.errors import FlowWarning
from levada.flow.events import Instrument, Report, Reported, Statistics, WorkerStatistics
from levada.flow.graph import Flow
from levada.flow.items import derive_seed
from levada.flow.nodes import Node
from levada.flow.patience import tell
from levada.flow.state import RunState
from levada.flow.stopwatch import OUTSIDE, TRANSPORT
from levada.flow.topology import derive
from levada.runners.attribution import LEARNER
from levada.runners.evaluators.evaluations import Evaluations
from levada.runners.evaluators.place import EvaluatorPlace
from levada.runners.failures import Failures, why_it_stops
from levada.runners.firing import PASSING, Deferred, explain, leave_if_forked, outputs_of, perform, with_values
from levada.runners.losses import ItemLostError, end_workers, withdraw
from levada.runners.plan import make_plan
from levada.runners.replicas.maps import deferrable
from levada.runners.replicas.place import LearnerPlace, LearnersHere, UpdateDone, UpdateFailedError
from levada.runners.saving import (
    ShardKey,
    cannot_go_back,
    collect,
    first_history,
    first_weights,
    plan_shards,
    restore_hub,
    restore_learner,
)
from levada.runners.shard_record import ShardRecord
from levada.runners.statistics import Accounts
from levada.runners.tables import TableLostError, TablePlace, TableRecipe, Tables, TablesHere
from levada.runners.transport import (
    ShardFailed,
    ShardOpened,
    TicketDone,
    Transport,
    WorkerBegan,
    WorkerBusy,
    WorkerEnded,
    WorkerEvent,
    WorkerTimes,
)
from levada.runners.workers import ClosedError, Workers, WorkerState
from levada.schedule import (
    Begin,
    Evaluate,
    Event,
    Finished,
    Firing,
    Forget,
    HandedOver,
    Hub,
    HubInstruction,
    Insert,
    Issue,
    LearnerFailed,
    Notify,
    Output,
    Publish,
    PublishAgain,
    Reprioritize,
    ShardsLost,
    Snapshot,
    Start,
    TableLost,
    take_snapshot,
)
from levada.schedule.shards import draws_of


class FlowRun:
    """A flow that is executed over a transport. Created by `open` of a deployment, closed at the end of a `with` block."""

    def __init__(
        self,
        flow: Flow,
        transport: Transport,
        *,
        seed: int = 0,
        instruments: Sequence[Instrument] = (),
        state: RunState | None = None,
        save_every: int | None = None,
        goal: Goal | None = None,
        num_workers: int = 1,
        max_restarts: int = 3,
        hang_timeout_s: float | None = None,
        crosses_processes: bool = False,
        needs_reports: bool = True,
        tables: TablePlace | None = None,
        learners: LearnerPlace | None = None,
        evaluators: EvaluatorPlace | None = None,
    ) -> None:
        """Start everything.

        Args:
            flow: the flow to execute.
            transport: transport to the workers; closed with the run.
            seed: seed from which all randomness derives.
            instruments: observers of every event.
            state: saved state to resume from.
            save_every: number of updates between saves.
            goal: where each of several learners stops.
            num_workers: number of workers that share the shards.
            max_restarts: maximum number of consecutive restarts of a shard after failures.
            hang_timeout_s: time in seconds after which a worker that has work and sends no message is killed.
            crosses_processes: whether work is sent to other processes and must be picklable.
            needs_reports: whether reports are the only output of the run, so that the flow must have some.
            tables: place of the replay tables. None: this process.
            learners: place of the learners. None: this process.
            evaluators: place of the evaluations. None: this thread.

        Raises:
            FlowError: the flow is not well formed.
        """
        for problem in flow.check(crosses_processes=crosses_processes, reports=needs_reports):
            warnings.warn(str(problem), FlowWarning, stacklevel=3)
        self.flow = flow
        topology = derive(flow)
        self._hub = Hub(flow, topology, items_can_be_lost=transport.items_die_with_worker, goal=goal)
        self._accounts = Accounts(flow, self._hub, instruments, transport.stopwatch)
        self._plan = make_plan(self._hub, topology, seed, save_every)
        self._ready: deque[Firing] = deque()
        """Central firings that can be executed: those of nodes that no worker executes."""
        self._reports: deque[Report] = deque()
        self._under_way: list[Firing] = []
        """Firings of learners that are executed elsewhere."""
        self._learners: Mapping[str, Any] = {}
        self._deferred = deferrable(flow, topology) if learners is not None else {}
        self._weights: dict[str, dict[int, Any]] = {name: {} for name in flow.registers}
        self._shards: dict[ShardKey, ShardRecord] = {}
        self._failures = Failures(self._shards, self._accounts, seed=seed, max_restarts=max_restarts)
        self.transport = transport
        """The transport to the workers, for observers."""
        self.table_place: TablePlace | TablesHere = tables or TablesHere()
        """The place of the replay tables, for observers."""
        self.learner_place: LearnerPlace = learners or LearnersHere()
        """The place of the learners, for observers."""
        self.on_turn: Callable[[], None] = lambda: None
        """Called before each action of a loop over reports, as a sign of life."""
        self.workers: Workers = Workers(transport, self._hub, hang_timeout_s)
        """The workers, for observers."""
        self.evaluations: Evaluations = Evaluations(
            flow, seed, evaluators, accounts=self._accounts, stopwatch=transport.stopwatch, resolve=transport.resolve
        )
        """The evaluations, for observers."""
        self._process = os.getpid()
        self._is_closed = False
        try:
            self._tables = Tables(flow, seed, state, self.table_place)
            self._open(seed, num_workers, state)
        except BaseException:
            self.close()
            raise
        self._accounts.begin()
        self._handle(Begin())

    def __iter__(self) -> Iterator[Report]:
        while self._reports or self._ready or not self._hub.is_over:
            if self._reports:
                self.transport.stopwatch.begin(OUTSIDE)
                yield self._reports.popleft()
                self.transport.stopwatch.begin(TRANSPORT)
            else:
                self.on_turn()
                self._turn()

    def is_hung(self, seconds: float) -> bool:
        """Whether the run has waited this long for its workers without a message from any of them."""
        is_silent = self.workers.is_waiting and self.workers.silence_s() >= seconds
        return is_silent or self.evaluations.waits_s() >= seconds

    def finish_evaluations(self) -> None:
        """Wait for the evaluations that have begun, so that instruments have their results."""
        self._check_open()
        self.evaluations.finish()

    def statistics(self) -> Statistics:
        """Return statistics of the run at this moment, as plain data."""
        return self._accounts.statistics()

    def attribution(self) -> Mapping[str, WorkerStatistics]:
        """Return where the time of each worker went so far."""
        return self._accounts.attributed()

    def node_state(self, node: str) -> Any:
        """Return the learner of a learn node, or a proxy of it; shards are elsewhere.

        Raises:
            ValueError: the node has no learner.
        """
        if node not in self._learners:
            msg = f"the state of node {node!r} is not in this process; here are: {', '.join(self._learners)}"
            raise ValueError(msg)
        return self._learners[node]

    def save(self, replays: bool = True) -> RunState:
        """Return a state to resume from. The run must be between two updates, as it is when it yields a report.

        `replays`: include the contents of replays. Otherwise they are refilled after resuming.

        Raises:
            ClosedError: the run was closed, and its learners with it.
        """
        self._check_open()
        self._take_back(self.learner_place.go_back())
        self._take_back(self.learner_place.take_unsent())
        while self._under_way:
            self.workers.flush()
            self._listen()
        unfinished = self.evaluations.unfinished()
        snapshot = take_snapshot(self._hub, self._ready)
        self._complete_histories(snapshot)
        histories = {key: shard.history for key, shard in self._shards.items()}
        if cannot_go_back(self._hub, snapshot, histories):
            snapshot = take_snapshot(self._hub, self._ready, may_be_exact=False)
            self._complete_histories(snapshot)
        weights = {
            register: {version: self.transport.resolve(value) for version, value in versions.items()}
            for register, versions in self._weights.items()
        }
        return collect(
            self.flow, snapshot, tables=self._tables.contents(replays), learners=self._learners, weights=weights,
            histories=histories, evaluations=unfinished,
            generations={key: shard.shard.generation for key, shard in self._shards.items()},
            why_not=lambda key: self._shards[key].why_not,
        )  # fmt: skip

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process ids of the workers, for observers."""
        return tuple(state.worker.pid for state in self.workers.states.values() if state.worker.pid is not None)

    def close(self) -> None:
        """Stop all workers and close everything that was opened here, even if a part of it fails to close."""
        self._is_closed = True
        with ExitStack() as closing:
            closing.callback(self.transport.close)
            closing.callback(self.table_place.close)
            closing.callback(self.learner_place.close)
            closing.callback(self.evaluations.close)
            self.workers.states, self._learners = {}, {}
            self._weights = {register: {} for register in self._weights}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- opening

    def _open(self, seed: int, num_workers: int, state: RunState | None) -> None:
        snapshot = None if state is None else restore_hub(self._hub, state)
        recipes = self.flow.learners()
        seeded = {name: (recipe, derive_seed(seed, name)) for name, recipe in recipes.items()}
        self._learners = self.learner_place.open(seeded, self._deferred)
        for name, learner in self._learners.items():
            restore_learner(learner, name, state)
        live = {recipe.policy_name: self._learners[name] for name, recipe in recipes.items()}
        self._weights = first_weights(self.flow, live, snapshot, state)
        registers = {name: (self._hub.registers[name].keep, weights) for name, weights in self._weights.items()}
        shards = plan_shards(self.flow, seed, state)
        for shard, saved in shards:
            self._shards[shard.node, shard.index] = ShardRecord(shard, first_history(self._hub, shard, snapshot, saved))
        self.transport.open(self._plan, registers)
        self.evaluations.open(state)
        for number in range(num_workers):
            self.workers.start(shards[number::num_workers])
        while not self.workers.are_open:
            self._listen()

    # ---- the loop

    def _turn(self) -> None:
        """Execute a central firing, or listen to the workers."""
        self._check_open()
        for lost in self._tables.lost():
            self._refill(lost)
        if not self.learner_place.has_answers:  # of several updates, the tickets go out together
            self.workers.flush()
        if self._ready:
            self._execute(self._ready[0])
        else:
            self._listen()

    def _check_open(self) -> None:
        if self._is_closed:
            msg = f"the run of flow {self.flow.name!r} is closed; open it again to go on"
            raise ClosedError(msg)

    def _execute(self, firing: Firing) -> None:
        """Execute a central firing."""
        self.evaluations.proceed()
        node = self.flow.nodes[firing.node]
        if node.kind == "learn" and self.learner_place.begin(firing):
            self._ready.remove(firing)
            self._under_way.append(firing)
            self._handle(HandedOver(firing))
            return
        if firing.node in self._deferred:
            self._ready.remove(firing)
            deferred = Deferred(firing.node, tuple(item.value for item in firing.inputs))
            return self._handle(Finished(firing, (Output(deferred),)))
        self._accounts.begins(firing)
        try:
            looks = self.transport.passes_references and node.kind not in PASSING
            given = with_values(firing, self.transport.resolve) if looks else firing
            outputs = perform(node, self._work_of(node), given)
            leave_if_forked(self._process, None)
        except TableLostError:
            return  # the firing is still waiting, and is withdrawn next
        except ItemLostError as error:
            self._take_back(self.learner_place.go_back())  # else updates are reported while earlier reports wait
            self._replace_workers(error)
            return
        except BaseException as error:
            leave_if_forked(self._process, error)
            explain(error, self.flow.name, firing, {})
            if self._stops(firing, error):
                return
            raise  # the firing is still waiting: the next turn tries it again
        finally:
            self._accounts.ends()
        self._ready.remove(firing)
        self._accounts.executed(firing)
        self._handle(Finished(firing, outputs))

    def _stops(self, firing: Firing, error: BaseException) -> bool:
        """Stop a learner that has failed, if it is isolated and others go on."""
        if (reason := why_it_stops(self._hub, firing.node, error)) is None:
            return False
        if firing in self._ready:
            self._ready.remove(firing)
        self._handle(LearnerFailed(firing, reason))
        return True

    def _work_of(self, node: Node) -> Any:
        """Return the live work of a central node."""
        if node.kind == "learn":
            return self._learners[node.name]
        return node.work if node.replay is None else self._tables.of(node.replay)

    def _refill(self, lost: TableRecipe) -> None:
        """Handle the loss of a table, and withdraw the draws from it."""
        name, number = lost.replay.name, lost.number
        undone = tuple(f for f in self._ready if f.draw and (f.draw.replay, f.draw.table) == (name, number))
        for firing in undone:
            self._ready.remove(firing)
        self._handle(TableLost(name, number, undone))

    def _handle(self, event: Event) -> None:
        """Let the hub handle an event, and follow its instructions."""
        self._follow(self._hub.handle(event))

    def _follow(self, instructions: Iterable[HubInstruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Notify(news):  # the most frequent one
                    if isinstance(news, Reported):
                        self._reports.append(news.report)
                    self._accounts.show(news)
                case Start(firing) if firing.node in self._hub.before_learners and not draws_of(firing):
                    self._ready.append(firing)
                case Start(firing) if firing.node in {each.node for each in self._ready}:  # firings of a node in order
                    self._ready.append(firing)
                case Start(firing):  # first what was drawn, or learned: a report then finds the run between updates
                    self._ready.appendleft(firing)
                case Issue(ticket, first):
                    self.workers.submit(ticket, first=first)
                case Publish(register, version, weights):
                    self.transport.publish(register, version, weights)
                    self._weights[register][version] = weights
                case Evaluate():
                    self.evaluations.add(instruction)
                case PublishAgain(register, version):
                    self.transport.publish(register, version, self._weights[register][version])
                case Forget(register, version):
                    del self._weights[register][version]
                case Insert():
                    self._tables.insert(instruction)
                case Reprioritize():
                    self._tables.reprioritize(instruction)

    # ---- workers

    def _listen(self) -> None:
        self.learner_place.flush()
        if not self.learner_place.has_answers:
            for state, event in self.workers.listen():
                self._on_event(state, event)
        try:
            done = self.learner_place.finished()
            self.learner_place.flush()
            if done is not None:
                self._on_update_done(done)
        except UpdateFailedError as failed:
            self._take_back((failed.firing, *self.learner_place.take_unsent()))  # the next turn tries it again
            if isinstance(failed.error, ItemLostError):
                self._replace_workers(failed.error)
                return
            explain(failed.error, self.flow.name, failed.firing, {})
            if not self._stops(failed.firing, failed.error):
                raise failed.error from None

    def _take_back(self, firings: Sequence[Firing]) -> None:
        """Let firings of learners elsewhere, in their order, wait again."""
        for firing in firings:
            self._under_way.remove(firing)
        self._ready.extendleft(reversed(firings))

    def _on_update_done(self, done: UpdateDone) -> None:
        """Record the result of a learner elsewhere."""
        firing = done.firing
        self._under_way.remove(firing)
        self._hub.num_ahead = self.learner_place.num_ahead
        self._accounts.fired(firing.node, None, firing.number, done.start_s, done.end_s, done.cpu_s, LEARNER)
        self._accounts.attribution.worked(LEARNER, firing.node, done.end_s - done.start_s)
        self._accounts.note_blocked(done.end_s)
        self._handle(Finished(firing, outputs_of(self.flow.nodes[firing.node], done.update)))

    def _on_event(self, state: WorkerState, event: WorkerEvent) -> None:
        """Record an event of a worker."""
        match event:
            case TicketDone(closed, spent, saved):
                key = (closed.ticket.source, closed.ticket.shard)
                for one in spent:
                    times = one.start_s, one.end_s, one.cpu_s
                    self._accounts.fired(one.node, key[1], one.number, *times, state.place, closed.ticket.number)
                self._accounts.note_blocked(spent[-1].end_s)
                self._shards[key].did(closed.ticket.number, saved)
                self.workers.let_hold()
                self._handle(closed)
            case WorkerBegan():
                state.has_begun = True
            case WorkerTimes():
                self._accounts.attribution.reported(state.name, state.worker.shards, event)
            case WorkerBusy(what):
                state.is_busy = bool(what)
                tell(what)
            case ShardOpened(source, number, why_not_saved, why_from_scratch):
                state.unopened.discard((source, number))
                self._shards[source, number].why_not = why_not_saved
                if why_from_scratch:
                    self._failures.of_state(event)
            case ShardFailed():
                self._on_shard_failed(event)
            case WorkerEnded():
                self._on_worker_ended(state, event)

    def _on_shard_failed(self, failed: ShardFailed) -> None:
        """Record that a shard has failed and reopened its work, and issue its ticket again."""
        if failed.is_final:
            raise failed.error
        may_continue = self._failures.of_shard(failed)
        self._handle(ShardsLost(((failed.source, failed.shard),)))
        if not may_continue:
            raise failed.error

    def _on_worker_ended(self, dead: WorkerState, ended: WorkerEnded) -> None:
        """Replace a worker that ended. The new one gets its shards and their tickets; work in progress is lost, and what it had
        finished where items die with their worker.
        """
        del self.workers.states[dead.worker]
        self._accounts.attribution.ended(dead.name)
        self._take_back(self.learner_place.take_unsent())
        keys = self._failures.of_worker(dead, ended)
        instructions = withdraw(self._hub, self._shards, keys, self._ready)
        self._failures.start_over(keys, ended)
        self._follow(each for each in instructions if isinstance(each, PublishAgain))  # for the new worker to read
        fresh = self.workers.start([self._shards[key].resumed() for key in keys])
        self._follow(each for each in instructions if not isinstance(each, PublishAgain))
        fresh.worker.forget_tickets()
        for key in keys:
            fresh.worker.submit(self._hub.tickets(*key))

    def _replace_workers(self, error: ItemLostError) -> None:
        """Replace the workers whose items are lost. The firing that needed them is still waiting, and is withdrawn with them."""
        ended = end_workers(error, self.workers, self.transport)
        while not ended.isdisjoint(self.workers.states):
            self._listen()

    def _complete_histories(self, snapshot: Snapshot) -> None:
        """Take the states that a save needs and that did not come with a ticket: here none."""
