"""Policies that are not trained, beside one that is: with fixed weights, or written by hand."""

import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from support.runs.saved import learned

from levada.algorithms.checks import ConfigError
from levada.algorithms.multi_agent import multi_agent
from levada.algorithms.players import Frozen, Heuristic
from levada.algorithms.ppo import PPO
from levada.flow import Shard
from levada.rl.acting.match import Seated, play
from levada.rl.acting.player import ByHandOf
from levada.rl.acting.trained_policy import TrainedPolicy
from levada.rl.envs.agents.task import MultiAgentTask
from levada.rl.envs.batch import EnvError
from levada.runners import Inline
from levada.runners.processes import Processes

SEATS = ("player_0", "player_1")
ACTED = []
"""What `passes` has seen."""


def against_one(agent, episode):
    """The learner plays one seat in turn; at the other is one of the others."""
    if agent == SEATS[episode.number % 2]:
        return "new"
    return ("old", "random")[episode.rng.integers(2)]


def at_random(obs, rng):
    return rng.choice(np.flatnonzero(obs["action_mask"]))


def passes(obs, rng):
    ACTED.append(obs["action_mask"].tolist())
    return 0


def lies(obs, rng):
    return 7


KUHN = MultiAgentTask(
    "openspiel:kuhn_poker", policies=dict.fromkeys(("new", "old", "random"), SEATS), policy_of=against_one
)
SMALL = PPO(shards=2, num_envs=4, num_steps=8, minibatch_size=32, hidden_sizes=(8,), compile=False)


def old_policy(seed: int) -> TrainedPolicy:
    """Far from uniform, so that its weights matter."""
    policy = SMALL.policy(KUHN["new"])
    weights = {name: 50 * array for name, array in policy.weights(policy.module(seed)).items()}
    return TrainedPolicy(policy, weights, version=3)


def with_old(seed: int = 7):
    return multi_agent(KUHN, {"new": SMALL, "old": Frozen(old_policy(seed)), "random": Heuristic(at_random)})


def test_the_register_of_fixed_weights_has_no_writer():
    flow = with_old()
    assert flow.check(reproducible=True) == []
    assert "[old/weights] fixed weights of old" in str(flow)
    assert "fixed weights of old" in flow.mermaid()
    assert "fixed weights of old" in flow.svg()
    assert list(flow.registers) == ["new/weights", "old/weights"]
    assert flow.hash() == with_old().hash() != with_old(seed=8).hash()


def test_the_result_is_the_same_in_processes_and_resumed():
    after = "new/learn", 6
    expected = learned(with_old(), Inline(), *after)
    saved = learned(with_old(), Processes(workers=2), *after, save_at=3)
    assert learned(with_old(), Inline(), *after, state=saved) == expected
    assert learned(with_old(), Processes(workers=2), *after) == expected
    assert learned(with_old(seed=8), Inline(), *after) != expected, "the opponent's weights matter"


def test_each_game_has_an_episode_of_each_player():
    sampler = with_old().nodes["rollout"].work
    live = sampler(Shard("rollout", 0, 1, seed=3))
    weights = {"new": old_policy(1).weights, "old": old_policy(7).weights}
    items = [live(weights) for _ in range(20)]
    assert all(set(item) == {"new"} for item in items)
    count = Counter(episode.policy for item in items for episode in item.episodes)
    assert count["new"] == count["old"] + count["random"] == sum(len(item["new"].episodes) for item in items)
    assert min(count.values()) > 10
    assert sum(episode.episode_return for item in items for episode in item.episodes) == 0.0, "of a game of zero sum"


def test_a_function_is_asked_only_for_agents_that_act():
    ACTED.clear()
    task = MultiAgentTask("openspiel:kuhn_poker", policies={"new": SEATS[:1], "fixed": SEATS[1:]})
    ppo = PPO(num_envs=4, num_steps=8, minibatch_size=32, hidden_sizes=(8,), compile=False)
    learned_ = multi_agent(task, {"new": ppo, "fixed": Heuristic(passes)})
    with Inline().open(learned_, seed=1) as run:
        next(iter(run))
    assert ACTED
    assert set(map(tuple, ACTED)) == {(1, 1)}, "whose turn it is not has no legal action"


