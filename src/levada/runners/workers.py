"""The workers of a run, as seen by its main process: who holds work, who is silent, and who has to be killed."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from time import perf_counter

from levada.flow.errors import LevadaError
from levada.flow.items import Shard
from levada.flow.patience import HANG_S, START_S
from levada.flow.state import Arrays
from levada.runners.attribution import MAIN
from levada.runners.saving import ShardKey
from levada.runners.transport import Transport, Worker, WorkerEvent
from levada.schedule import Hub, Ticket

log: logging.Logger = logging.getLogger(__name__)


class ClosedError(LevadaError, ValueError):
    """The run was closed."""


class WorkerError(LevadaError, RuntimeError):
    """A worker ended more often than allowed."""

    @classmethod
    def before_it_began(cls, who: str, how: str) -> WorkerError:
        """Create the error for a worker that could not even start, and never will. `how`: how it ended."""
        if "ModuleNotFoundError" in how:  # said by Ray, which says it all
            hint = (
                "what can be imported here cannot be imported there: install it on every host, or let Ray ship it, with a "
                "runtime_env in place"
            )
        else:
            hint = (
                "what it wrote to stderr says why. If that speaks of bootstrapping, or of a file that is not there: what starts "
                'a run stands in a file, below `if __name__ == "__main__":`'
            )
        return cls(f"{who} ended {how} before it had begun; {hint}")


class WorkerState:
    """The state of one worker."""

    def __init__(self, worker: Worker, name: str, place: str) -> None:
        self.worker = worker
        self.name: str = name
        self.place: str = place
        """The thread or process in which it works; see `Fired.worker`."""
        """Name that also the worker that replaces it has."""
        self.unopened: set[tuple[str, int]] = {(shard.node, shard.index) for shard in worker.shards}
        """Shards that it has not opened yet."""
        self.is_busy = False
        """Whether it is doing something slow that is not a hang."""
        self.has_begun = False
        """Whether it got as far as opening its shards."""
        self.last_event_s: float = perf_counter()
        """Time of its last event, or at which work was last sent to it."""

    @property
    def start_s(self) -> float:
        """Time that it is granted to start, in seconds: none once it has begun."""
        return 0.0 if self.has_begun else START_S


class Workers:
    """All workers of a run."""

    def __init__(self, transport: Transport, hub: Hub, hang_timeout_s: float | None) -> None:
        """`hang_timeout_s`: time in seconds after which a silent worker with work left is killed."""
        self._transport = transport
        self._hub = hub
        self._hang_timeout_s = hang_timeout_s
        self.states: dict[Worker, WorkerState] = {}
        self._state_of: dict[ShardKey, WorkerState] = {}
        self._names: dict[tuple[ShardKey, ...], str] = {}
        self._to_send: set[WorkerState] = set()
        """Workers to which the next `flush` may send work: those with new tickets, or with an event since the last one."""
        self._silent_since_s: float | None = None
        self._has_reported = False
        self._next_check_s = 0.0
        """Time before which no worker can have been silent for too long: events and new work only move it later."""
        self.let_hold()

    def let_hold(self) -> None:
        """Set the most tickets that a shard may hold in arrival order."""
        for source in self._hub.sources.values():
            source.let_hold(self._transport.tickets_at_hand, self._transport.tickets_together)

    def start(self, shards: Sequence[tuple[Shard, Arrays | None]]) -> WorkerState:
        """Start a worker for some shards, each with the state to resume from, if any."""
        first = tuple((shard.node, shard.index) for shard, _ in shards[:1])  # that of the worker which it replaces, too
        name = self._names.setdefault(first, f"worker {len(self._names)}")
        state = WorkerState(self._transport.start(shards), name, MAIN if self._transport.is_here else name)
        self.states[state.worker] = state
        for shard in state.worker.shards:
            self._state_of[shard.node, shard.index] = state
        return state

    def of(self, key: ShardKey) -> WorkerState:
        """Return the worker of a shard."""
        return self._state_of[key]

    def submit(self, ticket: Ticket, *, first: bool) -> None:
        """Pass a ticket to the worker of its shard. `first`: before those that wait there."""
        state = self._state_of[ticket.source, ticket.shard]
        self._note(state)
        state.worker.submit((ticket,), first=first)

    def flush(self) -> None:
        """Send everything pending. Work that had to wait for this, as it does while a report is looked at, begins now."""
        now_s = perf_counter()
        for state in self._to_send:
            state.last_event_s = now_s
        self._to_send.clear()
        self._transport.flush()

    @property
    def are_open(self) -> bool:
        """Whether all shards are open."""
        return not any(state.unopened for state in self.states.values())

    @property
    def is_waiting(self) -> bool:
        """Whether the run waits for its workers."""
        return self._silent_since_s is not None

    def silence_s(self) -> float:
        """Return how long the run has been waiting without an event of any worker, in seconds."""
        return 0.0 if self._silent_since_s is None else perf_counter() - self._silent_since_s

    def listen(self) -> Iterator[tuple[WorkerState, WorkerEvent]]:
        """Yield events. Sleeps until one arrives, or until a worker has been silent for too long; it is killed then."""
        if self._silent_since_s is None:
            self._silent_since_s, self._has_reported = perf_counter(), False
        events = self._transport.wait(self._patience_s())
        if events:
            self._silent_since_s = None
        elif not self._has_reported and self.silence_s() >= HANG_S:
            self._has_reported = True
            self._report_silence()
        for worker, event in events:
            state = self.states.get(worker)
            if state is not None:  # otherwise it was replaced
                self._note(state)
                yield state, event
        # the events of this call are already recorded
        if self._hang_timeout_s is not None and (now_s := perf_counter()) >= self._next_check_s:
            self.kill_the_silent(now_s - self._hang_timeout_s)
            since_s = [state.last_event_s + state.start_s for state in self.states.values() if self._has_work(state)]
            self._next_check_s = min([now_s, *since_s]) + self._hang_timeout_s

    def kill_the_silent(self, limit_s: float) -> None:
        """Kill the workers with work left whose last event came before `limit_s`, by `time.perf_counter`; `START_S` before, if
        they have not begun.
        """
        for state in self.states.values():
            if self._has_work(state) and state.last_event_s + state.start_s <= limit_s:
                state.last_event_s = perf_counter()  # its end will be reported
                self._transport.kill(state.worker, f"after {self._hang_timeout_s:g} s without a sign of life")

    def _note(self, state: WorkerState) -> None:
        """Note an event of a worker, or new work for it."""
        if self._hang_timeout_s is not None:
            state.last_event_s = perf_counter()
            self._to_send.add(state)

    def _patience_s(self) -> float | None:
        """Return how long to wait until a worker may have been silent for too long, or until the silence is reported."""
        if self._hang_timeout_s is None:
            return None if self._has_reported else HANG_S
        return max(0.0, self._next_check_s - perf_counter())

    def _report_silence(self) -> None:
        """Report which shards the run is waiting for. The worker itself reports the step, if its environment lets it."""
        for state in self.states.values():
            if self._has_work(state):
                names = ", ".join(f"{shard.node} {shard.index}" for shard in state.worker.shards)
                log.warning("no event from %s (process %s) for %g s", names, state.worker.pid, HANG_S)

    def _has_work(self, state: WorkerState) -> bool:
        if state.is_busy:
            return False
        return bool(state.unopened) or any(self._hub.tickets(shard.node, shard.index) for shard in state.worker.shards)
