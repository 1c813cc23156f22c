"""Learners beside the samplers: each learns from what the worker in its bundle collects, which does not leave the node.

With PPO this is DD-PPO (Wijmans et al. 2020, arXiv 1911.00357): only gradients and weights travel between the nodes. Worker w
of W runs the shards s with s % W == w, and learner w computes the microbatches p with p % W == w. So microbatch s has to be what
shard s has collected.
"""

from __future__ import annotations

from levada.flow.errors import DeploymentError
from levada.flow.graph import Flow
from levada.flow.replicas import Divisible
from levada.flow.topology import derive


def check_beside(flow: Flow) -> None:
    """Refuse a flow in which a microbatch is not what one shard has collected.

    Raises:
        DeploymentError: there is more than one source or queue, the queue is in arrival order, or there is another number of
            rollouts or microbatches than of shards.
    """
    wanted = "Ray(learners='beside') needs one microbatch from each shard"
    sources = [node for node in flow.nodes.values() if node.kind == "source"]
    channels = derive(flow).channels
    if len(sources) != 1 or len(channels) != 1 or flow.replays:
        found = f"{len(sources)} sources, {len(channels)} queues and {len(flow.replays)} replays"
        msg = f"{wanted}, from one source by one queue; flow {flow.name!r} has {found}"
        raise DeploymentError(msg)
    [source], [channel] = sources, channels
    if not channel.queue.blocks or channel.queue.consumption != "admission":
        msg = f"{wanted}, in the order of the shards; expected order='admission' and on_stale='block' for queue {channel.name!r}"
        raise DeploymentError(msg)
    if channel.per_update != source.shards:
        msg = f"{wanted}; an update takes {channel.per_update} items from the {source.shards} shards of {source.name!r}"
        raise DeploymentError(msg)
    for name, recipe in flow.learners().items():
        [edge] = flow.nodes[name].inputs
        if flow.nodes[edge.node].kind != "batch":
            msg = f"{wanted}; node {edge.node!r} lies between the batch and the learner {name!r}, and gets the whole batch"
            raise DeploymentError(msg)
        num_parts = recipe.num_parts if isinstance(recipe, Divisible) and recipe.has_consecutive_parts else 1
        if num_parts != source.shards:
            msg = (
                f"{wanted}; node {name!r} has {num_parts} per minibatch, and {source.name!r} has shards={source.shards}. "
                "Set microbatch_size to the size of a minibatch divided by the number of shards"
            )
            raise DeploymentError(msg)
