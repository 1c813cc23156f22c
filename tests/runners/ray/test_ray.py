"""The same flow on a Ray cluster: the same bits as inline, also when actors are killed, and errors that say what is wrong."""

import gc
import os
import signal
import subprocess
import sys
import time

import pytest
from support.processes import samples
from support.ray.cluster import one_node

from levada.algorithms.dqn import DQN
from levada.algorithms.impala import IMPALA
from levada.flow import DeploymentError, Flow, Queue
from levada.rl.envs.task import Task
from levada.run.storage.hashing import params_sha256
from levada.runners import Inline
from levada.runners.processes import Processes
from levada.runners.ray import Ray

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """One node with room for six actors, which all runs of this module join."""
    with one_node(num_cpus=6, labels={"pool": "cheap"}, resources={"accelerator_type:T4": 1}):
        yield


def small_dqn() -> Flow:
    return DQN(
        shards=2,
        num_envs=2,
        num_steps=8,
        hidden_sizes=(16,),
        learning_starts=64,
        batch_size=16,
        buffer_size=512,
        compile=False,
    ).flow(Task("CartPole-v1"))


def small_impala() -> Flow:
    hp = IMPALA(
        shards=4,
        num_envs=2,
        num_steps=8,
        num_rollouts=4,
        microbatch_size=16,
        max_lag=3,
        order="admission",
        compile=False,
    )
    return hp.flow(Task("CartPole-v1"))


def learned(flow: Flow, on, num_updates: int = 6, state=None, kill_after: int | None = None):
    with on.open(flow, seed=1, state=state) as run:
        for report in run:
            if report.firing == kill_after:
                os.kill(run.worker_pids[-1], signal.SIGKILL)
            if report.firing == num_updates:
                if isinstance(on, Ray):
                    assert run.transport.num_bytes_received == 0  # of rollouts
                return params_sha256(run.node_state("learn").weights()), run.save(), run.statistics()
    raise AssertionError


def test_on_policy_as_inline_bit_for_bit():
    """For other algorithms, see test_six_deployments.py."""
    flow = samples.small_ppo(0)
    found, _, statistics = learned(flow, Ray(workers=2), kill_after=2)
    assert found == learned(flow, Inline())[0]
    assert all(channel.ledger.balanced for channel in statistics.channels.values())


def test_four_learners_give_the_same_bits():
    """For one, see the other tests; for two, the next."""
    flow = small_impala()
    found, _, _ = learned(flow, Ray(workers=1, learners=4, reduce="exact"))
    assert found == learned(flow, Inline())[0]


def test_killed_learners_are_replaced():
    flow = small_impala()
    with Ray(workers=1, learners=2, reduce="exact").open(flow, seed=1) as run:
        for report in run:
            if report.firing == 6:
                found = params_sha256(run.node_state("learn").weights())
                break
            if report.firing in (2, 3):
                os.kill(run.learner_place.pids[report.firing % 2], signal.SIGKILL)
    assert found == learned(flow, Inline())[0]


@pytest.mark.parametrize("after", [0, 3])
def test_a_table_whose_actor_is_killed_is_refilled(after: int):
    """Before the first draw, the calls that bring items meet the end of the actor first."""
    with Ray(workers=2, max_restarts=1).open(small_dqn(), seed=1) as run:
        if not after:
            while not run.statistics().replays["replay"].fill:
                run._turn()
            os.kill(run.table_place.pids[0], signal.SIGKILL)
        for report in run:
            if report.firing == after:
                os.kill(run.table_place.pids[0], signal.SIGKILL)
            if report.firing == 6:
                break
        [replay] = run.statistics().replays.values()
    assert replay.lost > 0
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


def test_learners_beside_the_samplers():
    """DD-PPO: a worker and a learner in each bundle; both are killed once."""
    flow = samples.small_ppo(0, microbatch_size=16)
    with Ray(workers=2, learners="beside", reduce="exact").open(flow, seed=1) as run:
        assert (len(run.worker_pids), len(run.learner_place.pids)) == (2, 2)
        for report in run:
            if report.firing == 2:
                os.kill(run.worker_pids[1], signal.SIGKILL)
            if report.firing == 4:
                os.kill(run.learner_place.pids[1], signal.SIGKILL)
            if report.firing == 6:
                found = params_sha256(run.node_state("learn").weights())
                break
    assert found == learned(flow, Inline())[0]


