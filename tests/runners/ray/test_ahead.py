"""Several updates in one call of a learner: their results are told one by one, and the learner goes back where it must."""

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from support.runs.lossy import SlowProcess

from levada.flow import NotSavedError, Update
from levada.flow.items import Item
from levada.runners.losses import ItemLostError
from levada.runners.ray import ahead
from levada.runners.ray.ahead import LearnersAhead
from levada.runners.ray.refs import Packed
from levada.runners.replicas.host import LearnerHost
from levada.runners.replicas.place import UpdateFailedError
from levada.runners.replicas.process import GoneError
from levada.runners.workers import WorkerError
from levada.schedule import Firing


class Sum:
    """Adds its batches; negative ones are refused."""

    policy_name = "policy"

    def open(self, seed: int) -> "Sum":
        self.total = 0.0
        return self

    def update(self, batch: Any) -> Update[Any]:
        if batch < 0:
            raise ValueError(f"{batch} is negative")
        self.total = self.total * 3 + batch
        return Update(Packed(b"", ()), {"total": self.total})

    def weights(self) -> float:
        return self.total

    def state_dict(self) -> dict[str, np.ndarray]:
        return {"total": np.array(self.total)}

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        self.total = float(state["total"])


class Process(SlowProcess):
    """Executes a call when it is asked for the answer."""

    is_gone = False

    def __init__(self) -> None:
        super().__init__(Random(0), lambda value: value)

    def answer(self) -> Any:
        if self.is_gone:
            raise GoneError
        return super().answer()


def group_of(process: Process) -> LearnersAhead[Process]:
    group = LearnersAhead(lambda rank: process, 1, reduce="exact", timeout_s=1.0, max_restarts=3)
    group.open({"learn": (Sum(), 0)}, {})
    return group


def begin(group: LearnersAhead[Process], *batches: float) -> list[Firing]:
    firings = [Firing("learn", None, number, (Item(batch, ()),)) for number, batch in enumerate(batches)]
    for firing in firings:
        group.begin(firing)
    group.flush()
    return firings


def told(group: LearnersAhead[Process], num: int) -> list[float]:
    found: list[float] = []
    while len(found) < num:
        if (done := group.finished()) is not None:
            found.append(done.update.stats["total"])
        group.flush()
    return found


def ready(learner: Sum | None = None) -> tuple[LearnersAhead[Process], Process]:
    """A group that has learned from a 1 and prepares updates ahead; `learner`: takes the place of its own."""
    group = group_of(process := Process())
    while not group.num_ahead:
        process.host.open({"learn": (Sum(), 0)}, {})
        begin(group, 1.0)
        assert told(group, 1) == [1.0]
    group._num_told, group._update_s = 1, 1e-4
    process.host._num_updates["learn"] = 1
    if learner is not None:
        process.host._live = {"learn": learner.open(0)}
        learner.total = 1.0
    return group, process


def test_updates_that_are_ready_go_in_one_call() -> None:
    group, process = ready()
    begin(group, 2.0)
    begin(group, 3.0, 4.0, 5.0)  # while that is in progress
    assert process.num_updates_per_call == [1]
    assert told(group, 4) == [5.0, 18.0, 58.0, 179.0]
    assert process.num_updates_per_call == [1, 3]
    begin(group, *range(2 * ahead.MOST_PER_CALL))
    told(group, 2 * ahead.MOST_PER_CALL)
    assert process.num_updates_per_call[2:] == [ahead.MOST_PER_CALL] * 2
    assert len(process.host._kept) == 2


def test_an_observer_sees_the_state_of_the_last_update_that_was_told() -> None:
    group, process = ready()
    begin(group, 2.0)
    begin(group, 3.0, 4.0, 5.0)
    assert told(group, 2) == [5.0, 18.0]
    assert process.host._live["learn"].total == 18.0 or process.host._num_updates["learn"] == 5
    assert group.ask("call", "learn", "weights") == 18.0
    assert group.num_ahead == 0  # for some time
    group.flush()
    assert told(group, 2) == [58.0, 179.0]


def test_who_looks_again_and_again_makes_it_rest_longer() -> None:
    group, _ = ready()
    rests = []
    for _ in range(3):
        begin(group, 1.0, 1.0)
        told(group, 1)
        before = group._num_told
        group.ask("call", "learn", "weights")
        rests.append(group._rests_until - before)
        while not group.num_ahead:
            begin(group, 1.0)
            told(group, 1)
    assert rests == [ahead.FIRST_REST, 2 * ahead.FIRST_REST, 4 * ahead.FIRST_REST]


def test_going_back_gives_back_what_was_not_told_and_not_sent() -> None:
    group, process = ready()
    firings = begin(group, 2.0, 3.0, 4.0)
    later = begin(group, 5.0)
    assert told(group, 1) == [5.0]
    assert list(group.go_back()) == [*firings[1:], *later]
    assert process.host._live["learn"].total == 5.0
    assert not group.has_answers
    begin(group, 7.0)
    assert told(group, 1) == [22.0]


