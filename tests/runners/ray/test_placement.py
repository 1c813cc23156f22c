"""Where the actors of a run are placed, and what is said if they cannot be."""

import os
import signal
import time

import pytest
from support.processes import samples
from support.ray.runs import learned, small_dqn, small_impala

from levada.algorithms.impala import IMPALA
from levada.flow import DeploymentError
from levada.rl.envs.task import Task
from levada.run.storage.hashing import params_sha256
from levada.runners import Inline
from levada.runners.ray import Ray

ray = pytest.importorskip("ray")

pytestmark = pytest.mark.usefixtures("cluster")


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
    flow = samples.counting_flow(samples.Numbers())
    learn = {"num_cpus": 2, "pool": "cheap", "memory": 1 << 20, "accelerator_type": "T4"}
    place = {"numbers": {"pool": "cheap", "memory": 1 << 20}, "learn": learn}
    with Ray(workers=1, place=place).open(flow, seed=1) as run:
        assert next(iter(run)).node == "learn"


def test_more_threads_than_a_node_can_use():
    with pytest.raises(
        DeploymentError, match=r"Ray: threads=25: expected at most 24, 4 for each of the 6 cores of the"
    ):
        Ray(threads=25).open(samples.small_ppo(0))


def test_labels_that_no_node_has():
    with pytest.raises(
        DeploymentError, match=r"no room for 1 learner with 1 CPU each on nodes with pool=gpus within 1 s"
    ):
        Ray(workers=1, place={"learn": {"pool": "gpus"}}, start_timeout_s=1.0).open(samples.small_ppo(0))


def test_a_pair_that_no_node_has_room_for():
    flow = samples.small_ppo(0, microbatch_size=16)
    on = Ray(workers=1, learners="beside", place={"rollout": {"num_cpus": 9}})
    with pytest.raises(DeploymentError, match=r"no room for 1 worker and 1 learner with 10 CPU per pair; it has"):
        on.open(flow)


def test_a_label_that_ray_refuses():
    with pytest.raises(DeploymentError, match=r"Ray refuses what place asks for the learners: .*Invalid label key"):
        Ray(workers=1, place={"learn": {"no space": "a"}}).open(samples.small_ppo(0))


def test_a_place_for_a_node_that_has_none():
    with pytest.raises(
        DeploymentError, match=r"place names 'gae', which .* \(edge rollout -> gae\); expected rollout or learn"
    ):
        Ray(place={"gae": {"num_cpus": 2}}).open(samples.small_ppo(0))


def test_more_workers_than_the_cluster_has_room_for(monkeypatch):
    """Nothing is waited for: this cluster does not grow."""
    from ray.util.placement_group import PlacementGroup  # imports Ray

    deadline_s = time.monotonic() + 120.0
    while ray.available_resources().get("CPU") != 6.0 and time.monotonic() < deadline_s:  # as runs before leave it
        time.sleep(0.1)
    waits, wait = [], PlacementGroup.wait
    monkeypatch.setattr(PlacementGroup, "wait", lambda self, seconds: (waits.append(seconds), wait(self, seconds))[1])
    with pytest.raises(
        DeploymentError, match=r"no room for 4 workers with 3 CPU each; it has 6 CPU, of which 6 CPU are free"
    ):
        Ray(workers=4, place={"rollout": {"num_cpus": 3}}).open(samples.small_ppo(0))
    assert waits == [0.0]


def test_more_learners_than_there_are_microbatches():
    with pytest.raises(
        DeploymentError, match=r"learners=9 share the microbatches .* node 'learn' has 1; set microbatch_"
    ):
        Ray(learners=9, address="127.0.0.1:1").open(samples.small_ppo(0))


def test_an_actor_that_cannot_start():
    """The node has no such interpreter. Tests of this module that come later would wait: Ray tries it for a minute."""
    place = {"learn": {"runtime_env": {"py_executable": "/no/python"}}}
    with pytest.raises(DeploymentError, match=r"a learner has not begun: it did not start within 2 s"):
        Ray(workers=1, place=place, start_timeout_s=2.0).open(samples.small_ppo(0))
