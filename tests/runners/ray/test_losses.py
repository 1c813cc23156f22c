"""Actors that are killed, end or hang in a run on a cluster: nothing is lost, and what was is made again."""

import gc
import os
import signal
import time

import numpy as np
import pytest
from support.processes import samples
from support.ray.runs import learned, small_dqn, small_impala

from levada.algorithms.ppo import PPO
from levada.rl.envs.task import Task
from levada.run.storage.hashing import params_sha256
from levada.runners import Inline
from levada.runners.ray import Ray
from levada.runners.workers import WorkerError

ray = pytest.importorskip("ray")

pytestmark = pytest.mark.usefixtures("cluster")


def test_a_killed_learner_is_replaced():
    """Four learners, of which one is killed, give the bits of inline. For one, and for two without a loss, see other tests."""
    flow = small_impala()
    with Ray(workers=1, learners=4, reduce="exact").open(flow, seed=1) as run:
        for report in run:
            if report.firing == 6:
                found = params_sha256(run.node_state("learn").weights())
                break
            if report.firing == 2:
                os.kill(run.learner_place.pids[1], signal.SIGKILL)
    assert found == learned(flow, Inline())[0]


def test_a_table_whose_actor_is_killed_is_refilled():
    """Twice. Before the first draw, the calls that bring items meet the end of the actor first."""
    lost = []
    with Ray(workers=1, max_restarts=1).open(small_dqn(), seed=1) as run:
        while not run.statistics().replays["replay"].fill:
            run._turn()
        os.kill(run.table_place.pids[0], signal.SIGKILL)
        for report in run:
            if report.firing == 3:
                lost.append(run.statistics().replays["replay"].lost)
                os.kill(run.table_place.pids[0], signal.SIGKILL)
            if report.firing == 6:
                break
        [replay] = run.statistics().replays.values()
    assert 0 < lost[0] < replay.lost
    assert replay.ledger.balanced


def test_a_table_and_the_worker_of_items_that_wait_for_it_are_killed_at_once():
    """The table holds what the schedule counts, although these items can no longer be had."""
    with Ray(workers=1).open(small_dqn(), seed=1) as run:
        machine = run._hub.replays["replay"]
        while not (run._ready and run._ready[0].draw and list(machine.waiting())):
            run._turn()
        for pid in (run.table_place.pids[0], run.worker_pids[0]):
            os.kill(pid, signal.SIGKILL)
        time.sleep(1.5)
        num_updates = run._hub.versions["policy"]
        while run._hub.versions["policy"] < num_updates + 3:
            run._turn()
        while run._under_way:
            run._listen()
        [table] = run._tables.of("replay")
        assert len(table.state_dict()["rows/reward"]) == machine.num_entries
        assert machine.statistics().ledger.balanced


def test_items_that_are_lost_before_they_are_inserted_are_not_kept():
    from levada.runners.ray.refs import RemoteValue  # imports Ray

    with Ray(workers=1).open(small_dqn(), seed=1) as run:
        replay = run.table_place.replays["replay"]
        items = [replay.numbered(RemoteValue(ray.put(number))) for number in range(3)]
        ray.get(replay.hold({item.number: item.sent for item in items}))
        lost = items.pop().number
        ray.get(replay.hold({}))
        assert list(replay._waiting) == [item.number for item in items]
        assert lost not in replay._waiting


def test_a_lost_item_is_made_again(tmp_path):
    source = samples.Numbers(misbehave=samples.Once(str(tmp_path), "kill"))
    with Ray(workers=2).open(samples.counting_flow(source), seed=1) as run:
        for report in run:
            if report.firing == 10:
                break
        [channel] = run.statistics().channels.values()
        batches = run.node_state("learn").batches
    assert channel.ledger.balanced
    assert channel.ledger.lost in (1, 2)  # one per shard of the actor that had a ticket
    for update, batch in enumerate(batches):
        assert [row[0] for row in batch] == [0, 1, 2, 3]
        assert {row[2] for row in batch} == {update}


def test_a_node_in_the_main_process_behind_a_queue_goes_back_with_its_items():
    """Items are large enough for objects of their own; what is used is forgotten."""
    num_before = num_references()
    with Ray(workers=2).open(samples.watched_flow(samples.Remembered(size=100_000)), seed=1) as run:
        for report in run:
            if report.node == "learn" and report.firing == 3:
                os.kill(run.worker_pids[-1], signal.SIGKILL)
            if report.node == "learn" and report.firing == 12:
                break
        batches = run.node_state("learn").batches
        num_during = num_references() - num_before
    for update, batch in enumerate(batches):
        assert [item.item()["shard"] for item in batch] == [0, 1, 2, 3]
        assert {item.item()["version"] for item in batch} == {update}
    assert num_during < 24  # of 48 items


def num_references() -> int:
    """Number of objects that this process refers to."""
    gc.collect()  # a run that is over refers to itself
    return len(ray._private.worker.global_worker.core_worker.get_all_reference_counts())


def test_an_actor_whose_work_is_interrupted_is_replaced(tmp_path):
    """What is no Exception ends the worker, as it ends a process."""
    source = samples.Numbers(misbehave=samples.Once(str(tmp_path), "interrupt"))
    with Ray(workers=1).open(samples.counting_flow(source), seed=1) as run:
        for report in run:
            if report.firing == 6:
                break
        [channel] = run.statistics().channels.values()
    assert channel.ledger.balanced
    assert channel.ledger.lost > 0


def test_an_actor_whose_work_is_always_interrupted_ends_the_run():
    source = samples.Numbers(misbehave=samples.interrupt)
    with (
        Ray(workers=1, max_restarts=1).open(samples.counting_flow(source), seed=1) as run,
        pytest.raises(
            WorkerError, match=r"ended 2 times in a row.*the work of the shards ended by KeyboardInterrupt: why"
        ),
    ):
        next(iter(run))


def test_weights_of_a_lost_node_come_from_the_copy_on_another(monkeypatch):
    """Weights of two learners: each of their nodes holds them."""
    from levada.runners.ray import refs

    flow = PPO(
        shards=2, num_envs=1, num_steps=16, minibatch_size=32, microbatch_size=16, hidden_sizes=(512, 512), compile=False
    ).flow(Task("CartPole-v1"))  # fmt: skip
    with Ray(workers=1, learners=2).open(flow, seed=1) as run:
        next(iter(run))
        [weights] = [w for w in run._weights["weights"].values() if isinstance(w, refs.RemoteValue)]
        expected = refs.fetched(weights)
        get = ray.get

        def lost(ref):
            if ref in (weights.ref, [weights.ref]):
                raise ray.exceptions.ObjectLostError(weights.ref.hex(), None, "")
            return get(ref)

        monkeypatch.setattr(refs.ray, "get", lost)
        found = refs.fetched(weights)
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[name], expected[name]) for name in expected)
        with pytest.raises(ray.exceptions.ObjectLostError):
            refs.fetched(refs.RemoteValue(weights.ref))


def test_an_actor_that_hangs_is_replaced(tmp_path):
    source = samples.Numbers(misbehave=samples.Once(str(tmp_path), "sleep"))
    with Ray(workers=1, hang_timeout_s=8.0).open(samples.counting_flow(source), seed=1) as run:
        for report in run:
            if report.firing == 10:
                break
        [channel] = run.statistics().channels.values()
    assert channel.ledger.balanced
    assert 1 <= channel.ledger.lost <= 4
