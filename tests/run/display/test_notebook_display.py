"""The display in a notebook: in place, at most four times a second, with everything from outside escaped."""

import re
import sys
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace
from support.runs.fakes import IDENTITY, Clock, statistics, used

from levada.flow.items import Episode, Header
from levada.run.display.base import Display
from levada.run.display.displays import in_kernel, make_display
from levada.run.display.notebook import MOST_NOTES, NotebookDisplay
from levada.run.monitor import Monitor
from levada.run.summary import Advice, summarize
from levada.run.until import Until

UNTIL = Until.parse("return=475 steps=1e5")


class Cell:
    """Output of a cell: what was shown, and where."""

    def __init__(self):
        self.shown = []
        self.num_outputs = 0

    def __call__(self, bundle):
        self.num_outputs += 1
        self.shown.append(bundle)
        return self.shown.append

    @property
    def html(self):
        return self.shown[-1]["text/html"]

    @property
    def words(self):
        """Words of the last state, which is well-formed."""
        return " ".join(" ".join(ElementTree.fromstring(self.html).itertext()).split())


def begun(*, ticks=False, identity=IDENTITY):
    cell, clock = Cell(), Clock()
    display, monitor = NotebookDisplay(cell, clock=clock, ticks=ticks), Monitor(clock=clock)
    display.start(identity, UNTIL)
    return display, cell, clock, monitor


def test_a_run_has_one_output_that_is_updated_at_most_four_times_a_second():
    display, cell, clock, monitor = begun()
    assert cell.words == "ppo on CartPole-v1, seed 1, inline starting, 0:00:00"
    for step in range(1, 101):
        clock.now = step / 50
        monitor.on_event(used(step, steps=100, returns=[float(step)]))
        display.update(monitor, statistics)
    assert cell.num_outputs == 1
    assert len(cell.shown) == 1 + 8
    assert "0:00:01 | until return=475 steps=100000 | 9.2% of 100,000 steps, 18 s left" in cell.words
    assert "return 46.5 of 475 92 episodes env steps 9,200" in cell.words
    assert "mean return of 100 episodes" in cell.words
    assert "no update yet; rollout is busy 60% of the time" in cell.words
    assert len(re.findall("<path", cell.html)) == 1


def test_the_text_is_that_of_the_plain_display():
    display, cell, clock, monitor = begun()
    clock.now = 2.0
    monitor.on_event(used(1, steps=100, returns=[7.0]))
    display.update(monitor, statistics)
    assert cell.shown[-1]["text/plain"].startswith("    2.0 s | 0.1% of 100,000 steps")


def test_the_end_says_what_limits_the_run_and_what_would_help():
    display, cell, clock, monitor = begun()
    for clock.now in (1.0, 2.0):
        monitor.on_event(used(int(clock.now), steps=100, returns=[7.0]))
        display.update(monitor, statistics)
    summary = summarize(IDENTITY, monitor, statistics(), params_sha256=None, stopped_by="steps=200")
    advice = Advice(setting="max_lag", value=1, words="a lag of 1 in place of 0", speedup=1.23)
    display.finish(replace(summary, bottleneck="the thread of <learn> is busy", advice=advice))
    assert "stopped by steps=200 | return 7.00 (2 episodes)" in cell.words
    assert "What limits it: the thread of <learn> is busy." in cell.words
    assert "What would help: a lag of 1 in place of 0; expected: 1.2 times as fast." in cell.words
    display.note("closed late")
    assert cell.words.startswith("ppo on CartPole-v1, seed 1, inline stopped by") and cell.words.endswith("closed late")
    assert "<svg" in cell.html
    assert cell.num_outputs == 1


def test_a_run_that_failed_keeps_its_last_state():
    display, cell, clock, monitor = begun()
    clock.now = 1.0
    monitor.on_event(used(1, steps=100, returns=[7.0]))
    display.update(monitor, statistics)
    before = cell.html
    display.finish(None)
    display.finish(None)
    assert cell.html == before


