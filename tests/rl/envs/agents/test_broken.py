"""What is wrong with an environment of several agents is said with its name, the copy, the episode and the agent."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv
from support.envs.multi import CartPoles, Comers, Relay

from levada.algorithms.multi_agent import multi_agent
from levada.algorithms.ppo import PPO
from levada.rl.envs.agents.task import MultiAgentTask
from levada.rl.envs.batch import EnvError
from levada.rl.envs.task import TaskError
from levada.runners import Inline

FIRST, SECOND = "agent_0", "agent_1"


class Pair(ParallelEnv):
    """Two agents for three steps; the second episode breaks in its second step, as `how` says."""

    metadata = {"name": "pair"}  # noqa: RUF012

    def __init__(self, how=None):
        self.how, self.episode, self.possible_agents = how, -1, [FIRST, SECOND]

    def observation_space(self, agent):
        return spaces.Box(-1, 1, (2,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def obs(self):
        return {agent: np.zeros(2, np.float32) for agent in (FIRST, SECOND)}

    def reset(self, seed=None, options=None):
        self.episode, self.num_steps, self.agents = self.episode + 1, 0, [FIRST, SECOND]
        observations = self.obs()
        if self.episode == 1 and self.how == "missing at reset":
            del observations[SECOND]
        if self.episode == 1 and self.how == "no agents":
            self.agents = []
        if self.episode == 1 and self.how == "reset without infos":
            return observations
        infos = {FIRST: {}, SECOND: {"action_mask": [0, 1]} if self.how == "mask in info" and self.episode == 1 else {}}
        return observations, infos

    def step(self, actions):
        self.num_steps += 1
        result = (
            self.obs(),
            dict.fromkeys(actions, 1.0),
            dict.fromkeys(actions, False),
            dict.fromkeys(actions, self.num_steps == 3),
            {agent: {} for agent in actions},
        )
        if self.num_steps == 3:
            self.agents = []
        if self.episode == 1 and self.num_steps == 2 and self.how is not None:
            return self.spoil(*result)
        return result

    def spoil(self, observations, rewards, terminations, truncations, infos):
        match self.how:
            case "raises":
                raise ZeroDivisionError("no such move")
            case "NaN":
                observations[SECOND][1] = np.nan
            case "NaN at the end":
                observations[SECOND][1], terminations[SECOND] = np.nan, True
                self.agents = [FIRST]
            case "shape":
                observations[SECOND] = np.zeros(3, np.float32)
            case "dtype":
                observations[SECOND] = np.array(["a", "b"])
            case "reward":
                rewards[SECOND] = np.inf
            case "no reward":
                rewards[SECOND] = None
            case "reward is missing":
                del rewards[SECOND]
            case "vanishes":
                self.agents = [FIRST]
            case "stays":
                terminations[SECOND] = True
            case "stranger":
                self.agents = [FIRST, SECOND, "agent_2"]
            case "flag":
                terminations[SECOND] = np.array([False, True])
            case "no flag":
                truncations[SECOND] = None
            case "rewards":
                rewards = [1.0, 1.0]
            case "nothing":
                return None
            case "three":
                return observations, rewards, terminations
            case "four":
                return observations, rewards, terminations, infos
        return observations, rewards, terminations, truncations, infos


def spoiled(how):
    return MultiAgentTask(Pair, env_kwargs={"how": how})


def play(task, num_steps=20):
    joint = task.make(2, 0)
    try:
        for _ in range(num_steps):
            for seats in joint.seats.values():
                seats.act(np.ones(seats.num_envs, np.int64))
            joint.step()
    finally:
        joint.close()


@pytest.mark.parametrize(
    ("how", "what"),
    {
        "NaN": r"agent 'agent_1': observation has NaN or infinity in \[ 0. nan\]",
        "NaN at the end": r"agent 'agent_1': observation has NaN or infinity in \[ 0. nan\]",
        "shape": r"agent 'agent_1': observation has shape \(3,\), expected \(2,\)",
        "dtype": r"agent 'agent_1': observation is an array of <U1",
        "reward": r"reward of agent 'agent_1' is inf, expected a finite number",
        "no reward": r"reward of agent 'agent_1' is None, expected a finite number",
        "reward is missing": r"agent 'agent_1' acted in this step, and is not in its rewards",
        "vanishes": r"agent 'agent_1' is gone without having terminated or having been truncated",
        "stays": r"agent 'agent_1' has terminated or was truncated, and is still among the agents of the next step",
        "stranger": r"agent 'agent_2' is not in possible_agents: agent_0, agent_1",
        "flag": r"terminated of agent 'agent_1' is array\(\[False,  True\]\), expected a bool",
        "no flag": r"truncated of agent 'agent_1' is None, expected a bool",
        "rewards": r"rewards of step\(\) are \[1.0, 1.0\], expected a dict with a value for each agent",
        "nothing": r"step\(\) returned a NoneType, expected a tuple of 5 \(observations, rewards, terminations, trunc",
        "three": r"step\(\) returned a tuple of 3, expected a tuple of 5",
        "four": r"step\(\) returned a tuple of 4, .*; the 4 of the old API: split `dones` into terminations and truncations",
        "reset without infos": r"reset\(\) returned a dict, expected a tuple of 2 \(observations, infos\)",
        "missing at reset": r"agent 'agent_1' is to act, and reset\(\) returned no observation of it",
        "no agents": r"reset\(\) began an episode in which no agent acts",
        "mask in info": r"agent 'agent_1' has a mask in info\['action_mask'\], which is not read",
    }.items(),
)
def test_a_broken_contract(how, what):
    with pytest.raises(EnvError, match=rf"^environment 'Pair', env 0 of 2, episode 1: {what}"):
        play(spoiled(how))


def test_an_environment_that_raises():
    with pytest.raises(ZeroDivisionError, match="no such move") as caught:
        play(spoiled("raises"))
    assert caught.value.__notes__ == ["environment 'Pair', env 0 of 2, episode 1, actions agent_0: 1, agent_1: 1"]


class Unclosed:
    """Written without PettingZoo's base class."""

    possible_agents = (FIRST, SECOND)

    def __init__(self, **more):
        vars(self).update(more)

    def observation_space(self, agent):
        return spaces.Discrete(2)

    action_space = observation_space

    def reset(self, seed=None, options=None):
        self.agents = self.possible_agents
        return dict.fromkeys(self.agents, 0), {}

    def step(self, actions):
        no = dict.fromkeys(actions, False)
        return dict.fromkeys(actions, 0), dict.fromkeys(actions, 0.0), no, no, {}


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"reset": None}, "Unclosed has no reset; expected a method reset, as PettingZoo's environments have"),
        (
            {"action_space": spaces.Discrete(2)},
            r"has Discrete\(2\) as its action_space; expected a method action_space\(agent\)",
        ),
    ],
)
def test_methods_that_are_missing(more, what):
    with pytest.raises(TaskError, match=rf"^task 'Unclosed': .*{what}"):
        MultiAgentTask(Unclosed, env_kwargs=more)


