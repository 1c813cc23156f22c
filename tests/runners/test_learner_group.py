"""A group of learners whose processes answer as a test wants."""

import pytest

from levada.flow.items import Item
from levada.flow.replicas import ReplicaLostError
from levada.runners.replicas.group import LearnerGroup, ReplicasDifferError
from levada.runners.replicas.host import Learned
from levada.runners.replicas.process import GoneError
from levada.runners.workers import WorkerError
from levada.schedule import Firing


class Recipe:
    policy_name = "policy"
    num_parts = 2
    has_consecutive_parts = False


class Process:
    """Answers each method with what is known of it; an error is raised."""

    pid = 1
    has_answered = True

    def __init__(self, answers):
        self._answers = {"open": {"learn": True}, "listen": {}, "join": None, "states": {}, **answers}

    def call(self, method, *args):
        self._method = method

    def answer(self):
        found = self._answers[self._method]
        if isinstance(found, Exception):
            raise found
        return found

    def end(self):
        self._answers = dict.fromkeys(self._answers, GoneError())
        return "by the test"

    def close(self):
        pass


def test_an_update_that_cannot_be_undone_is_an_error_and_not_passed_over():
    """One replica has applied it and another has ended: otherwise the first would be one update ahead of all others."""
    learned = Learned(None, "a", 0.0)
    given = [
        {"update": learned, "undo": RuntimeError("there is no update to undo")},
        {"update": GoneError(), "states": GoneError()},
    ]
    group = LearnerGroup(lambda rank: Process(given[rank]), 2, reduce="exact", timeout_s=1.0, max_restarts=3)
    group.open({"learn": (Recipe(), 0)}, {})
    group.begin(Firing("learn", None, 1, (Item((), ()),)))
    group.flush()
    with pytest.raises(RuntimeError, match="there is no update to undo"):
        group.finished()
    with pytest.raises(WorkerError, match="processes of all learners ended"):  # it must not be saved
        group.ask("states")


def test_an_update_is_given_back_if_the_learners_cannot_connect_again():
    """The run ends, and is saved without it. Otherwise the save would wait for it."""
    given = {"update": ReplicaLostError("cut"), "join": ReplicaLostError("cut")}
    group = LearnerGroup(lambda rank: Process(given), 2, reduce="exact", timeout_s=1.0, max_restarts=3)
    group.open({"learn": (Recipe(), 0)}, {})
    group._is_joined = True
    firing = Firing("learn", None, 1, (Item((), ()),))
    group.begin(firing)
    group.flush()
    with pytest.raises(WorkerError, match="they could not connect"):
        group.finished()
    assert group.take_unsent() == (firing,)
    group.begin(firing)
    with pytest.raises(WorkerError, match="they could not connect"):
        group.flush()
    assert group.take_unsent() == (firing,)


def test_an_update_on_which_replicas_disagree_is_undone_and_given_back():
    undone = []

    class Undoes(Process):
        def call(self, method, *args):
            super().call(method, *args)
            if method == "undo":
                undone.append(self)

    given = [{"update": Learned(None, name, 0.0), "undo": None} for name in "ab"]
    group = LearnerGroup(lambda rank: Undoes(given[rank]), 2, reduce="exact", timeout_s=1.0, max_restarts=3)
    group.open({"learn": (Recipe(), 0)}, {})
    firing = Firing("learn", None, 1, (Item((), ()),))
    group.begin(firing)
    group.flush()
    with pytest.raises(ReplicasDifferError, match="differ after an update"):
        group.finished()
    assert len(undone) == 2
    assert group.take_unsent() == (firing,)


def test_an_update_whose_answers_an_observer_has_taken_is_not_waited_for():
    """No answer would end the wait: the run would stand still until something else happens."""
    given = {"update": Learned(None, "a", 0.0), "call": 7}
    group = LearnerGroup(lambda rank: Process(given), 2, reduce="exact", timeout_s=1.0, max_restarts=3)
    [learner] = group.open({"learn": (Recipe(), 0)}, {}).values()
    group.begin(Firing("learn", None, 1, (Item((), ()),)))
    group.flush()
    assert not group.has_answers
    assert len([*group.unanswered]) == 2
    assert learner.weights() == 7
    assert group.has_answers
    assert [*group.unanswered] == []
    assert group.finished().firing.number == 1
    assert not group.has_answers
