"""Saving a hub between two updates: items that were learned from are before the snapshot, everything else is made again.

In admission order this is exact. Tickets are consumed in order and each names the version to be made with. Work in progress
can therefore be discarded and made again from the earlier state of the shards, with the same result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from levada.schedule.events import Firing
from levada.schedule.hub import Hub
from levada.schedule.shards import headers
from levada.schedule.snapshot import Snapshot


def take_snapshot(hub: Hub, unfinished: Iterable[Firing]) -> Snapshot:
    """Take a snapshot between two updates. `unfinished`: central firings that were started but not reported."""
    unfinished = [firing for firing in unfinished if firing.node in hub.before_learners]
    started = Counter(firing.node for firing in unfinished)
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
    is_exact = (
        can_be_exact(hub)
        and all(
            len(left[name]) == source.issued - tickets[name] and source.is_used_up_to(tickets[name], hub.versions)
            for name, source in hub.sources.items()
        )
        and all(replay.is_between_draws(undone[name]) for name, replay in hub.replays.items())
    )
    queues = {}
    for name, queue in hub.queues.items():
        taken = [header for header in headers(held) if header.source in queue.channel.sources]
        queues[name] = queue.account(taken, are_made_again=is_exact)
    return Snapshot(
        versions=dict(hub.versions),
        registers={name: _versions_needed(hub, name) for name in hub.registers},
        tickets=tickets,
        num_firings={name: s.machines[name].num_firings - started[name] for s in hub.stages for name in s.machines},
        queues=queues,
        replays={name: r.account(undone[name], are_made_again=is_exact) for name, r in hub.replays.items()},
        is_exact=is_exact,
    )


def restore_snapshot(hub: Hub, snapshot: Snapshot, emptied: Collection[str] = ()) -> None:
    """Resume a hub from a snapshot, before `Begin`. `emptied`: replays whose contents were not kept."""
    hub.versions.update(snapshot.versions)
    for name, versions in snapshot.registers.items():
        hub.registers[name].restore(versions)
    for name, number in snapshot.tickets.items():
        hub.sources[name].issued = number
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
    for stage in hub.stages:
        for name, machine in stage.machines.items():
            machine.num_firings = snapshot.num_firings[name]


def can_be_exact(hub: Hub) -> bool:
    """Whether a resumed run can be bit-for-bit identical to the uninterrupted one."""
    return all(len(source.channels) == 1 and source.channels[0].is_exact for source in hub.sources.values())


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


def tickets_per_update(hub: Hub, source: str) -> int | None:
    """Number of tickets of a source that one update uses. None: cannot be determined."""
    found = {channel.per_update for channel in hub.sources[source].channels}
    return found.pop() if can_be_exact(hub) and len(found) == 1 else None


def _versions_needed(hub: Hub, register: str) -> tuple[int, ...]:
    """Return the versions of a register that a run needs to resume."""
    versions, policy = hub.registers[register].versions, hub.flow.registers[register].policy
    if any(replay.policy == policy for replay in hub.replays.values()) and not any(
        queue.policy == policy for queue in hub.queues.values()
    ):
        versions = versions[-1:]
    return tuple(sorted({*versions, *hub.versions_named(register)}))