def test_without_an_episode_there_is_no_curve():
    display, cell, clock, monitor = begun()
    clock.now = 1.0
    monitor.on_event(used(1, steps=100, returns=[float("nan")]))
    display.update(monitor, statistics)
    assert "<svg" not in cell.html
    summary = summarize(IDENTITY, monitor, statistics(), params_sha256=None, stopped_by="interrupted")
    display.finish(summary)
    assert "<svg" not in cell.html


def test_each_policy_has_a_curve():
    display, cell, clock, monitor = begun()
    for clock.now in (1.0, 2.0):
        episodes = (Episode(clock.now, 5, "<hunter>"), Episode(-clock.now, 5, "prey"))
        display.update(monitor, statistics)
        monitor.on_event(
            replace(used(int(clock.now)), headers=(Header({}, "rollout", 0, int(clock.now), 10, episodes),))
        )
    clock.now = 3.0
    display.update(monitor, statistics)
    assert "return <hunter> 1.50, prey -1.50 of 475" in cell.words
    assert len(re.findall("<path", cell.html)) == 2
    assert "&lt;hunter&gt;" in cell.html and "<hunter>" not in cell.html


def test_notes_are_shown_at_once_also_before_the_start():
    cell = Cell()
    display = NotebookDisplay(cell, clock=Clock())
    display.note("env.reset() takes <long>")
    assert cell.words == "env.reset() takes <long>"
    assert cell.shown[-1]["text/plain"] == "env.reset() takes <long>"
    display.start(IDENTITY, UNTIL)
    for number in range(MOST_NOTES):
        display.note(f"note {number}")
    assert cell.num_outputs == 1
    assert "takes" not in cell.words
    assert "starting, 0:00:00 note 0 note 1" in cell.words


def test_a_notice_comes_with_the_next_tick_and_goes_with_the_end():
    display, cell, clock, monitor = begun(ticks=True)
    assert display.notice("stopping after this update")
    display.tick()
    assert cell.words.endswith("starting, 0:00:00 stopping after this update")
    clock.now = 1.0
    display.update(monitor, statistics)
    clock.now = 3.0
    display.tick()
    assert cell.words.startswith("ppo on CartPole-v1, seed 1, inline 0:00:03 | until")
    display.finish(None)
    assert "stopping" not in cell.words


def test_names_from_outside_are_escaped():
    hostile = '</div><script>alert("1")</script>\x1b[31m\ud800'
    display, cell, clock, monitor = begun(identity=replace(IDENTITY, env=hostile))
    clock.now = 1.0
    monitor.on_event(used(1, returns=[1.0]))
    display.update(monitor, statistics)
    display.note(hostile)
    assert "<script" not in cell.html
    assert '</div><script>alert("1")</script>\\x1b[31m\\ud800' in cell.words
    assert cell.html.encode()
    assert "\x1b" not in cell.shown[-1]["text/plain"]


# ---- which display


@pytest.mark.parametrize(("module", "expected"), [
    (None, False),
    (SimpleNamespace(), False),
    (SimpleNamespace(get_ipython=lambda: None), False),
    (SimpleNamespace(get_ipython=SimpleNamespace), False),
    (SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=None)), False),
    (SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object())), True),
])  # fmt: skip
def test_a_kernel_is_found_without_importing_ipython(monkeypatch, module, expected):
    if module is None:
        monkeypatch.delitem(sys.modules, "IPython", raising=False)
    else:
        monkeypatch.setitem(sys.modules, "IPython", module)
    assert in_kernel() is expected
    assert ("IPython" in sys.modules) is (module is not None)
    assert isinstance(make_display(), NotebookDisplay) is expected
    if not expected:
        with pytest.raises(ValueError, match=r"display 'notebook': this process is no Jupyter kernel; use 'auto'"):
            make_display("notebook")
    assert type(make_display("quiet")) is Display
