"""Executes learners in a process of their own, for a main process that calls one method at a time."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from time import perf_counter, process_time
from typing import Any

import numpy as np
from msgspec import Struct

from levada.flow.protocols import LearnerRecipe, Stateful, Update, close
from levada.flow.replicas import Reduce, Replica
from levada.flow.state import Arrays
from levada.runners.firing import OrdinaryErrors
from levada.runners.losses import ItemLostError
from levada.runners.replicas.maps import computed

log: logging.Logger = logging.getLogger(__name__)


class Learned(Struct, frozen=True):
    """The result of an update at one replica."""

    update: Update[Any] | None
    """None: another replica returns it."""
    fingerprint: str
    """Hash of the learner after the update; empty if it is alone."""
    cpu_s: float
    spent_s: float = 0.0
    """Time that it took here, in seconds."""


class _Kept(Struct, frozen=True):
    """What it takes to make some updates again."""

    number: int
    """Number of updates before them."""
    before: Arrays
    """State of the learner before them."""
    batches: list[Any]
    """Batches of all but the last."""


def leave(live: Any) -> None:
    """Leave the group, so that the others do not wait for this replica."""
    live.join(Replica(rank=0, size=1, address="", reduce="allreduce", timeout_s=1.0))


class LearnerHost:
    """One replica of each learner of a flow."""

    def __init__(self, host: str, fetch: Callable[[Any], Any]) -> None:
        """Prepare; nothing is opened yet.

        Args:
            host: address of this host, for other replicas.
            fetch: returns a batch with everything in it that came as a reference.
        """
        self._host = host
        self._fetch = fetch
        self._live: dict[str, Any] = {}
        self._is_joined = False
        self._num_updates: Counter[str] = Counter()
        self._kept: deque[_Kept] = deque()

    def open(
        self, recipes: Mapping[str, tuple[LearnerRecipe[Any, Any], int]], maps: Mapping[str, Callable[..., Any]]
    ) -> dict[str, bool]:
        """Open the learners, each from its recipe and seed; return which of them can be saved.

        `maps`: functions of the map nodes that are computed here.
        """
        self._maps = maps
        self._live = {node: recipe.open(seed) for node, (recipe, seed) in recipes.items()}
        return {node: isinstance(live, Stateful) for node, live in self._live.items()}

    def states(self) -> dict[str, Arrays]:
        """Return the state of every learner."""
        return {node: live.state_dict() for node, live in self._live.items()}

    def load(self, states: Mapping[str, Arrays]) -> None:
        """Continue from the states of another replica."""
        for node, state in states.items():
            self._live[node].load_state_dict(state)

    def listen(self) -> dict[str, str]:
        """Open a rendezvous for each learner; return their addresses."""
        return {node: live.listen(self._host) for node, live in self._live.items()}

    def join(self, rank: int, size: int, addresses: Mapping[str, str], reduce: Reduce, timeout_s: float) -> None:
        """Form the groups."""
        for node, address in addresses.items():
            self._live[node].join(Replica(rank, size, address, reduce, timeout_s))
        self._is_joined = True

    def update(self, node: str, values: Any, parts: Sequence[int] | None, tells: bool) -> Learned:
        """Learn from a batch, or from its parts. `tells`: whether this replica returns the result."""
        live, start_s, start_cpu_s = self._live[node], perf_counter(), process_time()
        try:
            batch = computed(self._fetch(values), self._maps)
        except BaseException:
            if self._is_joined:
                leave(live)
            raise
        with OrdinaryErrors(node):
            update = live.update(batch, parts) if self._is_joined else live.update(batch)
        self._num_updates[node] += 1
        fingerprint = live.fingerprint() if self._is_joined else ""
        return Learned(update if tells else None, fingerprint, process_time() - start_cpu_s, perf_counter() - start_s)

    def can_go_back(self, node: str) -> bool:
        """Whether the state of a learner can be kept."""
        return bool(self._kept_state(node))

    def update_several(
        self, node: str, several: Sequence[Any], num_settled: int
    ) -> tuple[list[Learned], BaseException | None]:
        """Learn from several batches, of the only learner; return the results, up to an error that an update has raised.

        There is neither a result nor an error if the state before them cannot be kept: nothing was learned then.

        `num_settled`: number of updates that `go_back_to` will not undo.
        """
        live, batches = self._live[node], list[Any]()
        while self._kept and self._kept[0].number + len(self._kept[0].batches) < num_settled:
            self._kept.popleft()
        if not (before := self._kept_state(node)):
            return [], None
        self._kept.append(_Kept(self._num_updates[node], before, batches))
        learned: list[Learned] = []
        try:
            for values in self._fetched(several):
                start_s, start_cpu_s = perf_counter(), process_time()
                batch = computed(values, self._maps)
                with OrdinaryErrors(node):
                    update = live.update(batch)
                if isinstance(update, Update):  # the next one may change its statistics
                    update = replace(update, stats=dict(update.stats))
                self._num_updates[node] += 1
                if len(learned) + 1 < len(several):
                    batches.append(batch)
                learned.append(Learned(update, "", process_time() - start_cpu_s, perf_counter() - start_s))
        except Exception as error:
            return learned, error
        return learned, None

    def go_back_to(self, node: str, number: int) -> None:
        """Return to the state after that number of updates."""
        live = self._live[node]
        while self._num_updates[node] > number:
            kept = self._kept[-1]
            live.load_state_dict(kept.before)
            self._num_updates[node] = kept.number
            self._kept.pop()
            for batch in kept.batches[: max(0, number - kept.number)]:
                live.update(batch)
                self._num_updates[node] += 1

    def _kept_state(self, node: str) -> Arrays:
        """Return a copy of the state of a learner, because many return views; empty if it cannot be kept."""
        live = self._live[node]
        if not isinstance(live, Stateful):
            return {}
        try:
            return {name: np.array(array) for name, array in live.state_dict().items()}
        except Exception as error:  # of the user's code: saving the run shows it to the user
            log.info("the state of the learner of node %r cannot be kept (%r): one update at a time", node, error)
            return {}

    def _fetched(self, several: Sequence[Any]) -> Iterator[Any]:
        """Yield batches with their values, fetched in one request. If some are lost, those before are yielded all the same."""
        try:
            values = self._fetch(tuple(several))
        except ItemLostError:
            values = map(self._fetch, several)
        yield from values

    def undo(self, node: str) -> None:
        """Go back to the state before the last update of a learner."""
        self._live[node].undo()

    def attribute(self, node: str, name: str) -> tuple[bool, Any]:
        """Return whether an attribute of a learner is a method, and its value if it is not."""
        found = getattr(self._live[node], name)
        return callable(found), None if callable(found) else found

    def call(self, node: str, name: str, *args: Any) -> Any:
        """Call a method of a learner."""
        return getattr(self._live[node], name)(*args)

    def close(self) -> None:
        """Close the learners."""
        with ExitStack() as closing:
            for live in self._live.values():
                closing.callback(close, live)
            self._live = {}
