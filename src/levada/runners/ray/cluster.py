"""The cluster that a run uses: joining it, and reserving room in it before anything starts."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from levada.flow.errors import DeploymentError
from levada.flow.mistakes import plural
from levada.portable import variables
from levada.runners.ray.place import Requirements, together

_NOT_SERVED = "Starting Ray client server failed"
"""Said by Ray if the process that is to serve a client has ended."""


class Cluster:
    """A connection to a Ray cluster, with the groups of actors that have room reserved there."""

    _num_sharing: ClassVar[int] = 0
    """Number of open instances that share a connection which one of them has made: a process has one. The last ends it."""
    _started_node: ClassVar[str] = ""
    """The node that this process has started last."""

    def __init__(self, address: str | None, timeout_s: float) -> None:
        """Join the cluster, or start one, unless this process is connected to one. `timeout_s`: time limit of `reserve`.

        Raises:
            DeploymentError: there is no such cluster, or none can be started.
        """
        if address == "":
            msg = "Ray: address='' names no cluster; expected auto, host:port or ray://host:port, or no address at all"
            raise DeploymentError(msg)
        self._timeout_s = timeout_s
        self._groups: list[PlacementGroup] = []
        is_new = not ray.is_initialized()
        if is_new:
            where = address or os.environ.get("RAY_ADDRESS") or "local"
            _check_answers(where, timeout_s)
            try:
                if where == "local":
                    Cluster.start(logging_level=logging.WARNING)
                else:
                    _join(where)
            except (ValueError, OSError, RuntimeError, RayError) as error:
                raise DeploymentError(_not_joined(where, error)) from error
            Cluster._num_sharing = 0
        self._is_sharing = is_new or Cluster._num_sharing > 0
        Cluster._num_sharing += self._is_sharing

    @classmethod
    def start(cls, **options: Any) -> None:
        """Start a cluster of one node, whose processes have the environment of this one. `options`: of `ray.init`."""
        logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)  # one run alone uses it
        with own_signals():
            ray.init(address="local", include_dashboard=False, **options)
        cls._started_node = ray.get_runtime_context().get_node_id()

    @classmethod
    def has_own_environment(cls) -> bool:
        """Whether all processes of the cluster have the environment of this one."""
        return [node["NodeID"] for node in ray.nodes()] == [cls._started_node]

    @property
    def num_cpus(self) -> int:
        """Number of CPUs of the cluster."""
        return int(ray.cluster_resources().get("CPU", 1))

    @property
    def num_cpus_of_largest_node(self) -> int:
        """Number of CPUs of the node that has most."""
        return max((int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]), default=1)

    @property
    def object_store_nbytes(self) -> int:
        """Bytes that the object stores of all nodes hold."""
        return int(ray.cluster_resources().get("object_store_memory", 0))

    def reserve(self, who: str, num_bundles: int, strategy: str, *kinds: Requirements) -> list[Group]:
        """Reserve room for some actors, in bundles, each of which is on one node; return the actors of each kind.

        Args:
            who: plural of what a bundle has room for, for the error.
            num_bundles: number of bundles.
            strategy: `SPREAD` over the nodes, or `PACK` on few of them.
            kinds: requirements of each actor of a bundle.

        Raises:
            DeploymentError: the cluster has none within the time limit, or never will.
        """
        room = together(kinds)
        bundle, labels = room.resources, dict(room.labels)
        selectors = [labels] * num_bundles if labels else None
        try:
            for kind in kinds:
                ray.remote(Cluster).options(**_options(kind))  # checks them
            group = placement_group([bundle] * num_bundles, strategy=strategy, bundle_label_selector=selectors)
        except (ValueError, TypeError) as error:
            msg = f"Ray refuses what place asks for the {who}: {error}"
            raise DeploymentError(msg) from error
        self._groups.append(group)
        can_fit = all(num_bundles * num <= ray.cluster_resources().get(name, 0.0) for name, num in bundle.items())
        will_wait = can_fit or not Cluster.has_own_environment()  # one that this process has started does not grow
        if not group.wait(self._timeout_s if will_wait else 0.0):
            where = f" on nodes with {', '.join(f'{key}={value}' for key, value in labels.items())}" if labels else ""
            asked = " and ".join(plural(num_bundles, each.removesuffix("s")) for each in who.split(" and "))
            share = "each" if len(kinds) == 1 else "per pair"
            within = f" within {self._timeout_s:g} s" if will_wait else ""
            msg = (
                f"Ray: the cluster has no room for {asked} with {_text(bundle, bundle)} {share}{where}{within}; it has "
                f"{_text(ray.cluster_resources(), bundle)}, of which {_text(ray.available_resources(), bundle)} are free"
            )
            raise DeploymentError(msg)
        return [Group(group, _options(each)) for each in kinds]

    def close(self) -> None:
        """Give back what was reserved, and leave the cluster if it was joined for runs, and this is the last of them."""
        groups, self._groups = self._groups, []
        for group in groups:
            remove_placement_group(group)
        if self._is_sharing:
            self._is_sharing = False
            Cluster._num_sharing -= 1
            if not Cluster._num_sharing:
                ray.shutdown()


def has_started(actors: Sequence[Any], timeout_s: float) -> bool:
    """Wait until actors have started, or have ended; return whether all have."""
    ready = [actor.__ray_ready__.remote() for actor in actors]
    return len(ray.wait(ready, num_returns=len(ready), timeout=timeout_s)[0]) == len(ready)


def not_started(timeout_s: float) -> str:
    """Why an actor may not have started in time."""
    return (
        f"it did not start within {timeout_s:g} s, although there is room for it; likely its node cannot set up the runtime_env, "
        "or needs longer for it: see start_timeout_s, and the logs of Ray on that node"
    )


@contextmanager
def own_signals() -> Iterator[None]:
    """Keep the handler of SIGTERM, which `ray.init` replaces: a run that is ended saves itself first."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


