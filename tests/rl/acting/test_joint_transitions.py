"""Joint transitions of a team: exactly what its environment did, with agents that come and go."""

from dataclasses import replace

import numpy as np
import pytest
from support.envs.multi import Relay, Shifts

from levada.algorithms.dqn import DQN
from levada.flow import Shard
from levada.rl.acting.joint_transitions import AgentTransitions, JointTransitions
from levada.rl.acting.multi_agent import MultiAgentSampler
from levada.rl.envs.agents.task import MultiAgentTask

NUM_STEPS, NUM_COPIES, NUM_ITEMS = 7, 2, 6
AGENTS = ("agent_0", "agent_1", "agent_2", "agent_3")


def shifts(end, policies, **more):
    return MultiAgentTask(Shifts, policies=policies, env_kwargs={"end": end, **more})


def source(task):
    """A sampler in which each policy acts by values, and its weights."""
    settings = {"num_steps": NUM_STEPS, "hidden_sizes": (8,), "compile": False}
    parts = {
        name: DQN(num_envs=NUM_COPIES * len(agents), **settings).part(task[name], name)
        for name, agents in task.policies.items()
    }
    recipe = MultiAgentSampler(task=task, samplers={name: part.sampler for name, part in parts.items()})
    return recipe, {name: part.learner.open(seed).weights() for seed, (name, part) in enumerate(parts.items())}


def collected(task, stage, policy="team"):
    """The joint transitions of some items by name, and what each copy of the environment did. `policy`: None: of all."""
    recipe, weights = source(task)
    live = recipe(Shard("step", 0, 1, 7))
    items = (live(weights) for _ in range(NUM_ITEMS))
    parts = [_stacked(stage(item if policy is None else item[policy]).columns) for item in items]
    envs = list(live._joint.envs)
    live.close()
    rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    while not isinstance(envs[0], Shifts):
        envs = [env.env for env in envs]
    return rows, [env.done for env in envs]


def _stacked(columns):
    """The columns of each agent side by side."""
    return {name: np.stack(column, axis=1) if isinstance(column, tuple) else column for name, column in columns.items()}


@pytest.mark.parametrize(("stays", "reward"), [(False, "mean"), (True, "mean"), (True, "sum"), (False, "each")])
@pytest.mark.parametrize("end", ["truncated", "terminated", "mixed", "cut"])
def test_they_are_what_the_environment_did(end, stays, reward):
    """With the true final observations, and discount 0 only where all agents of the episode have terminated; not in step 3,
    where those that are there leave, while others come. By agent, discount 0 where the agent has terminated.
    """
    task = shifts(end, {"team": AGENTS}, stays=stays)
    if reward == "each":
        task = shifts(end, {agent: (agent,) for agent in AGENTS}, stays=stays)
        rows, done = collected(task, AgentTransitions(discount=0.9, num_agents=4), policy=None)
    else:
        rows, done = collected(task, JointTransitions(discount=0.9, num_agents=4, reward=reward))
    assert rows["mask"].all()
    assert len(rows["mask"]) == NUM_ITEMS * NUM_STEPS * NUM_COPIES
    for row in range(len(rows["mask"])):
        t, copy = divmod(row, NUM_COPIES)
        step = done[copy][t]
        following = step["next"] or step["truncated"]
        has_next = {*following, *step["truncated"]} if reward == "each" else following
        if reward == "each":
            assert rows["reward"][row].tolist() == [step["reward"].get(agent, 0.0) for agent in AGENTS]
            assert (rows["discount"][row] > 0).tolist() == [agent in has_next for agent in AGENTS]
        else:
            total = sum(step["reward"].values())
            assert rows["reward"][row] == pytest.approx(total / 4 if reward == "mean" else total)
            assert rows["discount"][row] == (np.float32(0.9) if following else 0.0)
        for k, agent in enumerate(AGENTS):
            assert rows["there"][row, k] == (agent in step["obs"])
            np.testing.assert_array_equal(rows["obs"][row, k], step["obs"].get(agent, np.zeros(3)))
            if agent in step["action"]:
                assert rows["action"][row, k] == step["action"][agent]
            assert rows["next_there"][row, k] == (agent in following)
            expected = step["next_obs"][agent] if agent in has_next else np.zeros(3)
            np.testing.assert_array_equal(rows["next_obs"][row, k], expected)
    num_ends = sum(not step["next"] for steps in done for step in steps)
    assert num_ends == NUM_COPIES * (NUM_ITEMS * NUM_STEPS // 5)
    is_over = (rows["discount"] == 0) if reward != "each" else (rows["discount"] == 0).all(axis=1)
    assert is_over.sum() == (num_ends if end == "terminated" else 0)


@pytest.mark.parametrize("end", ["truncated", "cut"])
def test_a_team_among_others_has_the_rows_in_which_it_acts(end):
    """The team's part is over in step 2; the episode goes on without it, and it is there again in the next one. Where the team
    was truncated, it has a next value.
    """
    task = shifts(end, {"team": ("agent_1",), "others": ("agent_0", "agent_2", "agent_3")})
    rows, done = collected(task, JointTransitions(discount=0.9, num_agents=1))
    steps = [done[copy][t] for t in range(NUM_ITEMS * NUM_STEPS) for copy in range(NUM_COPIES)]
    assert rows["mask"].tolist() == ["agent_1" in step["obs"] for step in steps]
    for row in np.flatnonzero(rows["mask"]):
        assert rows["reward"][row] == steps[row]["reward"]["agent_1"]
        is_cut = "agent_1" in steps[row]["truncated"]
        assert (rows["discount"][row] > 0) == ("agent_1" in steps[row]["next"] or is_cut)
        if rows["discount"][row] > 0:
            np.testing.assert_array_equal(rows["next_obs"][row, 0], steps[row]["next_obs"]["agent_1"])
    assert is_cut == (end == "cut")


def test_agents_see_their_indices():
    task = replace(shifts("truncated", {"team": AGENTS}), agent_id=True)
    assert task.name == "Shifts"
    rows, _ = collected(task, JointTransitions(discount=0.9, num_agents=4))
    plain, _ = collected(shifts("truncated", {"team": AGENTS}), JointTransitions(discount=0.9, num_agents=4))
    for there, obs in (("there", "obs"), ("next_there", "next_obs")):
        np.testing.assert_array_equal(rows[obs][..., :3], plain[obs])
        np.testing.assert_array_equal(rows[obs][..., 3:], rows[there][..., None] * np.eye(4))


def test_steps_of_agents_in_turns_are_refused():
    task = MultiAgentTask(Relay, policies={"team": ("agent_0", "agent_1", "agent_2")})
    recipe, weights = source(task)
    live = recipe(Shard("step", 0, 1, 7))
    with pytest.raises(ValueError, match=r"expected those of a MultiAgentSampler, of agents that act at once"):
        JointTransitions(discount=0.9, num_agents=3)(live(weights)["team"])
    live.close()


def test_the_steps_are_not_changed():
    """And the end of an episode is told by the sampler: rows alone do not tell it from a change of shifts."""
    recipe, weights = source(shifts("truncated", {"team": AGENTS}))
    live = recipe(Shard("step", 0, 1, 7))
    steps = live(weights)["team"]
    stage = JointTransitions(discount=0.9, num_agents=4)
    first, again = stage(steps).columns, stage(steps).columns
    for name, column in first.items():
        np.testing.assert_array_equal(column, again[name])
    never = replace(steps, began=np.zeros_like(steps.began))
    assert not np.array_equal(stage(never).columns["next_there"], first["next_there"])
    live.close()