def test_an_environment_without_close():
    play(MultiAgentTask(Unclosed))


def test_a_sound_one_raises_nothing():
    play(spoiled(None))


class Leaver(Relay):
    """Agent 1 leaves after its turn, and is not told that it has."""

    def step(self, action):
        gone = self.agent_selection == "agent_1" and not self.terminations["agent_1"]
        super().step(action)
        if gone:
            self.agents.remove("agent_1")
            self.agent_selection = "agent_2"


class Refuser(Relay):
    def step(self, action):
        if self.agent_selection == "agent_2" and action is not None:
            raise ValueError("not now")
        super().step(action)


class Stayer(Relay):
    """Agents who have ended their episodes do not leave."""

    def step(self, action):
        if action is not None:
            super().step(action)


def test_an_agent_that_stays_in_turns():
    with pytest.raises(
        EnvError, match=r"'agent_1' has terminated or was truncated, and is still to act after step\(None\)"
    ):
        play(MultiAgentTask(Stayer))


def test_an_agent_that_vanishes_in_turns():
    with pytest.raises(EnvError, match=r"'Leaver', env 0 of 2, episode 0: agent 'agent_1' is gone without"):
        play(MultiAgentTask(Leaver))


def test_a_turn_that_is_refused():
    with pytest.raises(ValueError, match="not now") as caught:
        play(MultiAgentTask(Refuser))
    assert caught.value.__notes__ == ["environment 'Refuser', env 0 of 2, episode 0, actions agent_2: 1"]


class Uneven(gymnasium.Env):
    """Tuples of two, and rewards of `rewards`."""

    observation_space = spaces.Tuple([spaces.Discrete(3)] * 2)
    action_space = spaces.Tuple([spaces.Discrete(2)] * 2)

    def __init__(self, rewards=(0, 0), flag=False, obs=(0, 1)):
        self.rewards, self.flag, self.obs = rewards, flag, obs

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return (0, 1), {}

    def step(self, action):
        return self.obs, self.rewards, self.flag, False, {}


@pytest.mark.parametrize(
    ("kwargs", "what"),
    [
        ({"rewards": 1.0}, r"rewards are 1.0, expected one for each of 2 agents"),
        ({"rewards": (1, 2, 3)}, r"rewards are \(1, 2, 3\), expected one for each of 2 agents"),
        ({"rewards": (1, "b")}, r"reward of agent 'agent_1' is 'b', expected a finite number"),
        ({"flag": [True, False]}, r"terminated is \[True, False\], expected one bool"),
        ({"obs": (0,)}, r"observations are \(0,\), expected one for each of 2 agents"),
        ({"obs": (0, 3)}, r"agent 'agent_1': observation is 3, outside the declared space"),
    ],
)
def test_tuples(kwargs, what):
    play(MultiAgentTask(Uneven))
    with pytest.raises(EnvError, match=rf"^environment 'Uneven', env 0 of 2, episode 0: {what}"):
        play(MultiAgentTask(Uneven, env_kwargs=kwargs))


@pytest.mark.parametrize("env", [CartPoles(), Relay()], ids=["at once", "in turns"])
@pytest.mark.parametrize(
    "shown", [{}, {"agent_id": True}, {"with_state": True}, {"agent_id": True, "with_state": True}]
)
def test_one_environment_for_all_copies(env, shown):
    """Whatever the agents are shown beside their observations."""
    with pytest.raises(EnvError, match="the callable returned the same environment twice"):
        play(MultiAgentTask(lambda: env, **shown))


def test_a_run_says_it_with_the_node():
    policies = {name: (agent,) for name, agent in (("a", FIRST), ("b", SECOND))}
    task = MultiAgentTask(Pair, policies=policies, env_kwargs={"how": "NaN"})
    ppo = PPO(num_envs=2, num_steps=8, minibatch_size=8, hidden_sizes=(8,), compile=False)
    with pytest.raises(
        EnvError, match=r"env 0 of 2, episode 1: policy 'b', agent 'agent_1': observation has NaN"
    ) as caught:
        list(multi_agent(task, {"a": ppo, "b": ppo}).run(on=Inline(), seed=1))
    assert any("in node 'rollout'" in note for note in caught.value.__notes__)


def test_agents_that_come_and_go_break_nothing():
    play(MultiAgentTask(Comers, policies={"a": ("agent_0", "agent_1", "agent_3"), "b": ("agent_2",)}))
