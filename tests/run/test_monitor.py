"""Everything is counted once."""

import json
import math

import pytest
from support.runs.fakes import Clock, header, report, used

from levada.flow.events import Dropped, Fired, Published, Report, Reported, Used
from levada.flow.items import Episode, Header
from levada.run import monitor as module
from levada.run.monitor import Monitor
from levada.run.until import Until


def see(monitor, *events):
    for event in events:
        monitor.on_event(event)
    return monitor


def test_steps_and_episodes_are_summed():
    monitor = see(Monitor(), used(0, steps=10, returns=[1.0, 3.0]), used(1, steps=6, returns=[5.0], length=11))
    assert (monitor.env_steps, monitor.episodes) == (16, 3)
    assert monitor.return_mean_100 == 3.0
    assert monitor.length_mean_100 == 7.0


def test_nothing_is_known_at_first():
    monitor = Monitor(clock=Clock())
    assert (monitor.env_steps, monitor.updates, monitor.episodes, monitor.elapsed_s) == (0, 0, 0, 0.0)
    assert (monitor.return_mean_100, monitor.length_mean_100, monitor.steps_per_s) == (None, None, None)
    assert (monitor.solved_at_s, monitor.solved_at_steps) == (None, None)


def test_dropped_items_were_sampled_but_their_episodes_do_not_count():
    monitor = see(Monitor(), Dropped("q", header(0, steps=10, returns=[1.0]), "stale"))
    assert (monitor.env_steps, monitor.episodes) == (10, 0)


@pytest.mark.parametrize("copied", [False, True])
def test_an_item_with_two_consumers_counts_once(copied):
    first = header(3, steps=10, returns=[1.0])
    second = header(3, steps=10, returns=[1.0]) if copied else first
    monitor = see(Monitor(), Used("a", (first,)), Used("b", (second,)))
    assert (monitor.env_steps, monitor.episodes) == (10, 1)


def test_an_item_dropped_by_one_and_consumed_by_another_counts_once_with_its_episodes():
    made = header(3, steps=10, returns=[1.0])
    monitor = see(Monitor(), Dropped("a", made, "full"), Used("b", (made,)))
    assert (monitor.env_steps, monitor.episodes) == (10, 1)


def test_several_items_of_one_header_count_once():
    made = header(3, steps=10, returns=[1.0])
    monitor = see(Monitor(), *[Used("a", (made,)) for _ in range(5)], Used("b", (made,)))
    assert (monitor.env_steps, monitor.episodes) == (10, 1)


def test_a_run_that_ends_while_a_replay_is_filled_counts_up_to_its_end():
    """However much more there is already; a resumed run that goes on counts that, too."""
    until, stored = (
        Until.parse("steps=25"),
        [Used("replay", (header(n, steps=10, returns=[float(n)]),)) for n in range(5)],
    )
    monitor = Monitor(learners=["learn"])
    monitor.ends_with(until)
    see(monitor, *stored)
    assert (monitor.env_steps, monitor.episodes, monitor.return_mean_100) == (30, 3, 1.0)
    resumed, ended = Monitor(learners=["learn"]), Monitor(learners=["learn"])
    for other, further in ((resumed, "steps=100"), (ended, "steps=30")):
        other.restore(monitor.state())
        other.ends_with(Until.parse(further))
    assert (resumed.env_steps, resumed.episodes, resumed.return_mean_100) == (50, 5, 2.0)
    assert (ended.env_steps, ended.episodes) == (30, 3)
    see(monitor, Fired("learn", None, 1, 0.0, 1.0))  # where a run can only end at updates
    assert (monitor.env_steps, monitor.episodes, monitor.updates) == (50, 5, 1)


def test_several_firings_of_one_ticket_each_count():
    made = [header(3, steps=10, returns=[1.0]) for _ in range(4)]
    monitor = see(Monitor(), *[Used(channel, (each,)) for channel in ("a", "b") for each in made])
    assert (monitor.env_steps, monitor.episodes) == (40, 4)


def test_shards_and_sources_are_told_apart():
    events = [used(3, shard=0), used(3, shard=1), used(3, source="other")]
    assert see(Monitor(), *events).env_steps == 30


