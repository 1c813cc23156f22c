"""Several agents and their joint learner on a cluster, with two learners: the bits of one process."""

import pytest
from support.envs.multi import Shifts

from levada.algorithms.maddpg import MADDPG
from levada.rl.envs.agents.task import MultiAgentTask
from levada.run.storage.hashing import params_sha256
from levada.runners import Inline
from levada.runners.ray import Ray

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.usefixtures("cluster")


def learned(flow, on):
    with on.open(flow, seed=1) as run:
        for report in run:
            if report.firing == 6:
                return params_sha256(run.node_state("learn").weights())
    raise AssertionError


def test_maddpg():
    small = {"shards": 2, "num_envs": 2, "num_steps": 8, "hidden_sizes": (8,), "compile": False}
    hp = MADDPG(learning_starts=32, batch_size=16, buffer_size=512, samples_per_insert=2.0, microbatch_size=8, **small)
    flow = hp.flow(MultiAgentTask(Shifts, {f"agent_{k}": (f"agent_{k}",) for k in range(4)}))
    assert learned(flow, Ray(workers=2, learners=2, reduce="exact")) == learned(flow, Inline())
