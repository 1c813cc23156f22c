"""What the hub does per item does not grow with the number of learners: it does not search through all their channels."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any

import pytest

from levada.flow import Flow, Queue
from levada.runners.inline import Inline
from levada.schedule import feeding, going_on
from levada.schedule.queues import QueueMachine
from levada.testing.toys import ToyLearner, toy_source


@dataclass(frozen=True)
class Named(ToyLearner):
    """A learner of its own policy."""


def calls_per_item(num: int, monkeypatch: pytest.MonkeyPatch) -> float:
    """Calls that ask a queue or feed a stage, per item, in a flow with so many learners behind one source."""
    calls = 0

    def counting(function: Any) -> Any:
        def counted(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            return function(*args)

        return counted

    flow = Flow("many")
    learners = [Named(f"policy{number}") for number in range(num)]
    weights = {f"p{number}": flow.latest(f"weights{number}", of=each) for number, each in enumerate(learners)}
    items = flow.source("rollout", toy_source, reads=weights, shards=1)
    for number, learner in enumerate(learners):
        batch = flow.batch(f"batch{number}", items.via(Queue(max_lag=0)), size=1)
        update = flow.learn(f"learn{number}", learner, batch)
        flow.publish(update.weights, to=weights[f"p{number}"])
        flow.report(update.stats, name=f"report{number}")
    with monkeypatch.context() as patch, Inline().open(flow) as run:
        reports = iter(run)
        list(islice(reports, 2 * num))
        patch.setattr(QueueMachine, "_may_issue_new", counting(QueueMachine._may_issue_new))
        patch.setattr(going_on, "feed", counting(feeding.feed))
        list(islice(reports, 4 * num))
    return calls / (4 * num)


def test_calls_per_item_do_not_grow_with_the_number_of_learners(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (calls_per_item(num, monkeypatch) for num in (5, 40))
    assert many < 1.5 * few
