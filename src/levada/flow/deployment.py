"""The seam between the graph and the machines: a deployment opens a flow and gives back a run.

`Inline()` is one; processes and clusters are others. The flow never changes with them, nor does its hash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from levada.flow.state import RunState
from levada.flow.watch import Instrument, Report, Statistics

if TYPE_CHECKING:
    from levada.flow.graph import Flow


class Run(Protocol):
    """A flow that is being executed."""

    on_turn: Callable[[], None]
    """Called before each thing that the run does, as far as it does it in this process; what it raises ends the loop."""

    @property
    def flow(self) -> Flow:
        """What is being executed."""
        ...

    def __iter__(self) -> Iterator[Report]:
        """Go on, and yield each report."""
        ...

    def is_hung(self, seconds: float) -> bool:
        """Whether it has waited for so long for one step of an environment, or for its workers. Asked from another thread."""
        ...

    def statistics(self) -> Statistics:
        """The run at this moment, as plain data."""
        ...

    def node_state(self, node: str) -> Any:
        """The live actor of a node: the learner of a learn node."""
        ...

    def save(self, replays: bool = True) -> RunState:
        """What the run can go on from, if it is between two updates, as it is when it yields a report.

        `replays`: with their contents, or else they will be filled anew.
        """
        ...

    def close(self) -> None:
        """Stop, and give the resources back."""
        ...


class Deployment(Protocol):
    """Where nodes run."""

    def open(
        self,
        flow: Flow,
        *,
        seed: int = 0,
        instruments: Sequence[Instrument] = (),
        state: RunState | None = None,
        save_every: int | None = None,
    ) -> Run:
        """Check the flow, start what carries it, and return the run, which has done nothing yet.

        Args:
            flow: what to execute.
            seed: everything random follows from it.
            instruments: see every event.
            state: of a run of this flow with this seed, to go on from, under whatever deployment it was saved.
            save_every: the run will be saved after each so many updates; it prepares for that where shards run ahead.

        Raises:
            FlowError: the flow is not well formed.

        """
        ...
