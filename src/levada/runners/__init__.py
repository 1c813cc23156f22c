"""Runners execute a flow under a deployment: thin shells around the schedule that move items and call the work."""

from levada.runners.hub_run import HubRun, WorkerError
from levada.runners.inline import ClosedError, Inline, InlineRun, StuckError
from levada.runners.work import IteratorEndedError, WorkError

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
