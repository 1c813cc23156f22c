"""Who acts for whom is drawn when an episode begins, from random numbers that depend on nothing else."""

import numpy as np
import pytest
from support.envs.multi import CartPoles, Comers, Relay

from levada.algorithms.dqn import DQN
from levada.algorithms.multi_agent import multi_agent
from levada.algorithms.ppo import PPO
from levada.flow import Shard
from levada.flow.items import derive_seed
from levada.rl.acting.multi_agent import ENVS, MultiAgentSampler
from levada.rl.envs.agents.task import MultiAgentTask
from levada.rl.envs.batch import EnvError
from levada.rl.envs.task import TaskError
from levada.runners import Inline

AGENTS = tuple(f"agent_{k}" for k in range(4))
NUM_COPIES = 3


def drawn(agent, episode):
    return ("old", "new")[int(episode.rng.integers(2))]


def task(policy_of=drawn, env=CartPoles):
    return MultiAgentTask(env, policies={"old": AGENTS, "new": AGENTS}, policy_of=policy_of)


def push(joint, actions=0):
    """Let all agents do the same."""
    for seats in joint.seats.values():
        seats.act(np.full(seats.num_envs, actions))
    joint.step()


def play(joint, num_steps):
    for _ in range(num_steps):
        push(joint)


class Recorded:
    """A task that writes down who acts for whom: {(copy, episode): {agent: policy}}."""

    def __init__(self, policy_of=drawn):
        self.found = {}

        def recording(agent, episode):
            policy = policy_of(agent, episode)
            self.found.setdefault((episode.env, episode.number), {})[agent] = policy
            return policy

        self.task = task(recording)

    def play(self, seed, num_steps, actions=0):
        joint = self.task.make(NUM_COPIES, seed)
        for _ in range(num_steps):
            push(joint, actions)
        joint.close()
        return self.found


def test_equal_seeds_give_equal_policies_whatever_the_agents_do():
    """Pushing one way ends an episode early, and pushing the other way ends it at another step."""
    found, other = Recorded().play(1, 60), Recorded().play(1, 90, actions=1)
    assert len(found) >= 3 * NUM_COPIES
    shared = found.keys() & other.keys()
    assert len(shared) >= 3 * NUM_COPIES
    assert {key: found[key] for key in shared} == {key: other[key] for key in shared}
    assert Recorded().play(1, 60) == found


def test_they_differ_between_seeds_copies_and_episodes():
    found, other = Recorded().play(1, 200), Recorded().play(2, 200)
    for one, another in (
        (
            [found[key] for key in sorted(found.keys() & other.keys())],
            [other[key] for key in sorted(found.keys() & other.keys())],
        ),
        ([found[0, number] for number in range(10)], [found[1, number] for number in range(10)]),
        ([found[0, number] for number in range(10)], [found[0, number + 1] for number in range(10)]),
    ):
        assert one != another
    counts = [list(each.values()).count("old") for each in found.values()]
    assert len(set(counts)) > 2


def test_each_episode_has_its_own_numbers():
    """An agent that draws more numbers changes nothing in the next episode."""

    def greedy(agent, episode):
        if episode.number == 0:
            episode.rng.random(100)
        return drawn(agent, episode)

    found, other = Recorded().play(3, 100), Recorded(greedy).play(3, 100)
    later = [key for key in found if key[1] > 0]
    assert len(later) > 6
    assert [found[key] for key in later] == [other[key] for key in later]


def test_shards_draw_their_own():
    seeds = [derive_seed(Shard("rollout", index, 2, 7 + index).seed, ENVS) for index in range(2)]
    assert Recorded().play(seeds[0], 100) != Recorded().play(seeds[1], 100)


def test_they_are_asked_in_the_order_of_the_agents_when_an_episode_begins():
    asked = []

    def asking(agent, episode):
        asked.append((episode.env, episode.number, agent))
        return "new"

    joint = task(asking).make(2, 0)
    joint.close()
    assert asked == [(copy, 0, agent) for copy in range(2) for agent in AGENTS]


def test_rows_of_a_policy_act_only_for_its_agents():
    joint = task().make(NUM_COPIES, 4)
    for _ in range(50):
        for copy, env in enumerate(joint.envs):
            rows = {name: seats.acts[4 * copy : 4 * copy + 4] for name, seats in joint.seats.items()}
            assert not (rows["old"] & rows["new"]).any()
            acting = rows["old"] | rows["new"]
            assert [agent for agent, acts in zip(AGENTS, acting, strict=True) if acts] == list(env.movers)
        push(joint)
    joint.close()


