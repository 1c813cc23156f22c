"""What is shown to the agents of each policy: their own observation, their index, the state."""

import dataclasses

import numpy as np
import pytest
from gymnasium import spaces
from support.envs.multi import CartPoles, Comers, Relay, Shifts
from support.runs.saved import learned

from levada.algorithms.checks import ConfigError
from levada.algorithms.ippo import IPPO
from levada.algorithms.mappo import MAPPO
from levada.algorithms.multi_agent import MultiAgent, multi_agent
from levada.algorithms.players import Frozen
from levada.algorithms.ppo import PPO
from levada.algorithms.self_play import Keeping, Past, SelfPlay
from levada.algorithms.vdn import VDN
from levada.rl.acting.trained_policy import TrainedPolicy
from levada.rl.envs.agents.task import MultiAgentTask
from levada.rl.envs.task import Task, TaskError
from levada.runners import Inline
from levada.runners.processes import Processes

AGENTS = tuple(f"agent_{k}" for k in range(4))
EACH = {"plain": AGENTS[:1], "id": AGENTS[1:2], "state": AGENTS[2:3], "both": AGENTS[3:]}
SMALL = {"num_envs": 2, "num_steps": 8, "hidden_sizes": (8,), "compile": False}


@pytest.mark.parametrize(
    "env", [CartPoles, "pettingzoo:classic.connect_four_v3"], ids=["at once", "in turns, with masks"]
)
def test_each_policy_is_shown_what_it_asks_for(env):
    """In one environment, and exactly what a task shows that shows it to all."""
    plain = MultiAgentTask(env, {"x": AGENTS}) if env is CartPoles else MultiAgentTask(env)
    [agents] = plain.policies.values()
    policies = EACH if env is CartPoles else {"id": agents[:1], "both": agents[1:]}
    asked = {"agent_id": ("id", "both"), "with_state": ("state", "both")}
    asked = {name: tuple(policy for policy in some if policy in policies) for name, some in asked.items()}
    joint = _stepped(dataclasses.replace(plain, policies=policies, **asked))
    for policy, own in policies.items():
        flags = {name: policy in some for name, some in asked.items()}
        alike = dataclasses.replace(plain, policies={"all": agents}, **flags)
        other = _stepped(alike)
        rows = [number * len(agents) + agents.index(own[0]) for number in range(2)]
        assert joint.seats[policy].single_observation_space == alike["all"].observation_space
        _assert_equal(joint.seats[policy].reset()[0], other.seats["all"].reset()[0], rows)


def _stepped(task):
    """Two copies after the first step."""
    joint = task.make(2, seed=3)
    for seats in joint.seats.values():
        seats.act(np.ones(seats.num_envs, np.int64))
    joint.step()
    joint.close()
    return joint


def _assert_equal(found, expected, rows):
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, each in expected.items():
            _assert_equal(found[key], each, rows)
    elif isinstance(expected, tuple):
        for one, other in zip(found, expected, strict=True):
            _assert_equal(one, other, rows)
    else:
        np.testing.assert_array_equal(found, expected[rows])


def test_algorithms_say_what_their_agents_are_shown():
    policies = {"a": AGENTS[:1], "b": AGENTS[1:2], "c": AGENTS[2:]}
    task = MultiAgentTask(CartPoles, policies)
    of_two = SMALL | {"num_envs": 4}
    flow = multi_agent(task, {"a": PPO(minibatch_size=8, **SMALL), "b": MAPPO(**SMALL), "c": IPPO(**of_two)})
    shown = {name: flow.learners()[f"{name}/learn"].policy.observation_space for name in policies}
    assert {name: space.shape for name, space in shown.items()} == {"a": (4,), "b": None, "c": (8,)}
    assert shown["b"] == spaces.Dict({"obs": shown["c"], "state": shown["b"]["state"]})
    assert shown["b"]["state"].shape == (16,)
    reports = {report.node for report, _ in zip(flow.run(on=Inline(), seed=1), range(6), strict=False)}
    assert reports == {"a/learn", "b/learn", "c/learn"}
    assert (
        multi_agent(task, {"a": VDN(**SMALL), "b": VDN(**SMALL), "c": VDN(**SMALL)}).nodes["rollout"].work.task.agent_id
        is True
    )


def test_past_versions_are_shown_what_the_newest_is():
    task = MultiAgentTask(CartPoles, {"new": AGENTS[:2], "past": AGENTS[2:]})
    ippo = SelfPlay(IPPO(**(SMALL | {"num_envs": 4})), Keeping(win_rate=None, every=1))
    assert multi_agent(task, {"new": ippo, "past": Past("new")}).nodes["rollout"].work.task.agent_id is True


