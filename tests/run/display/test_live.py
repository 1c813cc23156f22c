"""The panel, as it looks, and that the terminal is given back."""

import io
import re
import sys
from itertools import pairwise

import pytest
from rich.console import Console
from support.runs.fakes import IDENTITY, Clock, channel, report, statistics, used

from levada.flow.events import LagStatistics, Ledger, NodeStatistics, ReplayStatistics, Reported, Statistics
from levada.run.display.displays import UntilClosed
from levada.run.display.live import LiveDisplay, _nodes, panel
from levada.run.display.view import History, View
from levada.run.monitor import Monitor
from levada.run.summary import summarize
from levada.run.until import Until

UNTIL = Until.parse("return=475 steps=1e6")


def view():
    nodes = {
        "rollout": NodeStatistics(300, 60.0, 10.0, 13.0, "rollout->gae"),
        "gae": NodeStatistics(300, 1.0, 82.0, 0.0, None),
        "learn": NodeStatistics(30, 30.0, 53.0, 0.0, None),
    }
    two = {"left": LagStatistics(4, 2.2, 4, 9), "right": LagStatistics(7, 2.0, None, 9)}
    channels = {
        "rollout->gae": channel(),
        "ppo/rollout->ppo/batch": channel(fill=12, capacity=16, lag=two, dropped={"stale": 3, "full": 1}, lost=2),
        "count->pair": channel(lag={}, fill=0, capacity=4),
    }
    losses = {"losses/policy_loss": -0.012345, "losses/value_loss": 48.26, "charts/own": 1.0, "losses/entropy": 0.5}
    return View(
        83.2, 123_456, 30, 1234, 312.43, 12345.6, 2.93, Statistics(83.0, nodes, channels, {"policy": 30}), reported=losses
    )  # fmt: skip


def text(width, shown=None, returns=None, **rest):
    console = Console(record=True, width=width, file=io.StringIO())
    if returns is None:
        returns = History()
        for point in range(500):
            returns.add(point**2 / 500)
    console.print(panel(IDENTITY, UNTIL, shown or view(), returns, width=width, **rest))
    return [line.rstrip() for line in console.export_text().splitlines()]


EIGHTY = """\
╭─ ppo on CartPole-v1, seed 1, inline ─────────────────────────────────────────╮
│ return     312.4 of 475  ▁▁▁▁▁▁▂▂▂▂▂▃▃▄▄▄▅▅▆▆▇▇█  last 100 of 1,234 episodes │
│ env steps  123,456  12,346/s                                                 │
│ updates         30     2.9/s                                                 │
│ done       12% of 1,000,000 steps, 71 s left                                 │
│ losses     policy_loss  -0.0123  value_loss      48.3  entropy        0.500  │
│                                                                              │
│ node                 busy  idle  blocked                        waits for    │
│ rollout               72%   12%      16%  ██████████████░░░▒▒▒  rollout->gae │
│ gae                    1%   99%       0%  ░░░░░░░░░░░░░░░░░░░░               │
│ learn                 36%   64%       0%  ███████░░░░░░░░░░░░░               │
│                                                                              │
│ channel                     fill  lag mean  max  bound               dropped │
│ rollout->gae                 3/8       0.4    1      1                     0 │
│ ppo/rollout->ppo/batch     12/16                        3 stale, 1 full, 2 … │
│   left                                 2.2    4      4                       │
│   right                                2.0    7   none                       │
│ count->pair                  0/4                                           0 │
│                                                                              │
│ rollout is busy 72% of the time                                              │
╰──────────────────────────────────── 0:01:23  until return=475 steps=1000000 ─╯
"""

SIXTY = """\
╭─ ppo on CartPole-v1, seed 1, inline ─────────────────────╮
│ return     312.4 of 475  ▁▁▁▁▂▂▂▃▃▄▅▅▆▇█  1,234 episodes │
│ env steps  123,456  12,346/s                             │
"""


def test_at_eighty_columns():
    assert text(80) == EIGHTY.splitlines()


