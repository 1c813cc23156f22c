"""Instruments receive the events that they ask for, in every deployment."""

from typing import Any

import pytest

import levada as lv
from levada.flow import Event, Fired, Published
from levada.runners import Inline
from levada.testing import Recorder, toy_flow


class Versions(Recorder):
    event_types = (Published,)


@pytest.mark.parametrize("on", [Inline(), lv.Processes(workers=1), lv.Processes(workers=1, learner="worker")], ids=str)
def test_an_instrument_receives_only_events_of_its_types(on: Any) -> None:
    everything, versions = Recorder(), Versions()
    with on.open(toy_flow(lv.Queue(max_lag=1)), seed=1, instruments=[everything, versions]) as run:
        for report in run:
            if report.firing == 4:
                break
    assert versions.events == everything.of(Published) != []
    assert everything.of(Fired)


def test_without_types_it_receives_all_of_them() -> None:
    class Names:
        def __init__(self) -> None:
            self.events: set[str] = set()  # a name that many instruments use

        def on_event(self, event: Event) -> None:
            self.events.add(type(event).__name__)

    names = Names()
    with Inline().open(toy_flow(lv.Queue(max_lag=1)), instruments=[names]) as run:
        run.step(until="learn")
    assert names.events >= {"Fired", "Consumed", "Used", "Published"}
