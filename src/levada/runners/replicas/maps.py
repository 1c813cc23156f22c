"""Map nodes in front of learners elsewhere: computed there, so that their inputs do not pass the process of the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from levada.flow.graph import Flow
from levada.flow.topology import Topology
from levada.runners.firing import Deferred, OrdinaryErrors


def deferrable(flow: Flow, topology: Topology) -> dict[str, Callable[..., Any]]:
    """Return the functions of the map nodes behind the queues whose outputs only learners see, possibly in batches."""
    central = {name for stage in topology.consumer_stages for name in stage.nodes}
    readers: dict[str, set[str]] = {name: set() for name in flow.nodes}
    for node in flow.nodes.values():
        for edge in node.inputs:
            readers[edge.node].add(node.name)
    stored = {edge.source.node for edge in flow.edges if edge.kind == "store"}
    passing = {name for name in central if flow.nodes[name].kind in ("map", "batch", "union") and name not in stored}
    while True:  # remove what is seen by anything but a learner, until nothing is left to remove
        seen = {
            name for name in passing if not all(r in passing or flow.nodes[r].kind == "learn" for r in readers[name])
        }
        if not seen:
            return {
                name: flow.nodes[name].work for name in flow.nodes if name in passing and flow.nodes[name].kind == "map"
            }
        passing -= seen


def computed(value: Any, maps: Mapping[str, Callable[..., Any]]) -> Any:
    """Return a value with all deferred maps in it computed."""
    if type(value) is tuple:
        return tuple([computed(each, maps) for each in value])
    if not isinstance(value, Deferred):
        return value
    inputs = computed(value.values, maps)
    try:
        with OrdinaryErrors(value.node):
            return maps[value.node](*inputs)
    except Exception as error:
        error.add_note(f"in the map node {value.node!r}")
        raise
