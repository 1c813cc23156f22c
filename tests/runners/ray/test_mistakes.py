"""Mistakes of a learner in an actor, which are told as elsewhere. Without a cluster: the actor is in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from support.processes.samples import LiveSavedCounting, SavedCounting

from levada.flow import Update
from levada.flow.items import Item
from levada.runners.firing import WorkError, outputs_of

pytest.importorskip("ray")

from ray.exceptions import ActorDiedError, RayTaskError

from levada.flow.errors import DeploymentError
from levada.runners.ray import cluster, learners
from levada.runners.ray.learners import LearnerActor, RayLearner, RayLearners
from levada.runners.replicas.host import LearnerHost
from levada.runners.replicas.process import GoneError
from levada.schedule import Firing


class Returning(SavedCounting):
    """Its third update returns something of its own."""

    def __init__(self, mistake: Callable[[], Any]) -> None:
        object.__setattr__(self, "mistake", mistake)

    def open(self, seed: int) -> LiveReturning:
        return LiveReturning(self.mistake)


class LiveReturning(LiveSavedCounting):
    def __init__(self, mistake: Callable[[], Any]) -> None:
        super().__init__()
        self.mistake = mistake

    def update(self, batch: Any) -> Any:
        update = super().update(batch)
        return self.mistake() if self.num_updates == 3 else update


def a_lock() -> Update[Any]:
    return Update(threading.Lock(), {})


def a_dict() -> dict[str, Any]:
    return {"weights": 1.0}


def learner_of(mistake: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> RayLearner:
    """A learner whose actor answers at once."""
    actor = LearnerActor.__new__(LearnerActor)
    actor._host = LearnerHost("", lambda value: value)
    actor._host.open({"learn": (Returning(mistake), 0)}, {})

    def of(method: Callable[..., Any]) -> SimpleNamespace:
        return SimpleNamespace(remote=method, options=lambda num_returns: SimpleNamespace(remote=method))

    learner = RayLearner.__new__(RayLearner)
    learner._actor = SimpleNamespace(update=of(actor.update), update_several=of(actor.update_several))
    learner.pid, learner._start_timeout_s, learner._answer = 1, None, None
    monkeypatch.setattr(learners.ray, "get", lambda answer: answer)
    return learner


def updates(learner: RayLearner, num: int) -> list[Any]:
    found = []
    for _ in range(num):
        learner.call("update", "learn", (), None, True)
        found.append(learner.answer().update)
    return found


def test_what_is_no_update_arrives_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of the run names it, as it does everywhere."""
    learner = learner_of(a_dict, monkeypatch)
    updates(learner, 2)
    firing = Firing("learn", None, 0, (Item((), ()),))
    monkeypatch.setattr(RayLearner, "has_answered", True)
    group = RayLearners(1, 1, dict, start_timeout_s=1.0, reduce="exact", timeout_s=1.0, max_restarts=3)
    group._replicas, group._recipes = [learner], {"learn": (SavedCounting(), 0)}
    group.begin(firing)
    group.flush()
    done = group.finished()
    assert done is not None
    with pytest.raises(WorkError, match=r"must return an Update from update\(batch\), got dict"):
        outputs_of(SimpleNamespace(name="learn"), done.update)


def test_what_is_no_update_arrives_with_several(monkeypatch: pytest.MonkeyPatch) -> None:
    several = learner_of(a_dict, monkeypatch)
    several.call("update_several", "learn", ((),) * 4, 0)
    learned, error = several.answer()
    assert [type(each.update) for each in learned] == [Update, Update, dict, Update]
    assert error is None


def test_weights_that_cannot_be_pickled_are_an_error_of_their_update(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_of(a_lock, monkeypatch)
    updates(learner, 2)
    with pytest.raises(TypeError, match=r"cannot pickle '_thread.lock' object"):
        updates(learner, 1)
    several = learner_of(a_lock, monkeypatch)
    several.call("update_several", "learn", ((),) * 4, 0)
    learned, error = several.answer()
    assert [each.update.stats["updates"] for each in learned] == [1.0, 2.0]
    assert isinstance(error, TypeError)


def test_only_an_actor_that_has_ended_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray reports a result that it cannot pickle, such as statistics with a lock, as an error of the call."""
    learner = learner_of(a_lock, monkeypatch)

    def raising(error: Exception) -> Callable[[Any], Any]:
        def get(answer: Any) -> Any:
            raise error

        return get

    cause = TypeError("cannot pickle '_thread.lock' object")
    failed = RayTaskError("update", "a traceback", cause, "ray::update", 1, "127.0.0.1")
    monkeypatch.setattr(learners.ray, "get", raising(failed.as_instanceof_cause()))
    with pytest.raises(TypeError) as caught:
        learner.answer()
    assert caught.value is cause
    monkeypatch.setattr(learners.ray, "get", raising(ActorDiedError()))
    with pytest.raises(GoneError):
        learner.answer()


@pytest.mark.parametrize(
    ("said", "num_tries"), [("Starting Ray client server failed. See a log", 3), ("the versions differ", 1)]
)
def test_a_client_is_served_at_the_third_try(said: str, num_tries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[str]()

    def refused(address: str, **options: Any) -> None:
        tried.append(address)
        raise ConnectionAbortedError(said)

    monkeypatch.setattr(cluster.ray, "init", refused)
    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(cluster, "_check_answers", lambda *args: None)
    with pytest.raises(DeploymentError, match=said[:20]):
        cluster.Cluster("ray://10.0.0.1:10001", 1.0)
    assert tried == ["ray://10.0.0.1:10001"] * num_tries
