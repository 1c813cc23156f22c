"""An environment that raises: the same rule, the same count and the same result under every deployment."""

import bdb
import traceback
from typing import Any

import numpy as np
import pytest
from support.processes import samples

from levada.flow import Failed, Flow, Queue, RunState, Shard
from levada.run.monitor import Monitor
from levada.runners import Inline
from levada.runners.processes import Processes
from levada.runners.threads import Threads

PLACES = {
    "inline": Inline(),
    "adversary": Inline(adversary=1),
    "threads": Threads(workers=2),
    "processes": Processes(workers=2),
}


class Failures:
    def __init__(self) -> None:
        self.seen: list[Failed] = []

    def on_event(self, event: Any) -> None:
        if isinstance(event, Failed):
            self.seen.append(event)


def fragile(lag: int) -> Flow:
    flow = samples.counting_flow(samples.Fragile(), queue=Queue(max_lag=lag))
    object.__setattr__(flow.nodes["learn"], "work", samples.SavedCounting())
    return flow


def learned(
    flow: Flow, on: Any, update: int, state: RunState | None = None
) -> tuple[list[Any], RunState, Failures, int]:
    """What the learner was given up to an update, the state there, the failures, and the items lost."""
    failures, monitor = Failures(), Monitor()
    with on.open(flow, seed=1, instruments=[failures, monitor], state=state) as run:
        next(report for report in run if report.firing == update)
        batches, [channel] = run.node_state("learn").batches, run.statistics().channels.values()
        assert channel.ledger.balanced
        assert monitor.num_started_from_scratch == len(failures.seen)
        return batches, run.save(), failures, channel.ledger.lost


@pytest.mark.parametrize("lag", [0, 1, 2])
@pytest.mark.parametrize("place", list(PLACES)[1:])
def test_a_restart_does_to_the_result_inline_what_it_does_elsewhere(place: str, lag: int):
    batches, _, failures, num_lost = learned(fragile(lag), Inline(), 8)
    others, _, other_failures, other_lost = learned(fragile(lag), PLACES[place], 8)
    np.testing.assert_array_equal(others, batches)
    assert failures.seen == other_failures.seen == [Failed("numbers", 1, "StormError: storm", True)] * 2
    assert num_lost == other_lost == 2
    assert [batch[1][0] for batch in batches] == [0, 0, 1, 2, 2, 2, 2, 2]  # generations of shard 1
    assert [batch[1][1] for batch in batches] == [0, 0, 2, 3, 3, 3, 3, 3]  # and its items before each


@pytest.mark.parametrize("places", [("inline", "processes"), ("processes", "inline"), ("inline", "inline")])
@pytest.mark.parametrize("lag", [0, 1])
def test_a_run_with_a_restart_is_saved_and_resumed_exactly(places: tuple[str, str], lag: int):
    whole, *_ = learned(fragile(lag), Inline(), 8)
    before, after = (PLACES[place] for place in places)
    first, state, *_ = learned(fragile(lag), before, 5)
    assert state.is_exact, state.unsaved
    assert state.generations["numbers", 1] == 2
    rest, *_ = learned(fragile(lag), after, 8, state)
    np.testing.assert_array_equal([*first, *rest], whole)


def test_the_count_is_of_failures_in_a_row():
    """More failures than are allowed, but never that many without an item between them."""

    def now_and_then(shard: Shard, firing: int) -> None:
        if firing == 2:
            samples.do_harm("raise")

    flow = samples.counting_flow(samples.Numbers(misbehave=now_and_then), shards=1)
    *_, failures, num_lost = learned(flow, Inline(max_restarts=1), 6)
    assert len(failures.seen) == num_lost == 5


@pytest.mark.parametrize("max_restarts", [0, 2])
def test_too_many_in_a_row_end_the_run_with_the_users_traceback(max_restarts: int, caplog: pytest.LogCaptureFixture):
    failures = Failures()
    source = samples.Numbers(misbehave=samples.Always("raise", firing=1))
    with Inline(max_restarts=max_restarts).open(samples.counting_flow(source), instruments=[failures]) as run:
        with pytest.raises(samples.StormError, match="storm") as caught:
            run.step(until="report")
        assert len(failures.seen) == max_restarts
        assert [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)][-1] == "do_harm"
        assert len(caught.value.__notes__) == 1
        assert [record.message.rpartition("(")[2] for record in caplog.records] == [
            f"failure {number} of {max_restarts} in a row)" for number in range(1, max_restarts + 1)
        ]


def test_a_run_that_failed_can_go_on():
    weather = {"bad": True}

    def storm(shard: Shard, firing: int) -> None:
        if weather["bad"] and shard.index == 2:
            samples.do_harm("raise")

    flow = samples.counting_flow(samples.Numbers(misbehave=storm))
    with Inline(max_restarts=1).open(flow) as run:
        for _ in range(2):
            with pytest.raises(samples.StormError):
                run.step(until="report")
        weather["bad"] = False
        assert run.step(until="report").number == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, bdb.BdbQuit])
def test_whoever_interrupts_is_not_an_environment_that_fails(error: type[BaseException]):
    """Ctrl-C, and `q` in a debugger: at once, and the step is tried again if the run goes on."""
    interrupted: list[int] = []

    def interrupt(shard: Shard, firing: int) -> None:
        if not interrupted:
            interrupted.append(firing)
            raise error

    failures = Failures()
    flow = samples.counting_flow(samples.Numbers(misbehave=interrupt))
    with Inline().open(flow, instruments=[failures]) as run:
        with pytest.raises(error):
            run.step()
        assert run.step(until="report").number == 1
        [channel] = run.statistics().channels.values()
        assert channel.ledger.lost == 0
    assert not failures.seen


def test_an_environment_that_cannot_be_opened_ends_the_run_at_once():
    def factory(shard: Shard) -> Any:
        if shard.generation == 1:
            raise OSError("no licence")
        return samples.Numbers(misbehave=samples.Always("raise", shard=0, firing=1))(shard)

    with Inline().open(samples.counting_flow(factory)) as run, pytest.raises(OSError, match="no licence") as caught:
        run.step()
    assert caught.value.__notes__ == ["while opening node 'numbers' of flow 'counting', shard 0"]


def test_closing_that_fails_too_is_noted():
    class Stuck(samples.LiveNumbers):
        def close(self) -> None:
            msg = "the door does not open"
            raise OSError(msg)

    def factory(shard: Shard) -> Any:
        return Stuck(samples.Numbers(misbehave=samples.Always("raise", shard=0, firing=1)), shard)

    run = Inline(max_restarts=0).open(samples.counting_flow(factory, shards=1))
    with pytest.raises(samples.StormError) as caught:
        run.step()
    assert caught.value.__notes__[1] == "closing the work of the shard failed too: OSError('the door does not open')"
    with pytest.raises(OSError, match="door"):
        run.close()


def test_the_number_is_an_option():
    assert Inline.parse(",max_restarts=0") == Inline(max_restarts=0)
    assert [str(Inline.parse("")), str(Inline.parse(",threads=2"))] == ["inline", "inline,threads=2"]
    assert str(Inline(max_restarts=5)) == "inline,max_restarts=5"
    with pytest.raises(ValueError, match=r"max_restarts=-1.*expected an integer >= 0"):
        Inline(max_restarts=-1)
