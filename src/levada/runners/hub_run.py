"""A run whose shards are executed by carriers: a thin shell around the hub. It learns, deals tickets, and watches carriers.

Nothing here touches the data path: the transport brings each item from its shard to its consumer.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from time import perf_counter, process_time
from typing import Any, Self

from levada.flow.errors import FlowWarning, LevadaError
from levada.flow.events import Failed, Instrument, Report, Reported, Statistics
from levada.flow.graph import Flow
from levada.flow.items import Shard, derive_seed
from levada.flow.nodes import Node
from levada.flow.patience import HANG_S, tell
from levada.flow.protocols import close
from levada.flow.state import Arrays, RunState
from levada.flow.topology import Topology, derive
from levada.runners.firing import explain, perform
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
from levada.runners.statistics import ANEW, Accounts
from levada.runners.tables import TableLostError, TablePlace, TableRecipe, Tables, TablesHere
from levada.runners.transport import (
    Carrier,
    CarrierBegan,
    CarrierBusy,
    CarrierEnded,
    Plan,
    Said,
    ShardFailed,
    ShardOpened,
    TicketDone,
    Transport,
)
from levada.schedule import (
    Deal,
    Finished,
    Firing,
    Forget,
    Hub,
    HubInstruction,
    Insert,
    Publish,
    Reprioritize,
    Start,
    TableLost,
    Tell,
)
from levada.schedule.shards import readers, stores

log = logging.getLogger(__name__)


class WorkerError(LevadaError, RuntimeError):
    """A worker ended more often than allowed."""

    @classmethod
    def before_it_began(cls, who: str, how: str) -> WorkerError:
        """Create the error for a worker that could not even start, and never will."""
        return cls(
            f"{who} ended {how} before it had begun; what it wrote to stderr says why. If that speaks of bootstrapping, or of a "
            'file that is not there: what starts a run stands in a file, below `if __name__ == "__main__":`'
        )


class HubRun:
    """A flow that is executed over a transport. Created by `open` of a deployment, closed at the end of a `with` block."""

    def __init__(
        self,
        flow: Flow,
        transport: Transport,
        *,
        num_carriers: int,
        seed: int,
        instruments: Sequence[Instrument],
        state: RunState | None,
        save_every: int | None,
        max_restarts: int,
        hang_timeout_s: float | None = None,
        crosses_processes: bool = True,
        tables: TablePlace | None = None,
    ) -> None:
        """Start everything.

        Args:
            flow: the flow to execute; it must have passed its check.
            transport: transport that carries the shards; closed with the run.
            num_carriers: number of carriers that share the shards.
            seed: seed from which all randomness derives.
            instruments: observers of every event.
            state: saved state to resume from.
            save_every: number of updates between saves.
            max_restarts: largest number of consecutive failures of a shard.
            hang_timeout_s: time in seconds after which a silent carrier with work left is killed.
            crosses_processes: whether work is sent to other processes and must be picklable.
            tables: place of the replay tables. None: this process.

        """
        for problem in flow.check(crosses_processes=crosses_processes, reports=True):
            warnings.warn(str(problem), FlowWarning, stacklevel=3)
        self.flow = flow
        found, topology = readers(flow.nodes), derive(flow)
        self._hub = Hub(flow, topology, found)
        self._accounts = Accounts(flow, self._hub, instruments)
        self._plan = Plan(
            flow=flow.name, nodes=_of_shards(flow, topology), stages=topology.shard_stages,
            stores=stores(flow.edges), policies={name: register.policy for name, register in flow.registers.items()}, seed=seed,
            save_rules={stage.source: save_rule(self._hub, stage.source, save_every) for stage in topology.shard_stages},
            is_timed=not self._hub.names_all_versions,
        )  # fmt: skip
        self._max_restarts = max_restarts
        self._hang_timeout_s = hang_timeout_s
        self._num_failures: Counter[tuple[str, int]] = Counter()
        self._num_blamed: Counter[tuple[str, int]] = Counter()
        """Consecutive failures that the state of the shard may have caused."""
        self._waiting: deque[Firing] = deque()
        self._reports: deque[Report] = deque()
        self._learners: dict[str, Any] = {}
        self._weights: dict[str, dict[int, Any]] = {}
        self._shards: dict[ShardKey, _Shard] = {}
        self.transport = transport
        """The transport that carries the shards, for observers."""
        self.table_place = tables or TablesHere()
        """The place of the replay tables, for observers."""
        self.on_turn: Callable[[], None] = lambda: None
        """Called before each action of the run, as a sign of life."""
        self._silent_since_s: float | None = None
        """Time since which it has been waiting for silent carriers. None: it is not waiting."""
        self._has_told = False
        self._places: list[_Place] = []
        self._place_of: dict[ShardKey, _Place] = {}
        try:
            self._tables = Tables(flow, seed, state, self.table_place)
            self._open(seed, num_carriers, state)
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
            self.on_turn()
            for lost in self._tables.lost():
                self._refill(lost)
            self.transport.flush()
            if self._waiting:
                self._execute(self._waiting[0])
            else:
                self._listen()

    def is_hung(self, seconds: float) -> bool:
        """Whether it has waited this long for its carriers without a message from any of them."""
        return self._silent_since_s is not None and perf_counter() - self._silent_since_s >= seconds

    def statistics(self) -> Statistics:
        """Return statistics of the run at this moment, as plain data."""
        self._accounts.note_blocked(perf_counter())
        return self._accounts.statistics()

    def node_state(self, node: str) -> Any:
        """Return the live learner of a learn node; shards are elsewhere."""
        if node not in self._learners:
            msg = f"the state of node {node!r} is not in this process; here are: {', '.join(self._learners)}"
            raise ValueError(msg)
        return self._learners[node]

    def save(self, replays: bool = True) -> RunState:
        """Return a state to resume from. The run must be between two updates, as it is when it yields a report.

        `replays`: include their contents. Otherwise they are filled again after resuming.
        """
        cut = self._hub.cut(self._waiting)
        return collect(
            self.flow, cut, tables=self._tables.contents(replays), learners=self._learners, weights=self._weights,
            histories={key: shard.history for key, shard in self._shards.items()},
            generations={key: shard.shard.generation for key, shard in self._shards.items()},
            why_not=lambda key: self._shards[key].why_not,
        )  # fmt: skip

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process ids of the workers, for observers."""
        return tuple(place.carrier.pid for place in self._places if place.carrier.pid is not None)

    def close(self) -> None:
        """Stop all carriers, and close everything that was opened here."""
        with ExitStack() as closing:
            closing.callback(self.table_place.close)
            closing.callback(self.transport.close)
            for learner in self._learners.values():
                closing.callback(close, learner)
            self._places, self._learners = [], {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- internals

    def _open(self, seed: int, num_carriers: int, state: RunState | None) -> None:
        cut = None if state is None else restore_hub(self._hub, state)
        registers = {}
        for name, recipe in self.flow.learners().items():
            learner = self._learners[name] = recipe.open(derive_seed(seed, name))
            restore_learner(learner, name, state)
            for register in self.flow.registers.values():
                if register.policy == recipe.policy_name:
                    weights = restored_weights(cut, register.name, state, learner.weights())
                    self._weights[register.name] = weights
                    registers[register.name] = (self._hub.registers[register.name].keep, weights)
        shards = plan_shards(self.flow, seed, state)
        for shard, saved in shards:
            history = first_history(self._hub, shard, cut, saved)
            self._shards[shard.node, shard.index] = _Shard(shard, history)
        self.transport.open(self._plan, registers)
        for number in range(num_carriers):
            self._start(shards[number::num_carriers])
        while any(place.unopened for place in self._places):
            self._listen()

    def _start(self, shards: Sequence[tuple[Shard, Arrays | None]]) -> _Place:
        place = _Place(self.transport.start(shards))
        self._places.append(place)
        for shard in place.carrier.shards:
            self._place_of[shard.node, shard.index] = place
        return place

    def _listen(self) -> None:
        """Take messages from carriers. Sleeps until one arrives, or until a carrier has been silent for too long."""
        if self._silent_since_s is None:
            self._silent_since_s, self._has_told = perf_counter(), False
        heard = self.transport.wait(self._patience_s())
        if heard:
            self._silent_since_s = None
        elif not self._has_told and self.is_hung(HANG_S):
            self._has_told = True
            self._tell_silence()
        for carrier, what in heard:
            place = next((place for place in self._places if place.carrier is carrier), None)
            if place is not None:  # otherwise it was replaced
                place.heard_s = perf_counter()
                self._take(place, what)
        if self._hang_timeout_s is not None:  # messages of this call are already recorded
            self._kill_the_silent(perf_counter() - self._hang_timeout_s)

    def _patience_s(self) -> float | None:
        """Return how long to wait for the longest-silent carrier, or until the silence is reported."""
        if self._hang_timeout_s is None:
            return None if self._has_told else HANG_S
        owing = [place.heard_s for place in self._places if self._owes(place)]
        longest_s = self._hang_timeout_s  # for observers of this run from outside
        return max(0.0, min(owing) + longest_s - perf_counter()) if owing else longest_s

    def _tell_silence(self) -> None:
        """Report which shards it is waiting for. The worker itself reports the step, if its environment lets it."""
        for place in self._places:
            if self._owes(place):
                names = ", ".join(f"{shard.node} {shard.index}" for shard in place.carrier.shards)
                log.warning("nothing was heard of %s (process %s) for %g s", names, place.carrier.pid, HANG_S)

    def _owes(self, place: _Place) -> bool:
        if place.is_patient:
            return False
        shards = place.carrier.shards
        return bool(place.unopened) or any(self._hub.tickets(shard.node, shard.index) for shard in shards)

    def _kill_the_silent(self, limit_s: float) -> None:
        for place in self._places:
            if self._owes(place) and place.heard_s <= limit_s:
                place.heard_s = perf_counter()  # its end will be reported
                self.transport.kill(place.carrier, f"after {self._hang_timeout_s:g} s without a sign of life")

    def _take(self, place: _Place, said: Said) -> None:
        if isinstance(said, CarrierBusy):
            place.is_patient = bool(said.what)
            tell(said.what)
        elif isinstance(said, TicketDone):
            ticket = said.closed.ticket
            for count in (self._num_failures, self._num_blamed):
                count.pop((ticket.source, ticket.shard), None)
            for spent in said.spent:
                self._accounts.fired(spent.node, ticket.shard, spent.number, spent.start_s, spent.end_s, spent.cpu_s)
            self._shards[ticket.source, ticket.shard].did(ticket.number, said.state)
            self._follow(self._hub.closed(said.closed))
        elif isinstance(said, CarrierBegan):
            place.has_begun = True
        elif isinstance(said, ShardOpened):
            place.unopened.discard((said.source, said.shard))
            shard = self._shards[said.source, said.shard]
            shard.why_not = said.why_not_saved
            if said.why_anew:
                shard.renew(self._plan.seed)  # as the carrier did
                self._accounts.begins_anew(said.source, said.shard, said.why_anew)
        elif isinstance(said, ShardFailed):
            if said.is_final or self._has_failed_too_often(said.source, said.shard):
                raise said.error
            key = (said.source, said.shard)
            self._shards[key].renew(self._plan.seed)  # as the carrier did
            self._tell_failure([key], f"{type(said.error).__name__}: {said.error}", {key: "its environment failed"})
            self._follow(self._hub.lost([key]))
        else:
            self._replace(place, said)

    def _has_failed_too_often(self, source: str, shard: int) -> bool:
        self._num_failures[source, shard] += 1
        return self._num_failures[source, shard] > self._max_restarts

    def _tell_failure(self, shards: Sequence[ShardKey], why: str, anew: Mapping[ShardKey, str]) -> None:
        """Report failures. `anew`: the reasons of the shards that cannot resume."""
        for reason in dict.fromkeys(anew.get(key, "") for key in shards):
            some = [key for key in shards if anew.get(key, "") == reason]
            names = ", ".join(f"{source} {index}" for source, index in some)
            count = max(self._num_failures[key] for key in some)
            what = f"{reason}: {ANEW}" if reason else "it is made again"
            log.warning("%s: %s; %s (failure %d of %d in a row)", names, why, what, count, self._max_restarts)
        for source, index in shards:
            self._accounts.show(Failed(source, index, why, (source, index) in anew))

    def _replace(self, dead: _Place, ended: CarrierEnded) -> None:
        """Replace an ended carrier. The new one gets its shards and their tickets; work in progress is lost."""
        self._places.remove(dead)
        shards = dead.carrier.shards
        if len(dead.unopened) == len(shards) and ended.by_error:
            raise WorkerError.before_it_began("a worker", ended.how)
        failed = [self._has_failed_too_often(shard.node, shard.index) for shard in shards]
        if dead.has_begun:
            self._num_blamed.update((shard.node, shard.index) for shard in shards)
        if any(failed):
            names = ", ".join(f"{shard.node} {shard.index}" for shard in shards)
            msg = f"the worker of the shards {names} ended {self._max_restarts + 1} times in a row, now {ended.how}"
            raise WorkerError(msg)
        keys = [(shard.node, shard.index) for shard in shards]
        anew = {key: reason for key in keys if (reason := self._why_anew(key))}
        self._tell_failure(keys, f"the worker ended {ended.how}", anew)
        fresh = self._start([self._going_on(shard, (shard.node, shard.index) in anew) for shard in shards])
        self._follow(self._hub.lost([key for key in keys if self._hub.tickets(*key)]))
        fresh.carrier.forget_tickets()
        for shard in shards:
            fresh.carrier.give(self._hub.tickets(shard.node, shard.index))

    def _why_anew(self, key: ShardKey) -> str:
        """Return why a shard of a lost worker cannot resume from its last state; empty if it can, or has done nothing yet."""
        known = self._shards[key]
        if known.last_ticket is None:
            return ""
        if known.history.after(known.last_ticket) is None:
            return f"its state was not saved ({known.why_not or 'saving it takes too long'})"
        num_tried = self._num_blamed[key] - 1  # a worker that was killed while starting has not tried
        if num_tried >= (self._max_restarts + 1) // 2:
            return f"it did not get on from its last state in {num_tried} attempts"
        return ""

    def _going_on(self, shard: Shard, anew: bool) -> tuple[Shard, Arrays | None]:
        """Return a shard of a lost worker with the state after its last ticket, if any."""
        known = self._shards[shard.node, shard.index]
        if anew:
            known.renew(self._plan.seed)
        if known.last_ticket is None:
            return known.shard, None
        return replace(known.shard, num_items=known.num_items), known.history.after(known.last_ticket)

    def _execute(self, firing: Firing) -> None:
        node = self.flow.nodes[firing.node]
        start_s, start_cpu_s = perf_counter(), process_time()
        try:
            work = node.work if node.replay is None else self._tables.of(node.replay)
            outputs = perform(node, self._learners.get(node.name, work), firing)
        except TableLostError:
            return  # the firing is still waiting, and is withdrawn next
        except BaseException as error:
            made_with = {p: v for item in firing.inputs for h in item.headers for p, v in h.versions.items()}
            explain(error, self.flow.name, firing, made_with)
            raise  # the firing is still waiting
        self._waiting.popleft()
        cpu_s = process_time() - start_cpu_s
        self._accounts.fired(firing.node, None, firing.number, start_s, perf_counter(), cpu_s)
        self._follow(self._hub.finished(Finished(firing, outputs)))

    def _refill(self, lost: TableRecipe) -> None:
        """Handle the loss of a table, and withdraw the draws from it."""
        name, number = lost.replay.name, lost.number
        undone = tuple(f for f in self._waiting if f.draw and (f.draw.replay, f.draw.table) == (name, number))
        for firing in undone:
            self._waiting.remove(firing)
        self._follow(self._hub.table_lost(TableLost(name, number, undone)))

    def _follow(self, instructions: Sequence[HubInstruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Start):
                self._waiting.append(instruction.firing)
            elif isinstance(instruction, Deal):
                self._give(instruction)
            elif isinstance(instruction, Publish):
                self.transport.publish(instruction.register, instruction.version, instruction.weights)
                self._weights[instruction.register][instruction.version] = instruction.weights
            elif isinstance(instruction, Forget):
                del self._weights[instruction.register][instruction.version]
            elif isinstance(instruction, Insert):
                self._tables.insert(instruction)
            elif isinstance(instruction, Reprioritize):
                self._tables.reprioritize(instruction)
            elif isinstance(instruction, Tell):
                if isinstance(instruction.event, Reported):
                    self._reports.append(instruction.event.report)
                self._accounts.show(instruction.event)

    def _give(self, deal: Deal) -> None:
        place = self._place_of[deal.ticket.source, deal.ticket.shard]
        place.heard_s = perf_counter()
        place.carrier.give([deal.ticket], first=deal.first)


class _Place:
    """The main process's view of a carrier."""

    def __init__(self, carrier: Carrier) -> None:
        self.carrier = carrier
        self.unopened = {(shard.node, shard.index) for shard in carrier.shards}
        self.is_patient = False
        """Whether it is doing something slow that is not a hang."""
        self.has_begun = False
        """Whether it got as far as opening its shards."""
        self.heard_s = perf_counter()
        """Time of its last message, or of the last work that it was given."""


class _Shard:
    """The main process's view of a shard."""

    def __init__(self, shard: Shard, history: History) -> None:
        self.shard = shard
        self.history = history
        self.last_ticket = history.last_ticket if history.last_ticket >= 0 else None
        """Last ticket completed with its current environments."""
        self.why_not = ""
        self.num_items = shard.num_items

    def did(self, ticket: int, state: Arrays | None) -> None:
        """Record a completed ticket, and the state after it if that was saved."""
        self.last_ticket = ticket
        self.num_items += 1
        if state is not None:
            self.history.add(ticket, state)

    def renew(self, seed: int) -> None:
        """Restart the shard."""
        self.shard = renewed(self.shard, seed, self.num_items)
        self.history.clear()
        self.last_ticket = None


def _of_shards(flow: Flow, topology: Topology) -> dict[str, Node]:
    """Return the nodes of the shards as they are, and their readers without the work, which stays here."""
    at_shards = {name for stage in topology.shard_stages for name in stage.nodes}
    readers = {n.name for n in flow.nodes.values() if any(edge.node in at_shards for edge in n.inputs)}
    return {
        name: node if name in at_shards else replace(node, work=None)
        for name, node in flow.nodes.items()
        if name in at_shards | readers
    }
