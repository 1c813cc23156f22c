"""Estimate of the memory that a run needs, computed from sizes before it starts, and compared with the machine's memory.

The estimate counts what grows with a setting: replays, batches drawn from them, items in queues, environments, levada's
networks, worker processes. It does not include memory that an environment allocates while it runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from levada.algorithms.checks import ConfigError
from levada.algorithms.groups import Group, only_learner
from levada.flow import Flow
from levada.flow.deployment import Deployment
from levada.flow.nodes import Node
from levada.flow.topology import Storage, Topology, derive
from levada.memory import Memory, nbytes_text, process_nbytes
from levada.rl.acting.game_sampler import GameSampler, Targets
from levada.rl.acting.multi_agent import MultiAgentSampler
from levada.rl.acting.sizes import MakesEntries, Sizes
from levada.rl.acting.team_sampler import TeamSampler
from levada.rl.envs.task import Task
from levada.rl.learning.averaging import Averaging, ParameterLayout
from levada.rl.learning.compression import num_bytes
from levada.rl.learning.past import KeepingLearner
from levada.rl.learning.step import num_weights
from levada.rl.policies.networks import default_network
from levada.rl.policies.policy import Policy
from levada.rl.policies.size import WEIGHT_NBYTES
from levada.rl.policies.team import TeamPolicy
from levada.runners.deployments import useful_workers
from levada.runners.inline import Inline
from levada.runners.processes import Processes
from levada.schedule.registers import versions_to_keep

WORKER_NBYTES = 60 << 20
"""Memory of a worker process beside its environments that it does not share with its parent process."""
FLOAT_NBYTES = 4
"""Bytes of a published weight."""
STEP_NBYTES = 20
"""Bytes per step of an item beside observation and action: reward, flags, and data from the policy."""
KEY_NBYTES = 8
"""Bytes per entry of a replay beside the entry: its number."""
PRIORITY_NBYTES = 16
"""Bytes per entry of a prioritized replay: its place in the sum tree."""
INDEX_NBYTES = 20
"""Bytes per row drawn from a replay: its index, number and weight."""
MANY_ENVS = 1_000
"""Number of environments from which a few are created on trial, to measure the memory of one."""
TRIAL_ENVS = 16
TOLD_FROM = 0.5
"""Fraction of the free memory from which the estimate is reported."""


def estimate(flow: Flow, place: Deployment) -> dict[str, int]:
    """Bytes by purpose, such as `replay 'replay'`; unknown amounts are skipped."""
    needs: dict[str, int] = {}
    topology = derive(flow)
    for node in flow.nodes.values():
        if node.kind == "source" and (item := _item_nbytes(node.work)) is not None:
            num_items = _num_items(node, topology)
            needs[f"{_counted(num_items, 'item')} of {node.name!r}"] = num_items * item
            needs |= _environments(node)
        if isinstance(node.work, Group):
            inner = estimate(node.work.algorithm.flow(node.work.task), Inline())
            needs |= {f"{what} in {node.shards:,} groups": node.shards * nbytes for what, nbytes in inner.items()}
    for storage in topology.storages:
        replay = storage.replay
        entries = [_entry_nbytes(flow, flow.nodes[source], replay.name) for source in storage.sources]
        entry = max((nbytes for nbytes in entries if nbytes is not None), default=0)
        if entry:
            priority = 0 if replay.sampler == "uniform" else PRIORITY_NBYTES
            needs[f"{replay.capacity:,} entries of {replay.name!r}"] = replay.capacity * (entry + KEY_NBYTES + priority)
        needs |= _drawn(flow, storage)
    for name, recipe in flow.learners().items():
        policy = getattr(recipe, "policy", None)
        if isinstance(policy, Policy) and _is_ours(policy.network):  # custom networks were already built with the flow
            needs[f"the network of {name!r}"] = WEIGHT_NBYTES * _num_weights(policy)
            if isinstance(recipe, KeepingLearner):  # while a version joins, there are two copies of all
                size = recipe.keeping.size
                needs[f"{size:,} past versions of {name!r}"] = 2 * size * FLOAT_NBYTES * _num_weights(policy)
    if isinstance(place, Processes):
        num_workers = useful_workers(flow, place.workers)
        needs[f"{num_workers:,} worker processes"] = num_workers * WORKER_NBYTES
    return needs


def estimate_object_store(flow: Flow) -> dict[str, int]:
    """Most bytes that a run has in the object store of a cluster at once, by purpose; unknown amounts are skipped.

    Tickets bound the items of each source, registers the versions of the weights. What stays in an actor does not count: the
    tables of a replay, and the runs of groups. Copies that Ray makes on the nodes that read a value come on top.
    """
    topology = derive(flow)
    needs: dict[str, int] = {}
    for node in flow.nodes.values():
        num_items = _num_items(node, topology)
        if isinstance(node.work, Group):
            needs[f"{_counted(num_items, 'difference')} of {node.name!r}"] = num_items * _difference_nbytes(node.work)
        elif node.kind == "source" and (item := _item_nbytes(node.work)) is not None:
            needs[f"{_counted(num_items, 'item')} of {node.name!r}"] = num_items * item
    for storage in topology.storages:
        needs |= _drawn(flow, storage)
    recipes = {recipe.policy_name: recipe for recipe in flow.learners().values()}
    keep = versions_to_keep(flow, topology)
    for register in flow.registers.values():
        if size := _num_published(recipes.get(register.policy)):
            num = keep[register.name]
            needs[f"{_counted(num, 'version')} of {register.name!r}"] = num * FLOAT_NBYTES * size
    return needs


def check_object_store(needs: Mapping[str, int], total_nbytes: int) -> str:
    """Message about an estimate for the user.

    Raises:
        ConfigError: the estimate exceeds what the cluster has.
    """
    total = sum(needs.values())
    parts = _parts(needs)
    if total > total_nbytes:
        msg = (
            f"the run would need about {nbytes_text(total)} of the cluster's object stores, which hold "
            f"{nbytes_text(total_nbytes)}: {parts}. {_way_out(max(needs, key=needs.__getitem__))}, or give Ray more "
            "(object_store_memory)"
        )
        raise ConfigError(msg)
    bound = f"at most about {nbytes_text(total)} of {nbytes_text(total_nbytes)}"
    return f"object store: {bound}, without copies on other nodes: {parts}"


def check_memory(needs: Mapping[str, int], has: Memory) -> str | None:
    """Message about an estimate for the user; None if there is ample memory.

    Raises:
        ConfigError: the estimate exceeds the machine's memory.
    """
    total = sum(needs.values())
    parts = _parts(needs)
    if total > has.total_nbytes:
        msg = (
            f"the run would need about {nbytes_text(total)} of memory, and this machine has {nbytes_text(has.total_nbytes)}: "
            f"{parts}. {_way_out(max(needs, key=needs.__getitem__))}"
        )
        raise ConfigError(msg)
    if total > TOLD_FROM * has.free_nbytes:
        free = nbytes_text(has.free_nbytes)
        return f"memory: the run will need about {nbytes_text(total)} of the {free} that are free: {parts}"
    return None


def _parts(needs: Mapping[str, int]) -> str:
    """The needs as text, the largest first."""
    largest_first = sorted(needs.items(), key=lambda need: -need[1])
    return ", ".join(f"{nbytes_text(nbytes)} for {what}" for what, nbytes in largest_first if nbytes)


_WAYS = {
    " environments": "num_envs or shards",
    " entries of ": "buffer_size",
    " rows that ": "batch_size or num_gradient_steps",
    " differences of ": "num_groups, max_lag or hidden_sizes",
    " item": "num_envs, num_steps or shards",
    "the network of ": "hidden_sizes or rnn_size",
    " of 'weights'": "hidden_sizes or rnn_size",
    " past versions of ": "the number of past versions (size of Keeping, past.size)",
    " worker processes": "the number of workers",
}
"""Text in the name of a need -> the fields that it depends on."""


def _way_out(largest: str) -> str:
    ways = [way for mark, way in _WAYS.items() if mark in largest]
    return f"Lower {ways[0] if ways else 'what makes the first of them so large'}"


def _counted(num: int, what: str) -> str:
    return f"{num:,} {what}{'' if num == 1 else 's'}"


def _num_items(node: Node, topology: Topology) -> int:
    """Most items of a source at once: those at its shards, or as many as a queue or a replay has tickets."""
    queues = [channel.tickets or 0 for channel in topology.channels if node.name in channel.sources]
    stores = [storage.tickets for storage in topology.storages if node.name in storage.sources]
    return max([node.shards, *queues, *stores])


def _drawn(flow: Flow, storage: Storage) -> dict[str, int]:
    """Bytes that are drawn from a replay at once, by purpose."""
    replay = storage.replay
    rows = [_entry_nbytes(flow, flow.nodes[source], replay.name, whole=True) for source in storage.sources]
    row = max((nbytes for nbytes in rows if nbytes is not None), default=0)
    samples = [node for node in flow.nodes.values() if node.kind == "sample" and node.replay == replay.name and row]
    return {f"{node.size:,} rows that {node.name!r} draws": node.size * (row + INDEX_NBYTES) for node in samples}


def _difference_nbytes(group: Group) -> int:
    """Bytes of an item of a group."""
    _, learner = only_learner(group.algorithm.flow(group.task))
    return num_bytes(group.compression.compress(np.zeros(ParameterLayout(learner).size, np.float32)))


def _num_published(recipe: Any) -> int:
    """Number of weights in a version that a learner publishes; 0 if it is unknown."""
    if isinstance(recipe, Averaging):  # of all networks
        return ParameterLayout(recipe.learner).size
    policy = getattr(recipe, "policy", None)
    return _num_weights(policy) if isinstance(policy, Policy) and _is_ours(policy.network) else 0


def _samplers(work: Any) -> Iterator[Any]:
    """A source's work, and the samplers that it wraps."""
    while work is not None:
        yield work
        work = getattr(work, "sampler", None)