@pytest.mark.parametrize(
    ("flow", "words"),
    [
        (samples.small_ppo(0), r"node 'learn' has 1 per minibatch, and 'rollout' has shards=4\. Set microbatch_size"),
        (small_dqn(), r"from one source by one queue; flow 'dqn' has 1 sources, 0 queues and 1 replays"),
        (
            IMPALA(shards=2, num_rollouts=2).flow(Task("CartPole-v1")),
            r"expected order='admission' .* 'rollout->batch'",
        ),
        (IMPALA(shards=2, order="admission").flow(Task("CartPole-v1")), r"an update takes 1 items from the 2 shards"),
        (small_impala(), r"node 'sequences' lies between the batch and the learner 'learn', and gets the whole batch"),
    ],
)
def test_learners_cannot_be_beside_all_samplers(flow, words):
    with pytest.raises(DeploymentError, match=words):
        Ray(workers=2, learners="beside").open(flow)


def test_requirements_that_a_node_meets():
    flow = samples.small_ppo(0)
    learn = {"num_cpus": 2, "pool": "cheap", "memory": 1 << 20, "accelerator_type": "T4"}
    place = {"rollout": {"pool": "cheap", "memory": 1 << 20}, "learn": learn}
    assert learned(flow, Ray(workers=1, place=place))[0] == learned(flow, Inline())[0]


def test_more_threads_than_a_node_can_use():
    with pytest.raises(
        DeploymentError, match=r"Ray: threads=25: expected at most 24, 4 for each of the 6 cores of the"
    ):
        Ray(threads=25).open(samples.small_ppo(0))


def test_labels_that_no_node_has():
    with pytest.raises(
        DeploymentError, match=r"no room for 1 learners with 1 CPU each on nodes with pool=gpus within 1 s"
    ):
        Ray(workers=1, place={"learn": {"pool": "gpus"}}, start_timeout_s=1.0).open(samples.small_ppo(0))


def test_a_place_for_a_node_that_has_none():
    with pytest.raises(
        DeploymentError, match=r"place names 'gae', which .* \(edge rollout -> gae\); expected rollout or learn"
    ):
        Ray(place={"gae": {"num_cpus": 2}}).open(samples.small_ppo(0))


def test_a_run_moves_between_deployments():
    flow = samples.small_ppo(2)
    _, state, _ = learned(flow, Ray(workers=1), 3)
    assert state.is_exact, state.unsaved
    _, state, _ = learned(flow, Processes(workers=2), 6, state)
    assert learned(flow, Ray(workers=2), 9, state)[0] == learned(flow, Inline(), 9)[0]


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


def test_the_users_error_comes_back_with_its_traceback():
    source = samples.Numbers(misbehave=samples.Always("raise", firing=1))
    with pytest.raises(samples.StormError, match="storm") as caught:
        list(samples.counting_flow(source).run(on=Ray(workers=1, max_restarts=2)))
    assert caught.traceback[-1].name == "do_harm"


def test_lag_is_within_its_bound_in_arrival_order():
    queue = Queue(max_lag=2, order="arrival")
    with Ray(workers=2).open(samples.counting_flow(samples.Numbers(), queue=queue), seed=1) as run:
        for report in run:
            if report.firing == 50:
                break
        [channel] = run.statistics().channels.values()
    assert channel.ledger.balanced
    assert channel.lag["policy"].max <= 2


def test_more_workers_than_the_cluster_has_room_for():
    began_s = time.monotonic()
    with pytest.raises(
        DeploymentError,
        match=r"no room for 4 workers with 3 CPU each within 1 s; it has 6 CPU, of which 6 CPU are free",
    ):
        Ray(workers=4, place={"rollout": {"num_cpus": 3}}, start_timeout_s=1.0).open(samples.small_ppo(0))
    assert time.monotonic() - began_s < 20.0


def test_nothing_is_left_in_the_cluster():
    learned(samples.small_ppo(0), Ray(workers=2), 2)
    deadline_s = time.monotonic() + 30.0
    while ray.available_resources().get("CPU") != 6.0 and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert ray.available_resources()["CPU"] == 6.0


def test_an_actor_that_hangs_is_replaced(tmp_path):
    source = samples.Numbers(misbehave=samples.Once(str(tmp_path), "sleep"))
    with Ray(workers=1, hang_timeout_s=3.0).open(samples.counting_flow(source), seed=1) as run:
        for report in run:
            if report.firing == 10:
                break
        [channel] = run.statistics().channels.values()
    assert channel.ledger.balanced
    assert 1 <= channel.ledger.lost <= 4


PROGRAM = """
import signal
from support.processes import samples
from levada.runners.ray import Ray

before = signal.getsignal(signal.SIGTERM)
with Ray(workers=1).open(samples.small_ppo(0), seed=1) as run:
    next(iter(run))
    assert signal.getsignal(signal.SIGTERM) is before
"""


def test_a_cluster_that_is_started_for_a_run_leaves_signals_alone():
    """A run that is ended by SIGTERM saves itself first; Ray would exit."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True, timeout=120)
