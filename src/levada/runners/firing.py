"""Execution of a firing, shared by all runners: call the user's work, or move the items. Errors keep their traceback."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, structs

from levada.flow.errors import LevadaError
from levada.flow.items import PerPolicy
from levada.flow.nodes import Node
from levada.flow.protocols import LearnerState
from levada.flow.strays import StrayError, is_stray
from levada.schedule import Firing, Output


class WorkError(LevadaError, TypeError):
    """The work of a node returned a value that the flow cannot pass on."""


class IteratorEndedError(LevadaError, RuntimeError):
    """The work of a node raised StopIteration, which Python would take for the end of the run (PEP 479)."""


PASSING: frozenset[str] = frozenset({"batch", "union", "sample"})
"""Kinds of nodes that pass values on without looking at them."""


class Deferred(Struct, frozen=True):
    """The output of a map node that is computed where it is consumed."""

    node: str
    values: tuple[Any, ...]
    """Inputs of the node."""


def resolved(value: Any, resolve: Callable[[Any], Any]) -> Any:
    """Return a value with its references resolved: those of a batch are in a tuple."""
    if type(value) is tuple:
        return tuple([resolved(each, resolve) for each in value])
    if isinstance(value, Deferred):
        return Deferred(value.node, resolved(value.values, resolve))
    return resolve(value)


def with_values(firing: Firing, resolve: Callable[[Any], Any]) -> Firing:
    """Return a firing whose inputs hold values, not references."""
    inputs = tuple([structs.replace(item, value=resolved(item.value, resolve)) for item in firing.inputs])
    return structs.replace(firing, inputs=inputs)


def perform(node: Node, work: Any, firing: Firing, weights: Any = None) -> tuple[Output, ...]:
    """Execute one firing.

    Args:
        node: the node to fire.
        work: the opened work: the result of a source's factory, the live learner, a replay's tables, or the function itself.
        firing: the firing, with its inputs.
        weights: weights for a source.

    Raises:
        Exception: whatever the work raises; IteratorEndedError for StopIteration, StrayError for a custom BaseException.
    """
    try:
        return _perform(node, work, firing, weights)
    except BaseException as error:
        OrdinaryErrors(node.name).check(error)
        raise


class OrdinaryErrors:
    """Raise what Python or a runner would take for something else as an ordinary error: StopIteration as IteratorEndedError,
    a custom BaseException as StrayError.
    """

    def __init__(self, node: str) -> None:
        """`node`: name of the node whose work is called."""
        self._node = node

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.check(error)

    def check(self, error: BaseException | None) -> None:
        """Raise the ordinary error, if this is one that would be taken for something else."""
        if isinstance(error, StopIteration):
            msg = (
                f"the work of node {self._node!r} raised StopIteration; likely next(...) of an iterator that has ended"
            )
            raise IteratorEndedError(msg) from error
        if error is not None and is_stray(error):
            raise StrayError.of(error) from error


def _perform(node: Node, work: Any, firing: Firing, weights: Any) -> tuple[Output, ...]:
    if node.kind == "source":
        value = work(weights)
        return (_made(value),)
    if firing.draw is not None:
        batch, entries = work[firing.draw.table].sample(firing.draw.size, firing.draw.minibatch_size)
        return (Output(batch, entries=entries),)
    values = [item.value for item in firing.inputs]
    if node.kind == "batch":
        return (Output(tuple(values)),)
    if node.kind == "map":
        return (Output(work(*values)),)
    if node.kind == "filter":
        return tuple(Output(value) for value in values if work(value))
    if node.kind == "flat_map":
        return tuple(Output(made) for value in values for made in work(value))
    if node.kind == "union":
        return (Output(values[0]),)
    if node.kind == "split":
        return _split(node, values[0])
    if node.kind == "learn":
        return _learn(node, work, values[0])
    assert node.kind == "report", node.kind
    if not isinstance(values[0], Mapping):
        got = f"{type(values[0]).__name__} from {node.inputs[0].label}"
        msg = f"node {node.name!r} reports mappings of numbers by name, got {got}"
        raise WorkError(msg)
    for name in values[0]:
        _check_metric(node, name)
    return (Output(dict(values[0])),)


def _check_metric(node: Node, name: object) -> None:
    if not isinstance(name, str):
        msg = (
            f"node {node.name!r} reports numbers by name, got the name {name!r} ({type(name).__name__}), expected text"
        )
        raise WorkError(msg)
    if name == "step":
        msg = f"node {node.name!r} reports a metric {name!r}, which is the number of env steps in each line; call it otherwise"
        raise WorkError(msg)
    if not name.isascii() and any(0xD800 <= ord(letter) <= 0xDFFF for letter in name):
        msg = f"node {node.name!r} reports a metric {name!r}, which is no valid Unicode (a lone surrogate); call it otherwise"
        raise WorkError(msg)


def _made(value: Any) -> Output:
    """Count the output of a source. In a mapping several policies saw the same steps: the largest step count is used."""
    parts = list(value.values()) if isinstance(value, Mapping) and not isinstance(value, PerPolicy) else [value]
    num_env_steps = max((getattr(part, "num_env_steps", 0) for part in parts), default=0)
    episodes = tuple(episode for part in parts for episode in getattr(part, "episodes", ()))
    return Output(value, num_env_steps=num_env_steps, episodes=episodes)


def _split(node: Node, value: Any) -> tuple[Output, ...]:
    if not isinstance(value, Mapping) or set(value) != set(node.keys):
        got = sorted(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
        msg = f"split {node.name!r} expects a mapping with the keys {sorted(node.keys)} from {node.inputs[0].label}, got {got}"
        raise WorkError(msg)
    return tuple(Output(value[key], key) for key in node.keys)


def _learn(node: Node, learner: LearnerState[Any, Any], batch: Any) -> tuple[Output, ...]:
    return outputs_of(node, learner.update(batch))


def outputs_of(node: Node, update: Any) -> tuple[Output, ...]:
    """Return what a learn node passes on.

    Raises:
        WorkError: the learner has returned something else than an update.
    """
    for field in ("weights", "stats", "priorities"):
        if not hasattr(update, field):
            msg = f"learner of node {node.name!r} must return an Update from update(batch), got {type(update).__name__}"
            raise WorkError(msg)
    return (
        Output(update.weights, "weights"),
        Output(update.stats, "stats"),
        Output(update.priorities, "priorities"),
    )


def read_weights(
    firing: Firing, policies: Mapping[str, str], find: Callable[[str, int | None], tuple[int, Any]]
) -> tuple[Any, dict[str, int]]:
    """Return the weights that a source is called with, and their versions by policy.

    Args:
        firing: firing of a source.
        policies: register -> policy.
        find: returns a version of a register (None: the newest) with its weights.
    """
    weights: dict[str | None, Any] = {}
    versions: dict[str, int] = {}
    found: dict[str, tuple[int, Any]] = {}
    for read in firing.reads:  # a register may be read for several policies
        if read.register not in found:
            found[read.register] = find(read.register, read.version)
        versions[policies[read.register]], weights[read.key] = found[read.register]
    return (weights.get(None) if None in weights or not weights else weights), versions


def leave_if_forked(process: int, error: BaseException | None) -> None:
    """End a process that user code has forked and failed to end: it would continue as a second worker of the same run.

    Args:
        process: id of the process that the run belongs to.
        error: the error that the forked process raised, if any.
    """
    if os.getpid() == process:
        return
    code: Any = error.code if isinstance(error, SystemExit) else error and 1
    if isinstance(error, Exception):
        traceback.print_exception(error)
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def is_of_debugger(error: BaseException) -> bool:
    """Whether the user left a debugger with `q`: the run stops there, as it does with Ctrl-C."""
    debugger = sys.modules.get("bdb")
    return debugger is not None and isinstance(error, debugger.BdbQuit)


def explain(error: BaseException, flow: str, firing: Firing, versions: Mapping[str, int]) -> None:
    """Add a note to an error on where in the flow it happened; the traceback remains the user's own.

    `versions`: those that the firing has read; empty: those of its inputs are named.
    """
    versions = versions or {p: v for item in firing.inputs for h in item.headers for p, v in h.versions.items()}
    made_with = ", ".join(f"{policy} {version}" for policy, version in versions.items())
    error.add_note(
        f"in node {firing.node!r} of flow {flow!r} ({firing})" + (f"; versions: {made_with}" if made_with else "")
    )
