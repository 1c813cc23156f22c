"""One graph, six deployments: the same flow hash, and in admission order the same parameters, also when a worker is killed."""

import os
import signal
from functools import cache

import pytest
from support.ray.cluster import one_node

from levada.algorithms.dqn import DQN
from levada.algorithms.impala import IMPALA
from levada.algorithms.ppo import PPO
from levada.flow import Flow
from levada.rl.envs.task import Task
from levada.run.storage.hashing import params_sha256
from levada.runners import Inline
from levada.runners.processes import Processes
from levada.runners.ray import Ray

ray = pytest.importorskip("ray")

SMALL = {"shards": 4, "num_envs": 2, "num_steps": 8, "hidden_sizes": (16,), "compile": False}
ALGORITHMS = {
    "ppo": PPO(minibatch_size=32, max_lag=1, **SMALL),
    "dqn": DQN(learning_starts=64, batch_size=16, buffer_size=512, **SMALL),
    "impala": IMPALA(num_rollouts=4, max_lag=3, order="admission", **SMALL),
}
DEPLOYMENTS = [
    Processes(workers=1),
    Processes(workers=2),
    Processes(workers=2, inference="worker"),
    Processes(workers=2, inference="learner"),
    Ray(workers=2),
]
NUM_UPDATES = 10


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """One node, which all runs of this module join."""
    with one_node(num_cpus=2):
        yield


def flow(name: str) -> Flow:
    return ALGORITHMS[name].flow(Task("CartPole-v1"))


def learned(name: str, on, kill_after: int | None = None) -> tuple[str, str]:
    with on.open(flow(name), seed=1) as run:
        for report in run:
            if report.firing == kill_after:
                os.kill(run.worker_pids[-1], signal.SIGKILL)
            if report.firing == NUM_UPDATES:
                assert all(channel.ledger.balanced for channel in run.statistics().channels.values())
                return run.flow.hash(), params_sha256(run.node_state("learn").weights())
    raise AssertionError


@cache
def expected(name: str) -> tuple[str, str]:
    return learned(name, Inline())


@pytest.mark.parametrize("kill_after", [None, 4], ids=["", "killed"])
@pytest.mark.parametrize("on", DEPLOYMENTS, ids=str)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_same_flow_and_parameters_as_inline(name, on, kill_after):
    assert learned(name, on, kill_after) == expected(name)
