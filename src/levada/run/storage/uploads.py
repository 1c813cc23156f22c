"""One upload at a time, in a thread. Of those that wait only the newest is kept, so that slow uploads do not pile up.

uploads = Uploads(send, drop=close)
uploads.put(first)
uploads.put(second)     # if `first` is still on its way when a third comes, this one is dropped
uploads.wait()
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Uploads(Generic[T]):
    """Sends what is put, with at most one thread."""

    def __init__(self, send: Callable[[T], None], drop: Callable[[T], None]) -> None:
        """Prepare; the thread exists only while there is something to send.

        Args:
            send: uploads one; called in the thread.
            drop: releases what was sent, has failed, or was replaced by a newer one.
        """
        self._send = send
        self._drop = drop
        self._changed = threading.Condition()
        self._next: T | None = None
        self._is_busy = False
        self.error: BaseException | None = None
        """Error of the last upload; None if it succeeded."""

    def put(self, item: T) -> None:
        """Send this as soon as the one on its way is done. It does not wait."""
        with self._changed:
            replaced, self._next = self._next, item
            if not self._is_busy:
                # a daemon, so that a second Ctrl-C can end the process in the middle of an upload
                threading.Thread(target=self._work, name="levada upload", daemon=True).start()
                self._is_busy = True
        if replaced is not None:
            self._drop(replaced)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing is left to send; return whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._is_busy, timeout_s)

    def _work(self) -> None:
        while True:
            with self._changed:
                item, self._next = self._next, None
                if item is None:
                    self._is_busy = False
                    self._changed.notify_all()
                    return
            try:
                self._send(item)
            except BaseException as error:  # nothing is above it in this thread; the owner reads and reports it
                self.error = error
            else:
                self.error = None
            finally:
                self._drop(item)
