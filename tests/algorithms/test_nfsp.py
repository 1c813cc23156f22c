"""NFSP: who is learned from, who plays, the game of poker, and runs that are the same under every deployment."""

from dataclasses import replace

import numpy as np
import pytest
from support.envs.multi import CartPoles
from support.runs.saved import learned

from benchmarks.nfsp import exploited
from levada.algorithms.checks import ConfigError
from levada.algorithms.nfsp import AVERAGE, BEST_RESPONSE, NFSP, Anticipatory
from levada.errors import SpaceError
from levada.flow import Shard
from levada.rl.acting.actor import Actor
from levada.rl.envs.agents.joint import EpisodeStart
from levada.rl.envs.task import Task
from levada.runners import Inline
from levada.runners.processes import Processes

KUHN = Task("openspiel:kuhn_poker")
SMALL = NFSP(
    shards=2, num_envs=4, num_steps=8, learning_starts=64, batch_size=16, buffer_size=256, reservoir_size=100,
    num_gradient_steps=2, hidden_sizes=(8,), anticipatory=0.5, compile=False,
)  # fmt: skip


def test_the_policy_of_an_episode_is_drawn_with_the_anticipatory_parameter():
    drawn = [
        Anticipatory(0.3)("player_0", EpisodeStart(0, number, np.random.default_rng(number))) for number in range(4_000)
    ]
    assert set(drawn) == {BEST_RESPONSE, AVERAGE}
    assert drawn.count(BEST_RESPONSE) / 4_000 == pytest.approx(0.3, abs=0.03)
    start = EpisodeStart(0, 0, np.random.default_rng(5))
    pairs = {(Anticipatory(0.5)("a", start), Anticipatory(0.5)("b", start)) for _ in range(100)}
    assert len(pairs) == 4, "players choose on their own"


def items_of(hp, num_items):
    """Items of a shard, and what becomes of them on the way to the replay and the reservoir."""
    flow = hp.flow(KUHN)
    live = flow.nodes[hp.SOURCE].work(Shard(hp.SOURCE, 0, 1, seed=3))
    weights = {
        name: recipe.open(1).weights()
        for name, recipe in zip((BEST_RESPONSE, AVERAGE), flow.learners().values(), strict=True)
    }
    stages = flow.nodes["best_response/n_step"].work, flow.nodes["average/choices"].work
    found = []
    for _ in range(num_items):
        item = live(weights)
        found.append((item, *(stage(item) for stage in stages)))
    return flow, weights, found


def test_the_replay_gets_all_transitions_and_the_reservoir_the_choices_of_best_responses():
    flow, weights, found = items_of(replace(SMALL, anticipatory=0.3, epsilon_start=1.0, epsilon_end=1.0), 40)
    best = next(iter(flow.learners().values())).policy
    actor = Actor(best)
    actor.load(weights[BEST_RESPONSE])
    num_choices, num_others, num_explored = 0, 0, 0
    for item, transitions, choices in found:
        mask = choices.columns["mask"]
        own = item[BEST_RESPONSE].buffer.mask.sum()
        num_choices += mask.sum()
        num_others += transitions.num_entries - mask.sum()
        assert set(choices.columns) == {"obs", "action", "mask"}
        assert len(transitions.columns["mask"]) == 2 * len(mask)
        assert mask.sum() <= own + item[BEST_RESPONSE].buffer.mask.shape[1]
        obs = {name: leaf[mask] for name, leaf in choices.columns["obs"].items()}
        if mask.any():
            greedy = best.head.mode(actor.params(obs).copy(), obs["action_mask"])
            np.testing.assert_array_equal(choices.columns["action"][mask], greedy)
            num_explored += (transitions.columns["action"][: len(mask)][mask] != greedy).sum()
    assert 0.2 < num_choices / (num_choices + num_others) < 0.4
    assert 0.3 < num_explored / num_choices < 0.7, "explored actions are in the replay only"


@pytest.mark.parametrize(("task", "num_players", "num_turns"), [(KUHN, 2, 50), (Task(CartPoles), 4, 200)])
def test_schedules_count_env_steps(task, num_players, num_turns):
    """Whether players act at once or in turns: a step of the environment is one of each player for the sampler."""
    hp = replace(SMALL, epsilon_steps=100, anneal_steps=100, learning_rate=1.0, samples_per_insert=1.0)
    flow = hp.flow(task)
    explore = flow.nodes[hp.SOURCE].work.samplers[BEST_RESPONSE].explore
    assert explore.epsilon(50 * num_players) == pytest.approx((hp.epsilon_start + hp.epsilon_end) / 2)
    learner = flow.learners()["best_response/learn"]
    assert learner.coefficients(num_turns)["learning_rate"] == pytest.approx(0.5)


def test_the_result_is_the_same_in_processes_and_resumed():
    flow = SMALL.flow(KUHN)
    assert flow.check(reproducible=True) == []
    after = "average/learn", 8
    expected = learned(flow, Inline(), *after)
    saved = learned(flow, Processes(workers=2), *after, save_at=4)
    assert learned(flow, Inline(), *after, state=saved) == expected
    assert learned(flow, Processes(workers=2), *after) == expected


def test_the_average_policy_of_poker_becomes_hard_to_exploit():
    """Uniform play loses 0.46 per game to best responses. How far it gets is in docs/results.md."""
    with Inline().open(NFSP(compile=False).flow(KUHN), seed=1) as run:
        average = run.node_state("average/learn")
        policy, before = average.recipe.policy, average.weights()
        assert exploited(policy, before) == pytest.approx(0.458, abs=0.05)
        for report in run:
            if report.node == "average/learn" and report.firing == 30:
                break
        assert exploited(policy, average.weights()) < 0.3


@pytest.mark.parametrize("name", ["normalize_obs", "normalize_reward", "prioritized"])
def test_what_the_reservoir_cannot_have_is_refused(name):
    with pytest.raises(
        ConfigError, match=rf"NFSP\({name}=True\): expected False, for the reservoir has no rewards and no priorities"
    ):
        NFSP(**{name: True})


def test_actions_are_discrete():
    assert set(SMALL.flow(Task(CartPoles)).learners()) == {"best_response/learn", "average/learn"}
    with pytest.raises(SpaceError, match="Discrete"):
        SMALL.flow(Task("pettingzoo:mpe2.simple_spread_v3", env_kwargs={"continuous_actions": True}))
