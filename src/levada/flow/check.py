"""Check before run: every problem of a flow, with a code, the actual and expected state, and the likely mistake.

Each code has a section in docs/checks.md. `find_problems` never raises for a malformed flow; `Flow.check` does.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from levada.flow.channels import Fixed
from levada.flow.errors import Problem
from levada.flow.nodes import Graph, Node
from levada.flow.routing import find_unrouted
from levada.flow.topology import (
    Channel,
    Topology,
    ancestors,
    consumers,
    derive,
    learners_of,
    policy_read,
    shard_batches,
)


@dataclass(frozen=True, slots=True)
class _Subject:
    flow: Graph
    topology: Topology


def find_problems(
    flow: Graph, *, reproducible: bool = False, crosses_processes: bool = False, reports: bool = False
) -> list[Problem]:
    """Return every problem of a flow, errors before warnings; see `Flow.problems` for the arguments."""
    subject = _Subject(flow, derive(flow))
    rules: list[Callable[[_Subject], Iterator[Problem]]] = [
        _connected, _registers, _replays, _places, _queues, _routing, _staleness,
    ]  # fmt: skip
    if reproducible:
        rules.append(_reproducible)
    if crosses_processes:
        rules.append(_picklable)
    if reports:
        rules.append(_reporting)
    problems = [problem for rule in rules for problem in rule(subject)]
    return sorted(problems, key=lambda problem: problem.severity != "error")


def _connected(s: _Subject) -> Iterator[Problem]:
    flow = s.flow
    if not any(node.kind in ("source", "sample") for node in flow.nodes.values()):
        yield Problem("LV100", flow.name, "no source", "at least one source", "Add flow.source(...).")
    read = {edge.node for node in flow.nodes.values() for edge in node.inputs}
    read |= {edge.source.node for edge in flow.edges}
    for node in flow.nodes.values():
        if node.kind not in ("report", "evaluate") and node.name not in read:
            yield Problem(
                "LV101", node.name, "nothing reads its output", "a node, a channel or flow.report(...) that does",
                "Remove the node, or connect it.",
            )  # fmt: skip
        elif node.kind == "split":
            ports = {edge.port for _, edge in consumers(flow, node.name)}
            ports |= {edge.source.port for edge in flow.edges if edge.source.node == node.name}
            for key in node.keys:
                if key not in ports:
                    yield Problem(
                        "LV101", f"{node.name}.{key}", "nothing reads this part", "a reader for each key",
                        "Connect it, or leave the key out of keys=[...].",
                    )  # fmt: skip


def _registers(s: _Subject) -> Iterator[Problem]:
    flow = s.flow
    learner_of: dict[str, str] = {}
    for node in flow.nodes.values():
        if node.kind == "learn":
            policy = node.work.policy_name
            if policy in learner_of:
                yield Problem(
                    "LV102", node.name, f"updates policy {policy!r}, which {learner_of[policy]!r} updates too",
                    "one learner per policy", "Versions belong to a policy: give each policy a name of its own.",
                )  # fmt: skip
            learner_of.setdefault(policy, node.name)
    for edge in flow.edges:
        if edge.kind == "publish":
            node, register = flow.nodes[edge.source.node], flow.registers[edge.target]
            if node.kind != "learn" or edge.source.port != "weights" or edge.source.queue is not None:
                through = "" if edge.source.queue is None else " through a queue"
                yield Problem(
                    "LV103", edge.target, f"is published from {edge.source.label}{through}", "the weights of a learner, directly",
                    "Write flow.publish(update.weights, to=...), without via(...).",
                )  # fmt: skip
            elif node.work.policy_name != register.policy:
                yield Problem(
                    "LV104", edge.target, f"holds weights of {register.policy!r} but gets those of {node.work.policy_name!r}",
                    "one policy per register", "Did you publish the other learner's weights?",
                )  # fmt: skip
    for register in flow.registers.values():
        writers = [edge.source for edge in flow.edges if edge.kind == "publish" and edge.target == register.name]
        learned = [edge.label for edge in writers if edge.port == "weights" and edge.queue is None]
        if len(learned) > 1:
            yield Problem(
                "LV107", register.name, f"is written by {' and by '.join(learned)}",
                "one publish edge", "Leave out one of the two flow.publish(...); every=... says how often.",
            )  # fmt: skip
        if isinstance(register, Fixed):
            if register.policy in learner_of:
                learner = learner_of[register.policy]
                yield Problem(
                    "LV109", register.name, f"holds fixed weights of {register.policy!r}, which {learner!r} updates",
                    "a policy without a learner", "Give the fixed weights a policy name of their own.",
                )  # fmt: skip
        elif not writers:
            yield Problem(
                "LV105", register.name, "nothing writes it", "a publish edge from the learner",
                "Add flow.publish(update.weights, to=...).",
            )  # fmt: skip
        if not any(name == register.name for node in flow.nodes.values() for _, name in node.reads):
            yield Problem(
                "LV106", register.name, "nothing reads it", "a source that does",
                "Give it to a source (reads=...), or remove it.", "warning",
            )  # fmt: skip


def _replays(s: _Subject) -> Iterator[Problem]:
    flow = s.flow
    for replay in flow.replays.values():
        stores = [edge.source.node for edge in flow.edges if edge.kind == "store" and edge.target == replay.name]
        samples = [node.name for node in flow.nodes.values() if node.replay == replay.name]
        if not stores:
            yield Problem(
                "LV201", replay.name, "nothing is stored in it", "flow.store(..., to=...)", "Store the items of a source in it."
            )  # fmt: skip
        if not samples:
            yield Problem(
                "LV202", replay.name, "nothing is sampled from it", "flow.sample(...)", "Sample from it, or remove it."
            )
        if replay.min_size > replay.capacity:
            yield Problem(
                "LV203", replay.name, f"min_size {replay.min_size:,} > capacity {replay.capacity:,}",
                "min_size <= capacity", "Sampling could never begin: raise capacity or lower min_size.",
            )  # fmt: skip
        cycle = _closed_cycle(flow, replay.name)
        if cycle:
            yield Problem(
                "LV204", replay.name, f"the cycle {' -> '.join(cycle)} cannot start: it stores only what was sampled from it",
                "another node that stores first", "Store the items of a source in it.",
            )  # fmt: skip
        yield from _shares(flow, replay.name, samples)
        priorities = [edge.source for edge in flow.edges if edge.kind == "reprioritize" and edge.target == replay.name]
        if replay.sampler == "uniform" and priorities:
            yield Problem(
                "LV205", replay.name, "priorities are sent to a uniform replay, where they have no effect",
                "sampler=Prioritized(...)", "Choose the prioritized sampler, or drop the edge.", "warning",
            )  # fmt: skip
        for stream in priorities:
            sampled = {flow.nodes[name].replay for name in ancestors(flow, stream.node)}
            if flow.nodes[stream.node].kind != "learn" or stream.port != "priorities" or replay.name not in sampled:
                yield Problem(
                    "LV206", replay.name, f"gets priorities from {stream.label}",
                    "the priorities of a learner that learns from its samples",
                    "Write flow.reprioritize(update.priorities, of=...) with the replay that was sampled.",
                )  # fmt: skip


def _shares(flow: Graph, replay: str, samples: list[str]) -> Iterator[Problem]:
    """Report shares that could not be kept."""
    lacking = [name for name in samples if flow.nodes[name].share is None]
    if lacking and len(lacking) < len(samples):
        yield Problem(
            "LV207", replay, f"no share is given for {', '.join(lacking)}, but for its other samples",
            "a share for each sample of a replay, or for none", "Give flow.sample(..., share=...).",
        )  # fmt: skip
    elif samples and not lacking and learners_of(flow, replay) is None:
        yield Problem(
            "LV208", replay, f"the draws of {', '.join(samples)} have shares, but not each is one update of a learner of its own",
            "a learner behind each sample, reached through map only", "The others could wait for a draw that is not used.",
        )  # fmt: skip


def _closed_cycle(flow: Graph, replay: str) -> list[str]:
    """Return the nodes on the path from a replay back to itself, if everything that could ever be stored in it was sampled
    from it, directly or through other replays; otherwise an empty list.
    """
    origins, pending = set[str](), [replay]
    while pending:
        name = pending.pop()
        stores = [edge.source.node for edge in flow.edges if edge.kind == "store" and edge.target == name]
        reached = [flow.nodes[found] for store in stores for found in ancestors(flow, store)]
        if not stores or any(node.kind == "source" for node in reached):
            return []
        fresh = {node.replay for node in reached if node.replay} - origins
        origins |= fresh
        pending += sorted(fresh)
    return _way_back(flow, replay, replay, ()) if replay in origins else []


def _way_back(flow: Graph, name: str, to: str, seen: tuple[str, ...]) -> list[str]:
    """Return one path by which items stored in a replay were sampled from `to`, in the order in which items pass."""
    for edge in flow.edges:
        if edge.kind == "store" and edge.target == name:
            for sample in ancestors(flow, edge.source.node):
                replay = flow.nodes[sample].replay
                if replay is None or replay in seen:
                    continue
                store = [] if sample == edge.source.node else [edge.source.node]
                before = [to] if replay == to else _way_back(flow, replay, to, (*seen, replay))
                if before:
                    return [*before, sample, *store, name]
    return []


def _places(s: _Subject) -> Iterator[Problem]:
    flow, sharded = s.flow, s.topology.sharded
    for node in flow.nodes.values():
        for edge in node.inputs:
            if edge.queue is None and edge.node in sharded and node.name not in sharded:
                yield Problem(
                    "LV301", node.name, f"takes the sharded stream {edge.label} without a queue", "a bounded channel",
                    f"Say how stale it may get: {edge.label}.via(Queue(max_lag=0)).",
                )  # fmt: skip
        if node.kind == "batch" and node.at == "shard" and node.name not in sharded:
            yield Problem(
                "LV302", node.name, "batches at the shard, but its input is not sharded", "a direct, sharded input",
                "Move via(Queue(...)) behind it, or leave out at='shard'.",
            )  # fmt: skip
    for feedback in flow.edges:
        if feedback.source.queue is not None and feedback.kind != "publish":
            yield Problem(
                "LV303", feedback.target, f"{feedback.kind} takes {feedback.source.label} through a queue", "a direct edge",
                "A replay holds items itself: leave out via(...).",
            )  # fmt: skip


def _queues(s: _Subject) -> Iterator[Problem]:
    flow = s.flow
    queued = {channel.consumer for channel in s.topology.channels}
    second = [c for c in s.topology.channels if any(name in queued for name in ancestors(flow, c.input.node))]
    for channel in second:
        yield Problem(
            "LV311", channel.name, "lies behind another queue", "one queue on each path from a source to a learner",
            "Keep the queue that ends the sharding; the nodes behind it hand items over directly.",
        )  # fmt: skip
    involved = {name for channel in second for name in ancestors(flow, channel.input.node)}
    for channel in s.topology.channels:
        if channel in second or channel.consumer in involved:
            continue
        if not channel.sources:
            yield Problem(
                "LV315", channel.name, "no source is before it, to give tickets to", "a queue behind a source",
                "A replay holds items itself: leave out via(...).",
            )  # fmt: skip
            continue
        if channel.queue.blocks:
            yield from _blocking(s, channel)
        else:
            yield from _weight_edge(s, channel)
        if channel.tickets is None and not channel.queue.blocks:
            yield Problem(
                "LV312", channel.name, "its capacity cannot be derived", "Queue(..., capacity=...)",
                "The items that one update consumes are not known from the graph; give a capacity.",
            )  # fmt: skip
        need = (channel.per_update or 1) * (channel.publish_every or 1)
        if channel.queue.blocks and channel.usable_tickets is not None and channel.usable_tickets < need:
            tickets = f"{channel.usable_tickets} tickets"
            if channel.usable_tickets != channel.tickets:
                tickets += f" ({channel.queue.tickets_per_shard} for each of {channel.num_shards} shards)"
            yield _cannot_start(flow, channel, f"{tickets} for the {need} items until weights come back")
        if channel.queue.on_stale == "drop" and channel.queue.max_lag == 0:
            yield Problem(
                "LV313", channel.name, "max_lag=0 with on_stale='drop' discards whatever was begun before an update",
                "on_stale='block'", "For on-policy training withhold tickets instead.", "warning",
            )  # fmt: skip
        weighted = [name for name in ancestors(flow, channel.input.node) if flow.nodes[name].weights is not None]
        if weighted and channel.proportions is None:
            yield Problem(
                "LV314", channel.name, f"the proportions of {', '.join(weighted)} cannot be dealt to its sources",
                "one weighted union at the shards, each of its inputs from one source of its own",
                "Leave out weights=..., or give each source a queue and make the union behind the queues.",
            )  # fmt: skip
    yield from _turns(s)
    yield from _shard_batches(s)


def _turns(s: _Subject) -> Iterator[Problem]:
    """Report rules about turns that could wait for each other."""
    flow = s.flow
    dealt = [channel for channel in s.topology.channels if channel.proportions is not None]
    for index, channel in enumerate(dealt):
        for other in dealt[:index]:
            shared = set(channel.sources) & set(other.sources)
            if len(shared) > 1:
                yield Problem(
                    "LV316", channel.name, f"deals turns to {', '.join(sorted(shared))}, and so does {other.name}",
                    "one weighted union for the same sources", "The two could wait for each other: leave out one of the weights.",
                )  # fmt: skip
    for node in flow.nodes.values():
        if node.kind == "union" and node.weights is not None and node.name not in s.topology.sharded:
            ways = [list(ancestors(flow, edge.node)) for edge in node.inputs]
            common = [name for i, way in enumerate(ways) for other in ways[:i] for name in way if name in other]
            if common:
                yield Problem(
                    "LV317", node.name, f"takes shares of ways that both come from {common[0]}",
                    "streams with sources of their own", "One way would pile up while the other waits: leave out weights=...",
                )  # fmt: skip


def _blocking(s: _Subject, channel: Channel) -> Iterator[Problem]:
    if len(channel.learners) == 1 and channel.per_update is not None:
        yield from _weight_edge(s, channel)
        return
    reason, hint = _not_one_learner(channel) or (
        "items pass a filter, flat_map or union, or reach it twice",
        "Where their number is not fixed, use on_stale='drop' with a capacity.",
    )
    yield Problem(
        "LV321", channel.name, f"how many items one update consumes cannot be derived: {reason}",
        "one learner, reached through map and batch only", hint,
    )  # fmt: skip


def _not_one_learner(channel: Channel) -> tuple[str, str] | None:
    """Return the reason as text, and a hint."""
    if not channel.learners:
        return "no learner is behind it", "Without a learner there is no lag: use Queue(max_lag=None, capacity=...)."
    if len(channel.learners) > 1:
        return f"several learners are behind it: {', '.join(channel.learners)}", "Give each learner a queue of its own."
    return None


def _weight_edge(s: _Subject, channel: Channel) -> Iterator[Problem]:
    """Report a lag that is not bounded by versions of one learner that are published often enough."""
    lag = channel.queue.max_lag
    if lag is None:
        return
    missing = _not_one_learner(channel)
    if missing is None and (channel.policy is None or channel.publish_every is None):
        learner, sources = channel.learners[0], ", ".join(channel.sources)
        missing = (
            f"the policy of {learner!r} is not read by {sources}"
            if channel.policy is None
            else f"{learner!r} does not publish to what {sources} reads",
            "Add weights = flow.latest(..., of=learner), reads=weights, and flow.publish(update.weights, to=weights).",
        )
    if missing:
        reason, hint = missing
        yield Problem(
            "LV322", channel.name, f"bounds the lag, but {reason}", "a weight edge from the one learner behind it", hint
        )
    elif not channel.queue.blocks and lag < (channel.publish_every or 1) - 1:
        why = f"every item would be stale before the {channel.publish_every} updates that new weights take"
        yield _cannot_start(s.flow, channel, why)


def _cannot_start(flow: Graph, channel: Channel, why: str) -> Problem:
    registers = [register for name in channel.sources for _, register in flow.nodes[name].reads]
    cycle = " -> ".join([*channel.sources, channel.consumer, *channel.learners, *registers[:1], *channel.sources[:1]])
    return Problem(
        "LV323", channel.name, f"the cycle {cycle} cannot start: {why}", "tickets that cover the first firing of each node",
        "Raise max_lag or capacity, or lower the batch size, the window or publish(every=...).",
    )  # fmt: skip


def _shard_batches(s: _Subject) -> Iterator[Problem]:
    for stage in s.topology.shard_stages:
        sizes: dict[str, set[int]] = {}
        for channel in s.topology.channels:
            if stage.source in channel.sources:
                sizes[channel.name] = shard_batches(s.flow, channel.input.node, stage.source)
        for edge in s.flow.edges:
            if edge.kind == "store" and edge.source.node in stage.nodes:
                sizes[f"{edge.source.label}->{edge.target}"] = shard_batches(s.flow, edge.source.node, stage.source)
        if len({size for found in sizes.values() for size in found}) > 1:
            listed = ", ".join(f"{name}: {' and '.join(map(str, sorted(found)))}" for name, found in sizes.items())
            yield Problem(
                "LV324", stage.source, f"what reads it batches different numbers of its items at the shard ({listed})",
                "the same for all queues and replays of a source", "Batch behind the queue instead of at the shard.",
            )  # fmt: skip


def _routing(s: _Subject) -> Iterator[Problem]:
    for found in find_unrouted(s.flow, s.topology):
        yield Problem(
            "LV325", found.register, f"has routing='consumed', but {found.why}", found.expected,
            "Change the number of shards, the batch or max_lag as expected, or use routing='all'.",
        )  # fmt: skip


def _staleness(s: _Subject) -> Iterator[Problem]:
    for channel in s.topology.channels:
        unbounded = channel.lag_bound is None and not channel.queue.blocks
        for learner in channel.learners if unbounded else ():
            corrects = getattr(s.flow.nodes[learner].work, "tolerates_staleness", False)
            if not corrects and policy_read(s.flow, learner, channel.sources):
                yield Problem(
                    "LV401", channel.name, f"has no bound on lag, and the loss of {learner!r} does not correct for staleness",
                    "Queue(max_lag=...), or a loss with V-trace or importance weights", "State how stale a sample may be.",
                    "warning",
                )  # fmt: skip


def _reproducible(s: _Subject) -> Iterator[Problem]:
    for channel in s.topology.channels:
        if channel.queue.consumption == "arrival":
            yield Problem(
                "LV402", channel.name, "items are consumed as they arrive, so the result depends on timing",
                "order='admission' in a reproducible run", "Use Queue(max_lag=...) with order='admission'.",
            )  # fmt: skip
    for node in s.flow.nodes.values():
        passed = [s.flow.nodes[name] for name in ancestors(s.flow, node.name)] if node.kind == "union" else []
        num_channels = sum((n.replay is not None) + sum(e.queue is not None for e in n.inputs) for n in passed)
        if node.weights is None and num_channels > 1:
            yield Problem(
                "LV402", node.name, "takes items from several channels as they come, so the result depends on timing",
                "proportions in a reproducible run", "Give flow.union(..., weights=[...]).",
            )  # fmt: skip
    for storage in s.topology.storages:
        if not storage.replay.is_exact:
            yield Problem(
                "LV402", storage.replay.name, "inserting and sampling interleave as they come, so the result depends on timing",
                "samples_per_insert with tolerance=0 and order='admission' in a reproducible run",
                "Give the ratio, and no tolerance.",
            )  # fmt: skip
        elif not storage.is_exact:
            yield Problem(
                "LV402", storage.replay.name, "no ticket can say with which version its item is made, so timing has a say",
                "one source, stored at its shards, that reads one learner; shares, if several draw",
                "Give the samples shares, leave the other stores out, or accept that two runs differ.",
            )  # fmt: skip


def _reporting(s: _Subject) -> Iterator[Problem]:
    if not any(node.kind == "report" for node in s.flow.nodes.values()):
        yield Problem(
            "LV108", s.flow.name, "reports nothing, so a caller that waits for a report waits forever",
            "at least one report", "Add flow.report(update.stats).",
        )  # fmt: skip


def _picklable(s: _Subject) -> Iterator[Problem]:
    for node in s.flow.nodes.values():
        if (node.name in s.topology.sharded or node.kind == "evaluate") and node.work is not None:
            reason = _why_not_picklable(node)
            if reason:
                yield Problem(
                    "LV403", node.name, f"its work cannot be sent to another process ({reason})",
                    "a module-level function or class", "Move a lambda or nested function to the top of a module.",
                )  # fmt: skip


def _why_not_picklable(node: Node) -> str | None:
    try:
        pickle.dumps(node.work)
    except Exception as error:  # __reduce__ is the user's code, and may raise anything
        return f"{type(error).__name__}: {error}"
    return None
