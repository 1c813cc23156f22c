"""Processes on one machine: shards in workers, items in shared memory, events instead of polling."""

from levada.runners.processes.deployment import Processes
from levada.runners.processes.guard import check_start
from levada.runners.remote_errors import RemoteError

__all__ = ["Processes", "RemoteError", "check_start"]
