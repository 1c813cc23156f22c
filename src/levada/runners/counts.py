"""How many workers: what a user may say, and what a flow can use."""

from __future__ import annotations

from collections.abc import Mapping

from levada.flow.errors import DeploymentError
from levada.flow.graph import Flow
from levada.runners.accounts import num_cores


def check_counts(kind: str, counts: Mapping[str, tuple[int | None, int]]) -> None:
    """Refuse what is no count; name -> (value, least), None may stand for a default.

    Raises:
        DeploymentError: something is not an integer, or too small.

    """
    for name, (value, least) in counts.items():
        if value is not None and (type(value) is not int or value < least):
            msg = f"{kind}: {name} is {value!r}, expected an integer of at least {least}"
            raise DeploymentError(msg)


def parse_workers(kind: str, after: str) -> int | None:
    """The number in what stands behind the name of a deployment; None if there is none.

    >>> parse_workers("processes", ""), parse_workers("processes", ":2")
    (None, 2)

    Raises:
        DeploymentError: it is something else.

    """
    if not after:
        return None
    number = after.removeprefix(":")
    if number == after or not number.isascii() or not number.isdigit():
        msg = f"on='{kind}{after}': expected '{kind}', or with the number of workers, such as '{kind}:2'"
        raise DeploymentError(msg)
    return int(number)


def useful_workers(flow: Flow, workers: int | None) -> int:
    """One for each core if nothing else is said, but not more than there are shards."""
    num_shards = sum(node.shards for node in flow.nodes.values() if node.kind == "source")
    return min(workers or num_cores(), num_shards)
