"""Stopping of a learner that has failed, while the others go on: its items are dropped, so that no sampler waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from levada.flow.events import LearnerStopped
from levada.schedule.events import Firing, Notify
from levada.schedule.losses import Trail
from levada.schedule.shards import draws_of

if TYPE_CHECKING:
    from levada.schedule.hub import Hub
    from levada.schedule.stages import StageMachine


def can_stop(hub: Hub, node: str) -> bool:
    """Whether the others can go on without this learner: there are some, and they share no channel with it."""
    stage = hub.stage_of[node]
    others = [each for each in hub.stages if each is not stage and each not in hub.stopped and _learners(each)]
    is_alone = _learners(stage) == [node] and all(
        queue.channel.learners == (node,) for queue in hub.queues.values() if queue.channel.consumer in stage.machines
    )
    own = {replay.name for _, replay in hub.samples[stage]}
    shared = own & {replay.name for other in hub.stages if other is not stage for _, replay in hub.samples[other]}
    return bool(others) and is_alone and not shared


def stop(hub: Hub, firing: Firing, reason: str) -> Iterator[Notify]:
    """Stop the learner of a firing that has failed."""
    assert can_stop(hub, firing.node), f"{firing.node} cannot be stopped alone"
    stage, policy = hub.stage_of[firing.node], hub.flow.nodes[firing.node].work.policy_name
    hub.stopped.add(stage)
    draws = [*draws_of(firing), *(draw for name in stage.machines for item in stage.held(name) for draw in item.draws)]
    for draw in draws:
        hub.replays[draw.replay].withdraw(draw)
    stage.busy = None
    stage.handed_over.clear()
    stage.clear()
    if stage in hub.trails:
        hub.trails[stage] = Trail(stage)
    published = [hub.registers[name].newest for name, each in hub.flow.registers.items() if each.policy == policy]
    version = min(published, default=hub.versions[policy])
    for queue in hub.queues.values():
        if queue.channel.consumer in stage.machines:
            queue.stop(version)
    for _, replay in hub.samples[stage]:
        replay.stop(version)
    for source in hub.sources.values():
        source.learner_stopped()
    yield Notify(LearnerStopped(firing.node, policy, hub.versions[policy], reason))


def _learners(stage: StageMachine) -> list[str]:
    return [name for name, machine in stage.machines.items() if machine.node.kind == "learn"]
