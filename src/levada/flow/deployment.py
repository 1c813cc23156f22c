"""The boundary between the graph and the machines: a deployment opens a flow and returns a run.

`Inline()` is one deployment; processes and clusters are others. The flow and its hash do not depend on the deployment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

from levada.flow.events import Instrument, Report, Statistics, WorkerStatistics
from levada.flow.state import RunState

if TYPE_CHECKING:
    from levada.flow.graph import Flow


class Run(Protocol):
    """A flow that is being executed."""

    on_turn: Callable[[], None]
    """Called before each action of the run in this process; an exception raised here stops the loop."""

    @property
    def flow(self) -> Flow:
        """The flow that is being executed."""
        ...

    def __iter__(self) -> Iterator[Report]:
        """Continue the run and yield each report."""
        ...

    def is_hung(self, seconds: float) -> bool:
        """Whether it has waited this long for one environment step or for its workers. Called from another thread."""
        ...

    def statistics(self) -> Statistics:
        """Return statistics of the run at this moment, as plain data."""
        ...

    def attribution(self) -> Mapping[str, WorkerStatistics]:
        """Return where the time of each worker went so far. `main` is the thread that runs the schedule, and learners."""
        ...

    def node_state(self, node: str) -> Any:
        """Return the live actor of a node: the learner of a learn node."""
        ...

    def finish_evaluations(self) -> None:
        """Wait for the evaluations that have begun, so that instruments have their results.

        Raises:
            Exception: whatever an evaluation has raised.
        """
        ...

    def save(self, replays: bool = True) -> RunState:
        """Return a state to resume from. The run must be between two updates, as it is when it yields a report.

        `replays`: include their contents. Otherwise they are filled again after resuming.
        """
        ...

    def close(self) -> None:
        """Stop, and release the resources."""
        ...


class OpenOptions(TypedDict, total=False):
    """Keyword arguments of `Deployment.open`."""

    seed: int
    instruments: Sequence[Instrument]
    state: RunState | None
    save_every: int | None


class Deployment(Protocol):
    """Decides where nodes run."""

    def open(
        self,
        flow: Flow,
        *,
        seed: int = 0,
        instruments: Sequence[Instrument] = (),
        state: RunState | None = None,
        save_every: int | None = None,
    ) -> Run:
        """Check the flow, start the machinery that executes it, and return a run that has done nothing yet.

        Args:
            flow: the flow to execute.
            seed: seed from which all randomness derives.
            instruments: observers of every event.
            state: saved state of a run of this flow with this seed, under any deployment, to resume from.
            save_every: number of updates between saves; the run prepares for saving where shards run ahead.

        Raises:
            FlowError: the flow is not well formed.
        """
        ...
