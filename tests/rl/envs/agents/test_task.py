"""Ids of environments of several agents, who acts if no policies are given, the agent's index, and mistakes."""

import importlib.util
import pickle
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from support.envs.multi import CartPoles, Comers, Relay

from levada.algorithms.multi_agent import multi_agent
from levada.algorithms.ppo import PPO
from levada.rl.data.spaces import SpaceError
from levada.rl.envs.agents.task import MultiAgentTask
from levada.rl.envs.task import TaskError
from levada.runners import Inline

FORAGING = "gymnasium:lbforaging:Foraging-8x8-2p-2f-coop-v3"
AGENTS = ("agent_0", "agent_1", "agent_2", "agent_3")


@pytest.mark.parametrize(
    ("env", "kwargs", "agents", "in_turns"),
    [
        ("pettingzoo:mpe2.simple_spread_v3", {"N": 2}, "agent_0 agent_1", False),
        ("pettingzoo:classic.rps_v2", {}, "player_0 player_1", False),
        ("pettingzoo:classic.tictactoe_v3", {}, "player_1 player_2", True),
        ("pettingzoo:pettingzoo.classic.connect_four_v3", {}, "player_0 player_1", True),
        ("openspiel:kuhn_poker", {"players": 3}, "player_0 player_1 player_2", True),
        ("openspiel:kuhn_poker(players=3)", {}, "player_0 player_1 player_2", True),
        ("openspiel:matrix_rps", {}, "player_0 player_1", False),
        ("openspiel:tic_tac_toe", {}, "player_0 player_1", True),
        (FORAGING, {}, "agent_0 agent_1", False),
        (
            lambda: gymnasium.make(FORAGING.removeprefix("gymnasium:"), disable_env_checker=True),
            {},
            "agent_0 agent_1",
            False,
        ),
        (CartPoles, {"num_agents": 3}, "agent_0 agent_1 agent_2", False),
        (Relay, {}, "agent_0 agent_1 agent_2", True),
    ],
)
def test_one_policy_acts_for_all_agents(env, kwargs, agents, in_turns):
    task = MultiAgentTask(env, env_kwargs=kwargs)
    assert task.policies == {"policy": tuple(agents.split())}
    assert task.make_one().acts_in_turns == in_turns


def test_different_spaces_need_policies():
    with pytest.raises(TaskError) as caught:
        MultiAgentTask("pettingzoo:mpe2.simple_speaker_listener_v4")
    assert str(caught.value) == (
        "task 'pettingzoo:mpe2.simple_speaker_listener_v4': one policy cannot act for agents with different spaces; expected "
        "several, by `levada train multi --policy WHO:AGENTS ...` or MultiAgentTask(policies=...); got speaker_0: observations "
        "Box(-inf, inf, (3,), float32), actions Discrete(3); listener_0: observations Box(-inf, inf, (11,), float32), actions "
        "Discrete(5)"
    )
    with pytest.raises(TaskError, match=r"got agent_0, agent_1, agent_3: .*; agent_2: "):
        MultiAgentTask(Comers)


def not_an_env():
    return 3


def returns_nothing():
    pass


def with_text():
    env = CartPoles()
    env.observation_space = lambda agent: spaces.Text(3)
    return env


class Named(CartPoles):
    """Agents with the names that are given."""

    def __init__(self, names):
        super().__init__()
        self.possible_agents = names


