"""Learners in other processes: one process, or several with a replica of each learner.

Every update is computed by all replicas, and counts once all of them have applied it. If one is lost in the middle, the others go
back to the state before, a new one continues from that state, and the update is computed again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from time import perf_counter
from typing import Any, Generic, TypeVar

from msgspec import Struct, field

from levada.flow.errors import DeploymentError, LevadaError
from levada.flow.protocols import Update
from levada.flow.replicas import Divisible, Reduce, ReplicaLostError
from levada.flow.state import Arrays
from levada.runners.replicas.host import Learned
from levada.runners.replicas.place import Recipes, UpdateDone, UpdateFailedError
from levada.runners.replicas.process import GoneError, ReplicaProcess, answer_of, ask
from levada.runners.replicas.proxies import Proxy, SavedProxy
from levada.runners.workers import WorkerError
from levada.schedule import Firing

log: logging.Logger = logging.getLogger(__name__)


class ReplicasDifferError(LevadaError, RuntimeError):
    """Replicas computed different results from the same update."""


class UpdateUnderWay(Struct):
    """An update under way."""

    firing: Firing
    start_s: float
    answers: dict[int, Any] = field(default_factory=dict)
    """A `Learned` or an error, by rank."""


ProcessT = TypeVar("ProcessT", bound=ReplicaProcess)


class LearnerGroup(Generic[ProcessT]):
    """The replicas of the learners of a flow."""

    num_telling: int = 1
    """Number of replicas that return the result of an update."""

    def __init__(
        self,
        start: Callable[[int], ProcessT],
        num_learners: int,
        *,
        reduce: Reduce,
        timeout_s: float,
        max_restarts: int,
    ) -> None:
        """Prepare; nothing is started yet.

        Args:
            start: starts the process of a rank.
            num_learners: number of replicas.
            reduce: how gradients are added.
            timeout_s: time limit of every collective operation, in seconds.
            max_restarts: number of consecutive failures before the run fails.
        """
        self._start = start
        self._size = num_learners
        self._reduce: Reduce = reduce
        self._timeout_s = timeout_s
        self._max_restarts = max_restarts
        self._recipes: Recipes = {}
        self._replicas: list[ProcessT] = []
        self._num_failures = 0
        self._is_joined = False
        """Whether the replicas form a group."""
        self._update: UpdateUnderWay | None = None
        self._later: deque[Firing] = deque()
        """Firings that were not sent."""

    def open(self, recipes: Recipes, maps: Mapping[str, Callable[..., Any]]) -> Mapping[str, Any]:
        """Start the processes, and open the learners.

        Raises:
            DeploymentError: a learner cannot be divided among that many replicas.
            WorkerError: a process could not start.
        """
        self._recipes, self._maps = recipes, maps
        if not recipes:
            return {}
        check_divisible({node: recipe for node, (recipe, _) in recipes.items()}, self._size)
        self._replicas = [self._start(rank) for rank in range(self._size)]
        answers = self._ask_all("open", recipes, maps)
        _raise_other_than(answers, GoneError)
        for rank, answer in enumerate(answers):
            if isinstance(answer, GoneError):
                raise WorkerError.before_it_began("the process of a learner", self._replicas[rank].end())
        return {node: (SavedProxy if answers[0][node] else Proxy)(self, node) for node in recipes}

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids, for observers."""
        return tuple(replica.pid for replica in self._replicas if replica.pid is not None)

    @property
    def unanswered(self) -> Iterator[ProcessT]:
        """The replicas that compute an update."""
        if self._update is not None:
            for rank, replica in enumerate(self._replicas):
                if rank not in self._update.answers:
                    yield replica

    def begin(self, firing: Firing) -> bool:
        """Take a firing, for the next `flush`."""
        self._later.append(firing)
        return True

    def flush(self) -> None:
        """Begin the next update, if none is under way."""
        if self._update is None and self._later:
            self._begin(UpdateUnderWay(self._later[0], perf_counter()))  # if it fails, the firing was not sent
            self._later.popleft()

    @property
    def num_ahead(self) -> int:
        """Return 0: each update begins when the one before is reported."""
        return 0

    def take_unsent(self) -> Sequence[Firing]:
        """Give back the firings that were not sent."""
        firings, self._later = tuple(self._later), deque()
        return firings

    def go_back(self) -> Sequence[Firing]:
        """Return none: no update is prepared ahead."""
        return ()

    @property
    def has_answers(self) -> bool:
        """Whether `ask`, on behalf of an observer, has taken the answers of the update under way."""
        return self._update is not None and len(self._update.answers) == self._size

    def finished(self) -> UpdateDone | None:
        """Return the update if all replicas have applied it. If one was lost, the update is begun again.

        Raises:
            UpdateFailedError: it has raised an error.
            WorkerError: too many replicas were lost in a row.
            ReplicasDifferError: they disagree on the result.
        """
        update = self._update
        if update is None:
            return None
        for rank, replica in enumerate(self._replicas):
            if rank not in update.answers and replica.has_answered:
                update.answers[rank] = answer_of(replica)
        if len(update.answers) < self._size:
            return None
        answers = [update.answers[rank] for rank in range(self._size)]
        self._update = None
        try:
            if any(isinstance(answer, BaseException) for answer in answers):
                self._recover(update, answers)
                return None
            self._num_failures = 0
            return self._done(update, answers)
        except UpdateFailedError:
            raise
        except BaseException:  # ends the run, which is saved without this update
            self._later.appendleft(update.firing)
            raise

    def ask(self, method: str, *args: Any) -> Any:
        """Call a method of all hosts, and return the result of the first."""
        if not self._replicas:
            msg = "the learners were closed with their run"
            raise WorkerError(msg)
        if self._update is not None:  # one call at a time
            for rank, replica in enumerate(self._replicas):
                if rank not in self._update.answers:
                    self._update.answers[rank] = answer_of(replica)
        while True:
            answers = self._ask_all(method, *args)
            _raise_other_than(answers, GoneError)
            is_gone = _are(GoneError, answers)
            if not any(is_gone):
                return answers[0]
            self._replace(is_gone)

    def close(self) -> None:
        """Close the learners, and end the processes."""
        replicas, self._replicas, self._update = self._replicas, [], None
        with ExitStack() as closing:
            for replica in replicas:
                closing.callback(replica.close)

    # ---- updates

    def _begin(self, update: UpdateUnderWay) -> None:
        """Send an update to all replicas."""
        if not self._is_joined:
            self._join()
        node, values = update.firing.node, update.firing.inputs[0].value
        for rank, replica in enumerate(self._replicas):
            share, parts = self._share(node, values, rank)
            replica.call("update", node, share, parts, rank < self.num_telling)
        update.answers = {}
        self._update = update

    def _share(self, node: str, values: Any, rank: int) -> tuple[Any, tuple[int, ...] | None]:
        """Return the items that a replica needs, and the parts that they are; the whole batch if a part is less than an item."""
        recipe = self._recipes[node][0]
        if self._size == 1 or type(values) is not tuple or not isinstance(recipe, Divisible):
            return values, None
        if not recipe.has_consecutive_parts:
            return values, None
        per_part, rest = divmod(len(values), recipe.num_parts)
        if rest or not per_part:
            return values, None
        parts = tuple(range(rank, recipe.num_parts, self._size))
        return tuple(value for part in parts for value in values[part * per_part : (part + 1) * per_part]), parts

    def _done(self, update: UpdateUnderWay, answers: Sequence[Learned]) -> UpdateDone:
        fingerprints = [answer.fingerprint for answer in answers]
        if len(set(fingerprints)) > 1:
            self._undo(update, range(self._size))
            msg = (
                f"the {self._size} replicas of the learner {update.firing.node!r} differ after an update: "
                f"{', '.join(each[:8] for each in fingerprints)}. Likely: they run on different processors, or the loss draws "
                "random numbers of its own"
            )
            raise ReplicasDifferError(msg)
        cpu_s = sum(answer.cpu_s for answer in answers)
        return UpdateDone(update.firing, self._result(answers), update.start_s, perf_counter(), cpu_s)

    def _result(self, answers: Sequence[Learned]) -> Update[Any] | None:
        """Return the result of an update."""
        return answers[0].update

    # ---- failures

    def _recover(self, update: UpdateUnderWay, answers: Sequence[Any]) -> None:
        """Go back to the state before an update, and begin it again unless it has raised an error of its own."""
        self._is_joined = False
        is_gone = _are(GoneError, answers)
        undone = self._undo(update, [rank for rank, answer in enumerate(answers) if isinstance(answer, Learned)])
        _raise_other_than([*undone.values()], GoneError)
        for rank, answer in undone.items():
            is_gone[rank] = isinstance(answer, GoneError)
        own = [
            answer
            for answer in answers
            if isinstance(answer, BaseException) and not isinstance(answer, GoneError | ReplicaLostError)
        ]
        if any(is_gone):
            self._replace(is_gone)
        elif not own:
            self._count_failure("they lost their connection")
        if own:
            self._num_failures = 0
            raise UpdateFailedError(update.firing, own[0])
        self._begin(update)

    def _undo(self, update: UpdateUnderWay, ranks: Iterable[int]) -> dict[int, Any]:
        """Go back to the state before an update at these replicas; return their answers."""
        undone = {rank: ask(self._replicas[rank], "undo", update.firing.node) for rank in ranks}
        for rank, answer in undone.items():
            if isinstance(answer, BaseException) and not isinstance(answer, GoneError):
                self._replicas[rank].end()  # it is one update ahead, and must not be saved
        return undone

    def _replace(self, is_gone: list[bool]) -> None:
        """Replace the replicas that are gone by new ones, with the state of one that is left."""
        self._is_joined = False
        while any(is_gone):
            how = ", ".join(self._replicas[rank].end() for rank in range(self._size) if is_gone[rank])
            if all(is_gone):
                who = "process of the learner" if self._size == 1 else "processes of all learners"
                msg = f"the {who} ended {how}; what was learned since the last save is lost. Resume the run from there"
                raise WorkerError(msg)
            self._count_failure(how)
            log.warning(
                "the process of a learner ended %s; another takes its place (failure %d of %d in a row)",
                how, self._num_failures, self._max_restarts,
            )  # fmt: skip
            survivor = is_gone.index(False)
            states = ask(self._replicas[survivor], "states")
            if isinstance(states, GoneError):
                is_gone[survivor] = True
                continue
            _raise_other_than([states])
            for rank in [rank for rank in range(self._size) if is_gone[rank]]:
                self._replicas[rank] = self._start(rank)
                is_gone[rank] = not self._continues(self._replicas[rank], states)

    def _continues(self, replica: ReplicaProcess, states: Mapping[str, Arrays]) -> bool:
        """Give a new replica the state of another. False: it is gone again."""
        answers = [ask(replica, "open", self._recipes, self._maps), ask(replica, "load", states)]
        _raise_other_than(answers, GoneError)
        return not any(_are(GoneError, answers))

    def _join(self) -> None:
        """Let the replicas form a group."""
        while self._size > 1:
            addresses = ask(self._replicas[0], "listen")
            answers: list[Any] = [addresses]
            if not isinstance(addresses, BaseException):
                options = (self._size, addresses, self._reduce, self._timeout_s)
                for rank, replica in enumerate(self._replicas):
                    replica.call("join", rank, *options)
                answers = [answer_of(replica) for replica in self._replicas]
            _raise_other_than(answers, GoneError, ReplicaLostError)
            if not any(isinstance(answer, BaseException) for answer in answers):
                break
            is_gone = _are(GoneError, answers) + [False] * (self._size - len(answers))
            if any(is_gone):
                self._replace(is_gone)
            else:
                self._count_failure("they could not connect")
        self._is_joined = True

    def _ask_all(self, method: str, *args: Any) -> list[Any]:
        for replica in self._replicas:
            replica.call(method, *args)
        return [answer_of(replica) for replica in self._replicas]

    def _count_failure(self, how: str) -> None:
        self._num_failures += 1
        if self._num_failures > self._max_restarts:
            msg = f"the learners failed {self._num_failures} times in a row, now: {how}"
            raise WorkerError(msg)


def check_divisible(recipes: Mapping[str, Any], num_learners: int) -> None:
    """Raise DeploymentError if a learner cannot be divided among as many replicas. `recipes`: of the learners, by node."""
    for node, recipe in recipes.items():
        if num_learners > 1 and not isinstance(recipe, Divisible):
            msg = (
                f"learners={num_learners}: the learner of node {node!r}, a {type(recipe).__name__}, cannot share its batches "
                "with others; expected learners=1"
            )
            raise DeploymentError(msg)
        if isinstance(recipe, Divisible) and recipe.num_parts < num_learners:
            msg = (
                f"learners={num_learners} share the microbatches of each minibatch, of which node {node!r} has "
                f"{recipe.num_parts}; set microbatch_size so that there are at least {num_learners}"
            )
            raise DeploymentError(msg)


def _are(kind: type[BaseException], answers: Sequence[Any]) -> list[bool]:
    return [isinstance(answer, kind) for answer in answers]


def _raise_other_than(answers: Sequence[Any], *expected: type[BaseException]) -> None:
    """Raise the first error among the answers that is of no expected kind."""
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, expected):
            raise answer
