"""Requirements of actors: what `Ray(place=...)` accepts, and the room that an actor with them takes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, TypedDict

import msgspec
from msgspec import Meta

from levada.flow.errors import DeploymentError
from levada.flow.graph import Flow
from levada.flow.nodes import NodeKind

PLACEABLE = ("source", "learn")
"""Kinds of nodes that actors are started for."""
_Amount = Annotated[float, Meta(ge=0, le=1e18)]
_SMALLEST = 1e-4
"""Smallest amount of a resource that Ray counts, unless it is 0."""
_RESERVED = ("object_store_memory", "bundle")
"""Resources of Ray itself, beside those in `_OWN`. To ask for one ends the node, or is refused late."""
_OWN = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
"""Resource -> the option of an actor that asks for it."""


class _Environment(TypedDict, total=False):
    """The part of a runtime environment that levada adds to; the rest is Ray's to check."""

    env_vars: dict[str, str]


class _Options(TypedDict, total=False):
    """Options of an actor, as Ray names them."""

    num_cpus: _Amount
    num_gpus: _Amount
    memory: _Amount
    resources: dict[str, _Amount]
    accelerator_type: str
    runtime_env: dict[str, Any]


_OPTIONS = tuple(_Options.__annotations__)
_OTHER_OPTIONS = frozenset({
    "allow_out_of_order_execution", "concurrency_groups", "enable_task_events", "enable_tensor_transport", "fallback_strategy",
    "get_if_exists", "label_selector", "lifetime", "max_concurrency", "max_pending_calls", "max_restarts", "max_task_retries",
    "name", "namespace", "object_store_memory", "placement_group", "placement_group_bundle_index",
    "placement_group_capture_child_tasks", "scheduling_strategy",
})  # fmt: skip
"""Other options of actors in Ray. They say nothing of what an actor needs, or levada sets them itself."""
_ADVICE = {"label_selector": "give each label by its name", "max_restarts": "it is an option of Ray(...) itself"}


@dataclass(frozen=True)
class Requirements:
    """What an actor needs."""

    options: Mapping[str, Any]
    """Options of the actor."""
    labels: Mapping[str, str]
    """Labels of its node."""

    @property
    def resources(self) -> dict[str, float]:
        """The resources that the actor takes, by name."""
        named = {name: self.options.get(option, 0.0) for name, option in _OWN.items()}
        if kind := self.options.get("accelerator_type"):
            named[f"accelerator_type:{kind}"] = 0.001  # as Ray itself asks for one
        return {name: amount for name, amount in (named | self.options.get("resources", {})).items() if amount}


def check_place(place: object) -> None:
    """Refuse requirements that no actor can have.

    Raises:
        DeploymentError: something is not of its type or out of its range, or nothing would be reserved.
    """
    if place is None:
        return
    if not isinstance(place, Mapping) or not all(
        isinstance(name, str) and isinstance(each, Mapping) for name, each in place.items()
    ):
        expected = 'requirements by the name of a node, such as {"rollout": {"num_cpus": 2}}'
        msg = f"Ray(place={place!r}): expected {expected}"
        raise DeploymentError(msg)
    for name, wanted in place.items():
        where = f"Ray: place[{name!r}]"
        for option in wanted:
            if option in _OTHER_OPTIONS:
                instead = _ADVICE.get(option, "levada decides it")
                msg = f"{where}: {option!r} is an option of actors that place does not take: {instead}; expected a label, or "
                raise DeploymentError(msg + ", ".join(_OPTIONS))
        try:
            found = requirements(wanted)
            msgspec.convert(found.options.get("runtime_env", {}), _Environment)
            json.dumps(wanted)
        except (msgspec.ValidationError, TypeError) as error:
            msg = f"{where} = {wanted!r}: {error}"
            raise DeploymentError(msg) from error
        for resource in sorted(_OWN.keys() & found.options.get("resources", {}).keys()):
            msg = f"{where}: resources has {resource!r}; expected {_OWN[resource]}={found.options['resources'][resource]:g}"
            raise DeploymentError(msg)
        for resource, amount in found.resources.items():
            if not resource or resource.startswith(_RESERVED) or amount < _SMALLEST:
                msg = f"{where}: {amount:g} of resource {resource!r}; expected at least {_SMALLEST:g} of one that a node can have"
                raise DeploymentError(msg)
        for label in found.labels:
            if near := get_close_matches(label, _OPTIONS, n=1, cutoff=0.8):
                msg = f"{where}: {label!r} would be a label; did you mean {near[0]!r}?"
                raise DeploymentError(msg)
        if not found.resources:
            msg = f"{where} reserves nothing; expected num_cpus > 0, or another resource"
            raise DeploymentError(msg)


def requirements(wanted: Mapping[str, Any]) -> Requirements:
    """Split what is wanted into options and labels. Without `num_cpus`, it is one CPU.

    Raises:
        ValidationError: a value is not of its type.
    """
    options = {key: value for key, value in wanted.items() if key in _OPTIONS}
    labels = {key: value for key, value in wanted.items() if key not in options}
    return Requirements(msgspec.convert({"num_cpus": 1, **options}, _Options), msgspec.convert(labels, dict[str, str]))


def requirements_of(flow: Flow, kind: NodeKind, place: Mapping[str, Mapping[str, Any]]) -> tuple[Requirements, bool]:
    """Return the requirements of the nodes of a kind, which share their actors, and whether `place` names one of them.

    Raises:
        DeploymentError: a name is none of such a node, or the nodes differ.
    """
    for name in place:
        _check_placeable(flow, name)
    names = [node.name for node in flow.nodes.values() if node.kind == kind]
    wanted = [place.get(name, {}) for name in names]
    if any(each != wanted[0] for each in wanted):
        msg = f"Ray: place differs for {' and '.join(names)}, which share their actors; give the same for each"
        raise DeploymentError(msg)
    return requirements(wanted[0] if wanted else {}), any(name in place for name in names)


def together(kinds: Sequence[Requirements]) -> Requirements:
    """Return what a node needs for one actor of each kind.

    Raises:
        DeploymentError: they need different nodes.
    """
    resources: dict[str, float] = {}
    labels: dict[str, str] = {}
    for each in kinds:
        for name, amount in each.resources.items():
            resources[name] = resources.get(name, 0.0) + amount
        for name, value in each.labels.items():
            if labels.setdefault(name, value) != value:
                msg = (
                    f"Ray: a worker and the learner beside it share a node; place gives them {name}={labels[name]} and "
                    f"{name}={value}"
                )
                raise DeploymentError(msg)
    return Requirements({"num_cpus": 0, "resources": resources}, labels)


def _check_placeable(flow: Flow, name: str) -> None:
    """Refuse requirements for anything but a source or a learn node: all others run where an edge without a queue ties them.

    Raises:
        DeploymentError: it is something else.
    """
    placeable = [node.name for node in flow.nodes.values() if node.kind in PLACEABLE]
    if name in placeable:
        return
    found = f"which is no node of flow {flow.name!r}"
    if name in flow.nodes:
        tied = [
            f"{edge.node} -> {node.name}"
            for node in flow.nodes.values()
            for edge in node.inputs
            if edge.queue is None and name in (edge.node, node.name)
        ]
        found = f"which runs where its neighbors run, because no queue lies between them (edge {', '.join(tied)})"
    msg = f"Ray: place names {name!r}, {found}; expected {' or '.join(placeable)}"
    raise DeploymentError(msg)
