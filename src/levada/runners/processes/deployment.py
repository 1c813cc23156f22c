"""`Processes`: a flow on the cores of one machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, Unpack

from levada.flow.deployment import OpenOptions
from levada.flow.errors import DeploymentError
from levada.flow.graph import Flow
from levada.flow.replicas import Reduce
from levada.flow.topology import derive
from levada.runners.deployments import (
    TimeLimit,
    check_threads,
    check_worker_processes,
    parse_place,
    place_text,
    useful_workers,
)
from levada.runners.flow_run import FlowRun
from levada.runners.processes.evaluator.handle import EvaluatorProcess
from levada.runners.processes.guard import check_can_be_sent, check_start
from levada.runners.processes.inference.handle import Inference
from levada.runners.processes.ipc.forkserver import preload
from levada.runners.processes.learner.handle import RemoteRun
from levada.runners.processes.replicas.handle import LearnerProcesses
from levada.runners.processes.tables.handle import TableProcesses
from levada.runners.processes.transport import SharedMemoryTransport
from levada.validation import NonNegativeInt, PositiveInt, check_fields

Learner: TypeAlias = Literal["main", "worker"]
Replays: TypeAlias = Literal["learner", "worker"]


@dataclass(frozen=True, kw_only=True)
class Processes:
    """Runs shards in worker processes, and everything behind the queues in this process or a separate one.

    Raises:
        DeploymentError: a setting is invalid.
    """

    workers: PositiveInt | None = None
    """Number of workers; each runs whole shards. None: one per core, but at most one per shard."""
    learner: Learner = "main"
    """Where the run and its learner are: in this process (`main`), or in a separate one (`worker`), which is replaced if it is
    killed."""
    learners: PositiveInt | None = None
    """Number of processes that compute each update together, data-parallel. Each takes a share of the microbatches, so
    `microbatch_size` must divide a minibatch into at least as many. If one is killed, another continues from the state of the
    rest.
    None: updates are computed where the run is."""
    reduce: Reduce = "allreduce"
    """How several learners add their gradients. `allreduce`: each adds those of its own microbatches first, which is fast.
    `exact`: always in the order of the microbatches, so the result is bit-identical for any number of learners."""
    learner_timeout_s: TimeLimit = 60.0
    """Seconds that a learner waits for the others during an update before they form a new group."""
    inference: Inference = "sampler"
    """Where actions are computed: in each worker (`sampler`), in the learner's process (`learner`), or in a separate process
    that serves all shards (`worker`)."""
    replays: Replays = "learner"
    """Where replay tables are: in the learner's process (`learner`), or each in a separate process (`worker`), which copies
    rows directly from where they were made. If it is killed it is replaced, and its contents are lost."""
    threads: PositiveInt = 1
    """Threads of each worker for linear algebra. Workers times threads should not exceed the number of cores."""
    max_restarts: NonNegativeInt = 3
    """Number of consecutive failures or kills of a shard before the run fails."""
    hang_timeout_s: TimeLimit | None = None
    """Seconds without a sign of life, during work, after which a worker is killed. For a learner in a worker the limit is 1.5
    times as long. None: never."""

    def __post_init__(self) -> None:
        check_fields(self, DeploymentError)
        check_threads("Processes: ", self.threads)
        check_worker_processes("Processes", self.workers)

    def open(self, flow: Flow, **options: Unpack[OpenOptions]) -> FlowRun | RemoteRun:
        """Check the flow, start the workers, open sources and learners, and return a run that has done nothing yet."""
        check_start(flow, sends_all=self.sends_learners)
        preload(type(node.work).__module__ for node in flow.nodes.values() if node.kind in ("source", "evaluate"))
        if self.learner == "worker":
            return RemoteRun(
                flow, replace(self, learner="main"), max_restarts=self.max_restarts, hang_timeout_s=self.hang_timeout_s, **options
            )  # fmt: skip
        tables, learners, forwarded = None, None, set[str]()
        if self.replays == "worker":
            tables = TableProcesses(max_restarts=self.max_restarts, hang_timeout_s=self.hang_timeout_s)
            forwarded |= flow.replays.keys()
        if self.learners is not None:
            check_can_be_sent(flow, f"learners={self.learners}")
            learners = LearnerProcesses(
                self.learners, reduce=self.reduce, timeout_s=self.learner_timeout_s, max_restarts=self.max_restarts
            )
            forwarded |= {channel.name for channel in derive(flow).channels}
        return FlowRun(
            flow, SharedMemoryTransport(self.threads, self.inference, forwarded=frozenset(forwarded), replicas=learners),
            num_workers=useful_workers(flow, self.workers), max_restarts=self.max_restarts, hang_timeout_s=self.hang_timeout_s,
            crosses_processes=True, tables=tables, learners=learners, evaluators=EvaluatorProcess(self.max_restarts), **options,
        )  # fmt: skip

    @property
    def sends_learners(self) -> bool:
        """Whether learners run in other processes."""
        return self.learner == "worker" or self.learners is not None

    @classmethod
    def parse(cls, after: str) -> Processes:
        """Parse the text after `processes`: nothing, the number of workers, and options.

        >>> print(Processes.parse(""), Processes.parse(":2"), Processes.parse(":2,inference=worker,hang_timeout_s=60"))
        processes processes:2 processes:2,inference=worker,hang_timeout_s=60
        """
        return parse_place(cls, "processes", after)

    def __str__(self) -> str:
        return place_text("processes", self)
