"""A process or an actor with a `LearnerHost`, as seen by the process of the run."""

from __future__ import annotations

from typing import Any, Protocol


class GoneError(Exception):
    """The process has ended."""


class ReplicaProcess(Protocol):
    """A process with one replica of each learner. It has at most one call at a time."""

    @property
    def pid(self) -> int | None:
        """Process id, once it is known."""
        ...

    def call(self, method: str, *args: Any) -> None:
        """Call a method of its host; `answer` returns the result. If the process is gone, that is what `answer` raises."""
        ...

    @property
    def has_answered(self) -> bool:
        """Whether `answer` would not wait."""
        ...

    def answer(self) -> Any:
        """Wait for the result of the call, and return it.

        Raises:
            GoneError: the process has ended.
            Exception: what the method has raised.
        """
        ...

    def end(self) -> str:
        """Make sure that the process has ended; return how it did, as text."""
        ...

    def close(self) -> None:
        """Close the learners, and end the process."""
        ...


def ask(process: ReplicaProcess, method: str, *args: Any) -> Any:
    """Call a method and wait. An error is returned, not raised, so that the answers of several processes can be compared."""
    process.call(method, *args)
    return answer_of(process)


def answer_of(process: ReplicaProcess) -> Any:
    """Wait for an answer. An error is returned, not raised."""
    try:
        return process.answer()
    except Exception as error:
        return error
