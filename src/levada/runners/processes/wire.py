"""Messages between two processes over a socket: structs as msgpack, with descriptors beside them.

>>> class Hello(Struct, tag=True):
...     name: str
>>> here, there = wires(Hello)
>>> here.send(Hello("levada"), descriptors=[os.dup(0)])
>>> [(message.name, len(descriptors)) for message, descriptors in there.receive()]
[('levada', 1)]
>>> here.close(); there.receive()
Traceback (most recent call last):
EOFError

Who waits, waits in the kernel: `fileno` makes a wire selectable, and `receive` sleeps until there is something.
"""

from __future__ import annotations

import array
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

_HEAD = struct.Struct("<IB")
"""Bytes of the message, and how many descriptors come with it."""
_MAX_DESCRIPTORS = 16
_CHUNK = 1 << 16


class Wire:
    """One end of a connection between two processes."""

    def __init__(self, end: socket.socket, message: Any) -> None:
        """`message`: the type, or union of tagged structs, of what is received."""
        self._socket = end
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(message).decode
        self._bytes = bytearray()
        self._descriptors: deque[int] = deque()

    def fileno(self) -> int:
        """For selectors."""
        return self._socket.fileno()

    def send(self, message: Struct, descriptors: Sequence[int] = ()) -> None:
        """Send a message. The descriptors are duplicated on the way, and closed here.

        Raises:
            BrokenPipeError, ConnectionResetError: the other process is gone.

        """
        body = self._encode(message)
        data = _HEAD.pack(len(body), len(descriptors)) + body
        try:
            if descriptors:
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
                data = data[self._socket.sendmsg([data], [rights]) :]
            self._socket.sendall(data)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def receive(self) -> list[tuple[Any, list[int]]]:
        """All messages that have come, each with its descriptors; sleeps until there is one.

        Raises:
            EOFError: the other process is gone, or has closed its end.

        """
        messages: list[tuple[Any, list[int]]] = []
        while not messages:
            data, descriptors, _, _ = socket.recv_fds(self._socket, _CHUNK, _MAX_DESCRIPTORS)
            self._descriptors.extend(descriptors)
            if not data:
                raise EOFError
            self._bytes += data
            messages = self._complete()
        return messages

    @property
    def is_ready(self) -> bool:
        """Whether something has come, or the other process is gone; `receive` would not sleep."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def close(self) -> None:
        """Close this end; the other sees the end of the stream."""
        self._socket.close()
        while self._descriptors:
            os.close(self._descriptors.popleft())

    def _complete(self) -> list[tuple[Any, list[int]]]:
        messages, start = [], 0
        while len(self._bytes) - start >= _HEAD.size:
            length, num_descriptors = _HEAD.unpack_from(self._bytes, start)
            begin, end = start + _HEAD.size, start + _HEAD.size + length
            if len(self._bytes) < end:
                break
            descriptors = [self._descriptors.popleft() for _ in range(num_descriptors)]
            messages.append((self._decode(self._bytes[begin:end]), descriptors))
            start = end
        del self._bytes[:start]
        return messages


def wires(message: Any) -> tuple[Wire, Wire]:
    """Both ends of a connection, each of which receives such messages."""
    here, there = socket.socketpair()
    return Wire(here, message), Wire(there, message)
