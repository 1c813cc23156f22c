"""Instruments receive the events that they ask for, in every deployment."""

import inspect
import re
from typing import Any
from unittest.mock import MagicMock

import pytest

import levada as lv
from levada.flow import Event, Fired, Published
from levada.run.monitor import Monitor
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


@pytest.mark.parametrize("types", ["Fired", {"Fired"}, Fired, {Event}, {object}, [[]], 3], ids=str)
def test_types_that_are_no_events_are_refused_before_anything_starts(types: Any) -> None:
    class Odd:
        event_types = types

        def on_event(self, event: Event) -> None:
            pytest.fail("it started")

    with pytest.raises(TypeError, match=r"Odd.event_types is .*, expected a collection of classes such as \{Fired\}"):
        Inline().open(toy_flow(lv.Queue(max_lag=1)), instruments=[Odd()])
    with pytest.raises(lv.LevadaError, match=r"instruments\[1\]: .*Odd.event_types is"):
        lv.train("ppo", "CartPole-v1", instruments=[Recorder(), Odd()])


def test_an_instrument_that_answers_to_any_name_receives_all_events() -> None:
    every = MagicMock()
    with Inline().open(toy_flow(lv.Queue(max_lag=1)), instruments=[every]) as run:
        run.step(until="learn")
    assert {type(call.args[0]) for call in every.on_event.call_args_list} >= {Fired, Published}


def test_the_monitor_asks_for_all_events_that_it_counts() -> None:
    handled = set(re.findall(r"isinstance\(event, (\w+)\)", inspect.getsource(Monitor.on_event)))
    assert {each.__name__ for each in Monitor.event_types} == handled
