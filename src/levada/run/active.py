"""A run in progress, as loggers and instruments see it.

>>> from levada.run.identity import Identity
>>> identity = Identity(algorithm="ppo", env="CartPole-v1", seed=1, deployment="inline", flow_hash="")
>>> run = ActiveRun(identity, {"num_envs": 8}, Path("runs/first"))
>>> run.stop("pruned")
>>> run.stop_reason
'pruned'
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from levada.flow.errors import LevadaError
from levada.run.identity import Identity

MAX_REASON_CHARS: Final = 200
RESERVED: Final = ("interrupted", "failed", "sources ended")
"""Values of `Summary.stopped_by` that have another meaning."""


PRUNED: Final = "pruned"
"""Reason with which `levada sweep` ends runs that are worse than others."""


class StopError(LevadaError, ValueError):
    """The reason for a stop is invalid."""


class ActiveRun:
    """A run in progress."""

    def __init__(
        self, identity: Identity, settings: Mapping[str, Any], path: Path, *, resumed_at: int | None = None
    ) -> None:
        self.identity = identity
        """Algorithm, environment, seed and deployment."""
        self.settings = settings
        """Every setting by name, as plain data."""
        self.path = path
        """Directory of the run; of a run at a URL, its local copy."""
        self.resumed_at = resumed_at
        """Number of env steps from which a resumed run continues; None for a new run."""
        self._lock = threading.Lock()
        self._stop_reason: str | None = None

    @property
    def stop_reason(self) -> str | None:
        """Reason of the first `stop`; None if there was none."""
        return self._stop_reason

    def stop(self, reason: str) -> None:
        """End the run after this update, as when a condition of `until` holds: everything is saved, and `reason` becomes
        `summary.stopped_by`. The first reason counts. Any thread may call it.

        Raises:
            StopError: the reason is no text, empty, longer than 200 characters, or has another meaning there.
        """
        if not isinstance(reason, str):
            msg = f"run.stop({reason!r}): expected a reason as text, such as run.stop('pruned')"
            raise StopError(msg)
        if not reason.strip() or len(reason) > MAX_REASON_CHARS or reason in RESERVED or not reason.isprintable():
            shown = reason if len(reason) <= MAX_REASON_CHARS else f"{reason[:40]}..."
            msg = (
                f"run.stop({shown!r}): expected 1 to {MAX_REASON_CHARS} printable characters, and not {', '.join(RESERVED)}, "
                "which have another meaning in summary.json"
            )
            raise StopError(msg)
        with self._lock:
            if self._stop_reason is None:
                self._stop_reason = reason
