"""The number of workers: what a user may request, and what a flow can use."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from json import JSONDecoder
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
    """Return the number of threads for linear algebra in this process: torch's, which are those of OpenMP, if it is loaded."""
    found = threadpool_info()
    torch = [info["num_threads"] for info in found if info["user_api"] == "openmp"]
    return max(torch or [info["num_threads"] for info in found], default=1)


def check_threads(kind: str, threads: int, cores: int | None = None) -> None:
    """Reject more threads than the machine can use; far too many cause a segmentation fault in torch.

    `cores`: those of a machine of a cluster, None: of this one.

    Raises:
        DeploymentError: there are too many.
    """
    where, cores = ("this machine", os.cpu_count() or 1) if cores is None else ("the largest node", cores)
    if threads > THREADS_PER_CORE * cores:
        msg = (
            f"{kind}threads={threads}: expected at most {THREADS_PER_CORE * cores}, {THREADS_PER_CORE} for each of the {cores} "
            f"cores of {where}; more than {cores} rarely help"
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
    workers, _, rest = after.partition(",")
    first = workers.removeprefix(":")
    known = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    options: dict[str, Any] = {}
    if workers:
        if "workers" not in known:
            msg = f"on='{name}{after}': expected '{name}', or with options behind a comma"
            raise DeploymentError(msg)
        if first == workers or not first.isascii() or not first.isdigit():
            msg = f"on='{name}{after}': expected '{name}', or with the number of workers, such as '{name}:2'"
            raise DeploymentError(msg)
        options["workers"] = int(first)
    while rest:
        key, _, rest = rest.partition("=")
        if key in options:
            msg = f"on='{name}{after}': {key!r} is given twice"
            raise DeploymentError(msg)
        if key not in known:
            after_what = "the number of workers" if "workers" in known else f"{name!r}"
            msg = f"on='{name}{after}': no option {key!r}; after {after_what} there may be, once each: "
            raise DeploymentError(msg + ", ".join(f"{key}=..." for key in known if key != "workers"))
        try:
            options[key], rest = _value(rest)
        except ValueError as error:
            msg = f"on='{name}{after}': the value of {key!r} begins with a brace and is not JSON: {error}"
            raise DeploymentError(msg) from error
    return kind(**options)


def place_text(name: str, place: Any) -> str:
    """Return the text that `parse_place` parses into an equal deployment."""
    workers = getattr(place, "workers", None)
    said = [name if workers is None else f"{name}:{workers}"]
    for field in dataclasses.fields(place):
        value = getattr(place, field.name)
        if field.name != "workers" and value != field.default:
            text = json.dumps(value) if isinstance(value, Mapping) else str(value)
            text = text.removesuffix(".0") if isinstance(value, float) else text
            said.append(f"{field.name}={text}")
    return ",".join(said)


def _value(text: str) -> tuple[Any, str]:
    """Take a value from the front of a text, up to the next comma outside of it; return it and the rest."""
    if text.startswith("{"):
        value, end = JSONDecoder().raw_decode(text)
        return value, text[end:].removeprefix(",")
    word, _, rest = text.partition(",")
    for kind in (int, float):
        with suppress(ValueError):
            return kind(word), rest
    return word, rest


def useful_workers(flow: Flow, workers: int | None) -> int:
    """Return one worker per core by default, but at most one per shard."""
    num_shards = sum(node.shards for node in flow.nodes.values() if node.kind == "source")
    return min(workers or num_cores(), num_shards)
