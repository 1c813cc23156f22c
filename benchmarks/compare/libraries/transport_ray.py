"""Ray: a method of an actor is called with the item, and its result is the answer.

    PYTHONPATH=REPOSITORY python transport_ray.py ADDRESS        # the actors need it

Large items are put into the object store and passed by reference; the actor's arrays are views of the store. Small ones
(below 100 KB) are an argument of the call, as Ray recommends. A compiled graph does the same through a channel that is
made beforehand.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import ray
from ray.dag import InputNode

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks._transport.payloads import Arrays, answer
from benchmarks._transport.turns import Writer, serve

_INLINE = 100 * 1024
_STORE = 1 << 30
_CHANNEL = 1 << 25


@ray.remote
class _Reader:
    """The other process."""

    def pid(self) -> int:
        """Its number."""
        return os.getpid()

    def look(self, item: Arrays) -> int:
        """Answer an item."""
        return answer(item)


class _Actor(Writer):
    """Calls of the actor's method."""

    def __init__(self) -> None:
        self._reader = _Reader.remote()
        ray.get(self._reader.__ray_ready__.remote())

    def send(self, item: Arrays) -> Any:
        is_small = sum(array.nbytes for array in item.values()) < _INLINE
        return ray.get(self._reader.look.remote(item if is_small else ray.put(item)))


class _Compiled(Writer):
    """The same, compiled beforehand. The actor keeps a core busy while it waits, so it is stopped between its turns."""

    def __init__(self) -> None:
        self._reader = _Reader.remote()
        self._pid = ray.get(self._reader.pid.remote())
        with InputNode() as item:
            graph = self._reader.look.bind(item)
        self._graph = graph.experimental_compile(_buffer_size_bytes=_CHANNEL)
        self.end()

    def begin(self, payload: str, arrays: Arrays) -> None:
        os.kill(self._pid, signal.SIGCONT)

    def send(self, item: Arrays) -> Any:
        return ray.get(self._graph.execute(item))

    def end(self) -> None:
        os.kill(self._pid, signal.SIGSTOP)

    def close(self) -> None:
        os.kill(self._pid, signal.SIGCONT)
        self._graph.teardown()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        ray.init(num_cpus=2, include_dashboard=False, object_store_memory=_STORE, log_to_driver=False, _temp_dir=folder)
        try:
            serve({"Ray, actor": _Actor(), "Ray, compiled graph": _Compiled()})
        finally:
            ray.shutdown()


if __name__ == "__main__":
    main()
