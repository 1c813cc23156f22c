"""The failures of shards and of their workers: how many there were in a row, and which shards start over.

A shard that fails, or loses its worker, goes on from its last state if there is one. Otherwise its episodes start over. Too many
failures in a row end the run.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from levada.flow.events import Failed
from levada.runners.firing import is_of_debugger
from levada.runners.saving import ShardKey
from levada.runners.shard_record import ShardRecord
from levada.runners.statistics import Accounts
from levada.runners.transport import ShardFailed, ShardOpened, WorkerEnded
from levada.runners.workers import WorkerError, WorkerState
from levada.schedule import Hub
from levada.schedule.stopping import can_stop

log: logging.Logger = logging.getLogger(__name__)

STARTS_OVER = "episodes start over, with other random numbers, and the result is not that of an undisturbed run"


def why_it_stops(hub: Hub, learner: str, error: BaseException) -> str | None:
    """Return why a learner that has failed stops, if it is isolated and others go on; None: its error ends the run."""
    if not (hub.flow.nodes[learner].isolated and isinstance(error, Exception)) or is_of_debugger(error):
        return None
    if not can_stop(hub, learner):
        error.add_note("it is isolated, but no other learner can go on without it")
        return None
    reason = f"{type(error).__name__}: {error}"
    log.warning("learner %r stops: %s; the others go on", learner, reason)
    return reason


class Failures:
    """Counts failures in the records of the shards, and reports them."""

    def __init__(
        self, shards: Mapping[ShardKey, ShardRecord], accounts: Accounts, *, seed: int, max_restarts: int
    ) -> None:
        """`shards`: records of all shards; `accounts`: what tells observers; `seed`: of the run."""
        self._shards = shards
        self._accounts = accounts
        self._seed = seed
        self._max_restarts = max_restarts

    def of_state(self, opened: ShardOpened) -> None:
        """Record that a shard was opened, but could not be restored."""
        self._shards[opened.source, opened.shard].reset(self._seed)  # as the worker did
        log.warning("%s %d: %s: %s", opened.source, opened.shard, opened.why_from_scratch, STARTS_OVER)
        self._accounts.show(Failed(opened.source, opened.shard, opened.why_from_scratch, True))

    def of_shard(self, failed: ShardFailed) -> bool:
        """Record that a shard has failed and reopened its work. Return whether it may go on."""
        key = (failed.source, failed.shard)
        shard = self._shards[key]
        shard.reset(self._seed)  # as the worker did
        shard.num_failures += 1
        if failed.is_mistake or shard.num_failures > self._max_restarts:
            return False
        self._report([key], f"{type(failed.error).__name__}: {failed.error}", {key: "its environment failed"})
        return True

    def of_worker(self, dead: WorkerState, ended: WorkerEnded) -> list[ShardKey]:
        """Record that a worker ended. Return the keys of its shards.

        Raises:
            WorkerError: it could not even start, or ended too often.
        """
        keys = [(shard.node, shard.index) for shard in dead.worker.shards]
        if len(dead.unopened) == len(keys) and ended.by_error:
            raise WorkerError.before_it_began("a worker", ended.how)
        for key in keys:
            self._shards[key].num_failures += 1
            self._shards[key].num_blamed += dead.has_begun
        if any(self._shards[key].num_failures > self._max_restarts for key in keys):
            msg = f"the worker of the shards {_names(keys)} ended {self._max_restarts + 1} times in a row, now {ended.how}"
            raise WorkerError(msg)
        return keys

    def start_over(self, keys: Sequence[ShardKey], ended: WorkerEnded) -> None:
        """Report what becomes of the shards of a worker that ended; those that cannot resume start over."""
        reasons = {key: self._shards[key].why_from_scratch(self._max_restarts) for key in keys}
        from_scratch = {key: reason for key, reason in reasons.items() if reason}
        self._report(keys, f"the worker ended {ended.how}", from_scratch)
        for key in from_scratch:
            self._shards[key].reset(self._seed)

    def _report(self, keys: Sequence[ShardKey], why: str, from_scratch: Mapping[ShardKey, str]) -> None:
        """Report failures. `from_scratch`: for the shards that start over, the reason."""
        for reason in dict.fromkeys(from_scratch.get(key, "") for key in keys):
            some = [key for key in keys if from_scratch.get(key, "") == reason]
            count = max(self._shards[key].num_failures for key in some)
            what = f"{reason}: {STARTS_OVER}" if reason else "it is made again"
            log.warning("%s: %s; %s (failure %d of %d in a row)", _names(some), why, what, count, self._max_restarts)
        for source, index in keys:
            self._accounts.show(Failed(source, index, why, (source, index) in from_scratch))


def _names(keys: Sequence[ShardKey]) -> str:
    return ", ".join(f"{source} {index}" for source, index in keys)
