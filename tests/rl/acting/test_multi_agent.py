"""Samplers of several policies: every transition of every agent, and no other, in environments whose agents come and go, act at
once or in turns.
"""

from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
from support.envs.multi import Comers, Relay

from levada.algorithms.dqn import DQN
from levada.algorithms.ppo import PPO
from levada.flow import Shard
from levada.flow.items import serve_here
from levada.flow.stopwatch import ENVIRONMENT
from levada.rl.acting.actor import Actor
from levada.rl.acting.multi_agent import MultiAgentSampler
from levada.rl.envs.agents.joint import Joint
from levada.rl.envs.agents.task import MultiAgentTask
from levada.rl.envs.batch import EnvBatch

NUM_STEPS, NUM_ENVS, NUM_ITEMS = 7, 2, 6
COMERS = MultiAgentTask(Comers, policies={"a": ("agent_0", "agent_3"), "b": ("agent_1",), "c": ("agent_2",)})
RELAY = MultiAgentTask(Relay, policies={"a": ("agent_0", "agent_2"), "b": ("agent_1",)})


def sampler(task, algorithm, **more):
    """A sampler in which each policy is trained by the algorithm."""
    parts = {}
    for name, agents in task.policies.items():
        settings = algorithm(
            num_steps=NUM_STEPS, num_envs=NUM_ENVS * len(agents), hidden_sizes=(8,), compile=False, **more
        )
        parts[name] = settings.part(task[name], name)
    recipe = MultiAgentSampler(task=task, samplers={name: part.sampler for name, part in parts.items()})
    weights = {name: part.learner.open(seed).weights() for seed, (name, part) in enumerate(parts.items())}
    return recipe, weights, parts


@pytest.fixture
def log(monkeypatch):
    """What each agent of each copy did: transitions, each with the items in which it acted, and in which it saw the result."""
    found = SimpleNamespace(transitions=defaultdict(list), item=0)
    waiting = {}
    put, begin = Joint._put, Joint._begin

    def logging_put(joint, number, seen):
        for agent, each in seen.items():
            if (number, agent) in waiting:
                obs, action, item = waiting.pop((number, agent))
                row = (obs, action, each.reward, each.obs, each.terminated, each.truncated, item, found.item)
                found.transitions[number, agent].append(row)
        put(joint, number, seen)
        now[number] |= {agent: each.obs for agent, each in seen.items()}

    def logging_begin(joint, number, seed):
        now[number] = {}
        begin(joint, number, seed)

    def logging_step(joint):
        for number, env in enumerate(joint.envs):
            for agent in env.movers:
                seats, row = joint._rows[number][agent]
                waiting[number, agent] = now[number][agent], int(seats.action(row)), found.item
        step(joint)

    now, step = defaultdict(dict), Joint.step
    monkeypatch.setattr(Joint, "_put", logging_put)
    monkeypatch.setattr(Joint, "_begin", logging_begin)
    monkeypatch.setattr(Joint, "step", logging_step)
    return found


def collected(recipe, weights, log):
    live = recipe(Shard("rollout", 0, 1, 7))
    items = []
    for log.item in range(NUM_ITEMS):
        items.append(live(weights))
    live.close()
    return items


def agents_of(task, policy):
    """(copy, agent) of each row."""
    return [(number, agent) for number in range(NUM_ENVS) for agent in task.policies[policy]]


@pytest.mark.parametrize("task", [COMERS, RELAY], ids=["at once", "in turns"])
def test_rollouts_hold_what_each_agent_did(task, log):
    """In turns, an action whose result is not known at the end of its rollout is in none. The value of the true next observation
    is used wherever an episode has not terminated.
    """
    recipe, weights, _ = sampler(task, PPO, minibatch_size=7)
    items = collected(recipe, weights, log)
    num_rows = 0
    for policy in task.policies:
        actor = Actor(recipe.samplers[policy].policy, serve_here, 1)
        actor.load(weights[policy])
        for b, agent in enumerate(agents_of(task, policy)):
            for number, item in enumerate(items):
                rollout = item[policy]
                rows = np.flatnonzero(rollout.mask[:, b])
                expected = [row for row in log.transitions[agent] if row[6] == row[7] == number]
                assert len(rows) == len(expected)
                num_rows += len(rows)
                for t, (obs, action, reward, after, terminated, truncated, *_) in zip(rows, expected, strict=True):
                    np.testing.assert_array_equal(rollout.obs[t, b], obs)
                    assert rollout.action[t, b] == action
                    assert rollout.reward[t, b] == pytest.approx(reward)
                    assert rollout.terminated[t, b] == terminated
                    assert rollout.truncated[t, b] >= truncated
                    assert rollout.value[t, b] == pytest.approx(actor.value(obs[None])[0], abs=1e-5)
                    if not terminated:
                        assert rollout.next_value[t, b] == pytest.approx(actor.value(after[None])[0], abs=1e-5)
    assert num_rows > 70
    assert sum(item.num_env_steps for item in items) == NUM_ITEMS * NUM_STEPS * NUM_ENVS


