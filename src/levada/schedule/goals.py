"""The end of a run with several learners: where each of them stops does not depend on timing.

A learner that has reached the goal by its own count is held: it takes no more items. If everything then waits for held learners,
because their next versions are needed to make the items of the others, the first of them that can makes another update. Where
nothing else can move, the state of a run in admission order is the same in every deployment, and so is the choice. The run is
over when all learners have reached the goal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from levada.schedule.drawing import next_draw
from levada.schedule.events import Start
from levada.schedule.feeding import feed

if TYPE_CHECKING:
    from levada.flow.deployment import Goal
    from levada.schedule.hub import Hub
    from levada.schedule.stages import StageMachine


def reached(hub: Hub, goal: Goal, stage: StageMachine) -> str | None:
    """Return the part of the goal that a stage with learners has reached with the updates that it has made or begun."""
    if goal.num_updates is not None:
        learners = [hub.flow.nodes[name].work.policy_name for name in hub.learners_of[stage]]
        if min(hub.versions[policy] for policy in learners) + len(stage.handed_over) >= goal.num_updates:
            return "updates"
    if goal.num_env_steps is not None and (num := num_env_steps(hub, stage)) is not None and num >= goal.num_env_steps:
        return "steps"
    return None


def num_env_steps(hub: Hub, stage: StageMachine) -> int | None:
    """Return the env steps that a stage has learned from, or could draw. None: its items come from other learners' samples."""
    by_sources: dict[tuple[str, ...], int] = {}
    channels = [*(queue for _, queues in hub.feeds[stage] for queue in queues), *(r for _, r in hub.samples[stage])]
    for channel in channels:
        num = channel.num_env_steps
        if channel.sources or num:
            key = tuple(channel.sources)
            by_sources[key] = max(by_sources.get(key, 0), num)
    return sum(by_sources.values()) if by_sources else None


def is_held(hub: Hub, stage: StageMachine) -> bool:
    """Whether a stage takes no more items, because it has reached the goal, and used all items that it has taken."""
    if hub.goal is None or stage not in hub.learners_of:
        return False
    is_used = not (stage.num_held and any(stage.held(name) for name in stage.machines if name in hub.before_learners))
    return is_used and reached(hub, hub.goal, stage) is not None


def reached_by_all(hub: Hub) -> str | None:
    """Return the part of the goal that the run ends with, if all learners have reached it and are idle."""
    if hub.goal is None:
        return None
    counts_updates = hub.goal.num_updates is not None
    going = [
        stage for stage in hub.learners_of
        if stage not in hub.stopped and (counts_updates or num_env_steps(hub, stage) is not None)
    ]  # fmt: skip
    if not all(is_held(hub, stage) and not (_is_learning(hub, stage) or stage.handed_over) for stage in going):
        return None
    parts = {reached(hub, hub.goal, stage) for stage in going}
    return next((part for part in ("steps", "updates") if part in parts), None)


def release(hub: Hub) -> Iterator[Start]:
    """Let a held learner go on, if everything waits for such learners."""
    if not _is_waiting(hub):
        return
    for stage in hub.learners_of:
        if stage in hub.stopped or not is_held(hub, stage):
            continue
        feed(hub, stage)
        machine = stage.next_ready()
        if machine is not None:
            yield stage.start(machine)
            return
        if starts := list(next_draw(hub, stage)):
            yield from starts
            return


def _is_learning(hub: Hub, stage: StageMachine) -> bool:
    return stage.busy is not None and stage.busy in hub.before_learners


def _is_waiting(hub: Hub) -> bool:
    """Whether nothing is in progress, and nothing can be started without a version that is not published."""
    if any(stage.busy or stage.handed_over for stage in hub.stages):
        return False
    first = [tickets[0].ticket for source in hub.sources.values() for tickets in source.tickets if tickets]
    return all(
        any(version > hub.registers[register].newest for register, version in ticket.versions.items())
        for ticket in first
    )
