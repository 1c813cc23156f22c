"""The state machine of a register: which versions exist, and when one can be discarded.

>>> register = RegisterMachine("weights", keep=2)
>>> register.publish(1), register.publish(2)
([], [0])
>>> register.resolve(None), register.resolve(1)
(2, 1)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from levada.flow.topology import Storage, Topology

if TYPE_CHECKING:
    from levada.flow.graph import Flow


class RegisterMachine:
    """Versions of one register. It initially holds version 0, the initial weights.

    What was published first is discarded first, by everything that holds these versions. A version that is published again
    therefore counts as new, although it is not the newest.
    """

    def __init__(self, name: str, *, keep: int, spare: int = 0) -> None:
        """`keep`: number of versions that a ticket can still name, including the newest. `spare`: number of versions beside these
        that tickets of lost items can name.
        """
        self.name = name
        self._versions = deque([0])  # in the order in which they were published
        self.keep: int = keep + spare
        self.has_spare: bool = spare > 0
        """Whether tickets of lost items can name older versions; they are published again."""

    @property
    def newest(self) -> int:
        """The newest version."""
        return max(self._versions)

    @property
    def versions(self) -> tuple[int, ...]:
        """Existing versions, oldest first."""
        return tuple(sorted(self._versions))

    def restore(self, versions: Sequence[int]) -> None:
        """Resume with these versions, which may be more than `keep`."""
        self._versions = deque(versions)
        self.keep = max(self.keep, len(versions))

    def publish(self, version: int) -> list[int]:
        """Add a version; return the versions that can be discarded."""
        assert version > self.newest, f"{self.name}: version {version} after {self.newest}"
        return self._add(version)

    def publish_again(self, version: int) -> list[int]:
        """Add an older version, whether or not it was discarded; return the versions that can be discarded for it."""
        if version in self._versions:
            self._versions.remove(version)
        return self._add(version)

    def _add(self, version: int) -> list[int]:
        self._versions.append(version)
        forgotten = []
        while len(self._versions) > self.keep:
            forgotten.append(self._versions.popleft())
        return forgotten

    def resolve(self, version: int | None) -> int:
        """Return the version for a reader: the one its ticket names, or the newest."""
        assert version is None or version in self._versions, f"{self.name}: version {version} is gone or not yet there"
        return self.newest if version is None else version


def versions_to_keep(flow: Flow, topology: Topology) -> dict[str, int]:
    """Number of versions that each register keeps: one more than the largest lag at which a ticket can name a version.

    With tickets for a replay it is at least one more than their number, so that draws need not wait for items made with older
    versions if a version is published per item.
    """
    keep = {}
    for name, register in flow.registers.items():
        queues = [c.queue for c in topology.channels if c.policy == register.policy and c.queue.blocks]
        tickets = [storage.tickets for storage in topology.storages if storage.policy == register.policy]
        keep[name] = max([0, *(queue.max_lag or 0 for queue in queues), *tickets]) + 1
    return keep


def num_readable(flow: Flow, storage: Storage, keep: Mapping[str, int]) -> int:
    """Number of versions that the sources of a replay can read at a time. `keep`: number that each register keeps."""
    return min((keep[name] for name, r in flow.registers.items() if r.policy == storage.policy), default=1)


def versions_to_spare(flow: Flow, topology: Topology) -> dict[str, int]:
    """Number of versions that each register keeps beside these where finished items can be lost: their tickets may name older
    versions, which are published again.

    With one queue they never do: what is not used yet names a version that is kept. Otherwise there are at most as many unused
    items as the channels of the sources that read the register have tickets.
    """
    spare = {}
    for name in flow.registers:
        sources = {node.name for node in flow.nodes.values() if name in dict(node.reads).values()}
        queues = [channel.tickets or 0 for channel in topology.channels if sources.intersection(channel.sources)]
        replays = [storage.tickets for storage in topology.storages if sources.intersection(storage.sources)]
        spare[name] = sum(queues) + sum(replays) if replays or len(queues) > 1 else 0
    return spare