def test_memory_is_bounded_and_late_copies_are_still_known(monkeypatch):
    monkeypatch.setattr(module, "_REMEMBERED", 8)
    monitor = Monitor()
    for ticket in range(100):
        see(monitor, used(ticket, node="a", returns=[0.0]))
        if ticket >= 8:
            see(monitor, used(ticket - 8, node="b", returns=[0.0]))
    assert (monitor.env_steps, monitor.episodes) == (1000, 100)
    recent = monitor._steps_counted
    assert len(recent._young) + len(recent._old) <= 16


def test_only_the_last_hundred_episodes_make_the_mean():
    monitor = see(Monitor(), *[used(t, returns=[float(t)]) for t in range(250)])
    assert monitor.episodes == 250
    assert monitor.return_mean_100 == sum(range(150, 250)) / 100


def test_updates_are_the_most_of_any_policy():
    monitor = Monitor(learners=["learn"])
    see(monitor, Reported(Report("learn", 3, {"a": 3, "b": 7}, {})))
    assert monitor.updates == 7
    see(monitor, Reported(Report("other", 9, {}, {})), Published("weights", 12))
    assert monitor.updates == 7
    see(monitor, Fired("rollout", 0, 20, 0.0, 1.0), Fired("learn", None, 8, 0.0, 1.0))
    assert monitor.updates == 8


def test_the_moment_of_solving_is_the_first():
    clock = Clock()
    monitor = Monitor(target_return=10.0, clock=clock)
    for ticket in range(300):
        clock.now = float(ticket + 1)
        see(monitor, used(ticket, returns=[10.0 if 30 <= ticket < 200 else 0.0]))
    assert (monitor.solved_at_s, monitor.solved_at_steps) == (130.0, 1300)


def test_a_hundred_episodes_are_needed():
    monitor = Monitor(target_return=1.0)
    see(monitor, *[used(t, returns=[5.0]) for t in range(99)])
    assert monitor.solved_at_steps is None
    see(monitor, used(99, returns=[5.0]))
    assert monitor.solved_at_steps == 1000


def test_a_return_that_is_no_number_solves_nothing():
    monitor = Monitor(target_return=1.0)
    see(monitor, used(0, returns=[math.nan] + [5.0] * 99))
    assert monitor.solved_at_s is None
    assert math.isnan(monitor.return_mean_100)


@pytest.mark.parametrize(("returns", "mean"), [([1e308] * 3, math.inf), ([math.inf, -math.inf], math.nan)])
def test_returns_that_explode_are_shown(returns, mean):
    monitor = see(Monitor(target_return=1.0), used(0, returns=returns))
    assert monitor.return_mean_100 == pytest.approx(mean, nan_ok=True)


def test_the_mean_follows_the_episodes():
    monitor = see(Monitor(), used(0, returns=[1.0]))
    assert monitor.return_mean_100 == 1.0
    assert see(monitor, used(1, returns=[3.0])).return_mean_100 == 2.0
    other = see(Monitor(), used(0, returns=[9.0]))
    assert other.return_mean_100 == 9.0
    other.restore(monitor.state())
    assert other.return_mean_100 == 2.0


def test_start_up_ends_when_the_first_firing_began():
    clock = Clock(100.0)
    monitor = Monitor(clock=clock)
    clock.now = 103.0
    assert (monitor.startup_s, monitor.steps_per_s) == (3.0, None)
    clock.now = 105.0
    see(monitor, Fired("rollout", 0, 1, 7.0, 8.5))
    clock.now = 110.0
    see(monitor, used(0, steps=13))
    assert (monitor.startup_s, monitor.elapsed_s, monitor.steps_per_s) == (3.5, 10.0, 2.0)


def test_a_run_may_have_begun_before_its_monitor():
    clock = Clock(10.0)
    monitor = Monitor(clock=clock, began_s=4.0)
    see(monitor, used(0))
    assert (monitor.elapsed_s, monitor.startup_s) == (6.0, 6.0)


