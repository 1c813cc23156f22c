"""The transport of a Ray cluster: one call per worker at a time, items and weights in the object store."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from levada.flow.errors import DeploymentError
from levada.flow.items import Item, Shard
from levada.flow.state import Arrays
from levada.portable import variables
from levada.runners.ray.server import Answer, Failure, Orders, Sent, ShardActor
from levada.runners.remote_errors import unpack_error
from levada.runners.transport import Plan, ShardFailed, ShardOpened, TicketDone, WorkerEnded, WorkerEvent
from levada.schedule import Closed, Ticket

log: logging.Logger = logging.getLogger(__name__)

PATIENCE_S = 5.0
"""Time that an actor has to close its environments, in seconds."""


class RayWorker:
    """The main process's view of an actor."""

    def __init__(self, actor: Any, bundle: int, shards: tuple[Shard, ...], known: Mapping[str, int]) -> None:
        """`bundle`: its place in the placement group; `known`: the newest version that it has, by register."""
        self.actor = actor
        self.bundle = bundle
        self.shards = shards
        self.pid: int | None = None
        self.known: dict[str, int] = dict(known)
        self.call: Any = None
        """The answer that is awaited. None: there is no call."""
        self.why = ""
        self._unopened = len(shards)
        self._num_left = 0
        self._tickets: list[tuple[Ticket, bool]] = []

    def submit(self, tickets: Iterable[Ticket], *, first: bool = False) -> None:
        """Add tickets for the next `flush`."""
        self._tickets += [(ticket, first) for ticket in tickets]

    def forget_tickets(self) -> None:
        """Discard the tickets for the next `flush`."""
        self._tickets.clear()

    @property
    def has_work(self) -> bool:
        """Whether a call makes sense."""
        return bool(self._tickets or self._num_left or self._unopened)

    def take_tickets(self) -> tuple[tuple[Ticket, bool], ...]:
        """Return the tickets to hand over."""
        tickets, self._tickets = tuple(self._tickets), []
        self._num_left += len(tickets)
        return tickets

    def heard(self, event: WorkerEvent) -> None:
        """Count what is left to do."""
        if isinstance(event, ShardOpened) and self._unopened:
            self._unopened -= 1
        elif isinstance(event, TicketDone | ShardFailed):
            self._num_left -= 1


