"""Self-play against past versions: which join, who plays, and runs that are the same under every deployment."""

import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from support.runs.saved import learned

from benchmarks import self_play
from levada.algorithms.checks import ConfigError
from levada.algorithms.dqn import DQN
from levada.algorithms.multi_agent import multi_agent
from levada.algorithms.ppo import PPO
from levada.algorithms.self_play import Keeping, Past, SelfPlay
from levada.flow import Episode, Shard
from levada.rl.acting.past import PAST, VERSIONS, PastVersions
from levada.rl.data.normalize import Moments
from levada.rl.envs.agents.task import MultiAgentTask
from levada.rl.learning.past import SCORE, KeepingLearner, with_scores
from levada.runners import Inline
from levada.runners.processes import Processes

SEATS = ("player_0", "player_1")
SMALL = PPO(shards=2, num_envs=4, num_steps=8, minibatch_size=32, hidden_sizes=(8,), compile=False)
OFTEN = Keeping(size=3, win_rate=None, every=1)


def in_turn(agent, episode):
    return "new" if agent == SEATS[episode.number % 2] else "past"


KUHN = MultiAgentTask("openspiel:kuhn_poker", policies={"new": SEATS, "past": SEATS}, policy_of=in_turn)


def flow_of(keeping=OFTEN, algorithm=SMALL):
    return multi_agent(KUHN, {"new": SelfPlay(algorithm, keeping), "past": Past("new")})


# ---- which versions are kept


def test_a_version_joins_after_every_nth_update_and_the_first_one_is_there():
    with Inline().open(flow_of(replace(OFTEN, every=2, size=8)), seed=1) as run:
        learner = run.node_state("new/learn")
        snapshots = {0: learner.weights()}
        for report in run:
            snapshots[report.firing] = weights = learner.weights()
            if report.firing == 6:
                break
    assert weights[VERSIONS].tolist() == [0, 2, 4, 6, -1, -1, -1, -1]
    assert report.values["charts/past_versions"] == 4.0
    for slot, version in enumerate([0, 2, 4, 6]):
        for name in snapshots[0]:
            if not name.startswith(PAST):
                np.testing.assert_array_equal(weights[PAST + name][slot], snapshots[version][name])


def test_kept_versions_are_a_uniform_sample_of_all_that_joined():
    size, num, runs = 3, 12, 3_000
    count = Counter()
    for seed in range(runs):
        past = PastVersions.of(size, {"w": np.zeros(1)})
        for version in range(1, num):
            past = past.joined(version, {"w": np.full(1, version)}, seed)
        assert past.arrays[PAST + "w"][:, 0].tolist() == past.arrays[VERSIONS].tolist()
        count.update(past.arrays[VERSIONS].tolist())
    expected = runs * size / num
    assert set(count) == set(range(num))
    chi_squared = sum((count[version] - expected) ** 2 / expected for version in range(num))
    assert chi_squared < 31.3  # 0.1 % of the chi-squared distribution with 11 degrees of freedom


def test_arrays_that_were_published_do_not_change():
    past = PastVersions.of(2, {"w": np.zeros(2)})
    before = {name: array.copy() for name, array in past.arrays.items()}
    past.joined(1, {"w": np.ones(2)}, seed=1)
    assert all(np.array_equal(past.arrays[name], array) for name, array in before.items())


@pytest.mark.parametrize(("scores", "joined"), [([0.7, 0.5], [False, True]), ([0.5, 0.5], [False, False])])
def test_a_version_joins_when_it_wins_often_enough(scores, joined):
    """Measured over at least 100 games: 60 in each update, of which the first are too few."""
    learner = flow_of(Keeping(size=8, win_rate=0.6, num_games=100)).learners()["new/learn"]
    live = learner.open(0)
    found = []
    for score in scores:
        is_time = live._is_time([Moments(60.0, np.array(score), np.array(0.0))])
        found.append(is_time)
    assert found == joined
    assert live._win_rate == pytest.approx(sum(scores) / 2)
    assert live._games.tolist() == [0.0, 0.0], "the next games are counted anew"


def test_the_score_of_a_game():
    flow = flow_of(Keeping(win_rate=0.5))
    rollout = flow.nodes["rollout"].work(Shard("rollout", 0, 1, seed=3))(
        {"new": flow.learners()["new/learn"].open(0).weights(), "past": flow.learners()["new/learn"].open(0).weights()}
    )["new"]
    assert flow.nodes["new/scores"].work is with_scores
    games = tuple(Episode(episode_return, 1) for episode_return in (2.0, 1.0, -1.0, 0.0))
    found = with_scores(replace(rollout, episodes=games)).moments[SCORE]
    assert (found.count, float(found.mean)) == (4.0, 0.625)
    assert with_scores(replace(rollout, episodes=())).moments == {}


