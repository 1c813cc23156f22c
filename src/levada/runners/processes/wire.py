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

Who waits, waits in the kernel: `fileno` makes a wire selectable, and `receive` sleeps until there is something. `send` sleeps
while the other side does not read: of two who both send, one has to `post`, which never sleeps, or they could wait for each
other.
"""

from __future__ import annotations

import array
import errno
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

_HEAD = struct.Struct("<IB")
"""Bytes of the message, and how many descriptors come with it."""
_MAX_DESCRIPTORS = 253
"""As many as the kernel takes with one message."""
_CHUNK = 1 << 16
_ROOM_FOR_RIGHTS = socket.CMSG_LEN(_MAX_DESCRIPTORS * array.array("i").itemsize)


class Wire:
    """One end of a connection between two processes."""

    def __init__(self, end: socket.socket, message: Any) -> None:
        """`message`: the type, or union of tagged structs, of what is received."""
        self._socket = end
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(message).decode
        self._bytes = bytearray()
        self._descriptors: deque[int] = deque()
        self._posted: deque[tuple[memoryview, Sequence[int]]] = deque()

    def fileno(self) -> int:
        """For selectors."""
        return self._socket.fileno()

    def send(self, message: Struct, descriptors: Sequence[int] = ()) -> None:
        """Send a message; sleeps while there is no room for it. The descriptors are duplicated on the way, and closed here.

        Raises:
            BrokenPipeError, ConnectionResetError: the other process is gone.

        """
        self._posted.append((self._pack(message, descriptors), descriptors))
        while self._posted:
            self._push()

    def post(self, message: Struct, descriptors: Sequence[int] = ()) -> None:
        """Send a message, or as much of it as there is room for: the rest is sent by `push`.

        Raises:
            BrokenPipeError, ConnectionResetError: the other process is gone.

        """
        self._posted.append((self._pack(message, descriptors), descriptors))
        self.push()

    def push(self) -> None:
        """Send what was posted, as far as there is room.

        Raises:
            BrokenPipeError, ConnectionResetError: the other process is gone.

        """
        with suppress(BlockingIOError):
            while self._posted:
                self._push(socket.MSG_DONTWAIT)

    @property
    def has_posted(self) -> bool:
        """Whether something is left to `push`."""
        return bool(self._posted)

    def receive(self) -> list[tuple[Any, list[int]]]:
        """All messages that have come, each with its descriptors; sleeps until there is one.

        Raises:
            EOFError: the other process is gone, or has closed its end.
            OSError: this process may not have so many descriptors.

        """
        while True:
            messages = self._receive(0)
            if messages:
                return messages

    def take(self) -> list[tuple[Any, list[int]]]:
        """The messages that have come; none if only a part of one has. Never sleeps.

        Raises:
            EOFError: the other process is gone, or has closed its end.

        """
        try:
            return self._receive(socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []

    @property
    def is_ready(self) -> bool:
        """Whether something has come, or the other process is gone; `receive` would not sleep."""
        return self.wait(0.0)

    def wait(self, timeout_s: float | None, *, to_send: bool = False) -> bool:
        """Sleep until something has come, or something can be sent; False: neither, for so long."""
        poll = select.poll()  # select.select has no descriptors from 1024 on
        poll.register(self._socket, select.POLLOUT if to_send else select.POLLIN)
        return bool(poll.poll(None if timeout_s is None else 1000.0 * timeout_s))

    def close(self) -> None:
        """Close this end; the other sees the end of the stream."""
        self._socket.close()
        for descriptor in (*self._descriptors, *(unsent for _, descriptors in self._posted for unsent in descriptors)):
            os.close(descriptor)
        self._descriptors.clear()
        self._posted.clear()

    def _receive(self, flags: int) -> list[tuple[Any, list[int]]]:
        # not socket.recv_fds: in Python 3.11 that ignores its flags
        data, rights, said, _ = self._socket.recvmsg(_CHUNK, _ROOM_FOR_RIGHTS, flags)
        for *_, sent in rights:
            self._descriptors.extend(array.array("i", sent))
        if said & socket.MSG_CTRUNC:  # this process may have no more: the kernel has thrown them away
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        if not data:
            raise EOFError
        self._bytes += data
        return self._complete()

    def _pack(self, message: Struct, descriptors: Sequence[int]) -> memoryview:
        assert len(descriptors) <= _MAX_DESCRIPTORS, "more descriptors than go with one message"
        body = self._encode(message)
        return memoryview(_HEAD.pack(len(body), len(descriptors)) + body)

    def _push(self, flags: int = 0) -> None:
        """Send some of what was posted first."""
        data, descriptors = self._posted[0]
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        num_sent = self._socket.sendmsg([data], rights, flags)
        self._posted.popleft()
        if num_sent < len(data):
            self._posted.appendleft((data[num_sent:], ()))
        for descriptor in descriptors:
            os.close(descriptor)

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
