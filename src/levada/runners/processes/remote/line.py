"""The connection between a run and the process that executes it. Only its own failures mean that the other side is gone: what
users' code raises, and is passed on, may be a ConnectionError too.

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
    """One end."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def fileno(self) -> int:
        """For who waits for several things."""
        return self._connection.fileno()

    def send(self, *message: Any) -> None:
        """Send a message.

        Raises:
            GoneError: nobody is there to receive it.
            Exception: it cannot be pickled.

        """
        data = ForkingPickler.dumps(message)
        try:
            self._connection.send_bytes(data)
        except OSError as error:
            raise GoneError from error

    def receive(self) -> tuple[Any, ...]:
        """The next message; sleeps until there is one.

        Raises:
            GoneError: there will be none.

        """
        try:
            data = self._connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise GoneError from error
        message: tuple[Any, ...] = pickle.loads(data)
        return message

    def poll(self) -> bool:
        """Whether `receive` would not sleep."""
        return self._connection.poll()

    @property
    def is_closed(self) -> bool:
        """Whether this end was closed."""
        return self._connection.closed

    def close(self) -> None:
        """Close this end."""
        self._connection.close()