def test_an_option_of_a_policy_of_multi():
    policies = ("ippo:agent_0,agent_1", "ppo:agent_2,agent_3")
    for fields, expected in (
        ({}, ("ippo",)),
        ({"policy_kwargs": {"ippo.agent_id": False}}, False),
        ({"agent_id": True}, True),
    ):
        flow = MultiAgent(policy=policies, num_envs=4, **fields).flow(Task(CartPoles))
        assert flow.nodes["rollout"].work.task.agent_id == expected


@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("agent_id", [False, True])
def test_agents_of_a_frozen_policy_are_shown_what_it_was_trained_with(agent_id, with_state):
    task = MultiAgentTask(CartPoles, {"new": AGENTS[:2], "old": AGENTS[2:]})
    trained_on = dataclasses.replace(task, agent_id=agent_id, with_state=with_state)["old"]
    trains = MAPPO(**SMALL) if with_state else PPO(minibatch_size=8, **SMALL)
    policy = trains.policy(trained_on)
    old = TrainedPolicy(policy, policy.weights(policy.module(seed=1)), version=0)
    ppo = PPO(minibatch_size=8, **(SMALL | {"num_envs": 4}))
    flow = multi_agent(task, {"new": ppo, "old": Frozen(old)})
    shown = flow.nodes["rollout"].work.task
    assert [(shown.shows("agent_id", name), shown.shows("with_state", name)) for name in ("new", "old")] == [
        (False, False), (agent_id, with_state)
    ]  # fmt: skip
    next(iter(flow.run(on=Inline(), seed=1)))


def test_a_frozen_policy_of_other_spaces():
    task = MultiAgentTask(CartPoles, {"new": AGENTS[:2], "old": AGENTS[2:]})
    policy = PPO(minibatch_size=8, **SMALL).policy(Task("MountainCar-v0"))
    old = TrainedPolicy(policy, policy.weights(policy.module(seed=1)), version=0)
    ppo = PPO(minibatch_size=8, **(SMALL | {"num_envs": 4}))
    with pytest.raises(ConfigError, match=r"(?s)^policy 'old' was trained with .*; expected those of its agents: "):
        multi_agent(task, {"new": ppo, "old": Frozen(old)})


@pytest.mark.parametrize("name", ["agent_id", "with_state"])
@pytest.mark.parametrize("shown", ["new", ("newer",), 1])
def test_what_is_shown_to_no_policy_is_refused(name, shown):
    with pytest.raises(TaskError, match=rf"{name} is .*; expected True, False, or a tuple of policies, of: new"):
        MultiAgentTask(CartPoles, {"new": AGENTS}, **{name: shown})


@pytest.mark.parametrize("env", [Comers, Relay], ids=["at once", "in turns"])
def test_final_observations_are_shown_alike(env):
    """Agents that leave, of a policy that is shown its index beside one that is shown the state."""
    agents = tuple(env().possible_agents)
    policies = {"id": agents[:1], "state": agents[1:2], **({"other": agents[2:3]} if env is Comers else {})}
    policies["rest"] = tuple(agent for agent in agents if not any(agent in own for own in policies.values()))
    shown = MultiAgentTask(env, policies, agent_id=("id",), with_state=("state",))
    plain = dataclasses.replace(shown, agent_id=False, with_state=False)
    joints, count = [task.make(1, seed=0) for task in (shown, plain)], 0
    for _ in range(10):
        finals = []
        for joint in joints:
            for seats in joint.seats.values():
                seats.act(np.ones(1 * len(seats.agents), np.int64))
            joint.step()
            finals.append({name: seats.step(None)[-1].get("final_obs") for name, seats in joint.seats.items()})
        own, expected = finals
        assert {name: each is None for name, each in own.items()} == {
            name: each is None for name, each in expected.items()
        }
        if expected["id"] is not None:
            one_hot = np.eye(len(agents))[0]
            np.testing.assert_array_equal(own["id"][0], [*expected["id"][0], *one_hot])
            count += 1
        if expected["state"] is not None:
            np.testing.assert_array_equal(own["state"][0]["obs"], expected["state"][0])
            count += 1
    assert count >= 2
    for joint in joints:
        joint.close()


def test_a_run_is_the_same_in_processes_and_resumed():
    """With a policy that is shown the state beside one that is shown the index alone."""
    task = MultiAgentTask(Shifts, {"a": AGENTS[:2], "b": AGENTS[2:]})
    settings = SMALL | {"num_envs": 4, "shards": 2}
    flow = multi_agent(task, {"a": MAPPO(**settings), "b": IPPO(**settings)})
    after = "b/learn", 4
    expected = learned(flow, Inline(), *after)
    saved = learned(flow, Processes(workers=2), *after, save_at=2)
    assert learned(flow, Inline(), *after, state=saved) == expected
    assert learned(flow, Processes(workers=2), *after) == expected
