"""`Processes`: a flow on the cores of one machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from levada.flow.errors import DeploymentError
from levada.flow.graph import Flow
from levada.flow.state import RunState
from levada.flow.watch import Instrument
from levada.runners.accounts import num_cores
from levada.runners.processes.run import ProcessesRun


@dataclass(frozen=True, kw_only=True)
class Processes:
    """Shards in worker processes, everything behind the queues in this one."""

    workers: int | None = None
    """How many; each carries whole shards. None: one for each core, but not more than there are shards."""
    threads: int = 1
    """Threads of each worker for linear algebra. Workers times threads should not exceed the cores."""
    max_restarts: int = 3
    """How often in a row a shard may fail, or be killed, before the run fails."""

    hang_timeout_s: float | None = None
    """Seconds without a sign of life, in the middle of its work, after which a worker is killed. None: never."""

    def __post_init__(self) -> None:
        for name, value, least in (
            ("workers", self.workers, 1),
            ("threads", self.threads, 1),
            ("max_restarts", self.max_restarts, 0),
        ):
            if value is not None and (type(value) is not int or value < least):
                msg = f"Processes: {name} is {value!r}, expected an integer of at least {least}"
                raise DeploymentError(msg)
        if self.hang_timeout_s is not None and not self.hang_timeout_s > 0:
            msg = f"Processes: hang_timeout_s is {self.hang_timeout_s!r}, expected seconds above 0, or None"
            raise DeploymentError(msg)

    def open(
        self,
        flow: Flow,
        *,
        seed: int = 0,
        instruments: Sequence[Instrument] = (),
        state: RunState | None = None,
        save_every: int | None = None,
    ) -> ProcessesRun:
        """Check the flow, start the workers, open sources and learners, and return the run, which has done nothing yet."""
        num_shards = sum(node.shards for node in flow.nodes.values() if node.kind == "source")
        wanted = self.workers or num_cores()
        return ProcessesRun(
            flow, seed=seed, instruments=instruments, state=state, save_every=save_every, num_workers=min(wanted, num_shards),
            num_threads=self.threads, max_restarts=self.max_restarts, hang_timeout_s=self.hang_timeout_s,
        )  # fmt: skip

    @classmethod
    def parse(cls, after: str) -> Processes:
        """From what stands behind `processes`: nothing, or `:` and the number of workers.

        >>> print(Processes.parse(""), Processes.parse(":2"))
        processes processes:2
        """
        if not after:
            return cls()
        number = after.removeprefix(":")
        if number == after or not number.isascii() or not number.isdigit():
            msg = f"on='processes{after}': expected 'processes', or with the number of workers, such as 'processes:2'"
            raise DeploymentError(msg)
        return cls(workers=int(number))

    def __str__(self) -> str:
        return "processes" if self.workers is None else f"processes:{self.workers}"
