"""Several updates in one call of a learner, where calls would cost as much as the updates.

A call takes all updates that were prepared while the one before was in progress, as far as they are short. Their results arrive
together and are told one by one, so that a report finds the run between two updates, as always. The learner may be ahead then:
to be looked at, it goes back to the state of the last update that was told, and makes the others again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from time import perf_counter
from typing import Any, Final, TypeVar

from levada.flow.protocols import Update
from levada.runners.firing import resolved
from levada.runners.ray.refs import Packed, RemoteValue
from levada.runners.ray.server import WORK_S
from levada.runners.replicas.group import LearnerGroup, UpdateUnderWay
from levada.runners.replicas.host import Learned
from levada.runners.replicas.place import UpdateDone, UpdateFailedError
from levada.runners.replicas.process import GoneError, ReplicaProcess, answer_of, ask
from levada.schedule import Firing

MOST_PER_CALL: Final = 16
"""Most updates in a call."""
FIRST_REST: Final = 16
"""Number of updates without others in progress after the learner had to go back. It doubles if that happens again soon."""
LONGEST_REST: Final = 4096
"""Largest such number."""

ProcessT = TypeVar("ProcessT", bound=ReplicaProcess)


class _UpdatesUnderWay(UpdateUnderWay):
    """Updates under way, by one call."""

    firings: tuple[Firing, ...] = ()


class LearnersAhead(LearnerGroup[ProcessT]):
    """Replicas of learners. One learner in one process takes several updates per call, if they are short."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Take what a `LearnerGroup` takes."""
        super().__init__(*args, **options)
        self._untold: deque[UpdateDone | UpdateFailedError] = deque()
        """Results that were not told."""
        self._num_told = 0
        self._update_s = WORK_S
        """Recent mean of the time of an update, in seconds."""
        self._is_ahead = False
        """Whether updates are prepared ahead. All calls keep what it takes to go back, from then on."""
        self._is_refused = False
        """Whether that has turned out to be impossible."""
        self._rests_until = 0
        """Number of updates before which none is prepared ahead."""
        self._rest = FIRST_REST

    @property
    def num_ahead(self) -> int:
        """Number of updates that the learner should be given while others are in progress: those of the next call, too."""
        return 2 * self._num_per_call - 1 if self._num_per_call > 1 else 0

    @property
    def _num_per_call(self) -> int:
        if not self._is_ahead or self._num_told < self._rests_until:
            return 1
        return max(1, min(int(WORK_S / self._update_s), MOST_PER_CALL))

    def flush(self) -> None:
        """Send the updates that were prepared, if none is in progress."""
        if not self._is_ahead:
            super().flush()
        elif (
            self._update is None
            and self._later
            and not (self._untold and isinstance(self._untold[-1], UpdateFailedError))
        ):
            firings = self._next_firings()
            self._update = _UpdatesUnderWay(firings[0], perf_counter(), firings=firings)
            values = [firing.inputs[0].value for firing in firings]
            self._replicas[0].call("update_several", firings[0].node, values, self._num_told)

    @property
    def has_answers(self) -> bool:
        """Whether there are results that were not told."""
        return bool(self._untold) or super().has_answers

    def finished(self) -> UpdateDone | None:
        """Return the next update that is done. For the errors, see `LearnerGroup.finished`."""
        if not self._untold:
            self._collect()
        if not self._untold:
            return None
        told = self._untold.popleft()
        if isinstance(told, UpdateFailedError):
            raise told
        self._num_told += 1
        return told

    def ask(self, method: str, *args: Any) -> Any:
        """Call a method of all hosts, and return the result of the first: in the state of the last update that was told."""
        self._later.extendleft(reversed(self._go_back()))
        return super().ask(method, *args)

    def go_back(self) -> Sequence[Firing]:
        """Return to the state of the last update that was told; give back the later firings.

        Raises:
            WorkerError: the process has ended.
        """
        return (*self._go_back(), *self.take_unsent()) if self._is_ahead else ()

    # ---- internals

    def _next_firings(self) -> tuple[Firing, ...]:
        """Take the firings of a call. A large batch is the last, for the object store must not hold it after its update."""
        firings: list[Firing] = []
        while self._later and len(firings) < self._num_per_call:
            firings.append(self._later.popleft())
            if not self._is_small(firings[-1].inputs[0].value):
                break
        return tuple(firings)

    def _collect(self) -> None:
        """Take the answer of the call in progress, if it is there."""
        if not isinstance(self._update, _UpdatesUnderWay):
            if (done := super().finished()) is not None:
                self._untold.append(done)
        elif self._replicas[0].has_answered:
            self._receive(self._update, answer_of(self._replicas[0]))

    def _receive(self, several: _UpdatesUnderWay, answer: Any) -> None:
        """Take the answer of a call."""
        if isinstance(answer, GoneError):
            self._update = None
            self._replace([True])
        self._update = None
        learned, error = ([], answer) if isinstance(answer, BaseException) else answer
        if not learned and error is None:  # the state of the learner cannot be kept, as it could before
            self._is_ahead, self._is_refused = False, True
        end_s = perf_counter() - sum(each.spent_s for each in learned)
        for firing, each in zip(several.firings, learned, strict=False):
            start_s, end_s = end_s, end_s + each.spent_s
            self._untold.append(UpdateDone(firing, each.update, start_s, end_s, each.cpu_s))
            self._note(each)
        left = several.firings[len(learned) :]
        if error is not None:
            self._untold.append(UpdateFailedError(left[0], error))
            left = left[1:]
        self._later.extendleft(reversed(left))

    def _done(self, update: UpdateUnderWay, answers: Sequence[Learned]) -> UpdateDone:
        self._note(answers[0])
        return super()._done(update, answers)

    def _note(self, learned: Learned) -> None:
        """Note how long an update takes, and whether the next ones can be prepared ahead."""
        self._update_s += (learned.spent_s - self._update_s) / 4
        is_small = isinstance(learned.update, Update) and isinstance(learned.update.weights, Packed)
        if is_small and not self._is_ahead and not self._is_refused and 2 * self._update_s < WORK_S:
            self._is_ahead = self._size == 1 and len(self._recipes) == 1 and self._can_go_back()
            self._is_refused = not self._is_ahead

    def _can_go_back(self) -> bool:
        return bool(super().ask("can_go_back", *self._recipes))

    def _go_back(self) -> tuple[Firing, ...]:
        """Return to the state of the last update that was told; return the firings of the others."""
        if isinstance(several := self._update, _UpdatesUnderWay):
            self._receive(several, answer_of(self._replicas[0]))
        if not self._untold or not self._is_ahead:
            return ()
        answer = ask(self._replicas[0], "go_back_to", *self._recipes, self._num_told)
        if isinstance(answer, GoneError):
            self._replace([True])
        if isinstance(answer, BaseException):
            raise answer
        firings = tuple(each.firing for each in self._untold)
        self._untold.clear()
        self._rest_for_some_time()
        return firings

    def _rest_for_some_time(self) -> None:
        """Prepare no updates ahead for some time: who looks at the learner once may do so again."""
        is_again = self._rests_until and self._num_told < self._rests_until + 2 * self._rest
        self._rest = min(2 * self._rest, LONGEST_REST) if is_again else FIRST_REST
        self._rests_until = self._num_told + self._rest

    def _is_small(self, value: Any) -> bool:
        """Whether all values of a batch are copies, which do not keep an object alive."""
        sent: list[RemoteValue] = []
        resolved(value, lambda each: sent.append(each) if isinstance(each, RemoteValue) else None)
        return all(each.index is not None for each in sent)