def _sampler(work: Any) -> Any:
    """The part of a source's work that has environments; None if there is none."""
    return next((part for part in _samplers(work) if _has_environments(part)), None)


def _has_environments(part: Any) -> bool:
    return isinstance(part, GameSampler) or all(hasattr(part, name) for name in ("task", "num_envs", "num_steps"))


def _task(sampler: Any) -> Task:
    """What the policy of a sampler sees."""
    task: Task = sampler.task[sampler.policy.name] if isinstance(sampler, GameSampler) else sampler.task
    return task


def _item_nbytes(work: Any) -> int | None:
    """Bytes of one item of a source; with items by policy, of all of them."""
    sampler = _sampler(work)
    if sampler is None:
        return None
    if isinstance(sampler, MultiAgentSampler):
        return sum(_item_nbytes(own) or 0 for own in sampler.samplers.values())
    sizes = Sizes.stored(_task(sampler))
    if isinstance(sampler, GameSampler):  # as many positions end as are played
        return sampler.num_games * sampler.num_moves * Targets().entry_nbytes(sizes)
    step = sizes.observation + sizes.action + STEP_NBYTES
    return int(sampler.num_envs * (sampler.num_steps + 1) * step)


def _of_policy(flow: Flow, source: Node, replay: str) -> Any:
    """The source's work, or of a source of items by policy the sampler whose items a replay gets."""
    sampler = _sampler(source.work)
    if not isinstance(sampler, MultiAgentSampler) or isinstance(sampler, TeamSampler):
        return source.work
    todo = [edge.source for edge in flow.edges if edge.kind == "store" and edge.target == replay]
    while todo:
        edge = todo.pop()
        if flow.nodes[edge.node].kind == "split" and edge.port is not None:
            return sampler.samplers.get(edge.port)
        todo += flow.nodes[edge.node].inputs
    return next(iter(sampler.samplers.values()))  # all policies have the same agents


