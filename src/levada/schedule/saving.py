"""Saving a hub between two updates: items that were learned from are before the snapshot, everything else is made again.

In admission order this is exact. Tickets are consumed in order and each names the version to be made with. Work in progress
can therefore be discarded and made again from the earlier state of the shards, with the same result.

If several channels receive the items of a source, each has its own first ticket that it has not used. The shards go back to the
smallest of these. They repeat the tickets from there to the largest with the versions that these named before; only the channels
that have not used a ticket get its items, and what was counted of it does not count again. Central nodes wait until all of these
tickets are done, because an update could discard a version that one of them names. Until a ticket is used by all channels, its
versions are kept.

What was drawn from a replay cannot be drawn again. A snapshot is therefore exact only if all that was drawn was learned from. It
is not exact if a channel of the flow is in arrival order, drops items or runs free, if a source reads a register whose version
its tickets do not name, or if batches at the shards span tickets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from levada.flow.items import Draw, Header
from levada.flow.topology import shard_batches
from levada.schedule.events import Firing
from levada.schedule.hub import Hub
from levada.schedule.shards import headers
from levada.schedule.snapshot import ReplayAccount, Snapshot
from levada.schedule.sources import SourceMachine


def take_snapshot(hub: Hub, unfinished: Iterable[Firing], *, may_be_exact: bool = True) -> Snapshot:
    """Take a snapshot between two updates.

    Args:
        hub: the hub.
        unfinished: central firings that were started but not reported.
        may_be_exact: whether shards can go back. Otherwise they resume from their last states, and the snapshot is not exact.
    """
    unfinished = [firing for firing in unfinished if firing.node in hub.before_learners]
    held = [item for stage in hub.stages for item in hub.unlearned(stage)]
    held += [item for firing in unfinished for item in firing.inputs]
    left = {name: source.left() for name, source in hub.sources.items()}
    waiting = [item for channel in hub.channels for item in channel.waiting()]
    undone = {
        name: [f.draw for f in unfinished if f.draw is not None and f.draw.replay == name] for name in hub.replays
    }
    filtered = [header for replay in hub.replays.values() for header in replay.filtered()]
    for header in headers(held + waiting) + filtered:
        left[header.source].add(header.ticket)
    tickets = {name: min(left[name], default=source.issued) for name, source in hub.sources.items()}
    is_exact = may_be_exact and can_be_exact(hub) and _is_exact_now(hub, left, undone)
    unused, repeated = _repeated(hub, tickets) if is_exact else ({}, {})
    return Snapshot(
        versions=dict(hub.versions),
        registers={name: _versions_needed(hub, name, repeated) for name in hub.registers},
        tickets=tickets,
        num_firings=_num_firings(hub, unfinished, are_made_again=is_exact),
        queues={name: queue.account(hub.versions, are_made_again=is_exact) for name, queue in hub.queues.items()},
        replays={
            name: _without_counted(hub, replay.account(undone[name], are_made_again=is_exact))
            for name, replay in hub.replays.items()
        },
        is_exact=is_exact,
        unused=unused,
        used_in_part={c.name: num for c in hub.channels if c.name in unused and (num := c.num_used_of(unused[c.name]))},
        repeated=repeated,
        counted={name: hub.sources[name].counted.since(tickets[name]) for name in repeated},
    )


def restore_snapshot(hub: Hub, snapshot: Snapshot, emptied: Collection[str] = ()) -> None:
    """Resume a hub from a snapshot, before `Begin`. `emptied`: replays whose contents were not kept."""
    hub.versions.update(snapshot.versions)
    for name, versions in snapshot.registers.items():
        hub.registers[name].restore(versions)
    for name, account in snapshot.queues.items():
        queue = hub.queues[name]
        queue.restore(account, hub.versions.get(queue.policy or ""))
    for name, stored in snapshot.replays.items():
        replay = hub.replays[name]
        published = [
            hub.registers[register].newest for register, latest in hub.flow.registers.items()
            if latest.policy == replay.policy
        ]  # fmt: skip
        tickets = snapshot.tickets[replay.storage.sources[0]] if len(replay.storage.sources) == 1 else 0
        replay.restore(stored, is_empty=name in emptied, tickets=tickets, published=min(published, default=0))
    for name, number in snapshot.tickets.items():
        source = hub.sources[name]
        source.issued = number
        if name in snapshot.repeated:
            _repeat(source, snapshot)
    for stage in hub.stages:
        for name, machine in stage.machines.items():
            machine.num_firings = snapshot.num_firings[name]


def can_be_exact(hub: Hub) -> bool:
    """Whether a resumed run can be bit-for-bit identical to the uninterrupted one."""
    return not hub.stopped and all(
        source.names_all_reads and _is_whole(hub, source) and all(channel.is_exact for channel in source.channels)
        for source in hub.sources.values()
    )


def names_all_versions(hub: Hub) -> bool:
    """Whether every ticket names the version to make its item with, so that the result does not depend on timing."""
    return all(channel.names_versions for channel in hub.channels)


def num_ahead(hub: Hub, source: str) -> int:
    """Number of tickets that a shard of a source may have finished or started and that are made again with the same result, in a
    restored run or after a loss.
    """
    if not (can_be_exact(hub) or (hub.items_can_be_lost and names_all_versions(hub))):
        return 0
    machine = hub.sources[source]
    return max(-(-channel.tickets // machine.stage.shards) for channel in machine.channels)


def is_ahead_when_saved(hub: Hub, source: str) -> bool:
    """Whether a save between two updates may have to go back to a state of a shard before the last one."""
    return num_ahead(hub, source) > 1 or hub.sources[source].is_remembered


def tickets_per_update(hub: Hub, source: str) -> int | None:
    """Number of tickets of a source that one update uses. None: cannot be determined."""
    found = {channel.per_update for channel in hub.sources[source].channels}
    return found.pop() if can_be_exact(hub) and len(found) == 1 else None


def _is_whole(hub: Hub, source: SourceMachine) -> bool:
    """Whether nothing is left at a shard between two tickets, and a queue gets one item of each."""
    firings = source.stage.firings_per_ticket
    if firings == 1:
        return True
    own = {channel.name for channel in source.channels}
    to_queues = [queue.channel.input.node for name, queue in hub.queues.items() if name in own]
    to_replays = [edge.source.node for edge in hub.flow.edges if edge.kind == "store" and edge.target in own]
    sizes = {
        node: shard_batches(hub.flow, node, source.stage.source)
        for node in (*to_queues, *to_replays)
        if node in source.stage.nodes
    }
    return all(sizes.get(node) == {firings} for node in to_queues) and not any(
        firings % size for found in sizes.values() for size in found
    )


def _is_exact_now(hub: Hub, left: Mapping[str, set[int]], undone: Mapping[str, Sequence[Draw]]) -> bool:
    """Whether each channel has used exactly the tickets before some number, and all that was drawn was learned from.

    `left`: for each source the tickets in flight.
    """
    for name, source in hub.sources.items():
        unused = source.first_unused(hub.versions)
        first = min(unused.values(), default=source.issued)
        is_consistent = all(c.num_issued == source.issued and c.is_used_before(unused[c.name]) for c in source.channels)
        if not is_consistent or left[name] != set(range(first, source.issued)):
            return False
    return all(replay.is_between_draws(undone[name]) for name, replay in hub.replays.items())


def _repeated(hub: Hub, tickets: Mapping[str, int]) -> tuple[dict[str, int], dict[str, tuple[Mapping[str, int], ...]]]:
    """Return the first unused ticket of each channel, and for each source the versions of the tickets that it repeats."""
    all_unused: dict[str, int] = {}
    repeated = {}
    for name, source in hub.sources.items():
        unused = source.first_unused(hub.versions)
        all_unused |= unused
        end = max(unused.values(), default=0)
        repeated[name] = tuple(source.versions_of(range(tickets[name], end)))
    return all_unused, repeated


def _repeat(source: SourceMachine, snapshot: Snapshot) -> None:
    """Let a source and its channels resume where they were.

    Raises:
        ValueError: the snapshot contradicts itself.
    """
    name = source.stage.source
    first, repeated = snapshot.tickets[name], snapshot.repeated[name]
    end = first + len(repeated)
    unused = {channel.name: snapshot.unused.get(channel.name, first) for channel in source.channels}
    if not all(first <= number <= end for number in unused.values()):
        msg = f"tickets {first} to {end} of source {name!r} are repeated, but its channels resume at {unused}"
        raise ValueError(msg)
    for register, version in {named for ticket in repeated for named in ticket.items()}:
        if version not in snapshot.registers.get(register, ()):
            msg = f"a ticket of source {name!r} names version {version} of register {register!r}, which was not saved"
            raise ValueError(msg)
    for channel in source.channels:
        channel.resume_at(unused[channel.name], snapshot.used_in_part.get(channel.name, 0), end)
    source.repeat(first, repeated, unused)
    source.counted.restore(snapshot.counted.get(name, ()))


def _without_counted(hub: Hub, account: ReplayAccount) -> ReplayAccount:
    """Return an account of a replay whose items that are to be counted later count nothing twice."""
    seen: dict[tuple[str, int], list[Header]] = {}
    uncounted = []
    for each in account.uncounted:
        before = seen.setdefault((each.header.source, each.header.ticket), [])
        header = hub.sources[each.header.source].counted.without(each.header.ticket, each.header, len(before))
        if any(each.header is other for other in before):  # of another item of the same ticket
            header = replace(header, num_env_steps=0, episodes=())
        else:
            before.append(each.header)
        uncounted.append(replace(each, header=header))
    return replace(account, uncounted=tuple(uncounted))


def _num_firings(hub: Hub, unfinished: Sequence[Firing], *, are_made_again: bool) -> dict[str, int]:
    """Return the number of firings of the central nodes, without those that are repeated."""
    undone = Counter(firing.node for firing in unfinished)
    found = {}
    for stage in hub.stages:
        for name, machine in reversed(list(stage.machines.items())):
            if are_made_again and name in hub.before_learners and machine.node.kind != "learn":
                ahead = [
                    len(buffer) + undone[other] * after.need
                    for other, after in stage.machines.items()
                    for edge, buffer in zip(after.node.inputs, after.buffers, strict=True)
                    if other in hub.before_learners and edge.queue is None and edge.node == name
                ]
                undone[name] += max(ahead, default=0)
            found[name] = machine.num_firings - undone[name]
    return found


def _versions_needed(hub: Hub, register: str, repeated: Mapping[str, Sequence[Mapping[str, int]]]) -> tuple[int, ...]:
    """Return the versions of a register that a run needs to resume."""
    versions, policy = hub.registers[register].versions, hub.flow.registers[register].policy
    if any(replay.policy == policy for replay in hub.replays.values()) and not any(
        queue.policy == policy for queue in hub.queues.values()
    ):
        versions = versions[-1:]
    named = {ticket[register] for tickets in repeated.values() for ticket in tickets if register in ticket}
    return tuple(sorted({*versions, *hub.versions_named(register), *named}))
