"""Messages between two processes over a socket: structs as msgpack, with file descriptors attached.

>>> class Hello(Struct, tag=True):
...     name: str
>>> here, there = wires(Hello)
>>> here.send(Hello("levada"), descriptors=[os.dup(0)])
>>> [(message.name, len(descriptors)) for message, descriptors in there.receive()]
[('levada', 1)]
>>> here.close(); there.receive()
Traceback (most recent call last):
EOFError

All waiting is done in the kernel: `fileno` makes a wire selectable, and `receive` sleeps until a message arrives. `send`
sleeps while the other side does not read. If both sides send, one of them must `post`, which never sleeps; otherwise they
could wait for each other.
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

from levada.runners.remote_errors import pack_error, unpack_error

_HEAD = struct.Struct("<IB")
"""Bytes of the message, and number of descriptors attached to it."""
_MAX_DESCRIPTORS = 253
"""Largest number of descriptors that the kernel accepts with one message."""
_CHUNK = 1 << 16
_ROOM_FOR_RIGHTS = socket.CMSG_LEN(_MAX_DESCRIPTORS * array.array("i").itemsize)


def _to_bytes(value: Any) -> bytes:
    """Encode what msgspec does not know: errors, with their traceback."""
    if isinstance(value, BaseException):
        return pack_error(value)
    msg = f"a message holds a {type(value).__name__}, which cannot be sent"
    raise TypeError(msg)


def _from_bytes(kind: type, packed: bytes) -> Any:
    """Decode what `_to_bytes` has encoded."""
    assert kind is BaseException, kind
    return unpack_error(packed)


class Wire:
    """One end of a connection between two processes.

    Raises:
        BrokenPipeError, ConnectionResetError: from methods that send: the other process is gone.
    """

    def __init__(self, end: socket.socket, message: Any) -> None:
        """`message`: type of the received messages, possibly a union of tagged structs."""
        self._socket = end
        self._encode = msgspec.msgpack.Encoder(enc_hook=_to_bytes).encode
        self._decode = msgspec.msgpack.Decoder(message, dec_hook=_from_bytes).decode
        self._bytes = bytearray()
        self._descriptors: deque[int] = deque()
        self._posted: deque[tuple[memoryview, Sequence[int]]] = deque()

    def fileno(self) -> int:
        """Return the descriptor, for selectors."""
        return self._socket.fileno()

    def send(self, message: Struct, descriptors: Sequence[int] = ()) -> None:
        """Send a message; sleeps while there is no room for it. The descriptors are duplicated in transit, and closed here."""
        self._posted.append((self._pack(message, descriptors), descriptors))
        while self._posted:
            self._push()

    def post(self, message: Struct, descriptors: Sequence[int] = ()) -> None:
        """Send as much of a message as there is room for. The rest is sent by `push`."""
        self._posted.append((self._pack(message, descriptors), descriptors))
        self.push()

    def push(self) -> None:
        """Send as much of the posted messages as there is room for."""
        with suppress(BlockingIOError):
            while self._posted:
                self._push(socket.MSG_DONTWAIT)

    @property
    def has_posted(self) -> bool:
        """Whether anything is left to `push`."""
        return bool(self._posted)

    def receive(self) -> list[tuple[Any, list[int]]]:
        """Return all messages that have arrived, each with its descriptors. Sleeps until there is one.

        Raises:
            EOFError: the other process is gone, or has closed its end.
            OSError: this process has reached its limit of descriptors.
        """
        while True:
            messages = self._receive(0)
            if messages:
                return messages

    def take(self) -> list[tuple[Any, list[int]]]:
        """Return the messages that have arrived; none if only a part of one has. Never sleeps.

        Raises:
            EOFError: the other process is gone, or has closed its end.
        """
        try:
            return self._receive(socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []

    @property
    def is_ready(self) -> bool:
        """Whether a message has arrived or the other process is gone; `receive` would not sleep."""
        return self.wait(0.0)

    def wait(self, timeout_s: float | None, *, to_send: bool = False) -> bool:
        """Sleep until data has arrived, or can be sent. Return False on a timeout."""
        poll = select.poll()  # select.select does not support descriptors from 1024 on
        poll.register(self._socket, select.POLLOUT if to_send else select.POLLIN)
        return bool(poll.poll(None if timeout_s is None else 1000.0 * timeout_s))

    def close(self) -> None:
        """Close this end; the other side reads the end of the stream."""
        self._socket.close()
        for descriptor in (*self._descriptors, *(unsent for _, descriptors in self._posted for unsent in descriptors)):
            os.close(descriptor)
        self._descriptors.clear()
        self._posted.clear()

    def _receive(self, flags: int) -> list[tuple[Any, list[int]]]:
        # not socket.recv_fds: in Python 3.11 it ignores its flags
        data, rights, said, _ = self._socket.recvmsg(_CHUNK, _ROOM_FOR_RIGHTS, flags)
        for *_, sent in rights:
            self._descriptors.extend(array.array("i", sent))
        if said & socket.MSG_CTRUNC:  # this process may not have more: the kernel has discarded them
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
        """Send a part of the first posted message."""
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
    """Return both ends of a connection that receives such messages at each end."""
    here, there = socket.socketpair()
    return Wire(here, message), Wire(there, message)
