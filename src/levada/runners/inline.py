"""Inline: one thread, deterministic, one firing at a time. `pdb`, breakpoints and tracebacks work as usual.

>>> with Inline().open(_counting_flow()) as run:
...     print(run.step())
...     print(run.step(until="pair"))
...     print([item.value for item in run.peek("total")])
...     print(next(iter(run)).values)
count, shard 0, firing 1, ticket 0
pair, firing 1
[(0, 0)]
{'total': 0.0}

Executing in one thread hides staleness: everything is delivered at once. `Inline(adversary=seed)` also executes the flow in
one thread, but delays items at random for as long as the schedule allows, and so reaches every lag up to the bound.
"""

from __future__ import annotations

import os
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from random import Random
from time import perf_counter, process_time
from typing import Any, Self

from levada.flow.errors import FlowWarning, LevadaError
from levada.flow.events import Instrument, Report, Reported, Statistics
from levada.flow.graph import Flow
from levada.flow.items import Item, Shard, derive_seed
from levada.flow.patience import hung_s
from levada.flow.protocols import close
from levada.flow.state import Arrays, RunState
from levada.runners.deployments import check_counts, check_threads, parse_place, place_text
from levada.runners.firing import explain, leave_if_forked, perform, read_weights
from levada.runners.saving import (
    ShardKey,
    collect,
    first_history,
    open_shard,
    plan_shards,
    restore_hub,
    restore_learner,
    restored_weights,
    save_rule,
)
from levada.runners.snapshots import History, SaveRule, Snapshots
from levada.runners.statistics import Accounts
from levada.runners.tables import Tables
from levada.schedule import (
    Begin,
    Finished,
    Firing,
    Forget,
    Insert,
    Instruction,
    Publish,
    Reprioritize,
    Schedule,
    Start,
    Tell,
)


class StuckError(LevadaError, RuntimeError):
    """The run cannot proceed; the message says which node waits for what."""


