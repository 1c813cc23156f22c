"""multiprocessing's Queue and Pipe.

    python transport_multiprocessing.py ADDRESS

The queue pickles as it always does. Through the pipe, arrays from 64 KB on go beside the pickle (protocol 5), each in a
message of its own.
"""

from __future__ import annotations

import multiprocessing
import pickle
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks._transport.payloads import Arrays, answer
from benchmarks._transport.turns import Writer, serve

_CONTEXT = multiprocessing.get_context("spawn")
_LARGE = 1 << 16


class _Queue(Writer):
    """Two queues, one each way."""

    def __init__(self) -> None:
        self._items, self._answers = _CONTEXT.Queue(), _CONTEXT.Queue()
        self._reader = _CONTEXT.Process(target=_read_queue, args=(self._items, self._answers), daemon=True)
        self._reader.start()

    def send(self, item: Arrays) -> Any:
        self._items.put(item)
        return self._answers.get()

    def close(self) -> None:
        self._items.put(None)
        self._reader.join()


class _Pipe(Writer):
    """One pipe that goes both ways."""

    def __init__(self) -> None:
        self._end, there = _CONTEXT.Pipe()
        self._reader = _CONTEXT.Process(target=_read_pipe, args=(there,), daemon=True)
        self._reader.start()
        there.close()

    def send(self, item: Arrays) -> Any:
        large: list[memoryview] = []
        pickled = pickle.dumps(item, protocol=5, buffer_callback=lambda buffer: _is_small(buffer, large))
        self._end.send_bytes(bytes([len(large)]) + pickled)
        for data in large:
            self._end.send_bytes(data)
        return int.from_bytes(self._end.recv_bytes(), "little")

    def close(self) -> None:
        self._end.close()
        self._reader.join()


def _is_small(buffer: pickle.PickleBuffer, large: list[memoryview]) -> bool:
    """Whether an array stays in the pickle; else it is put aside."""
    data = buffer.raw()
    if data.nbytes >= _LARGE:
        large.append(data)
    return data.nbytes < _LARGE


def _read_queue(items: Any, answers: Any) -> None:
    while (item := items.get()) is not None:
        answers.put(answer(item))


def _read_pipe(end: Any) -> None:
    while True:
        try:
            head = end.recv_bytes()
        except EOFError:
            return
        buffers = [end.recv_bytes() for _ in range(head[0])]
        item = pickle.loads(memoryview(head)[1:], buffers=buffers)
        end.send_bytes(answer(item).to_bytes(8, "little"))


if __name__ == "__main__":
    serve({"Queue": _Queue(), "Pipe": _Pipe()})
