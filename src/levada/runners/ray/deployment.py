"""`Ray`: a flow on a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Unpack

from levada.flow.deployment import OpenOptions
from levada.flow.errors import DeploymentError
from levada.flow.graph import Flow
from levada.runners.deployments import TimeLimit, parse_place, place_text, useful_workers
from levada.runners.flow_run import FlowRun
from levada.validation import NonNegativeInt, PositiveInt, check_fields


@dataclass(frozen=True, kw_only=True)
class Ray:
    """Runs shards in actors of a Ray cluster, and everything behind the queues in this process.

    Raises:
        DeploymentError: a setting is invalid, or Ray is not installed.
    """

    workers: PositiveInt | None = None
    """Number of actors; each runs whole shards. None: one per CPU of the cluster, but at most one per shard."""
    address: str | None = None
    """Address of the cluster: `auto`, `host:port`, or `ray://host:port`. None: the one of the environment variable RAY_ADDRESS,
    or a new one on this machine."""
    threads: PositiveInt = 1
    """Threads of each actor for linear algebra."""
    resources: Mapping[str, Any] | None = None
    """Options of each actor, as Ray names them: `num_cpus`, `num_gpus`, `resources`, `runtime_env`."""
    start_timeout_s: TimeLimit = 60.0
    """Seconds in which the cluster must have room for all actors."""
    max_restarts: NonNegativeInt = 3
    """Number of consecutive failures or kills of a shard before the run fails."""
    hang_timeout_s: TimeLimit | None = None
    """Seconds without an event, during work, after which an actor is killed. None: never."""

    def __post_init__(self) -> None:
        check_fields(self, DeploymentError)

    def open(self, flow: Flow, **options: Unpack[OpenOptions]) -> FlowRun:
        """Check the flow, join the cluster, start the actors, and return a run that has done nothing yet.

        Raises:
            DeploymentError: Ray is not installed, or the cluster has no room for the actors.
        """
        try:
            from levada.runners.ray.transport import RayTransport
        except ImportError as error:
            msg = f"Ray is not installed ({error}); install it with: pip install 'levada[ray]'"
            raise DeploymentError(msg) from error
        transport = RayTransport(self.threads, self.resources or {}, self.start_timeout_s)
        try:
            num_cpus = transport.join(self.address)
            num_workers = useful_workers(flow, self.workers or num_cpus)
            transport.reserve(num_workers)
            return FlowRun(
                flow, transport, num_workers=num_workers, max_restarts=self.max_restarts, hang_timeout_s=self.hang_timeout_s,
                crosses_processes=True, **options,
            )  # fmt: skip
        except BaseException:
            transport.close()
            raise

    @classmethod
    def parse(cls, after: str) -> Ray:
        """Parse the text after `ray`: nothing, the number of workers, and options.

        >>> print(Ray.parse(""), Ray.parse(":8"), Ray.parse(":8,address=auto"))
        ray ray:8 ray:8,address=auto
        """
        return parse_place(cls, "ray", after)

    def __str__(self) -> str:
        return place_text("ray", self)
