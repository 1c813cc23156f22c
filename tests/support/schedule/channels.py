"""The channel of `levada.testing.toy_flow` without a flow around it, and items for it."""

from typing import Any

from levada.flow import Flow, Header, Input, Item, Queue
from levada.flow.topology import Channel
from levada.testing import toy_flow


def plain_flow(max_lag: int = 0, **kwargs: Any) -> Flow:
    return toy_flow(Queue(max_lag=max_lag), **kwargs)


def toy_channel(queue: Queue, *, per_update: int | None = 2, every: int | None = 1, **kwargs: Any) -> Channel:
    """The channel of `toy_flow`, without a flow around it."""
    given: dict[str, Any] = {"sources": ("rollout",), "proportions": None, "policy": "policy", **kwargs}
    return Channel(
        name="rollout->batch", queue=queue, input=Input("rollout"), consumer="batch", input_index=0, num_shards=4,
        learners=("learn",), per_update=per_update, publish_every=every, **given,
    )  # fmt: skip


def toy_item(ticket: int, version: int = 0, *, source: str = "rollout", value: Any = None) -> Item:
    return Item(value, (Header({"policy": version}, source, 0, ticket, 0, ()),))
