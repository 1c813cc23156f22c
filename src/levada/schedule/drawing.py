"""Draws of an idle stage from its replays. Learners that share a replay take turns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from levada.schedule.events import Start

if TYPE_CHECKING:
    from levada.schedule.hub import Hub
    from levada.schedule.replays import ReplayMachine
    from levada.schedule.stages import StageMachine


def next_draw(hub: Hub, stage: StageMachine) -> Iterator[Start]:
    """Draw what an idle stage can use from a replay."""
    for machine, replay in hub.samples[stage]:
        node = machine.node
        if replay.may_draw(node.name) and stage.wants_from(node.name) and _is_turn_over(hub, replay):
            yield stage.start(machine, draw=replay.draw(node.size, node.minibatch_size, node.name))
            return


def _is_turn_over(hub: Hub, replay: ReplayMachine) -> bool:
    """Whether all that the last draw led to is done, reports included, where learners take turns."""
    if not replay.storage.shares:
        return True
    stages = [stage for stage, samples in hub.samples.items() if any(other is replay for _, other in samples)]
    return not any(stage.busy or stage.next_ready() for stage in stages)
