"""The global state beside each agent's own observation: the environment's own, or the observations of all agents, at the right
moment.
"""

import pickle

import numpy as np
import pytest
from gymnasium import spaces
from support.envs.multi import CartPoles, Comers, Relay

from levada.rl.envs.agents.adapters import Seen
from levada.rl.envs.agents.converted import adapted
from levada.rl.envs.agents.state import with_state
from levada.rl.envs.agents.task import MultiAgentTask
from levada.rl.envs.observations import Violation
from levada.rl.envs.task import TaskError

SIZES = (3, 3, 4, 3)
"""Lengths of the observations of `Comers`."""


def joined(observations, sizes):
    """The observations of some agents, by number, in the places of all."""
    parts = [observations.get(k, np.zeros(size)) for k, size in enumerate(sizes)]
    return np.concatenate(parts).astype(np.float32)


def test_agents_that_act_at_once_share_the_state_after_the_step():
    env, bare = with_state(adapted(Comers())), adapted(Comers())
    seen, expected = env.reset(None), bare.reset(None)
    finals = 0
    for _ in range(5):
        state = joined({int(agent[-1]): each.obs for agent, each in expected.items()}, SIZES)
        assert seen.keys() == expected.keys()
        for agent, each in seen.items():
            assert env.observation_space(agent).contains(each.obs)
            np.testing.assert_array_equal(each.obs["state"], state)
            np.testing.assert_array_equal(each.obs["obs"], expected[agent].obs)
            assert each[1:] == expected[agent][1:]
            finals += each.terminated or each.truncated
        actions = dict.fromkeys(env.movers, 0)
        seen, expected = env.step(actions), bare.step(actions)
    assert {agent for agent, each in seen.items() if each.truncated} == {"agent_0", "agent_3"}
    np.testing.assert_array_equal(seen["agent_0"].obs["state"], joined({0: [0, 5, 5], 3: [3, 5, 2]}, SIZES))
    assert finals == 2  # those of agents 1 and 2, whose final observations are in the state
    assert not env.movers


def test_the_first_states_by_hand():
    """Agent 2 comes when agent 0 has acted once, and agent 1 leaves after two steps."""
    env = with_state(adapted(Comers()))
    found = [env.reset(None)] + [env.step(dict.fromkeys(env.movers, 0)) for _ in range(3)]
    expected = [
        {0: [0, 0, 0], 1: [1, 0, 0]},
        {0: [0, 1, 1], 1: [1, 1, 1], 2: [2, 1, 0, -1]},
        {0: [0, 2, 2], 1: [1, 2, 2], 2: [2, 2, 1, -1]},
        {0: [0, 3, 3], 2: [2, 3, 2, -1], 3: [3, 3, 0]},
    ]
    for seen, parts in zip(found, expected, strict=True):
        assert set(seen) == {f"agent_{k}" for k in parts}
        np.testing.assert_array_equal(seen["agent_0"].obs["state"], joined(parts, SIZES))


def test_agents_in_turns_see_the_state_at_their_turn_and_at_their_end():
    env = with_state(adapted(Relay()))
    assert env.acts_in_turns

    def everyone(num_turns, action, who):
        return joined({k: [k, num_turns, action] for k in who}, (3, 3, 3))

    seen = env.reset(None)
    np.testing.assert_array_equal(seen["agent_0"].obs["state"], everyone(0, -1, (0, 1, 2)))
    seen = env.step({"agent_0": 2})
    np.testing.assert_array_equal(seen["agent_1"].obs["state"], everyone(1, 2, (0, 1, 2)))
    seen = env.step({"agent_1": 1})  # its only turn: it leaves, and is in the state that it sees last
    assert seen["agent_1"].terminated
    np.testing.assert_array_equal(seen["agent_1"].obs["state"], everyone(2, 1, (0, 1, 2)))
    np.testing.assert_array_equal(seen["agent_2"].obs["state"], everyone(2, 1, (0, 2)))
    np.testing.assert_array_equal(seen["agent_2"].obs["obs"], [2, 2, 1])
    for action in (0, 1, 2, 1):
        seen = env.step(dict.fromkeys(env.movers, action))
    assert seen["agent_0"].terminated
    np.testing.assert_array_equal(seen["agent_0"].obs["state"], everyone(6, 1, (0, 2)))
    np.testing.assert_array_equal(seen["agent_2"].obs["state"], everyone(6, 1, (2,)))
    env.step({"agent_2": 2})
    seen = env.step(dict.fromkeys(env.movers, 0))
    assert seen["agent_2"].truncated
    np.testing.assert_array_equal(seen["agent_2"].obs["state"], everyone(8, 0, (2,)))


class OwnState(Comers):
    """With a state of its own: the step, and the number of agents."""

    def __init__(self):
        super().__init__()
        self.state_space = spaces.Box(0, 9, (2,), np.int64)

    def state(self):
        return np.array([self._step, len(self.agents)])


class RelayState(Relay):
    def __init__(self):
        super().__init__()
        self.state_space = spaces.Dict({"turn": spaces.Discrete(9), "left": spaces.MultiBinary(3)})

    def state(self):
        return {
            "turn": self._num_turns,
            "left": np.array([a not in self.agents for a in self.possible_agents], np.int8),
        }


