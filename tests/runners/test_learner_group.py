"""A group of learners whose processes answer as a test wants."""

import pytest

from levada.flow.items import Item
from levada.runners.replicas.group import LearnerGroup
from levada.runners.replicas.host import Learned
from levada.runners.replicas.process import GoneError
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
        return "by the test"

    def close(self):
        pass


def test_an_update_that_cannot_be_undone_is_an_error_and_not_passed_over():
    """One replica has applied it and another has ended: otherwise the first would be one update ahead of all others."""
    learned = Learned(None, "a", 0.0)
    given = [{"update": learned, "undo": RuntimeError("there is no update to undo")}, {"update": GoneError()}]
    group = LearnerGroup(lambda rank: Process(given[rank]), 2, reduce="exact", timeout_s=1.0, max_restarts=3)
    group.open({"learn": (Recipe(), 0)}, {})
    group.begin(Firing("learn", None, 1, (Item((), ()),)))
    group.flush()
    with pytest.raises(RuntimeError, match="there is no update to undo"):
        group.finished()


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
