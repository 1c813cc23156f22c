"""The in-process transport: the same promises as with processes, without pickling."""

import threading

import pytest
from support.processes import samples

from levada.flow import DeploymentError, Flow, Queue
from levada.run.storage.hashing import params_sha256
from levada.runners import Inline
from levada.runners.processes import Processes
from levada.runners.threads import Threads


def learned(flow: Flow, on, num_updates: int = 6, state=None):
    with on.open(flow, seed=1, state=state) as run:
        for report in run:
            if report.firing == num_updates:
                return params_sha256(run.node_state("learn").weights()), run.save()
    raise AssertionError


@pytest.mark.parametrize("lag", [0, 1, 3])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_as_inline_bit_for_bit(lag, workers):
    assert learned(samples.small_ppo(lag), Threads(workers=workers))[0] == learned(samples.small_ppo(lag), Inline())[0]


@pytest.mark.parametrize("lag", [0, 2])
def test_a_run_moves_between_all_of_them(lag):
    flow = samples.small_ppo(lag)
    expected, _ = learned(flow, Inline(), 9)
    _, state = learned(flow, Threads(workers=2), 3)
    assert state.is_exact, state.unsaved
    _, state = learned(flow, Processes(workers=2), 6, state)
    assert state.is_exact, state.unsaved
    assert learned(flow, Threads(workers=2), 9, state)[0] == expected


def test_what_cannot_be_pickled_runs():
    flow = samples.counting_flow(lambda shard: samples.Numbers()(shard))
    with Threads(workers=2).open(flow, seed=1) as run:
        reports = iter(run)
        assert [next(reports).firing for _ in range(5)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("what", ["raise", "sys.exit"])
def test_a_lost_item_is_made_again(tmp_path, what):
    source = samples.Numbers(misbehave=samples.Once(str(tmp_path), what))
    with Threads(workers=2).open(samples.counting_flow(source), seed=1) as run:
        for report in run:
            if report.firing == 10:
                break
        [channel] = run.statistics().channels.values()
        learner = run.node_state("learn")
    assert channel.ledger.balanced
    assert channel.ledger.lost == 1
    for update, batch in enumerate(learner.batches):
        assert [row[0] for row in batch] == [0, 1, 2, 3]
        assert {row[2] for row in batch} == {update}


def test_the_users_error_comes_back_once_it_is_hopeless():
    source = samples.Numbers(misbehave=samples.Always("raise", firing=1))
    with pytest.raises(samples.StormError, match="storm") as caught:
        list(samples.counting_flow(source).run(on=Threads(workers=2, max_restarts=2)))
    assert caught.traceback[-1].name == "do_harm"


@pytest.mark.parametrize("queue", [
    Queue(max_lag=2, order="arrival"), Queue(max_lag=1, on_stale="drop"), Queue(max_lag=None, capacity=8),
], ids=str)  # fmt: skip
def test_lag_is_within_its_bound(queue):
    with Threads(workers=2).open(samples.counting_flow(samples.Numbers(), queue=queue), seed=1) as run:
        for report in run:
            if report.firing == 50:
                break
        [channel] = run.statistics().channels.values()
    assert channel.ledger.balanced
    assert queue.max_lag is None or channel.lag["policy"].max <= queue.max_lag


def test_no_thread_is_left_behind(monkeypatch):
    monkeypatch.setattr("levada.runners.threads.PATIENCE_S", 60.0)
    before = set(threading.enumerate())  # some, of other tests, may end meanwhile
    for _ in range(3):
        with Threads(workers=2).open(samples.counting_flow(samples.Numbers()), seed=1) as run:
            next(iter(run))
            assert len(set(threading.enumerate()) - before) == 2
    assert not set(threading.enumerate()) - before


def test_by_name():
    from levada.api import deployment

    assert deployment("threads") == Threads()
    assert deployment("threads:3") == Threads(workers=3)
    assert str(Threads(workers=3)) == "threads:3"
    with pytest.raises(DeploymentError, match="on='threads3'"):
        deployment("threads3")
    with pytest.raises(DeploymentError, match=r"workers=0.*expected an integer >= 1"):
        Threads(workers=0)
