"""Replicas of one learner: K copies, in K processes, that compute the gradient of each minibatch together.

How a minibatch is divided is a property of the algorithm, its number of parts M; a deployment only says how many replicas share
the parts. Replica r of K computes the gradients of the parts p with p % K == r:

    address = replicas[0].listen("127.0.0.1")
    for rank, replica in enumerate(replicas):                  # at the same time, each in a process of its own
        replica.join(Replica(rank, len(replicas), address, reduce="exact", timeout_s=60.0))
    for replica in replicas:                                   # at the same time
        update = replica.update(batch)                         # the same update everywhere

If `update` raises ReplicaLostError, a replica was lost. The others may have made the update or not; those that have are taken
back by `undo`. All then join a new group and repeat the update, with the result of an undisturbed run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from levada.flow.errors import LevadaError
from levada.flow.protocols import Update

Reduce: TypeAlias = Literal["allreduce", "exact"]


class ReplicaLostError(LevadaError):
    """A collective operation of the replicas of a learner failed or timed out. The update was not made here, and the replicas
    must form a new group.
    """


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica of a learner, and the group that it belongs to.

    >>> Replica(1, 2, "127.0.0.1:40000", "exact", 60.0).parts(4)
    (1, 3)
    """

    rank: int
    """Number of this replica, from 0."""
    size: int
    """Number of replicas, K."""
    address: str
    """Address ``host:port`` at which rank 0 listens."""
    reduce: Reduce
    """How gradients are added. `exact`: in the order of the parts, so that the parameters have the same bits for any number of
    replicas; each replica receives M gradients per gradient step. `allreduce`: each replica adds those of its own parts first.
    The result differs by rounding, and each replica receives about two gradients."""
    timeout_s: float
    """Time limit of every collective operation, in seconds. It must exceed the time by which one replica may be behind another,
    compiling of the update included."""

    def parts(self, num_parts: int) -> tuple[int, ...]:
        """Return the parts that this replica computes the gradients of."""
        return tuple(range(self.rank, num_parts, self.size))


@runtime_checkable
class Divisible(Protocol):
    """A recipe of a learner whose minibatches are divided into parts, which replicas can share."""

    @property
    def num_parts(self) -> int:
        """Number of parts M of each minibatch: the largest number of replicas."""
        ...

    @property
    def has_consecutive_parts(self) -> bool:
        """Whether each part of a batch is a run of consecutive rows, so that a replica needs only the items of its parts."""
        ...


@runtime_checkable
class Replicable(Protocol):
    """A live learner that can be one of several replicas.

    The items of a batch are in the order of their tickets. A learner that shuffles, or that takes the whole batch as one
    minibatch, divides the batch into M parts of consecutive rows. A learner that cuts the batch into several minibatches of
    consecutive rows divides each of these: part p consists of the p-th microbatch of every minibatch.
    """

    def listen(self, host: str) -> str:
        """Open a rendezvous on a free port of this host; return ``host:port``. Rank 0 only; needed anew for every `join`."""
        ...

    def join(self, replica: Replica) -> None:
        """Form the group: all replicas call this at the same time, with a new address each time. A group of 1 needs no network.

        Raises:
            DeploymentError: the learner cannot be divided among so many replicas.
            ReplicaLostError: the group was not formed in time.
        """
        ...

    def update(self, batch: Any, parts: Sequence[int] | None = None) -> Update[Any]:
        """Learn from one batch, together with the other replicas, which do the same.

        Args:
            batch: the whole batch, or the rows of some parts.
            parts: the parts that `batch` consists of, in this order, which must be those of this replica. None: the batch is
                whole. All replicas get either their parts or the whole batch.

        Raises:
            ReplicaLostError: another replica was lost; nothing has changed here.
        """
        ...

    def undo(self) -> None:
        """Go back to the state before the last update. The state is kept for one update, while there are several replicas.

        Raises:
            RuntimeError: there is no such state.
        """
        ...

    def fingerprint(self) -> str:
        """Return a hash of all state of the next update, which is the same for all replicas."""
        ...
