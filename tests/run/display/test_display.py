"""Displays say what there is to say, when it is due, and cost nothing in between."""

import io
import json
import math
import sys
import threading
import timeit

import pytest
from msgspec.structs import replace
from support.runs.fakes import IDENTITY, Clock, FakeRun, channel, header, statistics, used

from levada.flow.events import LagStatistics, Statistics, Used
from levada.flow.items import Episode
from levada.run.display.base import Display
from levada.run.display.displays import JsonDisplay, PlainDisplay, make_display
from levada.run.display.live import LiveDisplay
from levada.run.monitor import Monitor
from levada.run.summary import summarize
from levada.run.until import Until

UNTIL = Until.parse("return=475 steps=1e5")


def play(display, clock, *, seconds=12.0, step=0.25, stats=None):
    """Call a display as a run's loop would; returns how often it asked for statistics."""
    monitor = Monitor(clock=clock)
    asked = []

    def look():
        asked.append(clock.now)
        return stats or statistics()

    display.start(IDENTITY, UNTIL)
    while clock.now < seconds:
        clock.now += step
        monitor.on_event(used(int(clock.now / step), steps=100, returns=[clock.now]))
        display.update(monitor, look)
    summary = summarize(IDENTITY, monitor, statistics(), params_sha256=None, stopped_by="steps=4800")
    display.finish(summary)
    return asked, summary


def test_plain_lines_come_after_one_second_and_then_every_five():
    stream, clock = io.StringIO(), Clock()
    asked, _ = play(PlainDisplay(stream, clock=clock), clock)
    assert asked == [1.0, 6.0, 11.0]
    first, *lines, last = stream.getvalue().splitlines()
    assert first == "ppo on CartPole-v1, seed 1, inline, until return=475 steps=100000"
    assert lines[1] == (
        "    6.0 s | 2.4% of 100,000 steps, 4 min left | return 3.12 (24 episodes) | 2,400 env steps, 400/s"
        " | 0 updates, 0.0/s | lag rollout->learn 1 <= 1 | no update yet; rollout is busy 60% of the time"
    )
    assert last == (
        "stopped by steps=4800 | return 6.12 (48 episodes) | 4,800 env steps | 0 updates"
        " | 12.0 s (0.2 s of it start-up) | 409 steps/s | efficiency 0.80 | lag rollout->learn 1 <= 1"
    )


def test_plain_lines_say_what_has_no_bound_and_what_is_not_known():
    stream, clock = io.StringIO(), Clock()
    lag = {"a": LagStatistics(3, 1.0, None, 3), "b": LagStatistics(0, 0.0, 2, 3)}
    stats = Statistics(0.0, {}, {"q": channel(lag=lag)}, {})
    display = PlainDisplay(stream, clock=clock)
    display.start(IDENTITY, UNTIL)
    clock.now = 2.0
    display.update(Monitor(clock=clock), lambda: stats)
    assert stream.getvalue().splitlines()[1] == (
        "    0.0 s | 0.0% of 100,000 steps | return - (0 episodes) | 0 env steps, 0/s | 0 updates, 0.0/s"
        " | lag q:a 3 (no bound), q:b 0 <= 2 | no update yet"
    )


def test_lines_come_also_while_the_loop_does_not_come_by():
    """While workers start, and during a long update: with what was seen last, and the time of now."""
    stream, clock = io.StringIO(), Clock(100.0)
    display, monitor = PlainDisplay(stream, clock=clock), Monitor(clock=clock, began_s=98.0)
    display.start(IDENTITY, UNTIL)
    for clock.now in (101.9, 102.0, 106.9):
        display.tick()
    monitor.on_event(used(0, steps=200, returns=[0.96]))
    clock.now = 107.0
    display.update(monitor, statistics)
    for clock.now in (112.9, 113.0):
        display.tick()
    _, starting, seen, still = stream.getvalue().splitlines()
    assert starting == "    2.0 s | starting"
    assert seen.startswith("    9.0 s | 0.2% of 100,000 steps")
    assert "| return 0.960 (1 episode) | 200 env steps" in seen
    assert still.startswith("   15.0 s | 0.2% of 100,000 steps")
    assert still.partition("| return")[2] == seen.partition("| return")[2]


def test_lines_of_the_clock_do_not_put_off_what_is_new():
    """Updates that take eleven seconds each: the news is written as it comes, though the clock has just written a line."""
    stream, clock = io.StringIO(), Clock()
    display, monitor = PlainDisplay(stream, clock=clock), Monitor(clock=clock)
    display.start(IDENTITY, UNTIL)
    for update in range(1, 4):
        for clock.now in range(11 * update - 10, 11 * update):
            display.tick()
        clock.now = 11 * update
        monitor.on_event(used(update, steps=1_000))
        display.update(monitor, statistics)
    news = [line for line in stream.getvalue().splitlines() if "env steps" in line]
    assert [line.split(" s |")[0].strip() for line in news if "| 3,000 env steps" in line] == ["33.0"]
    assert any("| 1,000 env steps" in line and line.startswith("   11.0 s") for line in news)