def test_start_up_without_firings_ends_with_the_first_event():
    clock = Clock()
    monitor = Monitor(clock=clock)
    clock.now = 2.0
    see(monitor, used(0))
    assert monitor.startup_s == 2.0


def test_a_resumed_run_counts_on():
    clock = Clock()
    first = Monitor(target_return=4.0, clock=clock)
    clock.now = 1.0
    see(first, *[used(t, returns=[float(t % 10), math.nan if t == 0 else 1.0]) for t in range(120)])
    see(first, Reported(report(9)))
    clock.now = 21.0
    state = json.loads(json.dumps(first.state(), allow_nan=False))

    later = Clock(1000.0)
    second = Monitor(target_return=4.0, clock=later)
    second.restore(state)
    for name in ("env_steps", "updates", "episodes", "elapsed_s", "startup_s", "return_mean_100", "length_mean_100"):
        assert getattr(second, name) == pytest.approx(getattr(first, name), nan_ok=True), name
    later.now = 1002.0
    see(second, used(0, steps=5, returns=[3.0]))
    assert (second.env_steps, second.episodes) == (1205, 241)
    assert (second.elapsed_s, second.startup_s) == (23.0, 3.0)


def test_a_state_with_a_missing_number_comes_back_as_such():
    monitor = see(Monitor(), used(0, returns=[math.inf]))
    other = Monitor()
    other.restore(json.loads(json.dumps(monitor.state(), allow_nan=False)))
    assert math.isnan(other.return_mean_100)


def test_a_state_of_something_else_is_refused():
    with pytest.raises(ValueError, match=r"not the state of a Monitor: .*env_steps"):
        Monitor().restore({"steps": 3})


def of_policies(number, **returns):
    """An item with an episode of each policy."""
    episodes = tuple(Episode(value, 5, name) for name, value in returns.items())
    return Used("learn", (Header({}, "rollout", 0, number, 10, episodes),))


def test_the_return_that_ends_a_run_is_that_of_the_policies_that_learn():
    monitor = Monitor()
    monitor.ends_with(Until.parse("return=1"), learning=["ppo", "dqn"])
    see(monitor, *[of_policies(number, ppo=3.0, hand=-3.0) for number in range(150)])
    assert monitor.reached_return is None, "the other one that learns has no episodes yet"
    see(monitor, *[of_policies(number, ppo=3.0, dqn=2.0) for number in range(150, 249)])
    assert monitor.reached_return is None
    see(monitor, of_policies(249, dqn=2.0))
    assert monitor.reached_return == 2.0


def test_the_return_of_a_run_is_that_of_the_policies_that_learn():
    """Of others, such as a hand-written opponent, the return says nothing about learning."""
    monitor = Monitor()
    monitor.ends_with(Until.parse("steps=1_000_000"), learning=["ppo", "dqn"])
    assert monitor.return_mean_100 is None
    see(monitor, *[of_policies(number, ppo=3.0, hand=-9.0) for number in range(3)])
    assert (monitor.return_mean_100, monitor.length_mean_100) == (3.0, 5.0)
    see(monitor, of_policies(3, ppo=-1.0, dqn=2.5, hand=-9.0))
    assert monitor.return_mean_100 == 2.0
    see(monitor, *[of_policies(number, ppo=2.9, dqn=2.5, hand=-9.0) for number in range(4, 104)])
    assert monitor.return_mean_100 == 2.5
    assert monitor.returns.first_mean > 0.0


def test_it_is_the_lowest_of_all_policies_if_none_is_known_to_learn():
    monitor = Monitor()
    see(monitor, of_policies(0, ppo=3.0, hand=-9.0))
    assert monitor.return_mean_100 == -9.0


def test_it_is_the_same_after_a_resume():
    monitor, again = Monitor(), Monitor()
    for each in (monitor, again):
        each.ends_with(Until.parse("steps=1_000_000"), learning=["ppo"])
    see(monitor, *[of_policies(number, ppo=float(number), hand=-9.0) for number in range(5)])
    again.restore(monitor.state())
    assert again.return_mean_100 == monitor.return_mean_100 == 2.0