class ClosedError(LevadaError, ValueError):
    """The run was closed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Inline:
    """Runs a flow in the calling thread: the default for tests and small jobs."""

    adversary: int | None = None
    """Seed of an order that delays items at random for as long as the schedule allows. None: the plain order."""
    threads: int = 1
    """Threads of the shards for linear algebra; learners have a separate setting."""

    def open(
        self,
        flow: Flow,
        *,
        seed: int = 0,
        instruments: Sequence[Instrument] = (),
        state: RunState | None = None,
        save_every: int | None = None,
    ) -> InlineRun:
        """Check the flow, open its sources and learners, and return a run that has done nothing yet."""
        return InlineRun(
            flow, seed=seed, instruments=instruments, adversary=self.adversary, threads=self.threads, state=state,
            save_every=save_every,
        )  # fmt: skip

    @classmethod
    def parse(cls, after: str) -> Inline:
        """Parse the text after `inline`: nothing, or options.

        >>> print(Inline.parse(""), Inline.parse(",threads=2"))
        inline inline,threads=2
        """
        return parse_place(cls, "inline", after)

    def __post_init__(self) -> None:
        check_counts("Inline", {"threads": (self.threads, 1), "adversary": (self.adversary, 0)})
        check_threads("Inline: ", self.threads)

    def __str__(self) -> str:
        return place_text("inline", self)


class InlineRun:
    """A flow that is executed step by step. Created by `Inline().open(flow)`, closed at the end of a `with` block."""

    def __init__(
        self,
        flow: Flow,
        *,
        seed: int,
        instruments: Sequence[Instrument] = (),
        adversary: int | None = None,
        threads: int = 1,
        state: RunState | None = None,
        save_every: int | None = None,
    ) -> None:
        for problem in flow.check():
            warnings.warn(str(problem), FlowWarning, stacklevel=3)
        self.flow = flow
        self._schedule = Schedule(flow)
        self._accounts = Accounts(flow, self._schedule.hub, instruments)
        self._breakpoints: dict[str, list[Callable[[Firing], bool]]] = defaultdict(list)
        self._waiting: list[tuple[tuple[int, int], int, Firing]] = []  # a heap: the most urgent first
        self._num_started = 0
        self._is_at_source = False
        self.on_turn: Callable[[], None] = lambda: None
        """Called before each firing of a loop over reports."""
        self._reports: deque[Report] = deque()
        self._weights: dict[str, dict[int, Any]] = {name: {} for name in flow.registers}
        self._shards: dict[ShardKey, _Shard] = {}
        self._process = os.getpid()
        self._policies = {name: register.policy for name, register in flow.registers.items()}
        self._work: dict[tuple[str, int | None], Any] = {}
        self._tables = Tables(flow, seed, state)
        self._adversary = None if adversary is None else _Adversary(adversary)
        try:
            self._open(seed, threads, state, save_every)
        except BaseException:
            self.close()
            raise
        self._accounts.begin()
        self._follow(self._schedule.handle(Begin()))

    # ---- running

    def step(self, until: str | None = None) -> Firing:
        """Execute one firing, or continue until a firing of the node `until` is done. Return the last firing.

        Raises:
            ValueError: no such node.
            StuckError: the run cannot proceed.

        """
        self._known(until)
        while True:
            firing = self._step()
            if until is None or firing.node == until:
                return firing

    def __iter__(self) -> Iterator[Report]:
        self.flow.check(reports=True)
        while True:
            while self._reports:
                yield self._reports.popleft()
            self.on_turn()
            self._step()

    def break_on(self, node: str, when: Callable[[Firing], bool] | None = None) -> None:
        """Call `breakpoint()` before each firing of a node (for which `when(firing)` holds)."""
        self._known(node)
        self._breakpoints[node].append(when or (lambda firing: True))

    def peek(self, node: str) -> list[Item]:
        """Return the items that wait to be consumed by a node, without changing anything."""
        self._known(node)
        ordered = [item for _, _, firing in sorted(self._waiting) if firing.node == node for item in firing.inputs]
        return ordered + self._schedule.peek(node)

    def node_state(self, node: str) -> Any:
        """Return the live work of a node: the learner of a learn node, the list of shards of a source."""
        self._known(node)
        shards = [work for (name, shard), work in self._work.items() if name == node and shard is not None]
        return shards or self._work[node, None]

    def is_hung(self, seconds: float) -> bool:
        """Whether the current step of an environment has taken this long."""
        return self._is_at_source and hung_s() >= seconds

    def statistics(self) -> Statistics:
        """Return statistics of the run at this moment, as plain data."""
        return self._accounts.statistics()

    def save(self, replays: bool = True) -> RunState:
        """Return a state to resume from. The run must be between two updates, as it is when it yields a report.

        `replays`: include their contents. Otherwise they are filled again after resuming.
        """
        unfinished = [firing for *_, firing in self._waiting if firing.shard is None]
        cut = self._schedule.hub.cut(unfinished)
        for (source, _), shard in self._shards.items():
            if not cut.is_exact or shard.last_ticket < cut.tickets[source]:
                shard.remember()
        return collect(
            self.flow, cut, tables=self._tables.contents(replays),
            learners={name: self._work[name, None] for name in self.flow.learners()},
            weights=self._weights, histories={key: shard.history for key, shard in self._shards.items()},
            generations={key: shard.generation for key, shard in self._shards.items()},
            why_not=lambda key: self._shards[key].snapshots.why_not,
        )  # fmt: skip

    def close(self) -> None:
        """Close all environments and other work, even if one of them fails to close."""
        with ExitStack() as closing:
            for work in self._work.values():
                closing.callback(close, work)
            self._work.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- internals

    def _open(self, seed: int, num_threads: int, state: RunState | None, save_every: int | None) -> None:
        hub = self._schedule.hub
        cut = None if state is None else restore_hub(hub, state)
        for name, recipe in self.flow.learners().items():
            learner = self._work[name, None] = recipe.open(derive_seed(seed, name))
            restore_learner(learner, name, state)
            for register in self.flow.registers.values():
                if register.policy == recipe.policy_name:
                    self._weights[register.name] = restored_weights(cut, register.name, state, learner.weights())
        for node in self.flow.nodes.values():
            if node.kind not in ("source", "learn"):
                self._work[node.name, None] = node.work if node.replay is None else self._tables.of(node.replay)
        for shard, saved in plan_shards(self.flow, seed, state):
            node = self.flow.nodes[shard.node]
            shard = replace(shard, num_threads=num_threads)
            opened, work, why_anew = open_shard(node, shard, saved, flow=self.flow.name, seed=seed)
            if why_anew:
                self._accounts.begins_anew(node.name, shard.index, why_anew)
            self._work[node.name, shard.index] = work
            history = first_history(hub, shard, cut, saved if opened.generation == shard.generation else None)
            rule = save_rule(hub, node.name, save_every)
            self._shards[node.name, shard.index] = _Shard(work, opened.generation, history, rule)

    def _step(self) -> Firing:
        if not self._work:
            msg = f"the run of flow {self.flow.name!r} is closed; open it again to go on"
            raise ClosedError(msg)
        if self._adversary is not None:
            return self._adversarial_step(self._adversary)
        if not self._waiting:
            raise StuckError(self._stuck())
        firing = self._waiting[0][-1]
        finished = self._execute(firing)
        heappop(self._waiting)
        self._finish(finished)
        return firing

    def _adversarial_step(self, adversary: _Adversary) -> Firing:
        while True:
            chosen = adversary.choose([firing for *_, firing in self._waiting])
            if chosen is None:
                raise StuckError(self._stuck())
            if isinstance(chosen, Finished):
                self._finish(chosen)
                return chosen.firing
            adversary.delay(self._execute(chosen))
            self._waiting = [started for started in self._waiting if started[-1] is not chosen]

    def _urgency(self, firing: Firing) -> tuple[int, int]:
        """Rank firings: consumers first, then nodes at shards, then new tickets in their order."""
        if firing.shard is None:
            return (0, 0)
        return (1, firing.shard) if firing.ticket is None else (2, firing.ticket)

    def _execute(self, firing: Firing) -> Finished:
        node = self.flow.nodes[firing.node]
        if self._breakpoints and any(when(firing) for when in self._breakpoints.get(firing.node, ())):
            breakpoint()
        start_s, start_cpu_s = perf_counter(), process_time()
        versions: dict[str, int] = {}
        weights: Any = None
        if node.kind == "source":
            assert firing.shard is not None
            self._shards[node.name, firing.shard].begin(firing)
            start_s, start_cpu_s = perf_counter(), process_time()
            weights, versions = read_weights(firing, self._policies, self._find_weights)
        work = self._work.get((node.name, firing.shard), node.work)
        self._is_at_source = node.kind == "source"
        try:
            outputs = perform(node, work, firing, weights)
            leave_if_forked(self._process, None)
        except BaseException as error:
            leave_if_forked(self._process, error)
            made_with = versions or {
                p: v for item in firing.inputs for h in item.headers for p, v in h.versions.items()
            }
            explain(error, self.flow.name, firing, made_with)
            raise  # the firing is still waiting: the next step tries it again
        finally:
            self._is_at_source = False
        cpu_s = process_time() - start_cpu_s
        self._accounts.fired(firing.node, firing.shard, firing.number, start_s, perf_counter(), cpu_s)
        return Finished(firing, outputs, versions)

    def _find_weights(self, register: str, version: int | None) -> tuple[int, Any]:
        found = self._schedule.hub.registers[register].resolve(version)
        return found, self._weights[register][found]

    def _finish(self, finished: Finished) -> None:
        self._follow(self._schedule.handle(finished))

    def _follow(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Start):
                self._num_started += 1
                firing = instruction.firing
                heappush(self._waiting, (self._urgency(firing), self._num_started, firing))
            elif isinstance(instruction, Publish):
                self._weights[instruction.register][instruction.version] = instruction.weights
            elif isinstance(instruction, Forget):
                del self._weights[instruction.register][instruction.version]
            elif isinstance(instruction, Insert):
                self._tables.insert(instruction)
            elif isinstance(instruction, Reprioritize):
                self._tables.reprioritize(instruction)
            else:
                self._tell(instruction)

    def _tell(self, tell: Tell) -> None:
        if isinstance(tell.event, Reported):
            self._reports.append(tell.event.report)
        self._accounts.show(tell.event)

    def _known(self, node: str | None) -> None:
        if node is not None and node not in self.flow.nodes:
            msg = f"flow {self.flow.name!r} has no node {node!r}; its nodes: {', '.join(self.flow.nodes)}"
            raise ValueError(msg)

    def _stuck(self) -> str:
        return f"flow {self.flow.name!r} cannot go on:\n" + "\n".join(
            f"  {line}" for line in self._schedule.hub.waiting()
        )


class _Shard:
    """History of a shard, for saving."""

    def __init__(self, work: Any, generation: int, history: History, save_rule: SaveRule) -> None:
        self.generation = generation
        self.snapshots = Snapshots(work)
        self._save_rule = save_rule
        self.history = history
        self.last_ticket = history.last_ticket
        self._runs_ahead = history.depth > 2
        self._begun_s = perf_counter()

    def begin(self, firing: Firing) -> None:
        """Record the start of a firing; before a new ticket, keep the state after the last one if it may be needed."""
        assert firing.ticket is not None
        if firing.ticket == self.last_ticket:
            return
        if self._runs_ahead and self.last_ticket >= 0:
            worked_s = perf_counter() - self._begun_s
            self._keep(self.snapshots.take_if_cheap(worked_s, must=self._save_rule.must(self.last_ticket)))
            self._begun_s = perf_counter()
        self.last_ticket = firing.ticket

    def remember(self) -> None:
        """Keep the current state."""
        if self.last_ticket >= 0:
            self._keep(self.snapshots.take())

    def _keep(self, state: Arrays | None) -> None:
        if state is not None:
            self.history.add(self.last_ticket, state)


class _Adversary:
    """Chooses at random what starts and what is delivered; a disfavored stage starves while anything else can proceed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._late: list[Finished] = []
        self._favor: dict[tuple[str, int | None], float] = {}

    def delay(self, finished: Finished) -> None:
        """Hold back a result, to deliver it later."""
        self._late.append(finished)

    def choose(self, waiting: Sequence[Firing]) -> Firing | Finished | None:
        """Choose what happens next. None: nothing can."""
        if self._random.random() < 0.05:
            self._favor.clear()
        options: list[Firing | Finished] = [*waiting, *self._late]
        if not options:
            return None
        chosen = max(options, key=self._rank)
        with suppress(ValueError):
            self._late.remove(chosen)  # type: ignore[arg-type]
        return chosen

    def _rank(self, option: Firing | Finished) -> float:
        firing = option.firing if isinstance(option, Finished) else option
        key = (firing.node, firing.shard)
        if key not in self._favor:
            self._favor[key] = self._random.random()
        late = isinstance(option, Finished)
        return self._favor[key] - 0.5 * late * self._random.random()


def _counting_flow() -> Flow:
    from levada.flow.channels import Queue

    flow = Flow("counting")
    numbers = flow.source("count", _Count)
    pairs = flow.batch("pair", numbers.via(Queue(max_lag=None, capacity=4)), size=2)
    flow.report(flow.map("total", _total, pairs))
    return flow


class _Count:
    def __init__(self, shard: Shard) -> None:
        self.shard = shard

    def __call__(self, weights: None) -> int:
        return self.shard.index


def _total(numbers: Sequence[float]) -> Mapping[str, float]:
    return {"total": float(sum(numbers))}