def test_the_error_of_an_update_comes_after_the_results_before_it() -> None:
    group, process = ready()
    firings = begin(group, 2.0, -1.0, 4.0)
    later = begin(group, 5.0)
    assert told(group, 1) == [5.0]
    with pytest.raises(UpdateFailedError) as failed:
        told(group, 1)
    assert str(failed.value.error) == "-1.0 is negative"
    assert failed.value.firing is firings[1]
    assert list(group.take_unsent()) == [firings[2], *later]
    assert process.host._live["learn"].total == 5.0


def test_lost_items_stop_the_updates_from_theirs_on() -> None:
    def fetch(value: Any) -> Any:
        if value == 4.0 or (isinstance(value, Sequence) and 4.0 in value):
            raise ItemLostError((("rollout", 0),))
        return value

    host = LearnerHost("", fetch)
    host.open({"learn": (Sum(), 0)}, {})
    learned, error = host.update_several("learn", [1.0, 2.0, 4.0, 5.0], 0)
    assert [each.update.stats["total"] for each in learned] == [1.0, 5.0]
    assert isinstance(error, ItemLostError)
    host.go_back_to("learn", 1)
    assert host._live["learn"].total == 1.0


@pytest.mark.parametrize("is_told", [False, True])
def test_the_end_of_the_process_ends_the_run(is_told: bool) -> None:
    group, process = ready()
    begin(group, 2.0, 3.0)
    if is_told:
        told(group, 1)
    process.is_gone = True
    with pytest.raises(WorkerError, match="the process of the learner ended by the test; what was learned"):
        group.go_back() if is_told else told(group, 1)


def test_a_learner_that_cannot_be_saved_gets_one_update_at_a_time() -> None:
    class Unsaved(Sum):
        state_dict = None

    group = LearnersAhead(lambda rank: Process(), 1, reduce="exact", timeout_s=1.0, max_restarts=3)
    group.open({"learn": (Unsaved(), 0)}, {})
    for _ in range(40):
        begin(group, 1.0)
        told(group, 1)
    assert group.num_ahead == 0


def test_a_learner_whose_state_raises_an_error_gets_one_update_at_a_time() -> None:
    class Broken(Sum):
        def state_dict(self) -> dict[str, np.ndarray]:
            raise RuntimeError("broken")

    group = LearnersAhead(lambda rank: Process(), 1, reduce="exact", timeout_s=1.0, max_restarts=3)
    group.open({"learn": (Broken(), 0)}, {})
    for _ in range(40):
        begin(group, 1.0)
        told(group, 1)
    assert group.num_ahead == 0


def raise_not_now(*args: Any) -> None:
    raise RuntimeError("not now")


def test_going_back_can_be_repeated_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    group, process = ready()
    firings = begin(group, 2.0, 3.0, 4.0)
    assert told(group, 1) == [5.0]
    with monkeypatch.context() as patch:
        patch.setattr(Sum, "load_state_dict", raise_not_now)
        with pytest.raises(RuntimeError, match="not now"):
            group.go_back()
    assert list(group.go_back()) == firings[1:]
    assert process.host._live["learn"].total == 5.0


def test_going_back_finds_the_state_before_even_if_it_was_a_view_of_the_present_one() -> None:
    """As the tensors' own arrays are, which many learners return."""

    class Views(Sum):
        def open(self, seed: int) -> "Views":
            self.array = np.zeros(1)
            return self

        @property
        def total(self) -> float:
            return float(self.array[0])

        @total.setter
        def total(self, value: float) -> None:
            self.array[0] = value

        def state_dict(self) -> dict[str, np.ndarray]:
            return {"total": self.array}

        def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
            self.array[:] = state["total"]

    group, _ = ready(Views())
    begin(group, 2.0)
    begin(group, 3.0, 4.0, 5.0)
    found = told(group, 2)
    assert group.ask("call", "learn", "weights") == found[-1]
    group.flush()
    assert found + told(group, 2) == [5.0, 18.0, 58.0, 179.0]


def test_statistics_that_the_next_update_changes() -> None:
    class Reused(Sum):
        stats: dict[str, float] = {}  # noqa: RUF012  # of this test

        def update(self, batch: Any) -> Update[Any]:
            self.stats["total"] = super().update(batch).stats["total"]
            return Update(Packed(b"", ()), self.stats)

    group, _ = ready(Reused())
    begin(group, 2.0)
    begin(group, 3.0, 4.0, 5.0)
    assert told(group, 4) == [5.0, 18.0, 58.0, 179.0]


def test_a_learner_whose_state_cannot_be_kept_any_more_gets_one_update_at_a_time() -> None:
    class Sometimes(Sum):
        def state_dict(self) -> dict[str, np.ndarray]:
            if self.total > 2:
                raise NotSavedError("cannot be saved in the middle of an epoch")
            return super().state_dict()

    group, _ = ready(Sometimes())
    begin(group, 2.0)
    begin(group, 3.0, 4.0, 5.0)
    assert told(group, 4) == [5.0, 18.0, 58.0, 179.0]
    assert group.num_ahead == 0
    assert group.go_back() == ()
