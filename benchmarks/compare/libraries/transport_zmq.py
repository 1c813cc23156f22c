"""ZeroMQ: a pair of sockets over ipc.

    python transport_zmq.py ADDRESS

Arrays from 64 KB on are frames of their own beside the pickle (protocol 5), and none of them is copied by pyzmq.
"""

from __future__ import annotations

import multiprocessing
import pickle
import sys
import tempfile
from pathlib import Path
from typing import Any

import zmq

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks._transport.payloads import Arrays, answer
from benchmarks._transport.turns import Writer, serve

_LARGE = 1 << 16


class _Zmq(Writer):
    """One socket that goes both ways."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        address = f"ipc://{self._folder.name}/socket"
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.bind(address)
        self._reader = multiprocessing.get_context("spawn").Process(target=_read, args=(address,), daemon=True)
        self._reader.start()

    def send(self, item: Arrays) -> Any:
        frames: list[memoryview] = []

        def is_small(buffer: pickle.PickleBuffer) -> bool:
            data = buffer.raw()
            if data.nbytes >= _LARGE:
                frames.append(data)
            return data.nbytes < _LARGE

        pickled = pickle.dumps(item, protocol=5, buffer_callback=is_small)
        self._socket.send_multipart([pickled, *frames], copy=False)
        return int.from_bytes(self._socket.recv(), "little")

    def close(self) -> None:
        self._socket.send(b"")
        self._reader.join()
        self._context.destroy(linger=0)
        self._folder.cleanup()


def _read(address: str) -> None:
    with zmq.Context() as context, context.socket(zmq.PAIR) as end:
        end.connect(address)
        while True:
            head, *frames = end.recv_multipart(copy=False)
            if not len(head):
                return
            item = pickle.loads(head.buffer, buffers=[frame.buffer for frame in frames])
            end.send(answer(item).to_bytes(8, "little"))


if __name__ == "__main__":
    serve({"pyzmq": _Zmq()})
