"""`Ray`: a flow on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Unpack

from levada.flow.deployment import OpenOptions
from levada.flow.errors import DeploymentError
from levada.flow.graph import Flow
from levada.flow.replicas import Reduce
from levada.runners.deployments import (
    TimeLimit,
    check_threads,
    num_threads_here,
    parse_place,
    place_text,
    useful_workers,
)
from levada.runners.flow_run import FlowRun
from levada.runners.processes.evaluator.handle import EvaluatorProcess
from levada.runners.ray.beside import check_beside
from levada.runners.ray.place import Requirements, check_place, requirements_of, together
from levada.runners.replicas.group import check_divisible
from levada.validation import NonNegativeInt, PositiveInt, check_fields

if TYPE_CHECKING:
    from levada.runners.ray.cluster import Cluster


@dataclass(frozen=True, kw_only=True)
class Ray:
    """Runs shards, learners and replay tables in actors of a Ray cluster, and the schedule in this process.

    Raises:
        DeploymentError: a setting is invalid, or Ray is not installed.
    """

    workers: PositiveInt | None = None
    """Number of actors; each runs whole shards. None: one per CPU of the cluster, but at most one per shard. Nodes
    that an autoscaler has not started yet do not count: give a number there."""
    address: str | None = None
    """Address of the cluster: `auto`, `host:port`, or `ray://host:port`. None: the one of the environment variable RAY_ADDRESS,
    or a new one on this machine."""
    threads: PositiveInt = 1
    """Threads of each actor for linear algebra."""
    learners: PositiveInt | Literal["beside"] = 1
    """Number of actors that compute each update together, data-parallel. Each takes a share of the microbatches, so
    `microbatch_size` must divide a minibatch into at least as many. If one is killed, another continues from the state of the
    rest. `beside`: one for each worker, on its node, which learns from what that worker collects; with PPO this is DD-PPO."""
    reduce: Reduce = "allreduce"
    """How several learners add their gradients. `allreduce`: each adds those of its own microbatches first, which is fast.
    `exact`: always in the order of the microbatches, so the result is bit-identical for any number of learners."""
    place: Mapping[str, Mapping[str, Any]] | None = None
    """Requirements of the actors, by the name of a source or learn node: options of actors as Ray names them (`num_cpus`,
    `num_gpus`, `memory`, `resources`, `accelerator_type`, `runtime_env`), and labels that their nodes must have."""
    start_timeout_s: TimeLimit = 60.0
    """Seconds in which the cluster must have room for all actors, and in which these must then start."""
    max_restarts: NonNegativeInt = 3
    """Number of consecutive failures or kills of a shard before the run fails."""
    learner_timeout_s: TimeLimit = 60.0
    """Seconds that a learner waits for the others during an update before they form a new group."""
    hang_timeout_s: TimeLimit | None = None
    """Seconds without an event, during work, after which an actor is killed. None: never."""

    def __post_init__(self) -> None:
        check_fields(self, DeploymentError)
        check_place(self.place)

    def open(self, flow: Flow, **options: Unpack[OpenOptions]) -> FlowRun:
        """Check the flow, join the cluster, start the actors, and return a run that has done nothing yet.

        Raises:
            DeploymentError: Ray is not installed, or the cluster has no room for the actors.
        """
        sampling, _ = requirements_of(flow, "source", self.place or {})
        learning, is_placed = requirements_of(flow, "learn", self.place or {})
        pair = [sampling, learning]
        if self.learners == "beside":
            check_beside(flow)
            together(pair)
        else:
            check_divisible(flow.learners(), self.learners)
        try:
            from levada.runners.ray.cluster import Cluster, options_here
            from levada.runners.ray.learners import RayLearners
            from levada.runners.ray.tables import RayTables
            from levada.runners.ray.transport import RayTransport
        except ImportError as error:
            msg = f"Ray is not installed ({error}); install it with: pip install 'levada[ray]'"
            raise DeploymentError(msg) from error
        cluster = Cluster(self.address, self.start_timeout_s)
        try:
            if num_cpus := cluster.num_cpus_of_largest_node:  # none: an autoscaler starts nodes for what is reserved
                check_threads("Ray: ", self.threads, num_cpus)
            learner_options: Callable[[int], Mapping[str, Any]] = options_here
            if self.learners == "beside":
                num_learners = num_workers = self._useful_workers(flow, cluster, together(pair), 0.0)
                group, own = cluster.reserve("workers and learners", num_workers, "SPREAD", *pair)
                learner_options = own.options
            else:
                num_learners, num_reserved_cpus = self.learners, 0.0
                if num_learners > 1 or is_placed:
                    [own] = cluster.reserve("learners", num_learners, "PACK", learning)
                    learner_options = own.options
                    num_reserved_cpus = num_learners * learning.resources.get("CPU", 0.0)
                num_workers = self._useful_workers(flow, cluster, sampling, num_reserved_cpus)
                [group] = cluster.reserve("workers", num_workers, "SPREAD", sampling)
            learners = RayLearners(
                num_learners, num_threads_here(), learner_options, start_timeout_s=self.start_timeout_s,
                reduce=self.reduce, timeout_s=self.learner_timeout_s, max_restarts=self.max_restarts,
            )  # fmt: skip
            tables = RayTables(options_here, max_restarts=self.max_restarts)
            transport = RayTransport(self.threads, cluster, group, learners, tables, self.start_timeout_s)
            return FlowRun(
                flow, transport, num_workers=num_workers, max_restarts=self.max_restarts, hang_timeout_s=self.hang_timeout_s,
                crosses_processes=True, learners=learners, tables=tables,
                evaluators=EvaluatorProcess(self.max_restarts), **options,
            )  # fmt: skip
        except BaseException:
            cluster.close()
            raise

    def _useful_workers(self, flow: Flow, cluster: Cluster, room: Requirements, num_reserved_cpus: float) -> int:
        """Return the number of workers. By default, those for which there are CPUs beside the reserved ones."""
        if (workers := self.workers) is None:
            workers = max(1, int((cluster.num_cpus - num_reserved_cpus) / room.resources.get("CPU", 1.0)))
        return useful_workers(flow, workers)

    @classmethod
    def parse(cls, after: str) -> Ray:
        """Parse the text after `ray`: nothing, the number of workers, and options.

        >>> print(Ray.parse(""), Ray.parse(":8"), Ray.parse(":8,address=auto"))
        ray ray:8 ray:8,address=auto
        """
        return parse_place(cls, "ray", after)

    def __str__(self) -> str:
        return place_text("ray", self)