def test_the_environments_own_state_comes_first():
    env = with_state(adapted(OwnState()))
    assert env.observation_space("agent_2")["state"] == spaces.Box(0, 9, (2,), np.int64)
    seen = env.reset(None)
    for step in range(1, 6):
        seen = env.step(dict.fromkeys(env.movers, 0))
        for each in seen.values():
            np.testing.assert_array_equal(each.obs["state"], [step, len(env.movers)])
    assert len(seen) == 2


def test_in_turns_it_is_asked_for_at_each_turn():
    env = with_state(adapted(RelayState()))
    env.reset(None)
    env.step({"agent_0": 0})
    seen = env.step({"agent_1": 0})
    assert seen["agent_1"].obs["state"]["turn"] == seen["agent_2"].obs["state"]["turn"] == 2
    assert seen["agent_1"].obs["state"]["left"].tolist() == [0, 0, 0]
    assert seen["agent_2"].obs["state"]["left"].tolist() == [0, 1, 0]


class Masked(Comers):
    """With action masks, and images."""

    def observation_space(self, agent):
        n = int(self.action_space(agent).n)
        return spaces.Dict({"obs": spaces.Box(0, 255, (2, 2), np.uint8), "action_mask": spaces.MultiBinary(n)})

    def _obs(self, k):
        image = np.full((2, 2), 10 * k + self._step, np.uint8)
        return {"obs": image, "action_mask": np.ones(3 if k == 2 else 2, np.int8)}


def test_a_mask_stays_beside_the_observation_and_is_no_part_of_the_state():
    env = with_state(adapted(Masked()))
    seen = env.reset(None)
    seen = env.step(dict.fromkeys(env.movers, 0))
    obs = seen["agent_2"].obs
    assert env.observation_space("agent_2").contains(obs)
    assert obs["action_mask"].tolist() == [1, 1, 1]
    assert obs["obs"]["state"].tolist() == [1] * 4 + [11] * 4 + [21] * 4 + [0] * 4
    assert obs["obs"]["state"].dtype == np.uint8


class Discretes(Comers):
    def observation_space(self, agent):
        return spaces.Discrete(9)


class Native:
    """Takes turns, with levada's interface, which does not tell what the others see."""

    acts_in_turns = True
    possible_agents = ("white", "black")
    movers = ("white",)

    def observation_space(self, agent):
        return spaces.Box(0, 1, (2,))

    def reset(self, seed):
        return {"white": Seen(np.zeros(2, np.float32), 0.0, False, False)}


def test_what_cannot_be_joined_is_refused():
    agents = {f"policy_{k}": (f"agent_{k}",) for k in range(4)}
    with pytest.raises(
        TaskError,
        match=r"task 'Discretes', with_state: .* agent 'agent_0' is Discrete\(9\), expected a Box",
    ):
        _ = MultiAgentTask(Discretes, agents, with_state=True).spaces
    with pytest.raises(Violation, match=r"Native: agents act in turns, so .* give the environment a state_space"):
        with_state(Native())


def test_an_environment_with_turns_and_a_state_needs_no_observations():
    native = Native()
    native.state_space, native.state = spaces.Box(0, 9, (1,)), lambda: np.full(1, 7, np.float32)
    assert with_state(native).reset(None)["white"].obs["state"] == 7


@pytest.mark.parametrize("env", [CartPoles, "pettingzoo:classic.tictactoe_v3"])
def test_the_index_is_part_of_the_own_observation_and_not_of_the_state(env):
    """Of agents that act at once, and in turns beside a mask."""
    plain, both = (MultiAgentTask(env, with_state=True, agent_id=each) for each in (False, True))
    space, space_with_id = (task["policy"].observation_space for task in (plain, both))
    (obs, _), (with_id, _) = (task.make(1, 0).seats["policy"].reset() for task in (plain, both))
    if env is not CartPoles:
        assert space_with_id["action_mask"] == space["action_mask"]
        space, space_with_id, obs, with_id = space["obs"], space_with_id["obs"], obs["obs"], with_id["obs"]
    assert space_with_id["state"] == space["state"]
    np.testing.assert_array_equal(with_id["state"], obs["state"])
    if env is CartPoles:
        np.testing.assert_array_equal(with_id["obs"], np.hstack([obs["obs"], np.eye(4)]))
    else:
        assert space_with_id["obs"] == spaces.Tuple((space["obs"], spaces.Discrete(2)))


def test_only_a_task_that_asks_for_it_has_the_state():
    agents = {"all": tuple(f"agent_{k}" for k in range(4))}
    plain, state = (MultiAgentTask(CartPoles, agents, with_state=each) for each in (False, True))
    own = plain["all"].observation_space
    assert state["all"].observation_space["obs"] == own
    assert state["all"].observation_space["state"].shape == (16,)
    assert isinstance(own, spaces.Box)


@pytest.mark.parametrize("make", [Comers, Relay])
def test_it_can_be_pickled_in_the_middle_of_an_episode(make):
    env = with_state(adapted(make()))
    env.reset(None)
    env.step(dict.fromkeys(env.movers, 1))
    again = pickle.loads(pickle.dumps(env))
    one, other = (each.step(dict.fromkeys(each.movers, 0)) for each in (env, again))
    assert one.keys() == other.keys()
    for agent in one:
        np.testing.assert_array_equal(one[agent].obs["state"], other[agent].obs["state"])
