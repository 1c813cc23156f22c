"""Processes on one machine: shards in workers, items in shared memory, events instead of polling."""

from levada.runners.processes.deployment import Processes
from levada.runners.processes.errors import RemoteError
from levada.runners.processes.run import ProcessesRun, WorkerError

__all__ = ["Processes", "ProcessesRun", "RemoteError", "WorkerError"]
