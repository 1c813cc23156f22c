"""Processes on one machine: shards in workers, items in shared memory, events instead of polling."""

from levada.runners.processes.deployment import Processes
from levada.runners.processes.errors import RemoteError
from levada.runners.processes.guard import check_start

__all__ = ["Processes", "RemoteError", "check_start"]
