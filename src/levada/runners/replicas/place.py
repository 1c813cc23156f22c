"""Where the learners of a flow are: in the process of the run, or elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from levada.flow.protocols import LearnerRecipe, close
from levada.schedule import Firing

Recipes: TypeAlias = Mapping[str, tuple[LearnerRecipe[Any, Any], int]]
"""Learn node -> recipe and seed."""


class UpdateDone(Struct, frozen=True):
    """A finished firing of a learner. Times in seconds of `time.perf_counter` in the process of the run."""

    firing: Firing
    update: Any
    start_s: float
    end_s: float
    cpu_s: float


class UpdateFailedError(Exception):
    """A firing of a learner elsewhere has raised an error, which is the cause of this one."""

    def __init__(self, firing: Firing, error: BaseException) -> None:
        super().__init__(firing, error)
        self.firing = firing
        self.error = error


class LearnerPlace(Protocol):
    """Decides where learners are."""

    def open(self, recipes: Recipes, maps: Mapping[str, Callable[..., Any]]) -> Mapping[str, Any]:
        """Open the learners, and return them, or proxies of them, by node.

        `maps`: functions of the map nodes whose outputs only learners see.
        """
        ...

    def begin(self, firing: Firing) -> bool:
        """Take a firing of a learner elsewhere, whose result `finished` returns. False: execute it here."""
        ...

    def flush(self) -> None:
        """Send firings that were taken, as far as the learners can begin them."""
        ...

    @property
    def num_ahead(self) -> int:
        """Number of updates that a learner should be given while others are in progress. It may change with each update."""
        ...

    def take_unsent(self) -> Sequence[Firing]:
        """Give back the firings that were not sent."""
        ...

    def go_back(self) -> Sequence[Firing]:
        """Let the learners be in the state of the last update that `finished` has returned, as far as updates are prepared
        ahead; give back the later firings.
        """
        ...

    @property
    def has_answers(self) -> bool:
        """Whether all answers of a firing are here, so that none ends a wait, and `finished` must be called before."""
        ...

    def finished(self) -> UpdateDone | None:
        """Return a firing that has finished, if there is one.

        Raises:
            UpdateFailedError: it has raised an error.
        """
        ...

    def close(self) -> None:
        """Close the learners, even if some of them fail to close."""
        ...


class LearnersHere:
    """Learners in this process."""

    def __init__(self) -> None:
        self._live: dict[str, Any] = {}

    def open(self, recipes: Recipes, maps: Mapping[str, Callable[..., Any]]) -> Mapping[str, Any]:
        """Open the learners."""
        for node, (recipe, seed) in recipes.items():
            self._live[node] = recipe.open(seed)
        return self._live

    def begin(self, firing: Firing) -> bool:
        """Return False: the run itself executes its learners."""
        return False

    def flush(self) -> None:
        """Do nothing: there is nothing to send."""

    @property
    def num_ahead(self) -> int:
        """Return 0: nothing goes on elsewhere."""
        return 0

    def take_unsent(self) -> Sequence[Firing]:
        """Return none."""
        return ()

    def go_back(self) -> Sequence[Firing]:
        """Return none."""
        return ()

    @property
    def has_answers(self) -> bool:
        """Return False: there are none."""
        return False

    def finished(self) -> None:
        """Return None."""

    def close(self) -> None:
        """Close the learners."""
        live, self._live = self._live, {}
        with ExitStack() as closing:
            for each in live.values():
                closing.callback(close, each)
