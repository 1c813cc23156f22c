"""The boundary between the graph and the machines: a deployment opens a flow and returns a run.

`Inline()` is one deployment; processes and clusters are others. The flow and its hash do not depend on the deployment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
        """Continue the run and yield each report, until the goal is reached, if it has one."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """Where the learners of a flow stop, if it has several; a flow with one learner ends where the caller says.

    Each learner stops after its own first update at which a part of the goal is reached, and the run is over when all have. A
    learner goes on as long as the others cannot stop without its next versions. In admission order, the parameters at the end are
    therefore the same in every deployment.
    """

    num_env_steps: int | None = None
    """Env steps of the items that the learner has taken, or of those in its replay at the draw of the update."""
    num_updates: int | None = None
    """Updates of the learner."""


class OpenOptions(TypedDict, total=False):
    """Keyword arguments of `Deployment.open`."""

    seed: int
    instruments: Sequence[Instrument]
    state: RunState | None
    save_every: int | None
    goal: Goal | None


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
        goal: Goal | None = None,
    ) -> Run:
        """Check the flow, start the machinery that executes it, and return a run that has done nothing yet.

        Args:
            flow: the flow to execute.
            seed: seed from which all randomness derives.
            instruments: observers of every event.
            state: saved state of a run of this flow with this seed, under any deployment, to resume from.
            save_every: number of updates between saves; the run prepares for saving where shards run ahead.
            goal: where each of several learners stops. None: the caller alone ends the run.

        Raises:
            FlowError: the flow is not well formed.
        """
        ...
