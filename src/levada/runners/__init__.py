"""Runners execute a flow under a deployment: thin shells around the schedule that move items and call the work."""

from levada.runners.firing import IteratorEndedError, WorkError
from levada.runners.hub_run import HubRun, WorkerError
from levada.runners.inline import ClosedError, Inline, InlineRun, StuckError

__all__ = [
    "ClosedError",
    "HubRun",
    "Inline",
    "InlineRun",
    "IteratorEndedError",
    "StuckError",
    "WorkError",
    "WorkerError",
]