def test_they_survive_save_and_restore():
    """In the middle of an episode, in environments that were made with another seed."""
    joint, again = task().make(NUM_COPIES, 5), task().make(NUM_COPIES, 6)

    def rows(joint, num_steps):
        found = []
        for _ in range(num_steps):
            push(joint)
            found.append([seats.acts.tolist() for seats in joint.seats.values()])
        return found

    rows(joint, 5)
    assert rows(again, 20) != rows(task().make(NUM_COPIES, 5), 20)
    again.restore(joint.save())
    expected = rows(joint, 60)
    assert rows(again, 60) == expected
    joint.close()
    again.close()


SMALL = {"num_steps": 12, "num_envs": 8, "hidden_sizes": (8,), "compile": False}


def test_an_item_of_a_policy_that_acts_for_no_agent_is_masked():
    of = task(lambda agent, episode: "old" if episode.number % 2 else "new")
    parts = {
        "old": PPO(minibatch_size=8, **SMALL).part(of["old"], "old"),
        "new": DQN(learning_starts=1, batch_size=8, **SMALL).part(of["new"], "new"),
    }
    recipe = MultiAgentSampler(task=of, samplers={name: part.sampler for name, part in parts.items()})
    live = recipe(Shard("rollout", 0, 1, 7))
    joint, seen = live._joint, set()
    for _ in range(12):
        before = list(joint._num_episodes)
        item = live({name: part.learner.open(0).weights() for name, part in parts.items()})
        num_rows = item["old"].mask.sum(), parts["new"].stage(item["new"]).columns["mask"].sum()
        assert item.num_env_steps == 12 * 2
        if (
            before == joint._num_episodes and before[0] % 2 == before[1] % 2
        ):  # in all copies, one policy acts for all agents
            acting = 1 - before[0] % 2
            assert num_rows[acting] == 0
            assert num_rows[1 - acting] > 0
            seen.add(acting)
    live.close()
    assert seen == {0, 1}


@pytest.mark.parametrize("env", [CartPoles, Relay], ids=["at once", "in turns"])
def test_an_agent_may_learn_with_either_of_two_algorithms(env):
    agents = AGENTS if env is CartPoles else AGENTS[:3]
    shared = MultiAgentTask(env, policies={"old": agents, "new": agents}, policy_of=drawn)
    small = {**SMALL, "shards": 2, "num_envs": 2 * len(agents)}
    algorithms = {
        "old": PPO(minibatch_size=12, **small),
        "new": DQN(learning_starts=32, batch_size=8, **small),
    }
    updates = set()
    with Inline().open(multi_agent(shared, algorithms), seed=1) as run:
        for report in run:
            updates.add(report.node)
            if len(updates) == 2 and report.firing >= 3:
                break
    assert updates == {"old/learn", "new/learn"}


def test_a_name_that_it_may_not_return_is_refused():
    policies = {"old": AGENTS, "new": AGENTS[:1]}

    def wrong(agent, episode):
        return "new" if episode.number == 2 else "old"

    joint = MultiAgentTask(CartPoles, policies=policies, policy_of=wrong).make(2, 0)
    expected = r"'CartPoles', env \d of 2, episode 2: policy_of\('agent_1', episode\) returned 'new'; expected 'old'"
    with pytest.raises(EnvError, match=expected):
        play(joint, 1000)
    joint.close()


def test_what_is_no_name_is_refused():
    with pytest.raises(EnvError, match=r"policy_of\('agent_0', episode\) returned \['new'\]; expected 'old' or 'new'"):
        task(lambda agent, episode: ["new"]).make(2, 0)


def test_an_error_in_it_says_in_which_episode():
    def broken(agent, episode):
        raise KeyError(agent)

    with pytest.raises(KeyError) as caught:
        task(broken).make(2, 0)
    assert caught.value.__notes__ == ["environment 'CartPoles', env 0 of 2, episode 0"]


def test_an_agent_with_two_policies_needs_it():
    with pytest.raises(TaskError, match=r"agent 'agent_0' has several policies; expected policy_of"):
        task(None)
    with pytest.raises(
        TaskError, match=r"their observation_spaces differ: Box\(.*\(3,\), float32\) and Box\(.*\(4,\), float32\)"
    ):
        MultiAgentTask(Comers, policies={"a": AGENTS}).spaces  # noqa: B018
