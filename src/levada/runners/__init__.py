"""Runners execute a flow under a deployment: thin shells around the schedule that move items and call the work."""

from levada.runners.firing import IteratorEndedError, WorkError
from levada.runners.flow_run import FlowRun
from levada.runners.inline import Inline, InlineRun, StuckError
from levada.runners.workers import ClosedError, WorkerError

__all__ = [
    "ClosedError",
    "FlowRun",
    "Inline",
    "InlineRun",
    "IteratorEndedError",
    "StuckError",
    "WorkError",
    "WorkerError",
]
