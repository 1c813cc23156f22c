"""Learners in actors of a cluster: rollouts come from the object store, and never pass the process of the run."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import ray
from msgspec import Struct, structs
from ray.exceptions import RayError, RayTaskError
from threadpoolctl import threadpool_limits

from levada.flow.errors import DeploymentError
from levada.flow.protocols import Update
from levada.flow.replicas import Reduce
from levada.runners.malloc import keep_freed_memory
from levada.runners.ray.ahead import LearnersAhead
from levada.runners.ray.cluster import has_started, not_started
from levada.runners.ray.errors import Refusal, reason_of, result_or_refusal
from levada.runners.ray.refs import RemoteValue, fetched, pack
from levada.runners.remote_errors import pack_error, unpack_error
from levada.runners.replicas.host import Learned, LearnerHost
from levada.runners.replicas.place import Recipes
from levada.runners.replicas.process import GoneError

log: logging.Logger = logging.getLogger(__name__)

PATIENCE_S = 5.0
"""Time that an actor has to close its learners, in seconds."""


class _Several(Struct, frozen=True):
    """Results of several updates, and the error of the next as bytes."""

    learned: tuple[Learned, ...]
    error: bytes | None


class LearnerActor:
    """A `LearnerHost` in an actor. Errors are returned, not raised, so that Ray does not wrap them."""

    def __init__(self, num_threads: int) -> None:
        """`num_threads`: for linear algebra."""
        keep_freed_memory()
        self._num_threads = num_threads
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # the learner writes to none
        self._host = LearnerHost(ray.util.get_node_ip_address(), fetched)

    def call(self, method: str, args: tuple[Any, ...]) -> tuple[int, Any]:
        """Call a method of the host; return the process id and the result."""
        if method == "open":  # the recipes have come with their libraries
            self._limits = threadpool_limits(self._num_threads)
        return os.getpid(), result_or_refusal(getattr(self._host, method), *args)

    def update(self, args: tuple[Any, ...]) -> tuple[tuple[int, Any], Any]:
        """Update a learner; return the result, and large weights as an object of their own, which the process of the run owns."""
        pid, result = self.call("update", args)
        if not isinstance(result, Learned) or not isinstance(result.update, Update):
            return (pid, result), None
        update = result.update
        small = result_or_refusal(pack, update.weights)
        if isinstance(small, Refusal):
            return (pid, small), None
        result = structs.replace(result, update=Update(small, update.stats, update.priorities))
        return (pid, result), update.weights if small is None else None

    def update_several(self, args: tuple[Any, ...]) -> tuple[int, Any]:
        """Make several updates, whose weights are small; return the results."""
        pid, result = self.call("update_several", args)
        if isinstance(result, Refusal):
            return pid, result
        learned, error = result
        packed: list[Learned] = []
        for each in learned:
            small = result_or_refusal(_packed, each)
            if isinstance(small, Refusal):
                return pid, _Several(tuple(packed), small.error)
            packed.append(small)
        return pid, _Several(tuple(packed), None if error is None else pack_error(error))


def _packed(learned: Learned) -> Learned:
    update = learned.update
    if not isinstance(update, Update):  # a mistake, which the process of the run names
        return learned
    weights = pack(update.weights) or update.weights
    return structs.replace(learned, update=Update(weights, update.stats, update.priorities))


class RayLearner:
    """An actor with one replica of each learner."""

    def __init__(self, num_threads: int, options: Mapping[str, Any], start_timeout_s: float | None) -> None:
        """`options`: options of the actor, as Ray names them; `start_timeout_s`: time in which it must start."""
        self._start_timeout_s = start_timeout_s
        self._actor = (
            ray.remote(LearnerActor).options(max_restarts=0, max_task_retries=0, **options).remote(num_threads)
        )
        self._answer: Any = None
        self._weights: Any = None
        self._how = ""
        self.pid: int | None = None

    @property
    def answer_ref(self) -> Any:
        """Reference to the answer that is awaited."""
        return self._answer

    def call(self, method: str, *args: Any) -> None:
        """Call a method of its host."""
        if method == "update":
            self._answer, self._weights = self._actor.update.options(num_returns=2).remote(args)
        elif method == "update_several":
            self._answer, self._weights = self._actor.update_several.remote(args), None
        else:
            self._answer, self._weights = self._actor.call.remote(method, args), None

    @property
    def has_answered(self) -> bool:
        """Whether `answer` would not wait."""
        return bool(ray.wait([self._answer], timeout=0, fetch_local=False)[0])

    def answer(self) -> Any:
        """Wait for the result of the call.

        Raises:
            GoneError: the actor has ended.
            DeploymentError: it has not started in time.
            Exception: what the method has raised, or that its result cannot be pickled.
        """
        try:
            limit_s = self._start_timeout_s
            if self.pid is None and limit_s is not None and not has_started([self._actor], limit_s):
                msg = f"Ray: a learner has not begun: {not_started(limit_s)}"
                raise DeploymentError(msg)
            self.pid, result = ray.get(self._answer)
        except RayError as error:
            if isinstance(error, RayTaskError) and isinstance(error.cause, Exception):
                raise error.cause from error  # the actor has not ended: its result cannot be pickled
            self._how = reason_of(error)
            raise GoneError(self._how) from error
        if isinstance(result, Refusal):
            raise unpack_error(result.error)
        if isinstance(result, _Several):
            return result.learned, None if result.error is None else unpack_error(result.error)
        update = result.update if self._weights is not None else None
        if isinstance(update, Update) and update.weights is None:
            update = Update(RemoteValue(self._weights), update.stats, update.priorities)
            result = structs.replace(result, update=update)
        return result

    def end(self) -> str:
        """Make sure that the actor has ended; return how it did, as text."""
        self._kill()
        return self._how

    def close(self) -> None:
        """Close the learners, and end the actor."""
        with suppress(RayError):
            answer = self._actor.call.remote("close", ())
            if ray.wait([answer], timeout=PATIENCE_S)[0]:
                _, result = ray.get(answer)
                if isinstance(result, Refusal):
                    log.warning("closing a learner failed: %r", unpack_error(result.error))
        self._kill()

    def _kill(self) -> None:
        with suppress(RayError):
            ray.kill(self._actor)


class RayLearners(LearnersAhead[RayLearner]):
    """Learners in actors. Large weights of several are held by two of them, so that the loss of a node loses none if they are on
    different nodes.
    """

    num_telling: int = 2

    def __init__(
        self, num_learners: int, num_threads: int, options_of: Callable[[int], Mapping[str, Any]], *,
        start_timeout_s: float, reduce: Reduce, timeout_s: float, max_restarts: int,
    ) -> None:  # fmt: skip
        """Prepare; nothing is started yet.

        Args:
            num_learners: number of actors.
            num_threads: of each actor, for linear algebra.
            options_of: returns the options of the actor of a rank.
            start_timeout_s: time in which the first ones must start. One that replaces another may wait for a node.
            reduce: how gradients are added.
            timeout_s: time limit of every collective operation, in seconds.
            max_restarts: number of consecutive failures before the run fails.
        """
        self._has_started: bool = False
        super().__init__(
            lambda rank: RayLearner(num_threads, options_of(rank), None if self._has_started else start_timeout_s),
            num_learners, reduce=reduce, timeout_s=timeout_s, max_restarts=max_restarts,
        )  # fmt: skip

    def open(self, recipes: Recipes, maps: Mapping[str, Callable[..., Any]]) -> Mapping[str, Any]:
        """Start the actors, and open the learners. For the errors, see `LearnerGroup.open`."""
        opened = super().open(recipes, maps)
        self._has_started = True
        return opened

    def _result(self, answers: Sequence[Learned]) -> Update[Any] | None:
        """Return the result of the first, with the copy of the second."""
        told = [answer.update for answer in answers[: self.num_telling]]
        match [update.weights if isinstance(update, Update) else None for update in told]:
            case [RemoteValue() as weights, RemoteValue() as copy]:
                assert told[0] is not None
                return Update(structs.replace(weights, spare=copy.ref), told[0].stats, told[0].priorities)
        return told[0]

    def answer_refs(self) -> Iterator[Any]:
        """References to the answers that are awaited."""
        return (replica.answer_ref for replica in self.unanswered)
