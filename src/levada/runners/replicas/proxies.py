"""Proxies for learners in other processes, for the run and its observers."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

from levada.flow.state import Arrays


class Asks(Protocol):
    """Calls methods of a `LearnerHost`."""

    def ask(self, method: str, *args: Any) -> Any:
        """Call a method, and return its result."""
        ...


class Proxy:
    """A learner in another process. Its methods are executed there, at every replica."""

    def __init__(self, group: Asks, node: str) -> None:
        self._group = group
        self._node = node

    def weights(self) -> Any:
        """Return the current weights."""
        return self._group.ask("call", self._node, "weights")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        is_method, value = self._group.ask("attribute", self._node, name)
        return partial(self._group.ask, "call", self._node, name) if is_method else value


class SavedProxy(Proxy):
    """A learner in another process that can be saved."""

    def state_dict(self) -> Arrays:
        """Return its state."""
        state: Arrays = self._group.ask("call", self._node, "state_dict")
        return state

    def load_state_dict(self, state: Arrays) -> None:
        """Restore its state."""
        self._group.ask("call", self._node, "load_state_dict", state)
