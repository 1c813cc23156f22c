"""The loss of finished items with the worker that made them, where items stay with their workers; see `levada.schedule.losses`.

A loss becomes known in two ways: the transport reports that a worker has ended, or a learner cannot get an item. In the second
case the worker is ended, which makes it the first: the hub withdraws what the worker had finished, another worker replaces it,
and each of its shards resumes in the state before its oldest lost ticket.
"""

from __future__ import annotations

from collections import deque

from levada.flow.errors import LevadaError
from levada.runners.saving import ShardKey
from levada.runners.shard_record import ShardRecord
from levada.runners.transport import Transport
from levada.runners.workers import Workers
from levada.schedule import Firing, Hub, HubInstruction, ItemsLost, ShardsLost
from levada.schedule.saving import names_all_versions


class ItemLostError(LevadaError):
    """The values of some items are gone with the worker or the node that held them. The items are made again."""

    def __init__(self, shards: tuple[ShardKey, ...]) -> None:
        """`shards`: the shards whose items are gone, at least one, by source and number."""
        super().__init__(shards)
        self.shards = shards

    def __str__(self) -> str:
        names = ", ".join(f"{source} {index}" for source, index in self.shards)
        return f"finished items of the shards {names} are gone with their worker"


def end_workers(error: ItemLostError, workers: Workers, transport: Transport) -> set[object]:
    """End the workers whose items are lost, and return them; their ends will be reported."""
    ended = {workers.of(key).worker for key in error.shards}
    for worker in ended:
        transport.kill(worker, "because items that it had finished are lost")
    return set(ended)


def withdraw(
    hub: Hub, shards: dict[ShardKey, ShardRecord], keys: list[ShardKey], ready: deque[Firing]
) -> list[HubInstruction]:
    """Let the hub withdraw what some shards were making, and what they have finished if that is lost, too.

    In an order that depends on tickets alone, a shard then resumes before the first ticket that it holds. In any other it goes
    on from its newest state: what was made between two lost items may have been used, and is not to be learned from twice.

    Args:
        hub: the hub.
        shards: records of all shards; those of `keys` are set back.
        keys: the shards whose worker has ended.
        ready: central firings that are not executed; those that the hub starts again are removed.
    """
    if not hub.items_can_be_lost:
        return hub.handle(ShardsLost(tuple(key for key in keys if hub.tickets(*key))))
    undone = tuple(firing for firing in ready if firing.draw is None)
    for firing in undone:
        ready.remove(firing)
    instructions = hub.handle(ItemsLost(tuple(keys), undone))
    if names_all_versions(hub):
        for key in keys:
            if tickets := hub.tickets(*key):
                shards[key].go_back_to(tickets[0].number)
    return instructions
