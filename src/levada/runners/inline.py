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

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Unpack

from levada.flow.channels import Queue
from levada.flow.deployment import OpenOptions
from levada.flow.errors import DeploymentError, LevadaError
from levada.flow.events import Report
from levada.flow.graph import Flow
from levada.flow.items import Item
from levada.flow.patience import hung_s
from levada.runners.adversary import Adversary
from levada.runners.deployments import check_threads, parse_place, place_text
from levada.runners.flow_run import FlowRun
from levada.runners.inline_transport import InlineTransport, Undelivered
from levada.schedule import Firing, Snapshot
from levada.validation import NonNegativeInt, PositiveInt, check_fields


class StuckError(LevadaError, RuntimeError):
    """The run cannot proceed; the message says which node waits for what."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Inline:
    """Runs a flow in the calling thread: the default for tests and small jobs."""

    adversary: NonNegativeInt | None = None
    """Seed of an order that delays items at random for as long as the schedule allows. None: the plain order."""
    threads: PositiveInt = 1
    """Threads of the shards for linear algebra; learners have a separate setting."""
    max_restarts: NonNegativeInt = 3
    """Number of consecutive failures of a shard before the run fails. 0: the first error of an environment ends the run."""

    def open(self, flow: Flow, **options: Unpack[OpenOptions]) -> InlineRun:
        """Check the flow, open its sources and learners, and return a run that has done nothing yet."""
        transport = InlineTransport(self.threads, holds_back=self.adversary is not None)
        run = InlineRun(flow, transport, max_restarts=self.max_restarts, needs_reports=False, **options)
        if self.adversary is not None:
            run.adversary = Adversary(self.adversary)
        return run

    @classmethod
    def parse(cls, after: str) -> Inline:
        """Parse the text after `inline`: nothing, or options such as `,threads=2`."""
        return parse_place(cls, "inline", after)

    def __post_init__(self) -> None:
        check_fields(self, DeploymentError)
        check_threads("Inline: ", self.threads)

    def __str__(self) -> str:
        return place_text("inline", self)


class InlineRun(FlowRun):
    """A flow that is executed step by step. Created by `Inline().open(flow)`, closed at the end of a `with` block."""

    transport: InlineTransport
    adversary: Adversary | None = None
    """Chooses the next firing. None: central nodes first, then nodes at shards, then tickets in their order."""
    _breakpoints: tuple[tuple[str, Callable[[Firing], bool]], ...] = ()

    def step(self, until: str | None = None) -> Firing:
        """Execute one firing, or continue until a firing of the node `until` is done. Return the last firing.

        Raises:
            ValueError: no such node.
            StuckError: the run cannot proceed.
        """
        self._check_known(until)
        while True:
            firing = self._step()
            if until is None or firing.node == until:
                return firing

    def __iter__(self) -> Iterator[Report]:
        self.flow.check(reports=True)
        return super().__iter__()

    def break_on(self, node: str, when: Callable[[Firing], bool] | None = None) -> None:
        """Call `breakpoint()` before each firing of a node (for which `when(firing)` holds)."""
        self._check_known(node)
        self._breakpoints = (*self._breakpoints, (node, when or (lambda firing: True)))

    def peek(self, node: str) -> list[Item]:
        """Return the items that wait to be consumed by a node, without changing anything."""
        self._check_known(node)
        started = [item for firing in self._ready if firing.node == node for item in firing.inputs]
        return started + self.transport.worker.host.held(node) + self._hub.peek(node)

    def node_state(self, node: str) -> Any:
        """Return the live work of a node: the learner of a learn node, the list of shards of a source."""
        self._check_known(node)
        if self.flow.nodes[node].kind == "source":
            return self.transport.worker.host.work_of(node)
        return self._work_of(self.flow.nodes[node])

    def refresh_weights(self, learner: str) -> None:
        """Replace all weights of a learner that samplers can read by its current ones, which the caller has changed.

        Call it between two updates, as when the run has yielded a report.

        Raises:
            ValueError: the node is no learner.
        """
        if learner not in self._learners:
            msg = f"refresh_weights: {learner!r} is no learner of flow {self.flow.name!r}; those are {', '.join(self._learners)}"
            raise ValueError(msg)
        policy = self.flow.learners()[learner].policy_name
        for name in (name for name, register in self.flow.registers.items() if register.policy == policy):
            weights = self._learners[learner].weights()
            self._weights[name] = dict.fromkeys(self._weights[name], weights)
            self.transport.replace(name, weights)

    def is_hung(self, seconds: float) -> bool:
        """Whether the current step of an environment has taken this long."""
        return (self.workers.is_waiting and hung_s() >= seconds) or self.evaluations.waits_s() >= seconds

    # ---- internals

    def _turn(self) -> None:
        if self._breakpoints or self.adversary is not None or self._ready or self.transport.worker.host.is_idle:
            self._step()
            return
        due = self.transport.worker.host.most_urgent
        if due is not None and due.ticket is not None and not self._hub.sources[due.node].uses_at_once(due.shard or 0):
            self._keep_state_before(due)
        self._listen()

    def _step(self) -> Firing:
        """Execute firings until one is done and delivered; return it."""
        self._check_open()
        while True:
            due: Firing | Undelivered | None
            if self.adversary is not None:
                due = self.adversary.choose([*self._ready, *self.transport.options()])
            else:
                due = self._ready[0] if self._ready else self.transport.worker.host.most_urgent
            if due is None:
                raise StuckError("\n  ".join([f"flow {self.flow.name!r} cannot go on:", *self._hub.waiting()]))
            if isinstance(due, Firing):
                if self._breakpoints and any(node == due.node and when(due) for node, when in self._breakpoints):
                    breakpoint()
                if due.shard is None:
                    self._execute(due)
                    return due
                self._keep_state_before(due)
            self.transport.due, num_undelivered = due, len(self.transport.undelivered)
            self._listen()
            if len(self.transport.undelivered) <= num_undelivered and not self.transport.has_failed:
                return due if isinstance(due, Firing) else due.firing

    def _keep_state_before(self, firing: Firing) -> None:
        """Keep the state of a shard before its next ticket: a save may come while what that makes is not used yet."""
        if (found := self.transport.worker.host.state_before(firing)) is not None:
            assert firing.shard is not None
            self._shards[firing.node, firing.shard].history.add(*found)

    def _complete_histories(self, snapshot: Snapshot) -> None:
        """Ask shards for the states that were not kept: those after the last ticket of each."""
        host = self.transport.worker.host
        for key, shard in self._shards.items():
            ticket = host.last_ticket(key)
            is_needed = ticket >= 0 and (not snapshot.is_exact or ticket < snapshot.tickets[key[0]])
            if is_needed and (state := host.state(key)) is not None:
                shard.history.add(ticket, state)
            shard.why_not = host.why_not_saved(key)

    def _check_known(self, node: str | None) -> None:
        if node is not None and node not in self.flow.nodes:
            msg = f"flow {self.flow.name!r} has no node {node!r}; its nodes: {', '.join(self.flow.nodes)}"
            raise ValueError(msg)


def _counting_flow() -> Flow:
    flow = Flow("counting")
    numbers = flow.source("count", lambda shard: lambda weights: shard.index)
    pairs = flow.batch("pair", numbers.via(Queue(max_lag=None, capacity=4)), size=2)
    flow.report(flow.map("total", lambda numbers: {"total": float(sum(numbers))}, pairs))
    return flow
