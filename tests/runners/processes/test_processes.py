"""Flows on several processes: the same bits as inline, whatever the timing; what a lost worker does; what is left behind."""

import gc
import os
import signal
from pathlib import Path

import pytest
from support.processes import samples
from support.processes.main_process import MainProcess, is_alive

from levada.flow import DeploymentError, Flow, Queue
from levada.run.storage.hashing import params_sha256
from levada.runners import Inline, WorkerError
from levada.runners.processes import Processes
from levada.runners.processes.ipc.wire import Wire

NUM_UPDATES = 30


def learned(flow: Flow, on, num_updates: int = NUM_UPDATES) -> str:
    """Fingerprint of the parameters after some updates."""
    with on.open(flow, seed=1) as run:
        for report in run:
            if report.firing == num_updates:
                return params_sha256(run.node_state("learn").weights())
    raise AssertionError


@pytest.fixture(scope="module")
def inline() -> dict[int, str]:
    return {lag: learned(samples.small_ppo(lag), Inline()) for lag in (0, 1, 3)}


@pytest.mark.parametrize("lag", [0, 1, 3])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_as_inline_bit_for_bit(inline, lag, workers):
    assert learned(samples.small_ppo(lag), Processes(workers=workers)) == inline[lag]


@pytest.mark.parametrize("lag", [0, 1, 3])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_no_delay_changes_a_bit(inline, lag, workers, monkeypatch):
    """Environments, learner, functions at the shard and messages both ways are delayed by up to 5 ms, at random."""
    flow = samples.small_ppo(lag)
    for name in ("rollout", "gae", "learn"):
        node = flow.nodes[name]
        object.__setattr__(node, "work", samples.Delayed(node.work, most_s=0.005))
    rollout = flow.nodes["rollout"]
    object.__setattr__(rollout, "work", samples.DelayedMessages(rollout.work))
    monkeypatch.setattr(Wire, "post", Wire.post)  # put back afterwards
    samples.delay_messages(Wire, "post")
    assert learned(flow, Processes(workers=workers)) == inline[lag]


# ---- what gets lost


def counted(flow: Flow, num_updates: int, **options):
    """The live learner after some updates, and the statistics."""
    with Processes(**options).open(flow, seed=1) as run:
        for report in run:
            if report.firing == num_updates:
                return run.node_state("learn"), run.statistics()
    raise AssertionError


@pytest.mark.parametrize("what", ["raise", "kill", "exit", "sys.exit"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_lost_item_is_made_again_and_the_ledger_names_it(tmp_path, what, workers):
    source = samples.Numbers(misbehave=samples.Once(str(tmp_path), what))
    learner, statistics = counted(samples.counting_flow(source), 10, workers=workers)
    assert Path(tmp_path, what).exists()
    ledger = statistics.channels["numbers->batch"].ledger
    assert ledger.balanced
    assert ledger.lost >= 1
    if what == "raise":
        assert ledger.lost == 1
    assert ledger.consumed >= 40
    for update, batch in enumerate(learner.batches):
        assert [row[0] for row in batch] == [0, 1, 2, 3]  # in ticket order all the same
        assert {row[2] for row in batch} == {update}  # with the version that their ticket named


def test_a_worker_that_hangs_is_replaced(tmp_path):
    source = samples.Numbers(misbehave=samples.Once(str(tmp_path), "sleep"))
    learner, statistics = counted(samples.counting_flow(source), 10, workers=2, hang_timeout_s=4.0)
    assert statistics.channels["numbers->batch"].ledger.lost >= 1
    assert statistics.channels["numbers->batch"].ledger.balanced
    assert [row[0] for row in learner.batches[9]] == [0, 1, 2, 3]


def test_workers_that_hang_again_and_again_end_the_run():
    source = samples.Numbers(misbehave=samples.Always("sleep", firing=1))
    with pytest.raises(WorkerError, match=r"ended 2 times in a row, now after 0.5 s without a sign of life"):
        counted(samples.counting_flow(source), 10, workers=2, max_restarts=1, hang_timeout_s=0.5)


def test_the_users_error_comes_back_with_traceback_and_note_once_it_is_hopeless():
    source = samples.Numbers(misbehave=samples.Always("raise", firing=1))
    with pytest.raises(samples.StormError, match="storm") as caught:
        counted(samples.counting_flow(source), 10, workers=2, max_restarts=2)
    assert caught.traceback[-1].name == "do_harm"
    assert caught.value.__notes__ == [
        "in node 'numbers' of flow 'counting' (numbers, shard 1, firing 3, ticket 1); versions: policy 0"
    ]


def test_workers_that_are_killed_again_and_again_end_the_run():
    source = samples.Numbers(misbehave=samples.Always("kill", firing=1))
    with pytest.raises(WorkerError, match=r"numbers 1.*ended 3 times in a row, now by SIGKILL"):
        counted(samples.counting_flow(source), 10, workers=2, max_restarts=2)


@pytest.mark.parametrize("queue", [
    Queue(max_lag=0),
    Queue(max_lag=1),
    Queue(max_lag=2, order="arrival"),
    Queue(max_lag=1, on_stale="drop"),
    Queue(max_lag=None, capacity=8),
], ids=str)  # fmt: skip
def test_lag_is_within_its_bound_and_the_ledger_balances(queue):
    _, statistics = counted(samples.counting_flow(samples.Numbers(), queue=queue), 50, workers=2)
    [channel] = statistics.channels.values()
    assert channel.ledger.balanced
    lag = channel.lag["policy"]
    assert lag.bound is None or lag.max <= lag.bound
    assert lag.bound == queue.max_lag
    if queue == Queue(max_lag=1):
        assert lag.mean == pytest.approx(1 - 4 / lag.count)  # exactly 1 but for the first round


# ---- arrays


def test_items_that_grow_move_to_larger_slots():
    """The first slots are far too small for the later items."""
    flow = samples.counting_flow(samples.Growing(), shards=2)
    learner, _ = counted(flow, 4, workers=2)
    assert [batch[0].size for batch in learner.batches[:4]] == list(samples.SIZES)
    assert all(batch[0][0] == batch[0][-1] == n for n, batch in enumerate(learner.batches))


# ---- what is left behind


def test_nothing_is_left_behind():
    counted(samples.counting_flow(samples.Numbers()), 5, workers=2)  # starts the fork server, which stays
    gc.collect()  # what earlier tests left to it
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        with Processes(workers=2).open(samples.counting_flow(samples.Numbers()), seed=1) as run:
            pids = run.worker_pids
            next(iter(run))
        assert not any(map(is_alive, pids))
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= len(before)


MAIN = """
from support.processes import samples
from levada.runners.processes import Processes

if __name__ == "__main__":
    run = Processes(workers=2).open(samples.counting_flow(samples.Numbers(misbehave={misbehave})), seed=1)
    reports = iter(run)
    next(reports)
    print(*run.worker_pids, flush=True)
    while True:
        next(reports)
"""


@pytest.mark.parametrize("misbehave", ["None", "samples.Always('sleep', shard=1, firing=2)"], ids=["busy", "stuck"])
def test_workers_end_when_the_main_process_is_killed(tmp_path, misbehave):
    main = MainProcess(MAIN.format(misbehave=misbehave), tmp_path)
    assert len(main.children) == 2
    assert all(map(is_alive, main.children))
    main.end(signal.SIGKILL)


@pytest.mark.parametrize("options", [{"workers": 0}, {"workers": 1.5}, {"threads": "2"}, {"max_restarts": -1}])
def test_a_deployment_that_cannot_be(options):
    with pytest.raises(DeploymentError, match="expected an integer >= "):
        Processes(**options)
