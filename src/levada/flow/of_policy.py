"""Errors that name the policy they are of, where several policies act in one environment.

>>> from levada.flow.errors import StreamError
>>> try:
...     with of_policy("dqn"):
...         raise StreamError("expected a stream")
... except StreamError as error:
...     print(error)
policy 'dqn': expected a stream
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from levada.flow.errors import LevadaError

SHARED = "policy"
"""Name of the only policy, if none is given. Messages leave it out."""


@contextmanager
def of_policy(name: str) -> Iterator[None]:
    """Name the policy in errors that are raised inside."""
    try:
        yield
    except Exception as error:
        name_policy(error, name)
        raise


def name_policy(error: Exception, name: str) -> None:
    """Name the policy in an error that does not: in the message if it is one of levada's, otherwise in a note."""
    if name == SHARED or (said := str(error)).startswith("policy ") or f"policy {name!r}" in said:
        return
    if isinstance(error, LevadaError):
        error.args = (f"policy {name!r}: {said}",)
    elif not any("policy " in note for note in getattr(error, "__notes__", ())):
        error.add_note(f"in policy {name!r}")


def agent_of(name: str, agent: str) -> str:
    """Tell an agent and its policy.

    >>> agent_of("dqn", "agent_1"), agent_of(SHARED, "agent_1")
    ("policy 'dqn', agent 'agent_1'", "agent 'agent_1'")
    """
    return f"agent {agent!r}" if name == SHARED else f"policy {name!r}, agent {agent!r}"
