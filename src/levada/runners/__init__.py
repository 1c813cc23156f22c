"""Runners execute a flow under a deployment: thin shells around the schedule that move items and call the work."""

from levada.runners.inline import Inline, InlineRun, StuckError
from levada.runners.work import WorkError

__all__ = ["Inline", "InlineRun", "StuckError", "WorkError"]
