"""What the planner may choose from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from levada.flow.graph import Flow
from levada.flow.topology import derive
from levada.runners.inline import Inline
from levada.runners.processes import Processes
from levada.runners.threads import Threads

Kind = Literal["inline", "threads", "processes"]
_CORES_BEYOND: Final = 4
"""Most workers per core; more than one per core help environments that wait for something."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Settings of a run, and what its speed depends on."""

    changes: tuple[tuple[str, Any], ...] = ()
    """Fields of the algorithm that differ from the given configuration, with their values."""
    threads: int = 1
    """Threads of the learner."""
    shards: int
    num_envs: int = 1
    """Environments of a shard."""
    item_scale: float = 1.0
    """Env steps of an item, divided by those with the given configuration."""
    overlaps: bool
    """Whether sampling and learning may take place at the same time."""

    @classmethod
    def of(cls, flow: Flow, **settings: Any) -> Variant:
        """Read off a flow what its speed depends on; `settings`: the other attributes."""
        topology = derive(flow)
        overlaps = bool(topology.storages) or any(channel.queue.max_lag != 0 for channel in topology.channels)
        shards = sum(node.shards for node in flow.nodes.values() if node.kind == "source")
        return cls(shards=shards, overlaps=overlaps, **settings)


@dataclass(frozen=True)
class Candidate:
    """A deployment with settings."""

    kind: Kind
    workers: int
    """0: everything is in one thread."""
    variant: Variant

    @property
    def place(self) -> Inline | Threads | Processes:
        """The deployment."""
        if self.kind == "inline":
            return Inline()
        return Threads(workers=self.workers) if self.kind == "threads" else Processes(workers=self.workers)

    @property
    def longest(self) -> float:
        """Share of all shards that the worker with most of them has."""
        return -(-self.variant.shards // self.workers) / self.variant.shards if self.workers else 1.0

    def __str__(self) -> str:
        """The deployment and the changed settings."""
        changes = [f"{name}={value}" for name, value in self.variant.changes]
        threads = [f"threads={self.variant.threads}"] if self.variant.threads > 1 else []
        return ", ".join([str(self.place), *changes, *threads])


def candidates(variants: Sequence[Variant], num_cores: int, *, crosses_processes: bool) -> Iterator[Candidate]:
    """Yield all candidates, the simplest first.

    Args:
        variants: settings; the given ones first.
        num_cores: number of cores.
        crosses_processes: whether the work of the flow can be sent to other processes.
    """
    for variant in variants:
        if "max_lag" not in dict(variant.changes):  # in one thread, nothing overlaps
            yield Candidate("inline", 0, variant)
    for kind in ("threads", "processes"):
        if kind == "threads" or crosses_processes:
            for variant in variants:
                for workers in _worker_counts(variant.shards, num_cores):
                    yield Candidate(kind, workers, variant)


def _worker_counts(shards: int, num_cores: int) -> Iterator[int]:
    """Yield every number up to that of the cores, then doubled ones."""
    workers = 1
    while workers <= min(shards, _CORES_BEYOND * num_cores):
        yield workers
        workers = workers + 1 if workers < num_cores else 2 * workers
