"""Settings that `--on auto` may choose from."""

from __future__ import annotations

from typing import Any

import pytest

from levada.algorithms.checks import ConfigError
from levada.api.options import configure
from levada.api.plan import Planner, probe, probed_text
from levada.api.run import build
from levada.rl.envs.task import Task
from levada.run.planner import probe as probes
from levada.run.planner.auto import Auto
from levada.run.planner.candidates import Candidate
from levada.run.planner.search import Probed


def planner(
    algorithm: str, auto: Auto, env: str = "CartPole-v1", given: frozenset[str] = frozenset(), **fields: Any
) -> Planner:
    config, _ = configure(algorithm, env, fields)
    task = config.resolve_task(Task(env))
    return Planner(auto=auto, config=config, threads=1, flow_of=lambda config: build(config, task), given=given)


def changes(algorithm: str, auto: Auto, **fields: Any) -> list[dict[str, Any]]:
    return [dict(variant.changes) for variant in planner(algorithm, auto, **fields).variants()]


def test_nothing_is_changed_unless_it_is_allowed():
    assert changes("ppo", Auto()) == [{}]
    assert changes("dqn", Auto()) == [{}]


def test_as_many_environments_are_divided_among_shards():
    found = changes("ppo", Auto(max_envs=8), num_envs=8)
    assert found[0] == {}
    assert {"shards": 2, "num_envs": 4} in found
    assert {"shards": 4, "num_envs": 2} in found
    assert all(each.get("shards", 1) * each.get("num_envs", 8) == 8 for each in found)


def test_more_environments_have_shorter_rollouts():
    found = changes("ppo", Auto(max_envs=32), num_envs=8, num_steps=64)
    assert {"num_envs": 32, "num_steps": 16} in found
    for each in found:
        assert each.get("shards", 1) * each.get("num_envs", 8) * each.get("num_steps", 64) == 512


@pytest.mark.parametrize(("num_steps", "shortest"), [(32, 16), (16, 16), (8, 8)])
def test_rollouts_are_not_made_very_short(num_steps: int, shortest: int) -> None:
    found = changes("ppo", Auto(max_envs=1024), num_envs=8, num_steps=num_steps, minibatch_size=64)
    assert min(each.get("num_steps", num_steps) for each in found) == shortest


def test_what_is_given_is_not_changed() -> None:
    given = planner("ppo", Auto(max_envs=32), given=frozenset({"num_steps"}), num_envs=8, num_steps=64)
    assert {dict(variant.changes).get("num_steps", 64) for variant in given.variants()} == {64}
    assert len(given.variants()) > 1  # as many environments on several shards
    message = r"max_envs has no effect, for num_envs=8, shards=1 is given and not changed; leave one out"
    with pytest.raises(ConfigError, match=message):
        planner("ppo", Auto(max_envs=64), given=frozenset({"num_envs", "shards"})).plan()
    with pytest.raises(ConfigError, match=r"max_lag has no effect, for max_lag=0 is given"):
        planner("ppo", Auto(max_lag=1), given=frozenset({"num_envs", "max_lag"})).plan()


def test_rollouts_of_single_shards_keep_the_batch():
    found = changes("impala", Auto(max_envs=32), shards=4, num_envs=4, num_rollouts=2, num_steps=32)
    assert {"shards": 2, "num_envs": 8, "num_rollouts": 1} in found
    assert {"shards": 1, "num_envs": 16, "num_steps": 16, "num_rollouts": 1} in found
    for each in found:
        assert each.get("num_rollouts", 2) * each.get("num_envs", 4) * each.get("num_steps", 32) == 256


def test_a_replay_keeps_its_own_ratio():
    found = changes("dqn", Auto(max_envs=16), num_envs=8)
    assert {"shards": 2} in found
    assert not any("num_steps" in each or "samples_per_insert" in each for each in found)


def test_lags_are_doubled_up_to_the_limit():
    assert [each.get("max_lag", 0) for each in changes("ppo", Auto(max_lag=5))] == [0, 1, 2, 4, 5]
    assert [each.get("max_lag", 2) for each in changes("ppo", Auto(max_lag=1), max_lag=2)] == [2]


def test_threads_are_those_of_the_learner():
    found = planner("ppo", Auto(max_threads=4)).variants()
    assert [variant.threads for variant in found] == [1, 2, 4]


def test_the_update_of_a3c_has_the_gradient_of_one_shard():
    found = changes("a3c", Auto(max_envs=32), shards=4, num_envs=4, num_steps=64)
    assert {"shards": 2} not in found  # four shards of four environments are sixteen, and two of eight, too
    for each in found:
        assert each.get("num_envs", 4) * each.get("num_steps", 64) == 256


def test_an_algorithm_that_cannot_be_divided_says_so():
    with pytest.raises(
        ConfigError, match="DiLoCo has no method with_envs, so its environments cannot be divided otherwise"
    ):
        planner("diloco", Auto(max_envs=64)).plan()


def test_fewer_environments_than_there_are():
    with pytest.raises(
        ConfigError, match=r"on='auto,max_envs=4': max_envs is less than shards \* num_envs, which is 8; expected"
    ):
        planner("ppo", Auto(max_envs=4), num_envs=8).plan()


@pytest.mark.parametrize("algorithm", ["ppo", "dqn", "impala", "a3c"])
def test_a_probe_learns_within_a_moment(algorithm, monkeypatch):
    """Even if a replay would begin to learn after a million steps."""
    monkeypatch.setattr(probes, "PROBE_S", 0.05)
    fields = {"learning_starts": 1_000_000, "buffer_size": 1_000_000} if algorithm == "dqn" else {}
    flows = planner(algorithm, Auto(), **fields).variants()
    [variant] = flows
    candidate = Candidate("inline", 0, variant)
    found = probe(flows, candidate, 0)
    assert found.sampling_s > 0.0
    assert found.learning_s > 0.0
    num_steps = getattr(planner(algorithm, Auto()).config, "num_steps", 1)
    assert found.item_steps == pytest.approx(variant.num_envs * num_steps, rel=0.2)  # resets take steps, too
    text = probed_text(Probed(candidate=candidate, predicted=1234.5, measured=1000.0))
    assert text == "auto: inline: 1,000 steps/s, 1,234 predicted"