def test_at_sixty_columns_the_bars_go():
    lines = text(60)
    assert lines[:3] == SIXTY.splitlines()
    assert not any("waits for" in line or "░" in line for line in lines)
    assert any(line.endswith("16% │") for line in lines)


@pytest.mark.parametrize("width", [40, 60, 72, 80, 100, 200])
def test_at_every_width_the_frame_is_closed(width):
    lines = text(width)
    assert {len(line) for line in lines} == {width}
    per_line = {40: 1, 60: 2, 72: 2}.get(width, 3)
    assert len(lines) == len(EIGHTY.splitlines()) + -(-3 // per_line) - 1


def test_without_unicode_only_ascii_marks_are_drawn():
    inside = "".join(line[1:-1] for line in text(80, ascii_only=True)[1:-1])
    assert not set(inside) & set("▁▂▃▄▅▆▇█░▒")
    assert "##############...===" in inside


def test_before_anything_happened():
    shown = View(0.2, 0, 0, 0, None, 0.0, 0.0, Statistics(0.0, {}, {}, {}))
    lines = text(80, shown, History())
    assert any("return     -" in line for line in lines)
    assert any("done       0.0% of 1,000,000 steps" in line for line in lines)
    assert any("no update yet" in line for line in lines)


def test_returns_and_losses_are_by_policy():
    losses = {"ppo/losses/entropy": 0.5, "dqn/losses/q/mean": 3.0, "other_losses/x": 1.0}
    shown = View(
        9.0, 90, 3, 12, 15.0, 1.0, 1.0, Statistics(0.0, {}, {}, {}), reported=losses,
        return_means_100={"dqn": 10.0, "ppo": 20.0},
    )  # fmt: skip
    lines = text(80, shown)
    assert lines[1].startswith("│ return     dqn 10.0, ppo 20.0 of 475")
    assert any(line.split() == ["│", "losses", "ppo/entropy", "0.500", "dqn/q/mean", "3.00", "│"] for line in lines), (
        lines
    )


def test_shares_of_a_node_sum_to_a_hundred():
    for line in text(60):
        if line.count("%") == 3:
            assert sum(int(part.rstrip("%")) for part in line.split() if part.endswith("%")) == 100


def play(console, clock, *, summary=True, seconds=3.0):
    display = LiveDisplay(console, clock=clock)
    monitor = Monitor(clock=clock)
    asked = []

    def look():
        asked.append(clock.now)
        return statistics()

    display.start(IDENTITY, UNTIL)
    num = 0
    while clock.now < seconds:
        num += 1
        clock.now += 1 / 64
        monitor.on_event(used(num, returns=[float(num)]))
        monitor.on_event(Reported(report(num)))
        display.update(monitor, look)
    ended = summarize(IDENTITY, monitor, statistics(), params_sha256=None, stopped_by="updates=192")
    display.finish(ended if summary else None)
    return asked


def terminal():
    return Console(file=io.StringIO(), force_terminal=True, width=80, height=30, color_system=None)


def test_it_is_drawn_at_most_four_times_a_second_and_once_more_at_the_end():
    asked = play(terminal(), Clock())
    gaps = [b - a for a, b in pairwise(asked[:-1])]
    assert min(gaps) >= 0.25
    assert len(asked) == 13


def test_the_clock_moves_while_the_loop_does_not_come_by():
    console, clock = terminal(), Clock(100.0)
    display, monitor = LiveDisplay(console, clock=clock), Monitor(clock=clock, began_s=95.0)
    display.start(IDENTITY, UNTIL)
    for clock.now in (100.9, 102.0):
        display.tick()
    assert "starting  0:00:02" in console.file.getvalue()
    assert "0:00:01" not in console.file.getvalue()
    monitor.on_event(used(0, steps=10_000, returns=[0.96]))
    display.update(monitor, statistics)
    clock.now = 103.5
    display.tick()
    first, second = re.findall(r"0:00:(\d+)  until", console.file.getvalue())
    assert (first, second) == ("07", "08")
    assert console.file.getvalue().count("return     0.960 of 475") == 2
    display.finish(None)


def test_what_ctrl_c_does_is_shown_below_the_panel():
    """A line that a signal handler writes would be drawn over."""
    console, clock = terminal(), Clock()
    display = LiveDisplay(console, clock=clock, ticks=True)
    assert not display.notice("not yet there")
    display.start(IDENTITY, UNTIL)
    display.update(Monitor(clock=clock), statistics)
    assert display.notice("stopping after this update")
    display.tick()
    assert console.file.getvalue().rstrip().endswith("stopping after this update")
    display.finish(None)
    assert not display.notice("too late")


@pytest.mark.parametrize("summary", [True, False])
def test_the_terminal_is_given_back(summary):
    console = terminal()
    before = sys.stdout, sys.stderr
    play(console, Clock(), summary=summary)
    assert (sys.stdout, sys.stderr) == before
    shown = console.file.getvalue()
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1  # cursor hidden, cursor shown
    assert ("stopped by updates=192" in shown) == summary


def test_finishing_before_the_start_is_no_error():
    console = terminal()
    LiveDisplay(console).finish(None)
    assert console.file.getvalue() == ""


def test_a_return_that_is_no_number_does_not_break_the_curve():
    console, clock = terminal(), Clock()
    display, monitor = LiveDisplay(console, clock=clock), Monitor(clock=clock)
    monitor.on_event(used(0, returns=[float("nan")]))
    display.start(IDENTITY, UNTIL)
    display.update(monitor, statistics)
    display.finish(None)
    assert "nan" in console.file.getvalue()


def test_what_the_user_prints_to_a_pipe_stays_there(capsys):
    display = LiveDisplay(terminal())
    display.start(IDENTITY, UNTIL)
    print("for a program")
    display.finish(None)
    assert capsys.readouterr().out == "for a program\n"


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), OSError(5, "Input/output error")])
def test_a_terminal_that_is_gone_ends_the_panel_and_nothing_else(monkeypatch, error):
    class Gone(io.StringIO):
        def write(self, text):
            raise error

    monkeypatch.setattr(sys, "stderr", Gone())
    monkeypatch.setenv("FORCE_COLOR", "1")
    out, monitor = sys.stdout, Monitor(clock=Clock())
    display = UntilClosed(LiveDisplay(clock=Clock()))
    display.start(IDENTITY, UNTIL)
    display.update(monitor, statistics)
    display.finish(summarize(IDENTITY, monitor, statistics(), params_sha256=None, stopped_by="return=475"))
    assert sys.stdout is out