def _entry_nbytes(flow: Flow, source: Node, replay: str, *, whole: bool = False) -> int | None:
    """Bytes of one entry of a replay made from a source's items; `whole`: as drawn, with the full frame stack."""
    work = _of_policy(flow, source, replay)
    sampler, item = _sampler(work), _item_nbytes(work)
    if sampler is None or item is None:
        return None
    stored = {edge.source.node for edge in flow.edges if edge.kind == "store" and edge.target == replay}
    tasks = [each.task for each in sampler.samplers.values()] if isinstance(sampler, TeamSampler) else [_task(sampler)]
    sizes = Sizes.together(map(Sizes.drawn if whole else Sizes.stored, tasks))
    for node in flow.nodes.values():
        if node.kind == "map" and node.name in stored and isinstance(node.work, MakesEntries):
            return node.work.entry_nbytes(sizes)
    return item // int(sampler.num_envs)  # a rollout of one environment


def _is_ours(network: Any) -> bool:
    """Whether building the network only creates layers: the default network, or a class of this package with its settings."""
    if isinstance(network, partial):
        return "features_extractor" not in network.keywords and _is_ours(network.func)
    return network is None or getattr(network, "__module__", "").startswith("levada.rl.")


def _num_weights(policy: Policy) -> int:
    """Count the weights of one of levada's networks without allocating them.

    Raises:
        SizeError: a single layer is too large for the machine.
    """
    with torch.device("meta"):
        if isinstance(policy, TeamPolicy):
            return sum(_num_weights(member) for member in policy.members)
        if policy.network is None:
            network = default_network(
                policy.inner_space, policy.head.num_params, policy.hidden_sizes, policy.activation
            )
        else:
            network = policy.network(policy.inner_space, policy.head.num_params)
    return num_weights(network)


def _environments(node: Node) -> dict[str, int]:
    """Memory of a source's environments, measured on a trial if there are many."""
    sampler = _sampler(node.work)
    if isinstance(sampler, MultiAgentSampler | GameSampler) or (num_envs := node.shards * sampler.num_envs) < MANY_ENVS:
        return {}
    with sampler.task.make(1):
        before = process_nbytes()
        with sampler.task.make(TRIAL_ENVS) as envs:
            envs.reset([0] * TRIAL_ENVS)
            each = max(0, process_nbytes() - before) / TRIAL_ENVS
    return {f"{num_envs:,} environments": round(num_envs * each)}