def test_an_action_that_is_none_is_refused(caplog):
    flow = multi_agent(KUHN, {"new": SMALL, "old": Frozen(old_policy(7)), "random": Heuristic(lies)})
    with pytest.raises(
        ValueError, match=re.escape("policy 'random': the function returned 7, expected an action in Discrete(2)")
    ):
        list(flow.run(on=Inline()))
    assert not caplog.records, "it is not tried again"


@pytest.mark.parametrize(("policy", "hint"), [(3, ""), ("runs/x", r"; did you mean Frozen\(levada.load\('runs/x'\)")])
def test_frozen_takes_a_trained_policy(policy, hint):
    with pytest.raises(ConfigError, match=rf"Frozen: policy is {policy!r}, expected a levada.TrainedPolicy{hint}"):
        Frozen(policy)


def raises(obs, rng):
    raise ZeroDivisionError("no idea")


@pytest.mark.parametrize("on", [Inline(), Processes(workers=2)], ids=str)
def test_a_function_that_raises_ends_the_run_at_once_and_is_named_by_its_policy(on, caplog):
    flow = multi_agent(KUHN, {"new": SMALL, "old": Frozen(old_policy(7)), "random": Heuristic(raises)})
    with pytest.raises(ZeroDivisionError, match="no idea") as caught:
        list(flow.run(on=on))
    assert "in the function of policy 'random'" in caught.value.__notes__
    assert caught.traceback[-1].name == "raises"
    assert not caplog.records, "it is not tried again"


@pytest.mark.parametrize(
    ("found", "error", "said"),
    [(None, ZeroDivisionError, "no idea"), ("young", EnvError, r"returned 'young'; expected 'new'")],
)
def test_a_mistake_in_policy_of_ends_the_run_at_once(found, error, said, caplog):
    def late(agent, episode):
        if episode.number < 3:
            return against_one(agent, episode)
        return raises(agent, episode) if found is None else found

    flow = multi_agent(
        replace(KUHN, policy_of=late), {"new": SMALL, "old": Heuristic(at_random), "random": Heuristic(at_random)}
    )
    with pytest.raises(error, match=said):
        list(flow.run(on=Inline()))
    assert not caplog.records, "it is not tried again"


def test_weights_of_other_spaces_are_refused():
    other = MultiAgentTask("openspiel:kuhn_poker", env_kwargs={"players": 3})
    policy = SMALL.policy(other["policy"])
    old = Frozen(TrainedPolicy(policy, policy.weights(policy.module(0)), version=0))
    with pytest.raises(
        ConfigError, match=r"policy 'old' was trained with observations .*\(17,\).* expected those of its agents"
    ):
        multi_agent(KUHN, {"new": SMALL, "old": old, "random": Heuristic(at_random)})


def test_some_policy_must_be_trained():
    task = MultiAgentTask("openspiel:kuhn_poker", policies={"one": SEATS})
    with pytest.raises(ValueError, match="no policy that is trained; expected one for each policy: one"):
        multi_agent(task, {"one": Heuristic(at_random)})


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (3, r"^Heuristic: got 3; expected a function \(observation, random numbers\) -> action$"),
        (lambda obs: 0, r"got <lambda>\(obs\), which does not take two arguments \(too many positional arguments\)"),
        (lambda obs, rng, more: 0, r"which does not take two arguments \(missing a required argument: 'more'\)"),
    ],
)
def test_what_is_no_function_of_two_arguments_is_refused(function, message):
    with pytest.raises(ConfigError, match=message):
        Heuristic(function)
    Heuristic(lambda obs, rng, more=1: 0)


def test_a_policy_without_an_episode_is_left_out():
    """With one game, one of the two opponents does not play."""
    task = MultiAgentTask(KUHN.env, policies=KUHN.policies, policy_of=against_one)
    seated = {name: Seated.of(old_policy(7)) for name in ("new", "old")} | {
        "random": Seated(ByHandOf(at_random, "random"))
    }
    found = play(task, seated, num_episodes=1, seed=1)
    assert len(found) == 2 and "new" in found
    assert sum(each.mean for each in found.values()) == 0.0
    assert {name: each.version for name, each in found.items() if name != "random"} == dict.fromkeys(
        found.keys() - {"random"}, 3
    )
