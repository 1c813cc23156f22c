"""What a stage takes from its queues: what it can use now, and what it prepares while a learner elsewhere is busy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from levada.schedule.events import Firing
from levada.schedule.queues import QueueMachine
from levada.schedule.stages import StageMachine

if TYPE_CHECKING:
    from levada.schedule.hub import Hub


def queues_into(hub: Hub, stage: StageMachine) -> Iterator[QueueMachine]:
    """Yield the queues that a stage takes from."""
    return (queue for _, queues in hub.feeds[stage] for queue in queues)


def has_input(hub: Hub, stage: StageMachine) -> bool:
    """Whether anything waits in a stage or before it, or it draws from a replay; otherwise it cannot start anything."""
    if stage.num_held or hub.samples[stage]:
        return True
    for _, queues in hub.feeds[stage]:
        for queue in queues:
            if queue.num_waiting:
                return True
    return False


def hand_over(hub: Hub, firing: Firing) -> None:
    """Let a stage prepare updates while one is in progress. Where what is drawn depends on its result, it cannot."""
    stage = hub.stage_of[firing.node]
    learners = [machine for machine in stage.machines.values() if machine.node.kind == "learn"]
    is_ahead = bool(hub.num_ahead or stage.handed_over) and firing not in stage.handed_over
    if is_ahead and len(learners) == 1 and not hub.samples[stage]:
        stage.hand_over(firing)
        for queue in queues_into(hub, stage):
            queue.handed_over()


def feed(hub: Hub, stage: StageMachine) -> None:
    """Take what an idle stage can use from the queues. A busy stage takes nothing: an update would make items older, unless it is
    handed over and counted.
    """
    for machine, queues in hub.feeds[stage]:
        full = [queue for queue in queues if queue.num_waiting]
        if len(full) > 1:
            full.sort(key=lambda queue: machine.order_of(queue.channel.input_index))
        name = machine.node.name
        for queue in full:
            version = hub.versions.get(queue.channel.policy or "")
            if version is not None and queue.channel.learners:
                version += len(stage.handed_over)
            if queue.drops_stale and version is not None:
                queue.discard_stale(version)
            if queue.num_waiting < queue.channel.at_once - len(machine.buffers[queue.channel.input_index]):
                continue
            while (place := queue.next()) is not None and stage.wants(name, queue.channel.input_index):
                item = queue.take(version)
                stage.put(name, queue.channel.input_index, item)
                if stage in hub.trails:
                    hub.trails[stage].took(queue, place, item)
