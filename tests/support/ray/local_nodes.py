"""A Ray cluster of nodes on this host, for where network namespaces are not permitted: `ray.cluster_utils.Cluster`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


class LocalNodes:
    """The head, without processors, and nodes with two processors each. All have the address of this host."""

    def __init__(self, folder: Path) -> None:
        """`folder`: unused; `Hosts` writes its logs there."""
        self._cluster: Any = None
        self._nodes: dict[str, Any] = {}
        self.address = ""
        self.ip = "127.0.0.1"

    @property
    def names(self) -> list[str]:
        return list(self._nodes)

    @contextmanager
    def open(self, num_nodes: int) -> Iterator[LocalNodes]:
        """Start the nodes."""
        from ray.cluster_utils import Cluster

        before = {name: os.environ.get(name) for name in ("RAY_AUTH_MODE", "PYTHONPATH")}
        os.environ.update({"RAY_AUTH_MODE": "disabled", "PYTHONPATH": os.pathsep.join(sys.path)})
        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        try:
            self.address = self._cluster.address
            for _ in range(num_nodes):
                self.add()
            yield self
        finally:
            self._cluster.shutdown()
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})

    def add(self) -> None:
        """Start another node."""
        self._nodes[f"node {len(self._nodes)}"] = self._cluster.add_node(num_cpus=2)

    def connect(self, name: str, is_up: bool) -> None:
        """Stop the processes of a node, so that nothing reaches it, or let them continue."""
        for pid in self._pids(name):
            os.kill(pid, signal.SIGCONT if is_up else signal.SIGSTOP)

    def kill(self, name: str) -> None:
        """Kill everything that runs on a node."""
        for pid in self._pids(name):
            with suppress(ProcessLookupError):  # it has ended, with its parent
                os.kill(pid, signal.SIGKILL)

    def _pids(self, name: str) -> list[int]:
        """Return the process of a node, and those that it has started."""
        [raylet] = self._nodes[name].all_processes["raylet"]
        children = Path(f"/proc/{raylet.process.pid}/task/{raylet.process.pid}/children")
        return [raylet.process.pid, *map(int, children.read_text().split())]


__all__ = ["LocalNodes"]
