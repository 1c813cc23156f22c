"""Small flows, and what they learn on a cluster."""

import os
import signal

from levada.algorithms.dqn import DQN
from levada.algorithms.impala import IMPALA
from levada.flow import Flow
from levada.rl.envs.task import Task
from levada.run.storage.hashing import params_sha256
from levada.runners.ray import Ray


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
