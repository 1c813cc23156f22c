"""The connection between a run and the process that executes it. Only failures of the connection mean that the other side is
gone; errors raised by user code and passed on may be ConnectionErrors too.

>>> import multiprocessing
>>> here, there = map(Line, multiprocessing.Pipe())
>>> here.send("next"); there.receive()
('next',)
>>> here.close()
>>> try:
...     there.receive()
... except GoneError:
...     print("gone")
gone
"""

from __future__ import annotations

import pickle
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any


class GoneError(Exception):
    """The process at the other end has ended."""


class Line:
    """One end of the connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def fileno(self) -> int:
        """Return the descriptor, for selectors."""
        return self._connection.fileno()

    def send(self, *message: Any) -> None:
        """Send a message.

        Raises:
            GoneError: the other side is gone.
            Exception: the message cannot be pickled.
        """
        data = ForkingPickler.dumps(message)
        try:
            self._connection.send_bytes(data)
        except OSError as error:
            raise GoneError from error

    def receive(self) -> tuple[Any, ...]:
        """Return the next message; sleeps until there is one.

        Raises:
            GoneError: the other side is gone, and there are no more messages.
        """
        try:
            data = self._connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise GoneError from error
        message: tuple[Any, ...] = pickle.loads(data)
        return message

    def poll(self) -> bool:
        """Whether `receive` would return without sleeping."""
        return self._connection.poll()

    @property
    def is_closed(self) -> bool:
        """Whether this end is closed."""
        return self._connection.closed

    def close(self) -> None:
        """Close this end."""
        self._connection.close()