class RayTransport:
    """Executes shards in actors."""

    def __init__(self, num_threads: int, resources: Mapping[str, Any], timeout_s: float) -> None:
        """`resources`: options of each actor; `timeout_s`: time in which the cluster must have room for all workers."""
        self._num_threads = num_threads
        given = resources.get("runtime_env", {})
        environment = {**given, "env_vars": {**variables(), **given.get("env_vars", {})}}
        self._resources = {"num_cpus": 1, **resources, "runtime_env": environment}
        self._timeout_s = timeout_s
        self._has_joined = False
        self._num_workers = 0
        self._group: PlacementGroup | None = None
        self._workers: list[RayWorker] = []
        self._weights: dict[str, tuple[int, dict[int, Any]]] = {}
        """Register -> number of versions kept, and references to them."""

    def join(self, address: str | None) -> int:
        """Join the cluster, or start one, unless this process has; return its number of CPUs."""
        if not ray.is_initialized():
            where = address or os.environ.get("RAY_ADDRESS") or "local"
            ray.init(address=where, include_dashboard=False, logging_level=logging.WARNING)
            self._has_joined = True
        return int(ray.cluster_resources().get("CPU", 1))

    def reserve(self, num_workers: int) -> None:
        """Reserve room for the workers.

        Raises:
            DeploymentError: the cluster has none within the time limit.
        """
        self._num_workers = num_workers
        bundle = {"CPU": float(self._resources["num_cpus"]), **self._resources.get("resources", {})}
        if gpus := self._resources.get("num_gpus"):
            bundle["GPU"] = float(gpus)
        self._group = placement_group([bundle] * num_workers, strategy="SPREAD")
        if not self._group.wait(self._timeout_s):
            msg = (
                f"Ray: the cluster has no room for {num_workers} workers with {_text(bundle, bundle)} each within "
                f"{self._timeout_s:g} s; it has {_text(ray.cluster_resources(), bundle)}, of which "
                f"{_text(ray.available_resources(), bundle)} are free"
            )
            raise DeploymentError(msg)

    def open(self, plan: Plan, registers: Mapping[str, tuple[int, Mapping[int, Any]]]) -> None:
        """Put the existing weights."""
        self._plan = plan
        for register, (keep, weights) in registers.items():
            self._weights[register] = keep, {version: ray.put(value) for version, value in weights.items()}

    def start(self, shards: Sequence[tuple[Shard, Arrays | None]]) -> RayWorker:
        """Start an actor."""
        bundle = min(set(range(self._num_workers)) - {worker.bundle for worker in self._workers})
        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)
        options = {"max_concurrency": 2, "max_restarts": 0, "scheduling_strategy": strategy, **self._resources}
        registers = {name: (keep, list(weights.items())) for name, (keep, weights) in self._weights.items()}
        actor = ray.remote(ShardActor).options(**options).remote(self._plan, self._num_threads, shards, registers)
        known = {name: next(reversed(weights)) for name, (_, weights) in self._weights.items()}
        worker = RayWorker(actor, bundle, tuple(shard for shard, _ in shards), known)
        self._workers.append(worker)
        return worker

    def publish(self, register: str, version: int, weights: Any) -> None:
        """Put a version, once for all workers."""
        keep, versions = self._weights[register]
        versions[version] = ray.put(weights)
        while len(versions) > keep:
            del versions[next(iter(versions))]

    def flush(self) -> None:
        """Call each worker that has something to do and is not being waited for."""
        for worker in self._workers:
            if worker.call is None and worker.has_work:
                news = []
                for register, (_, versions) in self._weights.items():
                    known = worker.known[register]
                    news += [(register, version, ref) for version, ref in versions.items() if version > known]
                    worker.known[register] = next(reversed(versions))
                worker.call = worker.actor.exchange.remote(Orders(worker.take_tickets(), tuple(news)))

    def wait(self, timeout_s: float | None) -> Sequence[tuple[RayWorker, WorkerEvent]]:
        """Return events of workers."""
        self.flush()  # an answer may have left work behind
        calls = {worker.call: worker for worker in self._workers if worker.call is not None}
        if not calls:  # no worker has anything to do: no event can arrive
            time.sleep(1.0 if timeout_s is None else timeout_s)
            return []
        ready, _ = ray.wait(list(calls), num_returns=1, timeout=timeout_s, fetch_local=False)
        if ready:  # others may be, too
            ready, _ = ray.wait(list(calls), num_returns=len(calls), timeout=0, fetch_local=False)
        return [(calls[call], event) for call in ready for event in self._heard(calls[call])]

    def kill(self, worker: RayWorker, why: str) -> None:
        """Kill a hanging worker at once."""
        worker.why = why
        ray.kill(worker.actor)

    def close(self) -> None:
        """Close all actors, and leave the cluster if it was joined here."""
        workers, self._workers, self._weights = self._workers, [], {}
        if workers:
            closing = [worker.actor.close.remote() for worker in workers]
            ray.wait(closing, num_returns=len(closing), timeout=PATIENCE_S)
            for worker in workers:
                with suppress(RayError):
                    ray.kill(worker.actor)
        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None
        if self._has_joined:
            ray.shutdown()
            self._has_joined = False

    # ---- internals

    def _heard(self, worker: RayWorker) -> list[WorkerEvent]:
        """Take an answer. A worker of which anything is lost is replaced."""
        call, worker.call = worker.call, None
        try:
            answer: Answer = ray.get(call)
            worker.pid = answer.pid
            events: list[WorkerEvent] = []
            for event in answer.events:
                events.append(_received(event))
                worker.heard(events[-1])
        except RayError as error:
            with suppress(RayError):
                ray.kill(worker.actor)
            self._workers.remove(worker)
            return [WorkerEnded(worker.why or _how(error), by_error="creation task" in str(error))]
        return events


def _received(event: WorkerEvent | Failure) -> WorkerEvent:
    """Turn what was sent into the event of every transport."""
    if isinstance(event, Failure):
        return ShardFailed(event.source, event.shard, event.is_final, unpack_error(event.error))
    if not isinstance(event, TicketDone):
        return event
    refs = [item.value.ref for items in event.closed.made.values() for item in items if isinstance(item.value, Sent)]
    values = iter(ray.get(refs))
    made = {
        channel: [Item(next(values), item.headers) for item in items] for channel, items in event.closed.made.items()
    }
    return TicketDone(Closed(event.closed.ticket, made, event.closed.header), event.spent, event.state)


def _how(error: RayError) -> str:
    """How an actor ended, in words: the last line, which names the error if one was raised while it started."""
    lines = [line.strip() for line in re.sub("\x1b\\[[0-9;]*m", "", str(error)).splitlines() if line.strip()]
    return f"({type(error).__name__}: {lines[-1] if lines else 'no reason given'})"


def _text(resources: Mapping[str, float], names: Iterable[str]) -> str:
    """Some resources in words."""
    return ", ".join(f"{resources.get(name, 0.0):g} {name}" for name in names)
