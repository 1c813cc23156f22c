"""PPO and DQN in one environment, small."""

from __future__ import annotations

from support.envs.multi import CartPoles, Relay

from levada.algorithms.dqn import DQN
from levada.algorithms.multi_agent import multi_agent
from levada.algorithms.ppo import PPO
from levada.flow import Flow
from levada.rl.envs.agents.task import MultiAgentTask

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
