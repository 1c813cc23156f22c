"""Weights only for shards whose items were consumed: the rule of XingTian, and where it keeps the bound on the lag.

XingTian (Pan et al., Middleware 2022) sends new weights only to the explorers whose rollouts the learner has just used. With
`flow.latest(..., routing="consumed")` a shard reads version v only if an update after its last version and up to v has
consumed one of its items; until then it keeps the version that it has. All shards have version 0.

Let N be the number of shards of a source, n the number of updates after which a version is published, K the `max_lag` of a
queue that blocks, and P, B as in `levada.flow.topology`.

*Claim*: in admission order the rule keeps the lag at most K exactly if N <= P n or N divides B. Every shard then reads the very
version that its ticket names without the rule.
*Proof*: ticket a belongs to shard a mod N. For a >= B it names V, the smallest multiple of n that is at least a // P - K, so with
any older version its lag exceeds K. Let a - B + 1 = P n (j - 1) + q with 1 <= q <= P n; then V = j n. Version V is made from the
P n tickets before ticket P V. So the shard may read it exactly if one of these is a - m with a multiple m of N, that is, if a
multiple of N lies in the interval (B - 1 + q - P n, B - 1 + q]. It has P n numbers, so N <= P n suffices. Let N > P n. From q to
q + 1 the interval loses its first number and gains one that is larger by P n < N, so not both are multiples of N. Hence all
intervals contain the same multiple. The only number that lies in the first (q = 1) and in the last (q = P n) is B. □

Where N is larger than B, waiting for the weights instead of keeping the old ones is a deadlock: shard B gets its first ticket
with a version that it may read only after the item of this ticket is consumed. This is how XingTian hangs.

In arrival order the rule changes nothing if there is one shard, or if K = 0 and N <= P: all tickets come back together and go to
the shards in turn, so each has an item in each update. Otherwise the items of a fast shard can fill an update alone, and the
check refuses the rule. It also refuses queues that drop: a shard whose item is dropped as stale would make all later ones with
the same version, and none would ever be consumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from levada.flow.mistakes import plural
from levada.flow.nodes import Graph
from levada.flow.topology import Channel, Topology


class Unrouted(NamedTuple):
    """A source that could not keep the bound on the lag with the rule of a register it reads."""

    register: str
    why: str
    expected: str


def find_unrouted(flow: Graph, topology: Topology) -> Iterator[Unrouted]:
    """Yield the sources for which `routing="consumed"` is refused, each with the reason."""
    for source in (node for node in flow.nodes.values() if node.kind == "source"):
        for register in (flow.registers[name] for _, name in source.reads):
            if register.routing == "all":
                continue
            channels = [c for c in topology.channels if source.name in c.sources and c.policy == register.policy]
            if not channels:
                why = f"no update of policy {register.policy!r} consumes items of {source.name} from a queue"
                yield Unrouted(register.name, why, "a queue between the source and the learner of this policy")
            for channel in channels:
                found = _why_not(channel, source.name)
                if found is not None:
                    yield Unrouted(register.name, *found)


def _why_not(channel: Channel, source: str) -> tuple[str, str] | None:
    """Return why shards would lag more with the rule, and what keeps the bound. None: they do not, or LV321 to LV323 say more."""
    queue, num, name = channel.queue, channel.num_shards, channel.name
    if not queue.blocks:
        if queue.max_lag is None:
            return f"{name} has no max_lag, so a slow shard of {source} keeps any old version", "a queue with max_lag"
        why = f"once {name} drops an item of a shard of {source} as stale, its later items are stale too, and none is consumed"
        return why, "on_stale='block'"
    per_update, every, tickets = channel.per_update, channel.publish_every, channel.tickets
    if per_update is None or every is None or tickets is None or num == 1:
        return None
    until_published = per_update * every
    if len(channel.sources) > 1:
        return f"the sources of {name} ({', '.join(channel.sources)}) share its updates by turns", "a queue per source"
    if queue.consumption == "admission":
        if num <= until_published or tickets % num == 0:
            return None
        missed = "some shard has none among them when its next ticket needs their version"
        if num > tickets:
            missed = f"shard {tickets} has none among them, and its first item waits for weights that come once it is consumed"
        used = f"{name} consumes {plural(until_published, 'item')} of the {num} shards of {source} until a version is published"
        expected = f"at most {plural(until_published, 'shard')}, or a divisor of the {plural(tickets, 'ticket')}"
        return f"{used}: {missed}", expected
    if queue.max_lag == 0 and num <= per_update:
        return None
    return f"in arrival order fast shards of {source} can fill the updates of {name} alone", "order='admission'"
