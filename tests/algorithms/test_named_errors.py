"""An error of spaces, settings, observations or networks names the policy it is of, where several act in one environment."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from pettingzoo import ParallelEnv

from levada.algorithms.dqn import DQN
from levada.algorithms.maddpg import MADDPG
from levada.algorithms.multi_agent import MultiAgent, multi_agent
from levada.algorithms.ppo import PPO
from levada.errors import EnvError, LevadaError
from levada.flow.of_policy import of_policy
from levada.rl.envs.agents.task import MultiAgentTask
from levada.rl.envs.task import Task
from levada.runners import Inline

AGENTS = ("agent_0", "agent_1")
SMALL = {"num_envs": 2, "num_steps": 8, "hidden_sizes": (8,), "compile": False}
ALGORITHMS = {
    "ppo": PPO(minibatch_size=8, **SMALL),
    "dqn": DQN(learning_starts=16, batch_size=4, **SMALL),
}


class Odd(ParallelEnv):
    """Two agents for three steps. The second has other spaces or observations, as `how` says."""

    metadata = {"name": "odd"}  # noqa: RUF012

    def __init__(self, how=None):
        self.how, self.possible_agents = how, list(AGENTS)

    def observation_space(self, agent):
        own = spaces.Box(-1, 1, (2,), np.float32)
        if agent == AGENTS[1]:
            if self.how == "text":
                return spaces.Text(4)
            if self.how == "no action":
                return spaces.Dict({"obs": own, "action_mask": spaces.MultiBinary(2)})
        return own

    def action_space(self, agent):
        if agent == AGENTS[1] and self.how == "box":
            return spaces.Box(-1, 1, (1,), np.float32)
        if agent == AGENTS[1] and self.how == "binary":
            return spaces.MultiBinary(3)
        return spaces.Discrete(2)

    def obs(self):
        found = {agent: np.zeros(2, np.float32) for agent in AGENTS}
        if self.how == "no action":
            found[AGENTS[1]] = {"obs": found[AGENTS[1]], "action_mask": np.full(2, self.num_steps < 2, np.int8)}
        if self.how == "shape" and self.num_steps == 2:
            found[AGENTS[1]] = np.zeros(3, np.float32)
        return found

    def reset(self, seed=None, options=None):
        self.agents, self.num_steps = list(AGENTS), 0
        return self.obs(), {agent: {} for agent in AGENTS}

    def step(self, actions):
        self.num_steps += 1
        is_over = dict.fromkeys(actions, self.num_steps == 3)
        self.agents = [] if self.num_steps == 3 else list(AGENTS)
        return self.obs(), dict.fromkeys(actions, 1.0), is_over, is_over, {agent: {} for agent in actions}


def task(how):
    policies = {name: (agent,) for name, agent in zip(ALGORITHMS, AGENTS, strict=True)}
    return MultiAgentTask(Odd, policies, env_kwargs={"how": how})


class Crooked(torch.nn.Module):
    """A network that cannot take what it is shown."""

    def __init__(self, observation_space, num_outputs):
        super().__init__()
        self.layer = torch.nn.Linear(7, num_outputs)

    def forward(self, obs):
        return self.layer(obs)


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("text", r"^policy 'dqn': task 'Odd': observation space is Text"),
        ("box", r"^policy 'dqn': DQN needs Discrete actions, but 'Odd' has Box"),
        (
            "binary",
            r"^policy 'dqn': DQN needs Discrete actions, but 'Odd' has MultiBinary\(3\); for these there are ppo",
        ),
    ],
)
def test_spaces(how, what):
    with pytest.raises(LevadaError, match=what):
        multi_agent(task(how), ALGORITHMS)


def test_spaces_of_an_agent_of_maddpg():
    with pytest.raises(LevadaError, match=r"^policy 'agent_1': MADDPG needs Box or Discrete actions"):
        MADDPG().flow(Task(Odd, env_kwargs={"how": "binary"}))


@pytest.mark.parametrize(
    ("how", "what"),
    [
        (
            "shape",
            r"env 0 of 2, episode 0: policy 'dqn', agent 'agent_1': observation has shape \(3,\), expected \(2,\)",
        ),
        (
            "no action",
            r"^environment 'Odd', step 2, env 0 of 2, policy 'dqn', agent 'agent_1': the action mask allows no action",
        ),
    ],
)
def test_observations(how, what):
    with pytest.raises(EnvError, match=what):
        list(multi_agent(task(how), ALGORITHMS).run(on=Inline(max_restarts=0), seed=1))


def test_networks():
    bent = dict(ALGORITHMS, dqn=DQN(learning_starts=16, batch_size=4, network=Crooked, **SMALL))
    with pytest.raises(LevadaError, match=r"^network Crooked of policy 'dqn' cannot take observations"):
        multi_agent(task(None), bent).check()


def test_an_error_of_another_kind_keeps_its_message():
    with pytest.raises(ZeroDivisionError, match="no idea") as caught, of_policy("outer"), of_policy("dqn"):
        raise ZeroDivisionError("no idea")
    assert caught.value.__notes__ == ["in policy 'dqn'"]


def test_settings():
    with pytest.raises(LevadaError, match=r"^policy 'slow': DQN\(discount=3.0\): expected a number from 0 to 1"):
        MultiAgent(policy=("ppo:agent_0", "slow=dqn:agent_1"), policy_kwargs={"slow.discount": 3.0})
    with pytest.raises(LevadaError, match=r"^policy 'slow': DQN has no field 'learning_rates'; did you mean"):
        MultiAgent(policy=("ppo:agent_0", "slow=dqn:agent_1"), policy_kwargs={"slow.learning_rates": 3.0})


def test_the_only_policy_of_all_agents_is_not_named():
    shared = MultiAgentTask(Odd, env_kwargs={"how": "shape"})
    flow = multi_agent(shared, {"policy": PPO(minibatch_size=8, **(SMALL | {"num_envs": 4}))})
    with pytest.raises(EnvError, match=r"env 0 of 2, episode 0: agent 'agent_1': observation has shape"):
        list(flow.run(on=Inline(max_restarts=0)))