def test_the_clock_shows_a_run_that_is_open_and_not_that_it_starts():
    stream, clock = io.StringIO(), Clock()
    display = PlainDisplay(stream, clock=clock, ticks=True)
    display.start(IDENTITY, UNTIL)
    clock.now = 0.1
    display.update(Monitor(clock=clock), statistics)
    clock.now = 9.0
    display.tick()
    display.finish(None)
    line = stream.getvalue().splitlines()[1]
    assert line.startswith("    8.9 s | 0.0% of 100,000 steps")
    assert line.endswith("no update yet")


def test_nothing_is_asked_of_the_run_by_the_thread_that_moves_the_clock():
    class Asked:
        def __getattr__(self, name):
            raise AssertionError(name)

    display = PlainDisplay(io.StringIO(), clock=Clock())
    display.start(IDENTITY, UNTIL)
    display.update(Asked(), Asked())  # not due: nothing is looked at
    display.tick()


@pytest.mark.parametrize("mode", ["plain", "live"])
def test_what_is_made_for_a_user_has_a_clock_that_moves_by_itself(mode, monkeypatch, capsys):
    started = threading.Event()
    display = make_display(mode)
    monkeypatch.setattr(display._ticker, "_every_s", 0.001)
    monkeypatch.setattr(display._ticker, "_tick", started.set)
    display.start(IDENTITY, UNTIL)
    assert started.wait(60.0)
    display.finish(None)
    assert "levada-display" not in {thread.name for thread in threading.enumerate()}


def test_json_lines_can_be_read_and_the_summary_is_the_last():
    stream, clock = io.StringIO(), Clock()
    _, summary = play(JsonDisplay(stream, clock=clock), clock)
    start, *lines, last = [json.loads(line, parse_constant=pytest.fail) for line in stream.getvalue().splitlines()]
    assert (start["type"], start["algorithm"], start["until"]) == ("start", "ppo", "return=475 steps=100000")
    assert [(line["type"], line["elapsed_s"], line["env_steps"]) for line in lines] == [
        ("progress", 1.0, 400),
        ("progress", 6.0, 2400),
        ("progress", 11.0, 4400),
    ]
    assert lines[0]["statistics"]["channels"]["rollout->learn"]["ledger"]["produced"] == 13
    assert last == {"type": "summary", **json.loads(summary.to_json())}


def test_lines_have_the_return_of_each_policy():
    clock = Clock()
    monitor = Monitor(clock=clock)
    episodes = (Episode(10.0, 5, "dqn"), Episode(math.nan, 5, "ppo"))
    monitor.on_event(Used("learn", (replace(header(0), episodes=episodes),)))
    for kind, found in ((PlainDisplay, "| return dqn 10.0, ppo nan (2 episodes) |"), (JsonDisplay, None)):
        stream = io.StringIO()
        display = kind(stream, clock=clock, first_s=0.0)
        display.start(IDENTITY, UNTIL)
        display.update(monitor, statistics)
        line = stream.getvalue().splitlines()[-1]
        if found is not None:
            assert found in line
        else:
            assert json.loads(line, parse_constant=pytest.fail)["return_means_100"] == {"dqn": 10.0, "ppo": None}


def test_json_has_null_where_there_is_no_number():
    stream, clock = io.StringIO(), Clock()
    monitor = Monitor(clock=clock)
    monitor.on_event(used(0, returns=[math.nan]))
    display = JsonDisplay(stream, clock=clock, first_s=0.0)
    display.start(IDENTITY, UNTIL)
    display.update(monitor, statistics)
    assert json.loads(stream.getvalue().splitlines()[-1], parse_constant=pytest.fail)["return_mean_100"] is None


def test_streams_are_the_ones_of_the_moment(capsys):
    for display in (PlainDisplay(), JsonDisplay(), Display()):
        display.start(IDENTITY, UNTIL)
        display.finish(None)
    out, err = capsys.readouterr()
    assert [json.loads(line)["type"] for line in out.splitlines()] == ["start"]
    assert err.startswith("ppo on CartPole-v1")


def test_quiet_is_quiet(capsys):
    asked, _ = play(Display(), Clock())
    assert asked == []
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("display", [PlainDisplay(io.StringIO()), JsonDisplay(io.StringIO()), Display()])
def test_an_update_that_is_not_due_costs_about_a_microsecond(display):
    display.start(IDENTITY, UNTIL)
    monitor, run = Monitor(), FakeRun()
    best_s = min(timeit.repeat(lambda: display.update(monitor, run.statistics), number=1000, repeat=20)) / 1000
    assert best_s < 10e-6  # ten times what it takes, for slow machines


@pytest.mark.parametrize(
    ("mode", "kind"), [("plain", PlainDisplay), ("json", JsonDisplay), ("quiet", Display), ("live", LiveDisplay)]
)
def test_a_display_is_made_by_its_name(mode, kind):
    assert type(make_display(mode)) is kind


@pytest.mark.parametrize(("terminal", "kind"), [(True, LiveDisplay), (False, PlainDisplay)])
def test_auto_is_live_on_a_terminal_only(monkeypatch, terminal, kind):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    assert type(make_display()) is kind


def test_an_unknown_display_is_refused():
    with pytest.raises(ValueError, match="display 'fancy': expected one of auto, live, plain, notebook, quiet, json"):
        make_display("fancy")
