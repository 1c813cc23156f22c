"""The state machine of a register: which versions exist, and when one can be discarded.

>>> register = RegisterMachine("weights", keep=2)
>>> register.publish(1), register.publish(2)
([], [0])
>>> register.resolve(None), register.resolve(1)
(2, 1)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from levada.flow.topology import Topology

if TYPE_CHECKING:
    from levada.flow.graph import Flow


class RegisterMachine:
    """Versions of one register. It initially holds version 0, the initial weights."""

    def __init__(self, name: str, *, keep: int) -> None:
        """`keep`: number of versions that a ticket can still name, including the newest."""
        self.name = name
        self._versions = deque([0])
        self.keep: int = keep

    @property
    def newest(self) -> int:
        """The newest version."""
        return self._versions[-1]

    @property
    def versions(self) -> tuple[int, ...]:
        """Existing versions, oldest first."""
        return tuple(self._versions)

    def restore(self, versions: Sequence[int]) -> None:
        """Resume with these versions, which may be more than `keep`."""
        self._versions = deque(versions)
        self.keep = max(self.keep, len(versions))

    def publish(self, version: int) -> list[int]:
        """Add a version; return the versions that can be discarded."""
        assert version > self.newest, f"{self.name}: version {version} after {self.newest}"
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
