"""The part of a flow that its workers get."""

from __future__ import annotations

from dataclasses import replace

from levada.flow.graph import Flow
from levada.flow.nodes import Node
from levada.flow.topology import Topology
from levada.runners.saving import save_rule
from levada.runners.transport import Plan
from levada.schedule import Hub
from levada.schedule.saving import names_all_versions
from levada.schedule.shards import stores


def make_plan(hub: Hub, topology: Topology, seed: int, save_every: int | None) -> Plan:
    """Return the plan of a run. `seed`: of the run; `save_every`: number of updates between saves."""
    flow = hub.flow
    return Plan(
        flow=flow.name,
        nodes=_worker_nodes(flow, topology),
        stages=topology.shard_stages,
        stores=stores(flow.edges),
        policies={name: register.policy for name, register in flow.registers.items()},
        seed=seed,
        named=frozenset(name for source in hub.sources.values() for name in source.named_registers),
        save_rules={stage.source: save_rule(hub, stage.source, save_every) for stage in topology.shard_stages},
        is_timed=not names_all_versions(hub),
    )


def _worker_nodes(flow: Flow, topology: Topology) -> dict[str, Node]:
    """Return the nodes that shards execute, and the nodes that read from them, these without their work, which stays here."""
    at_shards = {name for stage in topology.shard_stages for name in stage.nodes}
    readers = {n.name for n in flow.nodes.values() if any(edge.node in at_shards for edge in n.inputs)}
    return {
        name: node if name in at_shards else replace(node, work=None)
        for name, node in flow.nodes.items()
        if name in at_shards | readers
    }