@pytest.mark.parametrize("num_steps", [1, 3])
@pytest.mark.parametrize("task", [COMERS, RELAY], ids=["at once", "in turns"])
def test_a_replay_gets_each_transition_once(task, num_steps, log):
    recipe, weights, parts = sampler(
        task, DQN, n_step=num_steps, learning_starts=1, samples_per_insert=1.0, batch_size=8
    )
    items = collected(recipe, weights, log)
    for policy in task.policies:
        stage = parts[policy].stage
        rows = defaultdict(list)
        for item in items:
            columns = stage(item[policy]).columns
            shape = (len(columns["mask"]) // (NUM_ENVS * len(task.policies[policy])), -1)
            mask = columns["mask"].reshape(shape)
            for t, b in np.argwhere(mask):
                row = {name: column.reshape(*mask.shape, *column.shape[1:])[t, b] for name, column in columns.items()}
                rows[agents_of(task, policy)[b]].append(row)
        for agent in agents_of(task, policy):
            done = log.transitions[agent]
            assert len(done) - num_steps - 1 <= len(rows[agent]) <= len(done)
            for k, row in enumerate(rows[agent]):
                window = []
                for step in done[k : k + num_steps]:
                    window.append(step)
                    if step[4] or step[5]:
                        break
                np.testing.assert_array_equal(row["obs"], window[0][0])
                assert row["action"] == window[0][1]
                assert row["reward"] == pytest.approx(sum(0.99**i * step[2] for i, step in enumerate(window)), rel=1e-5)
                np.testing.assert_array_equal(row["next_obs"], window[-1][3])
                assert row["discount"] == pytest.approx(0.0 if window[-1][4] else 0.99 ** len(window))


@pytest.mark.parametrize("algorithm", [PPO, DQN])
@pytest.mark.parametrize("task", [COMERS, RELAY], ids=["at once", "in turns"])
def test_it_resumes_to_the_bit(task, algorithm):
    """In the middle of episodes, with actions whose results are not known yet."""
    more = {"minibatch_size": 7} if algorithm is PPO else {"learning_starts": 1, "samples_per_insert": 1.0, "n_step": 3}
    recipe, weights, parts = sampler(task, algorithm, **more)

    def columns(item):
        return {
            f"{name}/{column}": array
            for name, each in item.items()
            for column, array in (parts[name].stage(each) if algorithm is DQN else each.transitions()).columns.items()
        }

    live = recipe(Shard("rollout", 0, 1, 7))
    live(weights)
    state = live.state_dict()
    expected = [columns(live(weights)) for _ in range(2)]
    again = recipe(Shard("rollout", 0, 1, 8))
    again.load_state_dict(state)
    for item in expected:
        found = columns(again(weights))
        for name, array in item.items():
            np.testing.assert_array_equal(found[name], array, err_msg=name)
    live.close()
    again.close()


def test_the_environment_of_each_policy_is_told_apart_from_inference(monkeypatch):
    recipe, weights, _ = sampler(COMERS, PPO, num_minibatches=1)
    shard, doing = Shard("rollout", 0, 1, 7), []
    step = EnvBatch.step

    def noting_step(envs, actions):
        doing.append(shard.stopwatch._what)
        return step(envs, actions)

    monkeypatch.setattr(EnvBatch, "step", noting_step)
    live = recipe(shard)
    live(weights)
    live.close()
    assert doing == [ENVIRONMENT] * (NUM_STEPS * len(COMERS.policies))