# ---- who plays


def test_each_game_is_played_against_one_past_version_that_was_drawn():
    """The versions are told apart by weights that make them always pass, or always bet."""
    flow = flow_of(replace(OFTEN, size=2))
    live = flow.nodes["rollout"].work(Shard("rollout", 0, 1, seed=3))
    weights = dict(flow.learners()["new/learn"].open(0).weights())
    bias = next(
        name for name in weights if name.endswith("bias") and weights[name].shape == (2,) and not name.startswith(PAST)
    )
    weights[VERSIONS] = np.array([0, 5])
    for slot, logits in enumerate(([50.0, -50.0], [-50.0, 50.0])):
        weights[PAST + bias][slot] = logits
    player = live._samplers["past"]
    inside = player._player
    drawn, before = Counter(), {}
    for _ in range(60):
        live({"new": weights, "past": weights})
        episodes = live._joint.num_episodes
        for row, version in enumerate(inside._state[:, 0].astype(int)):
            key = row, episodes[row // 2]
            if version:
                assert before.setdefault(key, version) == version, "one for the whole game"
                drawn[version] += 1
    assert set(drawn) == {1, 2}
    assert 0.5 < drawn[1] / drawn[2] < 2.0


def test_the_result_is_the_same_in_processes_and_resumed():
    flow = flow_of(Keeping(size=3, win_rate=0.4, num_games=20, every=3))
    assert flow.check(reproducible=True) == []
    after = "new/learn", 8
    expected = learned(flow, Inline(), *after)
    saved = learned(flow, Processes(workers=2), *after, save_at=4)
    assert learned(flow, Inline(), *after, state=saved) == expected
    found = learned(flow, Processes(workers=2, inference="worker"), *after)
    assert found == expected, "a register is read for two policies"


def test_an_algorithm_with_a_replay_keeps_versions_by_number():
    dqn = DQN(
        num_envs=4, num_steps=8, learning_starts=16, batch_size=16, buffer_size=256, hidden_sizes=(8,), compile=False
    )
    with Inline().open(flow_of(replace(OFTEN, every=2), dqn), seed=1) as run:
        for report in run:
            if report.firing == 4:
                assert set(run.node_state("new/learn").weights()[VERSIONS]) == {0, 2, 4}
                break


def test_rock_paper_scissors_with_past_versions_and_without():
    """The equilibrium is approached, and without past versions it is not. How far is in docs/results.md."""
    found = self_play.played(self_play.flow_of(keeps=True), 20, 1)
    assert found.num_kept > 2
    assert 0.0 < found.mixture < 0.46, "that of the policy it begins with"
    assert len(self_play.played(self_play.flow_of(keeps=False), 2, 1).last) == 2


# ---- errors


def test_some_version_must_join():
    with pytest.raises(ConfigError, match="SelfPlay: no version would join; expected win_rate or every in Keeping"):
        SelfPlay(SMALL, Keeping(win_rate=None))


@pytest.mark.parametrize("algorithm", ["ppo", type(SMALL), None])
def test_what_is_trained_is_an_algorithm(algorithm):
    with pytest.raises(
        ConfigError, match=r"SelfPlay: algorithm is .*, expected one with its settings, such as levada\.PPO"
    ):
        SelfPlay(algorithm)


def test_what_is_kept_is_told_by_keeping():
    with pytest.raises(ConfigError, match=r"SelfPlay: keeping is 0.5, expected such as Keeping\(win_rate=0.6\)"):
        SelfPlay(SMALL, 0.5)


def test_samples_of_a_replay_are_of_no_game():
    with pytest.raises(
        ConfigError, match=re.escape("SelfPlay: DQN learns from a replay, whose samples are of no game in particular")
    ):
        SelfPlay(DQN(), Keeping())


def test_a_single_learner_keeps_versions():
    with pytest.raises(
        ConfigError,
        match=re.escape("PPO(microbatch_size=16), expected None, and learners=1: versions are kept by a single"),
    ):
        SelfPlay(replace(SMALL, microbatch_size=16), OFTEN)


@pytest.mark.parametrize("of", ["new", "nobody"])
def test_the_past_is_that_of_a_policy_that_keeps_it(of):
    with pytest.raises(
        ConfigError, match=f"policy 'past' is the past of '{of}'; expected a policy that is trained by SelfPlay"
    ):
        multi_agent(KUHN, {"new": SMALL, "past": Past(of)})


def test_a_rate_beyond_1_is_refused():
    with pytest.raises(ValueError, match="win_rate"):
        Keeping(win_rate=1.5)
    assert isinstance(flow_of().learners()["new/learn"], KeepingLearner)
