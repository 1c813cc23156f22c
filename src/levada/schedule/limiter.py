"""The state machine that balances a replay: how much may be inserted, and how much sampled.

With `e = (inserted - filling) * samples_per_insert - sampled`, counted in items: inserting waits while `e > tolerance`,
and sampling waits while `e <= -tolerance` (after Reverb's rate limiter, arXiv 2102.04736, section 3.3). `filling` is the
number of inserts that require no samples: `min_size`, plus what replaces a loss. At least one side is always allowed. With a
tolerance of 0 exactly one is, so the interleaving does not depend on timing. A batch, and items inserted at once (the
transitions of a rollout), are counted whole, so e stays within the tolerance plus one step of either side.

>>> limiter = ReplayLimiter(min_size=4, samples_per_insert=2.0, tolerance=0.0)
>>> limiter.may_insert, limiter.may_sample
(True, False)
>>> for _ in range(5): limiter.insert()
>>> limiter.may_insert, limiter.may_sample
(False, True)
>>> limiter.sample(8); limiter.may_insert, limiter.may_sample, limiter.error
(True, False, -6.0)
"""

from __future__ import annotations


class ReplayLimiter:
    """Counts inserts and samples of one replay, and decides which side has to wait."""

    def __init__(self, *, min_size: int, samples_per_insert: float | None, tolerance: float) -> None:
        self.filling: int = min_size
        """Inserts that require no samples."""
        self.full_at: int = min_size
        """Number of inserts from which there is enough to sample from."""
        self.samples_per_insert = samples_per_insert
        self.tolerance = tolerance
        self.inserted: int = 0
        self.sampled: int = 0

    @property
    def error(self) -> float:
        """Samples that are owed (positive) or taken in advance (negative)."""
        return (self.inserted - self.filling) * (self.samples_per_insert or 0.0) - self.sampled

    def reuse_of(self, inserted: int, sampled: int) -> float:
        """Return the samples per insert, not counting inserts that require none."""
        return sampled / max(1, inserted - self.filling)

    @property
    def is_full(self) -> bool:
        """Whether there is enough to sample from."""
        return self.inserted >= self.full_at

    @property
    def may_insert(self) -> bool:
        """Whether another item may be inserted now."""
        return self.samples_per_insert is None or not self.is_full or self.error <= self.tolerance

    @property
    def may_sample(self) -> bool:
        """Whether a batch may be sampled now."""
        if not self.is_full:
            return False
        return self.samples_per_insert is None or self.error > -self.tolerance

    def insert(self, num: int = 1) -> None:
        """Record that `num` items were inserted at once."""
        assert self.may_insert, "inserted while the replay had to be sampled"
        self.inserted += num

    def sample(self, size: int) -> None:
        """Record that a batch of `size` items was sampled."""
        assert self.may_sample, "sampled more than the balance allows"
        self.sampled += size

    def refill(self, missing: int) -> None:
        """Require `missing` more inserts, from now on, before there is enough to sample from again."""
        full_at = self.inserted + missing
        self.filling += full_at - max(self.full_at, self.inserted)
        self.full_at = full_at
