"""A run that learns nothing is told so once, with what to try; one that learns never is."""

import json

import numpy as np
import pytest
from support.runs.fakes import IDENTITY, FakeRun

from levada.run.loop import Loop
from levada.run.monitor import Monitor
from levada.run.stagnation import Stagnation
from levada.run.until import Until

NUM = 400
"""Updates of a run, of 10 env steps and an episode each."""


class Seen:
    """A display that remembers what it was told, and after which update."""

    def __init__(self):
        self.notes = []
        self.updates = 0

    def start(self, identity, until):
        pass

    def note(self, text):
        self.notes.append((self.updates + 1, text))

    def update(self, monitor, statistics):
        self.updates = monitor.updates - 1

    def finish(self, summary):
        pass


class Told:
    """What `execute` asks."""

    def __init__(self, stagnation):
        self.look = stagnation.look

    def before(self):
        return None


def play(returns, until=f"steps={10 * NUM}", *, goal=None, monitor=None, updates=0, num_envs=1):
    """(update, note) of a run whose episodes bring `returns`, and its summary."""
    monitor = Monitor() if monitor is None else monitor
    run = FakeRun(monitor=monitor, returns=lambda update: float(returns[update - 1]), updates=updates)
    display = Seen()
    goals = Until.parse(until)
    summary = Loop(
        identity=IDENTITY,
        until=goals,
        monitor=monitor,
        directory=None,
        loggers=[],
        display=display,
        arrays_of=FakeRun.arrays,
        watch=Told(Stagnation(goals, goal=goal, num_envs=num_envs, advice="something else")),
    ).execute(run)
    assert summary.notes[-len(display.notes) :] == [text for _, text in display.notes] or not display.notes
    return display.notes, summary


def noise(num=NUM, mean=0.0):
    return mean + np.random.default_rng(3).standard_normal(num)


@pytest.mark.parametrize(
    "returns", [np.full(NUM, -200.0), noise(), -np.arange(NUM, dtype=float)], ids=["flat", "noisy", "down"]
)
def test_a_run_whose_return_does_not_rise_is_told_once_at_half_of_its_budget(returns):
    notes, summary = play(returns)
    ((update, text),) = notes
    assert update == NUM // 2
    assert text.startswith("for half of the budget the mean return has not clearly risen (")
    assert text.endswith("; try something else")
    assert json.loads(summary.to_json())["notes"] == [text]
    assert summary.updates == NUM


def test_the_note_has_the_figures():
    ((_, text),) = play(np.full(NUM, -200.0), goal=-110.0)[0]
    assert "(-200.0 at first, -200.0 now, the goal is -110.0)" in text


@pytest.mark.parametrize(
    ("returns", "goal"),
    [
        (noise() + np.linspace(0, 20, NUM), None),
        (np.where(np.arange(NUM) < 30, 20.0, 475.0) + noise(), None),
        (np.where(np.arange(NUM) < 30, 20.0, 475.0) + noise(), 500.0),
        (np.where(np.arange(NUM) < 30, -700.0, 7.9) + noise(), 8.0),
        (np.where(np.arange(NUM) < 175, -200.0, -110.0) + noise(), None),
        (noise() + np.linspace(0, 20, NUM), 1_000.0),
    ],
    ids=["steadily", "soon", "soon and nearly to the goal", "as far as it goes", "late", "steadily, far from the goal"],
)
def test_a_run_that_learns_is_told_nothing(returns, goal):
    assert play(returns, goal=goal)[0] == []


def test_a_run_that_stops_rising_far_below_the_goal_is_told():
    """DQN in Taxi: it learns which actions are forbidden, and nothing more."""
    returns = np.where(np.arange(NUM) < 60, -700.0, -200.0) + noise()
    ((update, text),) = play(returns, goal=8.0)[0]
    assert NUM // 2 < update < 300
    assert "-200" in text
    assert play(returns, goal=None)[0] == []  # nobody knows that -200 is bad


def test_the_return_that_is_asked_for_is_the_goal():
    returns = np.where(np.arange(NUM) < 60, 20.0, 100.0) + noise()
    assert len(play(returns, f"return=475 steps={10 * NUM}", goal=90.0)[0]) == 1


def test_without_a_limit_the_budget_is_that_of_a_run_that_is_told_nothing():
    monitor = Monitor()
    look = Stagnation(Until.parse("return=475"), goal=None, num_envs=1, advice="x").look
    monitor.updates = 100
    for steps in (400_000, 499_990, 500_000):
        monitor.env_steps = steps
        monitor.returns.add(np.zeros(200), steps)
        assert (look(monitor) is not None) is (steps == 500_000)


@pytest.mark.parametrize("until", ["steps=300", "updates=38", "episodes=190"])
def test_nothing_is_said_of_a_run_that_is_short(until):
    """Fewer than 20 updates in half of it, or fewer than 100 episodes."""
    assert play(np.zeros(NUM), until)[0] == []


def test_episodes_that_never_end_are_told():
    monitor = Monitor()
    look = Stagnation(Until.parse("steps=100_000"), goal=None, num_envs=8, advice="something else").look
    monitor.updates = 100
    monitor.env_steps = 39_999
    assert look(monitor) is None
    monitor.env_steps = 50_000
    assert look(monitor) == "for half of the budget no episode has ended; try a time limit for episodes, something else"
    monitor.env_steps = 99_999
    assert look(monitor) is None


def test_a_run_that_goes_on_is_not_told_again():
    before = Monitor()
    play(np.zeros(NUM), monitor=before)
    after = Monitor()
    after.restore(before.state())
    notes, summary = play(np.zeros(3 * NUM), f"steps={30 * NUM}", monitor=after, updates=NUM)
    assert notes == []
    assert len(summary.notes) == 1


def test_a_run_that_goes_on_remembers_how_it_began():
    whole = play(np.zeros(NUM))[0]
    before = Monitor()
    play(np.zeros(NUM), "updates=150", monitor=before)
    assert before.notes == []  # too short to tell
    after = Monitor()
    after.restore(json.loads(json.dumps(before.state())))
    assert play(np.zeros(NUM), monitor=after, updates=150)[0] == whole