def test_replays_are_shown_with_the_reuse_asked_for():
    replays = {
        "replay": ReplayStatistics(50_000, 50_000, 812_345, 3_249_000, 4.0, 3.999, Ledger(12, 9, {}, 1, 2)),
        "hard": ReplayStatistics(7, 100, 7, 3, None, 0.43, Ledger(12, 9, {}, 1, 2)),
    }
    lines = text(80, View(83.2, 123, 30, 12, 3.4, 1.0, 2.0, statistics(channels={}, replays=replays)))
    [at] = [number for number, line in enumerate(lines) if line.endswith("asked │")]
    assert [line.split()[1:-1] for line in lines[at : at + 3]] == [
        ["replay", "fill", "inserted", "reuse", "asked"], ["replay", "50,000/50,000", "812,345", "4.00", "4"],
        ["hard", "7/100", "7", "0.43", "free"],
    ]  # fmt: skip


def test_names_are_shown_as_they_are():
    """Neither rich's markup nor what steers a terminal is taken for more than text."""
    node = NodeStatistics(3, 1.0, 0.0, 0.0, None)
    table = _nodes(Statistics(1.0, {"[red]a\x1b[2J": node}, {}, {}), wide=True, ascii_only=True)
    stream = io.StringIO()
    Console(file=stream, width=100, force_terminal=False).print(table)
    assert "[red]a" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()
