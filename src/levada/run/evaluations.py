"""What the evaluators of a run have found: the last result, the best one, and how many have not improved on it.

A result counts from a fixed number of updates on, whenever it arrives, so stopping conditions and metrics do not depend on
timing.

>>> from levada.flow.events import Evaluated, Evaluating
>>> found = Evaluations()
>>> found.begin(Evaluating("eval", "policy", version=10, due=20), env_steps=80, monitor={})
>>> found.add(Evaluated("eval", "policy", version=10, due=20, values={"return": 21.0}, weights=None))
>>> found.count({"policy": 19}), found.reached_return
(False, None)
>>> found.count({"policy": 20}), found.reached_return
(True, 21.0)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from levada.flow.events import Evaluated, Evaluating
from levada.run.storage.strict_json import finite

RETURN: Final = "return"
"""Name of the number that is compared."""
_MOST: Final = 1 << 10
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
_Name = Annotated[str, msgspec.Meta(max_length=1 << 10)]
_Values = Annotated[dict[_Name, float | None], msgspec.Meta(max_length=_MOST)]


class Result(msgspec.Struct, frozen=True):
    """Result of one evaluation."""

    version: _Count
    env_steps: _Count
    """Env steps that the evaluated policy had learned from."""
    values: _Values
    """Numbers by name; None: not finite."""

    @property
    def mean(self) -> float:
        """Mean return; minus infinity if there is none."""
        value = self.values.get(RETURN)
        return -math.inf if value is None else value


class Pending(msgspec.Struct):
    """An evaluation that has begun, and does not count yet."""

    node: _Name
    policy: _Name
    version: _Count
    due: _Count
    env_steps: _Count
    monitor: dict[str, Any]
    """Counts of the run at that version, for a checkpoint of it."""
    values: _Values | None = None
    """None: it has not ended."""
    is_written: bool = False
    """Whether the metrics have it: at the end of a run, before it counts."""

    @property
    def result(self) -> Result | None:
        """Its result, once it has ended."""
        return None if self.values is None else Result(self.version, self.env_steps, self.values)


class Counted(msgspec.Struct):
    """The evaluations of a node that count."""

    last: Result
    best: Result
    num_since_best: _Count = 0
    """Number of evaluations after the best one."""


class EvaluationsState(msgspec.Struct, frozen=True):
    """State from which a resumed run continues."""

    pending: Annotated[list[Pending], msgspec.Meta(max_length=_MOST)] = []
    counted: Annotated[dict[_Name, Counted], msgspec.Meta(max_length=_MOST)] = {}


class Evaluations:
    """The evaluations of a run, by the node that makes them."""

    def __init__(self) -> None:
        self.counted: dict[str, Counted] = {}
        """By node."""
        self._pending: list[Pending] = []
        self._unwritten: dict[str, Result] = {}

    def begin(self, event: Evaluating, env_steps: int, monitor: Mapping[str, Any]) -> None:
        """Note that one has begun. One that is repeated in a resumed run is known."""
        if self.pending(event.node, event.version) is None:
            each = Pending(event.node, event.policy, event.version, event.due, env_steps, dict(monitor))
            self._pending.append(each)

    def add(self, event: Evaluated) -> None:
        """Take a result."""
        if (pending := self.pending(event.node, event.version)) is not None:
            pending.values = {name: finite(value) for name, value in event.values.items()}

    def count(self, versions: Mapping[str, int]) -> bool:
        """Count the results that are due, by the versions of the policies; return whether there are some."""
        due = [each for each in self._pending if each.due <= versions.get(each.policy, 0)]
        for each in due:
            self._pending.remove(each)
            if (result := each.result) is not None:
                self._count(each.node, result)
                if not each.is_written:
                    self._unwritten[each.node] = result
        return bool(due)

    def take_unwritten(self, *, all_known: bool = False) -> dict[str, float]:
        """Return the results that the metrics do not have yet. `all_known`: also of evaluations that do not count yet."""
        found, self._unwritten = self._unwritten, {}
        for each in self._pending if all_known else ():
            if (result := each.result) is not None and not each.is_written:
                found[each.node] = result
                each.is_written = True
        return {name: value for node, result in found.items() for name, value in _metrics(node, result).items()}

    @property
    def has_unwritten(self) -> bool:
        """Whether the metrics lack a result that counts."""
        return bool(self._unwritten)

    @property
    def is_pending(self) -> bool:
        """Whether an evaluation has begun that does not count yet."""
        return bool(self._pending)

    @property
    def has_known(self) -> bool:
        """Whether the metrics lack a result, including those that do not count yet."""
        return self.has_unwritten or any(each.values is not None and not each.is_written for each in self._pending)

    def known(self) -> dict[str, Counted]:
        """Return the evaluations by node, including those that do not count yet."""
        found = Evaluations()
        found.counted = {node: msgspec.structs.replace(each) for node, each in self.counted.items()}
        for each in self._pending:
            if (result := each.result) is not None:
                found._count(each.node, result)
        return found.counted

    def pending(self, node: str, version: int) -> Pending | None:
        """Return an evaluation that does not count yet."""
        return next((each for each in self._pending if (each.node, each.version) == (node, version)), None)

    @property
    def reached_return(self) -> float | None:
        """Last mean return that counts; of several evaluators, the lowest. None: one has none."""
        return min((each.last.mean for each in self.counted.values()), default=None)

    @property
    def num_since_best(self) -> int:
        """Number of evaluations in a row without a higher mean return; of several evaluators, the smallest."""
        return min((each.num_since_best for each in self.counted.values()), default=0)

    def state(self) -> EvaluationsState:
        """Return the state."""
        return EvaluationsState(list(self._pending), dict(self.counted))

    def restore(self, state: EvaluationsState) -> None:
        """Continue from a state."""
        self._pending, self.counted, self._unwritten = list(state.pending), dict(state.counted), {}

    def _count(self, node: str, result: Result) -> None:
        counted = self.counted.get(node)
        if counted is None:
            self.counted[node] = Counted(result, result)
            return
        counted.last = result
        if result.mean > counted.best.mean:
            counted.best, counted.num_since_best = result, 0
        else:
            counted.num_since_best += 1


def _metrics(node: str, result: Result) -> dict[str, float]:
    values = {name: math.nan if value is None else value for name, value in result.values.items()}
    values |= {"version": float(result.version), "env_steps": float(result.env_steps)}
    return {f"{node}/{name}": value for name, value in values.items()}
