"""PPO and DQN in one environment, small."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from support.envs.multi import CartPoles, Relay

from levada.algorithms.dqn import DQN
from levada.algorithms.multi_agent import multi_agent
from levada.algorithms.ppo import PPO
from levada.flow import Event, Flow, LearnerStopped
from levada.rl.envs.agents.task import MultiAgentTask
from levada.run.storage.hashing import params_sha256

SMALL = {"hidden_sizes": (16,), "compile": False}
PPO_SMALL = PPO(shards=2, num_envs=4, num_steps=8, minibatch_size=32, **SMALL)
DQN_SMALL = DQN(
    shards=2, num_envs=4, num_steps=8, learning_starts=64, batch_size=16, buffer_size=512, samples_per_insert=2.0,
    target_update_interval=3, **SMALL,
)  # fmt: skip
CARTPOLES = MultiAgentTask(CartPoles, policies={"ppo": ("agent_0", "agent_1"), "dqn": ("agent_2", "agent_3")})
RELAY = MultiAgentTask(Relay, policies={"ppo": ("agent_0", "agent_2"), "dqn": ("agent_1",)})


def two_trainers(task: MultiAgentTask = CARTPOLES) -> Flow:
    dqn = DQN_SMALL if task is CARTPOLES else DQN(**{**vars(DQN_SMALL), "num_envs": 2})
    return multi_agent(task, {"ppo": PPO_SMALL, "dqn": dqn})


def isolated(**learning_rates: float) -> Flow:
    """Both, isolated from one another, with minibatches in two parts. A learning rate of 1e38 lets the first update fail."""
    parts = {"ppo": replace(PPO_SMALL, microbatch_size=16), "dqn": replace(DQN_SMALL, microbatch_size=8)}
    for name, rate in learning_rates.items():
        parts[name] = replace(parts[name], learning_rate=rate)
    return multi_agent(CARTPOLES, parts, on_failure="isolate")


class KillsAtStop:
    """Kills a process as soon as a learner has stopped."""

    def __init__(self) -> None:
        self.pid: int | None = None
        """The process."""

    def on_event(self, event: Event) -> None:
        if isinstance(event, LearnerStopped) and self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)


def learned_by_each(
    flow: Flow, on: Any, num_updates: int = 6, *, of: Collection[str] = ("ppo", "dqn"), kill_after: int | None = None,
    kills: KillsAtStop | None = None,
) -> tuple[dict[str, str], Any, Any]:  # fmt: skip
    """Return the hash of each policy's weights after as many updates, the saved run and its statistics.

    Args:
        flow: the flow to run.
        on: the deployment.
        num_updates: updates of each of them.
        of: the policies.
        kill_after: number of the firing after which a worker is killed.
        kills: kills a worker when a learner has stopped.
    """
    weights: dict[str, str] = {}
    with on.open(flow, seed=1, instruments=[kills] if kills else []) as run:
        if kills is not None:
            kills.pid = run.worker_pids[0]
        for report in run:
            if report.firing == kill_after:
                os.kill(run.worker_pids[0], signal.SIGKILL)
            name = report.node.partition("/")[0]
            if report.firing >= num_updates and name in of and name not in weights:
                weights[name] = params_sha256(run.node_state(f"{name}/learn").weights())
            if weights.keys() == set(of):
                return weights, run.save(replays=True), run.statistics()
    raise AssertionError
