"""The number of workers: what a user may request, and what a flow can use."""

from __future__ import annotations

import dataclasses
import os
from contextlib import suppress
from typing import Annotated, Any, TypeAlias, TypeVar

from annotated_types import Interval
from threadpoolctl import threadpool_info

from levada.flow.errors import DeploymentError
from levada.flow.graph import Flow
from levada.memory import machine_memory
from levada.runners.statistics import num_cores

THREADS_PER_CORE = 4
"""More threads than that only wait for each other."""
WORKER_BYTES = 1 << 26
"""Least memory of a worker process with torch loaded, in bytes."""
MAX_WORKER_THREADS = 1024
TimeLimit: TypeAlias = Annotated[float, Interval(gt=0, le=1e6)]
"""Seconds; the largest limit is short enough for every system call that waits."""


def num_threads_here() -> int:
    """Return the number of threads for linear algebra in this process."""
    return max((info["num_threads"] for info in threadpool_info()), default=1)


def check_threads(kind: str, threads: int) -> None:
    """Reject more threads than the machine can use; far too many cause a segmentation fault in torch.

    Raises:
        DeploymentError: there are too many.
    """
    cores = os.cpu_count() or 1
    if threads > THREADS_PER_CORE * cores:
        msg = (
            f"{kind}threads={threads}: expected at most {THREADS_PER_CORE * cores}, {THREADS_PER_CORE} for each of the {cores} "
            f"cores of this machine; more than {cores} rarely help"
        )
        raise DeploymentError(msg)


def check_workers(kind: str, workers: int | None, most: int, why: str) -> None:
    """Reject more workers than there is room for.

    Raises:
        DeploymentError: there are too many.
    """
    if workers is not None and workers > most:
        msg = f"{kind}: workers is {workers}, expected at most {most}: {why}"
        raise DeploymentError(msg)


def check_worker_processes(kind: str, workers: int | None) -> None:
    """Reject more worker processes than fit into the memory of this machine."""
    most = max(1, machine_memory().total_nbytes // WORKER_BYTES)
    why = f"each takes at least {WORKER_BYTES >> 20} MiB of the {machine_memory().total_nbytes >> 20:,} MiB that this machine has"
    check_workers(kind, workers, most, why)


PlaceT = TypeVar("PlaceT")


def parse_place(kind: type[PlaceT], name: str, after: str) -> PlaceT:
    """Parse a deployment from the text after its name: `:2` for two workers, and options such as `,threads=2`.

    Raises:
        DeploymentError: the text is invalid.
    """
    words = after.split(",")
    first = words[0].removeprefix(":")
    known = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    options: dict[str, Any] = {}
    if words[0]:
        if "workers" not in known:
            msg = f"on='{name}{after}': expected '{name}', or with options behind a comma"
            raise DeploymentError(msg)
        if first == words[0] or not first.isascii() or not first.isdigit():
            msg = f"on='{name}{after}': expected '{name}', or with the number of workers, such as '{name}:2'"
            raise DeploymentError(msg)
        options["workers"] = int(first)
    for word in words[1:]:
        key, _, value = word.partition("=")
        if key not in known or key in options:
            after_what = "the number of workers" if "workers" in known else f"{name!r}"
            msg = f"on='{name}{after}': no option {key!r}; after {after_what} there may be, once each: "
            raise DeploymentError(msg + ", ".join(f"{key}=..." for key in known if key != "workers"))
        options[key] = _value(value)
    return kind(**options)


def place_text(name: str, place: Any) -> str:
    """Return the text that `parse_place` parses into an equal deployment."""
    workers = getattr(place, "workers", None)
    said = [name if workers is None else f"{name}:{workers}"]
    for field in dataclasses.fields(place):
        value = getattr(place, field.name)
        if field.name != "workers" and value != field.default:
            said.append(f"{field.name}={str(value).removesuffix('.0')}")
    return ",".join(said)


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def useful_workers(flow: Flow, workers: int | None) -> int:
    """Return one worker per core by default, but at most one per shard."""
    num_shards = sum(node.shards for node in flow.nodes.values() if node.kind == "source")
    return min(workers or num_cores(), num_shards)
