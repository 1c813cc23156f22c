"""What follows an event: what is inserted into replays, which firings and draws start, and which tickets are issued."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from levada.flow.events import Consumed, GoalReached, Used
from levada.schedule.drawing import next_draw
from levada.schedule.events import HubInstruction, Notify
from levada.schedule.feeding import feed, has_input
from levada.schedule.goals import is_held, reached_by_all, release
from levada.schedule.sources import issue_all

if TYPE_CHECKING:
    from levada.schedule.hub import Hub
    from levada.schedule.queues import QueueMachine
    from levada.schedule.stages import StageMachine


def go_on(hub: Hub, instructions: list[HubInstruction]) -> list[HubInstruction]:
    """Add what can be done next to the instructions."""
    if hub.replays:
        instructions += _insert(hub)
    if hub.goal is not None and not hub.is_over and (part := reached_by_all(hub)) is not None:
        hub.is_over = True
        instructions.append(Notify(GoalReached(part)))
    is_resuming = False
    for source in hub.sources.values():
        is_resuming |= bool(source.repeating)
    for stage in hub.stages:
        if stage.busy is None and has_input(hub, stage) and not is_resuming and stage not in hub.stopped:
            instructions += _start(hub, stage)
    instructions += issue_all(hub.sources.values())
    if hub.goal is not None and not (hub.is_over or is_resuming):
        instructions += release(hub)
    for queue in hub.queues.values():
        if queue.events:
            instructions += _events_of(queue)
    return instructions


def _insert(hub: Hub) -> Iterator[HubInstruction]:
    """Insert what the replays may insert now."""
    for replay in hub.replays.values():
        yield from replay.inserts()
        yield from map(Notify, replay.events)
        replay.events.clear()
        yield from hub.count(replay)


def _start(hub: Hub, stage: StageMachine) -> Iterator[HubInstruction]:
    """Let an idle stage take what it can use, and start its next firing."""
    takes_more = not is_held(hub, stage)
    if takes_more and len(stage.handed_over) <= hub.num_ahead:
        feed(hub, stage)
    machine = stage.next_ready()
    if machine is not None:
        yield stage.start(machine)
    elif takes_more:
        yield from next_draw(hub, stage)


def _events_of(queue: QueueMachine) -> Iterator[HubInstruction]:
    """Tell instruments what has happened in a queue."""
    yield from map(Notify, queue.events)
    if not queue.channel.learners:
        queue.learned()
        name = queue.channel.consumer
        yield from (Notify(Used(name, (e.header,))) for e in queue.events if isinstance(e, Consumed))
    queue.events.clear()