class Group:
    """Room for a number of equal actors, one in each bundle."""

    def __init__(self, group: PlacementGroup, options: Mapping[str, Any]) -> None:
        self._group = group
        self._options = options

    def options(self, bundle: int) -> dict[str, Any]:
        """Options of the actor in one of the bundles."""
        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)
        return {**self._options, "scheduling_strategy": strategy}


def options_here(number: int = 0) -> dict[str, Any]:
    """Options of an actor that needs no room of its own, on the node of this process."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return {"num_cpus": 0, "scheduling_strategy": here, **_environment({})}


def _check_answers(address: str, timeout_s: float) -> None:
    """Refuse an address where nothing listens: Ray would try again without end.

    Raises:
        DeploymentError: nothing accepts a connection there within the time limit, or it names no port.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        if address.startswith("ray://"):
            msg = f"Ray: the address {address} names no host and port; expected such as ray://host:10001"
            raise DeploymentError(msg)
        return  # auto, local: Ray finds the address itself; it refuses what it cannot read
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()
    except (OSError, OverflowError) as error:
        msg = f"Ray: no cluster answers at {address} ({error}); is it started, and the port reachable from here?"
        raise DeploymentError(msg) from error


def _join(where: str, num_tries: int = 3) -> None:
    """Join a cluster. The process that serves a client there may end while it starts, if its host is busy: try again."""
    for num_left in reversed(range(num_tries)):
        try:
            with own_signals():
                ray.init(address=where, logging_level=logging.WARNING)
        except ConnectionAbortedError as error:
            if not num_left or _NOT_SERVED not in str(error):
                raise
        else:
            return


def _not_joined(where: str, error: Exception) -> str:
    """Say why a cluster cannot be started, or joined, and what may help."""
    if where == "local":
        return f"Ray: no cluster can be started here ({error})"
    reason = str(error).partition(". ")[0] if isinstance(error, RayError) else str(error)  # without Ray's advice
    return (
        f"Ray: the cluster at {where} cannot be joined ({reason}); an address is auto, host:port or ray://host:port. If the "
        "cluster asks for a token, set RAY_AUTH_MODE=token here, and have the token of its head in ~/.ray/auth_token or "
        "RAY_AUTH_TOKEN"
    )


def _options(kind: Requirements) -> dict[str, Any]:
    """Options of an actor, as Ray takes them."""
    return {**kind.options, **_environment(kind.options.get("runtime_env", {}))}


def _environment(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the option with the runtime environment in which numbers are computed as in this process; none where all are so.

    An actor with a runtime environment takes half a second more of a core to start.
    """
    if not given and Cluster.has_own_environment():
        return {}
    return {"runtime_env": {**given, "env_vars": {**variables(), **given.get("env_vars", {})}}}


def _text(resources: Mapping[str, float], names: Iterable[str]) -> str:
    """Some resources as text."""
    return ", ".join(f"{resources.get(name, 0.0):g} {name}" for name in names)