def test_a_class_in_a_file_makes_environments(tmp_path, monkeypatch):
    """As for a single agent, by a path from here."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_agents.py").write_text(
        "from support.envs.multi import CartPoles\n\nclass Own(CartPoles):\n    pass\n"
    )
    task = MultiAgentTask("own_agents.py:Own")
    assert task.name == "own_agents.py:Own"
    assert task.policies == {"policy": tuple(CartPoles().possible_agents)}


@pytest.mark.parametrize(
    ("env", "kwargs", "said"),
    [
        (3, {}, r"env is 3 \(int\); expected an id such as 'pettingzoo:mpe2.simple_spread_v3'"),
        (
            "kuhn_poker",
            {},
            r"'kuhn_poker': there is no such id; expected an environment of several agents, such as 'pettingzoo:",
        ),
        ("pettingzoo:", {}, "there is no such id"),
        (
            "pettingzoo:classic.tictactoe_v2",
            {},
            r"nor classic.tictactoe_v2; did you mean 'pettingzoo:classic.tictactoe_v3'\?",
        ),
        ("pettingzoo:mpe2.simple_spred_v3", {}, r"did you mean 'pettingzoo:mpe2.simple_spread_v3'\?"),
        ("pettingzoo:mpe.simple_spread_v3", {}, r"pip install mpe2"),
        ("pettingzoo:no-module", {}, r"'no-module' is not the path of a module"),
        ("pettingzoo:no.such.module", {}, r"there is no module pettingzoo.no.such.module, nor no.such.module$"),
        ("pettingzoo:json", {}, r"module json has neither parallel_env\(\) nor env\(\)"),
        (
            "pettingzoo:mpe2.simple_spread_v3",
            {"num": 2},
            r"env_kwargs {'num': 2}: TypeError: .* keyword argument 'num'",
        ),
        ("pettingzoo:classic.tictactoe_v3", {"num": 2}, r"env_kwargs {'num': 2}: TypeError: .* keyword argument 'num'"),
        ("openspiel:kuhn_pokr", {}, r"OpenSpiel has no game 'kuhn_pokr'; did you mean 'kuhn_poker'\?"),
        ("openspiel:qqqqqqqq", {}, r"no game 'qqqqqqqq'; pyspiel.registered_names\(\) lists its games"),
        (
            "openspiel:kuhn_poker",
            {"playrs": 3},
            r"env_kwargs {'playrs': 3}: Unknown parameter 'playrs'. .* are: players",
        ),
        ("openspiel:mfg_crowd_modelling", {}, r"a mean-field game has a population, and no agents"),
        ("openspiel:negotiation", {}, r"the game draws its chance events itself"),
        ("openspiel:coin_game", {}, r"neither information state tensors nor observation tensors"),
        ("gymnasium:lbforaging:Foraging-8x8-2p-2f-coop-v9", {}, r"did you mean 'Foraging-8x8-2p-2f-coop-v3'\?"),
        (
            "gymnasium:CartPole-v1",
            {},
            r"expected spaces that are Tuples .* an environment of one agent is a levada.Task",
        ),
        (FORAGING, {"size": 3}, r"env_kwargs {'size': 3}: TypeError: .* keyword argument 'size'"),
        (CartPoles, {"size": 3}, r"'CartPoles': the callable cannot be called with env_kwargs {'size': 3}: .* 'size'"),
        (CartPoles, {3: 3}, r"env_kwargs is {3: 3}, expected a mapping from names to values"),
        (
            not_an_env,
            {},
            r"'not_an_env': int has no possible_agents; expected an environment with an API of PettingZoo",
        ),
        (returns_nothing, {}, r"the callable returned None, expected an environment; did you forget `return`\?"),
        (Named, {"names": ("a", "b", "a")}, r"'Named': possible_agents has 'a' twice; expected different names"),
        (
            Named,
            {"names": ("a", 1)},
            r"possible_agents has 1 \(int\); expected names of agents as str, such as 'agent_1'",
        ),
        (Named, {"names": ("a", "")}, r"possible_agents has an empty name; expected names of agents as str"),
        (Named, {"names": ()}, r"possible_agents is empty; expected the names of all agents"),
        ("no/such/file.py:Named", {}, r"there is no file 'no/such/file.py'"),
        (f"{__file__}:Nothing", {}, r"has no class or function 'Nothing' that makes an environment"),
        (
            f"{__file__}:not_an_env",
            {},
            r"int has no possible_agents; expected an environment with an API of PettingZoo",
        ),
    ],
)
def test_mistakes_are_found_before_anything_starts(env, kwargs, said):
    with pytest.raises(TaskError, match=said):
        MultiAgentTask(env, env_kwargs=kwargs)


def test_a_space_that_is_not_supported():
    with pytest.raises(SpaceError, match=r"^task 'with_text': observation space is Text"):
        MultiAgentTask(with_text).spaces  # noqa: B018


def test_policies_that_leave_an_agent_out():
    with pytest.raises(
        TaskError, match=r"policies act for agent_0, agent_9; expected each agent .*: agent_0, agent_1, "
    ):
        MultiAgentTask(CartPoles, policies={"a": ("agent_0", "agent_9")}).spaces  # noqa: B018


@pytest.mark.parametrize(
    ("policies", "said"),
    [
        (["agent_0"], r"policies is \['agent_0'\], expected a mapping such as"),
        ({"a": "agent_0"}, r"policies\['a'\] = 'agent_0': expected the names of the agents"),
        ({"a": (0, 1)}, r"policies\['a'\] = \(0, 1\): expected the names of the agents"),
        ({"a": 3}, r"policies\['a'\] = 3: expected the names of the agents"),
        ({"a": ()}, r"policies\['a'\] = \(\): expected the names of the agents that it may act for, at least one"),
        (
            {"a": ("agent_0", "agent_0")},
            r"policies\['a'\] = .*: agent 'agent_0' is listed twice; expected different agents",
        ),
        ({"a/b": ("agent_0",)}, r"policies: 'a/b' is no name of a policy; expected letters, digits"),
        ({"": ("agent_0",)}, r"policies: '' is no name of a policy"),
        ({1: ("agent_0",)}, r"policies: 1 is no name of a policy"),
    ],
)
def test_policies_that_are_none(policies, said):
    with pytest.raises(TaskError, match=said):
        MultiAgentTask(CartPoles, policies=policies)


@pytest.mark.parametrize(
    ("policy_of", "said"),
    [
        ("a", r"policy_of is 'a'; expected a function \(agent, episode\) -> policy$"),
        (lambda agent: "a", r"expected a function \(agent, episode\) -> policy: too many positional arguments"),
    ],
)
def test_what_chooses_no_policy(policy_of, said):
    with pytest.raises(TaskError, match=said):
        MultiAgentTask(CartPoles, policies={"a": AGENTS, "b": AGENTS}, policy_of=policy_of)


@pytest.mark.parametrize(
    ("env", "missing", "command"),
    [
        ("pettingzoo:mpe2.simple_spread_v3", "mpe2", "levada[multiagent]"),
        ("pettingzoo:classic.tictactoe_v3", "pettingzoo", "levada[multiagent]"),
        ("openspiel:kuhn_poker", "pyspiel", "levada[multiagent]"),
        (FORAGING, "lbforaging", "levada[multiagent]"),
        ("pettingzoo:classic.chess_v6", "chess", "pettingzoo[classic]"),
    ],
)
def test_a_package_that_is_not_installed(env, missing, command, monkeypatch):
    class Missing:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] == missing:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    for name in [
        name for name in sys.modules if name.partition(".")[0] == missing or name == "pettingzoo.classic.chess_v6"
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None)
    with pytest.raises(TaskError) as caught:
        MultiAgentTask(env)
    assert str(caught.value) == f"task {env!r} needs {missing}, which is not installed; run: pip install '{command}'"


def test_a_game_in_turns_with_a_parallel_function(tmp_path, monkeypatch):
    """As some modules of PettingZoo have it: the function raises. Errors of a parallel environment are not hidden."""
    text = (
        "from support.envs.multi import Relay\n"
        "def parallel_env(**kwargs):\n    raise RuntimeError('not parallel')\n"
        "def env(**kwargs):\n    made = Relay()\n    made.metadata = {'is_parallelizable': PARALLEL}\n    return made\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name, parallel in (("turns_v0", False), ("crash_v0", True)):
        (tmp_path / f"{name}.py").write_text(text.replace("PARALLEL", str(parallel)))
    assert MultiAgentTask("pettingzoo:turns_v0").make_one().acts_in_turns
    with pytest.raises(RuntimeError, match="not parallel") as caught:
        MultiAgentTask("pettingzoo:crash_v0")
    assert caught.value.__notes__ == ["while making task 'pettingzoo:crash_v0'"]


# ---- the agent's index


def test_the_index_follows_the_observation():
    plain, task = MultiAgentTask(CartPoles), MultiAgentTask(CartPoles, agent_id=True)
    assert task["policy"].observation_space.shape == (8,)
    assert plain["policy"].observation_space.shape == (4,)
    joints = [each.make(2, 3) for each in (plain, task)]
    for _ in range(60):
        rows = []
        for joint in joints:
            seats = joint.seats["policy"]
            seats.act(np.zeros(8, np.int64))
            joint.step()
            obs, _, terminated, _, info = seats.step(None)
            rows.append((obs, terminated, info.get("final_obs", [None] * 8)))
        (obs, terminated, last), (with_id, also, last_with_id) = rows
        np.testing.assert_array_equal(with_id[:, :4], obs)
        np.testing.assert_array_equal(with_id[:, 4:], np.tile(np.eye(4), (2, 1)))
        np.testing.assert_array_equal(also, terminated)
        for row in range(8):
            assert (last[row] is None) == (last_with_id[row] is None)
            if last[row] is not None:
                np.testing.assert_array_equal(last_with_id[row], [*last[row], *np.eye(4)[row % 4].astype(np.float32)])


def test_the_index_counts_all_agents_also_those_of_other_policies():
    task = MultiAgentTask(CartPoles, policies={"a": AGENTS[:1], "b": AGENTS[1:]}, agent_id=True)
    joint = task.make(1, 0)
    np.testing.assert_array_equal(joint.seats["b"].reset()[0][:, 4:], np.eye(4)[1:])
    joint.close()


def test_the_index_stands_beside_other_observations():
    plain, task = (MultiAgentTask("pettingzoo:classic.rps_v2", agent_id=has_id)["policy"] for has_id in (False, True))
    assert task.observation_space == spaces.Tuple((plain.observation_space, spaces.Discrete(2)))
    joint = task.multi.make(2, 0)
    (_, index), _ = joint.seats["policy"].reset()
    assert index.tolist() == [0, 1, 0, 1]
    joint.close()


def test_the_index_leaves_a_mask_where_it_is():
    plain, task = (MultiAgentTask("openspiel:kuhn_poker", agent_id=has_id) for has_id in (False, True))
    own, both = (each["policy"].observation_space for each in (plain, task))
    assert both["action_mask"] == own["action_mask"]
    assert both["obs"].shape == (own["obs"].shape[0] + 2,)
    joint = task.make(1, 0)
    rows, _ = joint.seats["policy"].reset()
    assert rows["obs"][0, -2:].tolist() == [1.0, 0.0]  # the first to move
    joint.close()


def test_environments_with_the_index_are_saved():
    task = MultiAgentTask(Relay, agent_id=True)
    joint, again = task.make(2, 0), task.make(2, 1)
    again.restore(joint.save())
    for each in (joint, again):
        each.seats["policy"].act(np.ones(6, np.int64))
        each.step()
    np.testing.assert_array_equal(joint.seats["policy"].step(None)[0], again.seats["policy"].step(None)[0])


# ---- a task in a flow


def test_a_task_can_be_sent_to_another_process():
    task = MultiAgentTask("pettingzoo:classic.tictactoe_v3")
    assert pickle.loads(pickle.dumps(task)) == task


@pytest.mark.parametrize("env", ["pettingzoo:classic.tictactoe_v3", "openspiel:matrix_rps", FORAGING])
def test_it_is_trained_in(env):
    task = MultiAgentTask(env)
    ppo = PPO(num_envs=4, num_steps=8, minibatch_size=8, hidden_sizes=(8,), compile=False)
    with Inline().open(multi_agent(task, {"policy": ppo}), seed=1) as run:
        for report in run:
            if report.firing == 2:
                break
        assert report.node == "policy/learn"
