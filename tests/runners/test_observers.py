"""Instruments receive the events that they ask for, in every deployment."""

import inspect
import re
from pathlib import Path
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


@pytest.mark.parametrize("types", ["Fired", b"", {"Fired"}, Fired, {Event}, {object}, [[]], 3], ids=str)
def test_types_that_are_no_events_are_refused_before_anything_starts(types: Any) -> None:
    class Odd:
        event_types = types

        def on_event(self, event: Event) -> None:
            pytest.fail("it started")

    with pytest.raises(TypeError, match=r"Odd.event_types is .*, with a collection of classes such as \{Fired\}"):
        Inline().open(toy_flow(lv.Queue(max_lag=1)), instruments=[Odd()])
    with pytest.raises(lv.LevadaError, match=r"instruments\[1\]: .*Odd.event_types is"):
        lv.train("ppo", "CartPole-v1", instruments=[Recorder(), Odd()])


def test_types_set_on_an_object_are_refused() -> None:
    odd = Recorder()
    odd.event_types = {Fired}  # type: ignore[attr-defined]
    with pytest.raises(
        TypeError, match="event_types is set on an object of Recorder, expected an attribute of its class"
    ):
        Inline().open(toy_flow(lv.Queue(max_lag=1)), instruments=[odd])


def test_instruments_and_loggers_of_an_iterator_are_all_used(tmp_path: Path) -> None:
    class Rows:
        def __init__(self) -> None:
            self.num_rows = 0

        def start(self, run: object) -> None: ...

        def write(self, env_steps: int, values: object) -> None:
            self.num_rows += 1

        def close(self, summary: object) -> None: ...

    run, seen, resumed, rows = tmp_path / "run", Recorder(), Recorder(), Rows()
    given: dict[str, Any] = {"instruments": iter([seen]), "loggers": iter([rows]), "display": "quiet"}
    lv.train("a2c", "CartPole-v1", until="updates=1", out=run, **given)
    lv.resume(run, until="updates=2", instruments=(each for each in [resumed]), display="quiet")
    assert seen.of(Fired)
    assert resumed.of(Fired)
    assert rows.num_rows > 0


def test_an_instrument_that_answers_to_any_name_receives_all_events() -> None:
    every = MagicMock()
    with Inline().open(toy_flow(lv.Queue(max_lag=1)), instruments=[every]) as run:
        run.step(until="learn")
    assert {type(call.args[0]) for call in every.on_event.call_args_list} >= {Fired, Published}


def test_the_monitor_asks_for_all_events_that_it_counts() -> None:
    handled = set(re.findall(r"isinstance\(event, (\w+)\)", inspect.getsource(Monitor.on_event)))
    assert {each.__name__ for each in Monitor.event_types} == handled
