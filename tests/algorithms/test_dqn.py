"""DQN: it learns, it is the same under every deployment, its settings are checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import levada as lv
from levada.algorithms.checks import ConfigError
from levada.algorithms.dqn import DQN
from levada.algorithms.rainbow import Rainbow
from levada.rl.acting.evaluation import evaluate
from levada.rl.acting.trained_policy import TrainedPolicy
from levada.rl.envs.task import Task
from levada.run.monitor import Monitor
from levada.run.storage.checkpoint import CheckpointWarning
from levada.run.storage.hashing import params_sha256
from levada.runners import Inline
from levada.runners.processes import Processes

QUICK = {
    "num_envs": 2,
    "num_steps": 4,
    "learning_starts": 40,
    "batch_size": 16,
    "num_gradient_steps": 2,
    "hidden_sizes": (16,),
}
ALL = {"num_atoms": 7, "v_min": 0.0, "v_max": 20.0}


def run(
    hp: DQN, env: str = "CartPole-v1", *, on: Any = None, seed: int = 1, updates: int = 40, state: Any = None
) -> Any:
    monitor = Monitor()
    with (on or Inline()).open(hp.flow(Task(env)), seed=seed, instruments=[monitor], state=state) as opened:
        for report in opened:
            if report.firing == updates:
                break
        return monitor, opened.statistics(), params_sha256(opened.node_state("learn").weights()), opened.save()


def test_it_learns_cartpole() -> None:
    hp = DQN(
        samples_per_insert=16.0,
        n_step=3,
        target_update_interval=100,
        epsilon_steps=6_000,
        epsilon_end=0.02,
        hidden_sizes=(64, 64),
    )
    monitor, statistics, *_ = run(hp, updates=500)
    assert monitor.env_steps > 15_000
    assert monitor.return_mean_100 > 80  # a random policy has 22
    assert statistics.replays["replay"].reuse == pytest.approx(16.0, rel=0.01)


def test_rainbow_learns_cartpole() -> None:
    hp = Rainbow(
        learning_rate=2e-3, target_update_interval=100, v_min=0.0, v_max=100.0, noisy_std=0.1, hidden_sizes=(64, 64)
    )
    monitor, *_ = run(hp, updates=350)
    assert monitor.env_steps > 15_000
    assert monitor.return_mean_100 > 100  # a random policy has 22


@pytest.mark.parametrize("hp", [
    DQN(**QUICK), DQN(**QUICK, samples_per_insert=1.5, double=False),
    DQN(**QUICK, shards=3, prioritized=True, n_step=3, dueling=True), DQN(**QUICK, shards=2, distribution="quantile"),
    Rainbow(**QUICK, **ALL, shards=3), Rainbow(**QUICK, **ALL, distribution="quantile", epsilon_start=0.5),
], ids=lambda hp: f"{type(hp).__name__}-{hp.distribution}-{hp.shards}-{hp.samples_per_insert}")  # fmt: skip
def test_the_same_parameters_under_every_deployment(hp: DQN) -> None:
    expected = run(hp)[2]
    for place in (Processes(workers=1), Processes(workers=2), Inline(adversary=1)):
        assert run(hp, on=place)[2] == expected, place
    assert run(hp, seed=2)[2] != expected


@pytest.mark.parametrize("inference", ["learner", "worker"])
def test_noise_of_each_shard_where_inference_is_elsewhere(inference: Any) -> None:
    hp = Rainbow(**QUICK, **ALL, shards=3)
    assert run(hp, on=Processes(workers=2, inference=inference))[2] == run(hp)[2]
    loose = Rainbow(**QUICK, **ALL, shards=3, tolerance=200.0)  # calls that wait together may be computed together
    assert run(loose, on=Processes(workers=3, inference=inference))[0].env_steps > 100


@pytest.mark.parametrize("hp", [
    DQN(**QUICK, shards=2, prioritized=True, n_step=3), Rainbow(**QUICK, **ALL, shards=2),
], ids=["dqn", "rainbow"])  # fmt: skip
def test_a_run_that_goes_on_ends_with_the_same_parameters(hp: DQN) -> None:
    expected = run(hp, updates=60)[2]
    state = run(hp, on=Processes(workers=2), updates=25)[3]
    assert state.is_exact
    assert run(hp, updates=60, state=state)[2] == expected


@pytest.mark.parametrize(
    "env", ["FrozenLake-v1", *(f"support.envs.small:Small{name}-v0" for name in ("Masked", "DictObs", "Image"))]
)
@pytest.mark.parametrize("hp", [DQN(**QUICK), Rainbow(**QUICK, **ALL)], ids=["dqn", "rainbow"])
def test_other_observations_and_action_masks(env: str, hp: DQN) -> None:
    monitor, *_ = run(hp, env, updates=20)
    assert monitor.env_steps > 100


def test_noisy_nets_explore_without_random_actions_unless_they_are_asked_for() -> None:
    def explores(hp: DQN) -> tuple[float, float]:
        source: Any = hp.flow(Task("CartPole-v1")).nodes["step"]
        explore = source.work.explore
        return explore.start, explore.end

    assert explores(DQN()) == (1.0, 0.05)
    assert explores(DQN(epsilon_end=0.2)) == (1.0, 0.2)
    assert explores(DQN(noisy=True)) == explores(Rainbow()) == (0.0, 0.0)
    assert explores(Rainbow(epsilon_start=0.5)) == (0.5, 0.0)
    assert explores(Rainbow(noisy=False)) == (1.0, 0.05)


def test_an_evaluation_acts_by_the_means_of_noisy_weights(tmp_path: Path) -> None:
    trained = lv.train(
        "rainbow", "CartPole-v1", until="updates=5", out=tmp_path / "run", display="quiet", log="none", **QUICK, **ALL
    )  # fmt: skip
    policy, observation = trained.policy, np.ones(4, np.float32)
    assert len({int(policy.act(observation)) for _ in range(20)}) == 1
    first, second = (lv.evaluate(trained, num_episodes=3, seed=1).returns for _ in range(2))
    np.testing.assert_array_equal(first, second)
    plain = {name: array for name, array in policy.weights.items() if not name.endswith("_sigma")}
    still = plain | {name: np.zeros_like(array) for name, array in policy.weights.items() if name.endswith("_sigma")}
    again = evaluate(Task("CartPole-v1"), TrainedPolicy(policy.policy, still, version=5), num_episodes=3, seed=1)
    np.testing.assert_array_equal(again.returns, first)


@pytest.mark.parametrize(("fields", "match"), [
    ({"batch_size": 0}, "batch_size=0"), ({"tau": 2.0}, "tau=2.0"), ({"samples_per_insert": 0.0}, "samples_per_insert"),
    ({"double": 1}, "double=1"), ({"huber_delta": -1.0}, "huber_delta"),
    ({"distribution": "gaussian"}, "distribution='gaussian'"), ({"num_atoms": 1}, "num_atoms=1"), ({"noisy": 0.5}, "noisy=0.5"),
    ({"noisy_std": 0.0}, "noisy_std"), ({"v_min": 10.0}, r"DQN\(v_min=10.0, v_max=10.0\): expected v_min < v_max"),
    ({"v_max": float("inf")}, "v_max=inf"), ({"epsilon_start": True}, "epsilon_start"),
    ({"epsilon_end": 1.5}, "epsilon_end"), ({"tolerance": -1}, "tolerance"),
])  # fmt: skip
def test_settings_that_cannot_be(fields: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        DQN(**fields)


def test_continuous_actions_are_refused() -> None:
    with pytest.raises(ValueError, match="DQN needs Discrete actions, but 'Pendulum-v1' has Box"):
        DQN().flow(Task("Pendulum-v1"))


def test_weights_are_published_once_for_each_item() -> None:
    for spi, every in ((8.0, 1), (64.0, 8), (0.5, 1)):
        flow = DQN(num_envs=8, num_steps=8, batch_size=64, num_gradient_steps=8, samples_per_insert=spi).flow(
            Task("CartPole-v1")
        )
        assert [edge.every for edge in flow.edges if edge.kind == "publish"] == [every]
    assert np.isclose(DQN(anneal_steps=1_000).coefficients(500 * 8)["learning_rate"], 5e-4, rtol=0.02)
    cosine = DQN(anneal_steps=1_000, learning_rate_schedule="cosine")
    assert [cosine.coefficients(8 * n)["learning_rate"] for n in (250, 1_000)] == pytest.approx(
        [8.5355e-4, 0.0], rel=1e-4
    )


def test_a_run_from_the_command_on(tmp_path: Path) -> None:
    """Trained, cut off, resumed, and played with; with the contents of the replay the result is that of one whole run."""
    options: Any = {"seed": 3, "display": "quiet", "log": "none", **QUICK}
    whole = lv.train("dqn", "CartPole-v1", until="updates=60", out=tmp_path / "whole", **options)
    for name, saves in (("with", True), ("without", False)):
        first = lv.train("dqn", "CartPole-v1", until="updates=25", out=tmp_path / name, save_replays=saves, **options)
        assert lv.load(first.path).policy.version == 25
        if saves:
            resumed = lv.resume(first.path, until="updates=60", display="quiet")
        else:
            with pytest.warns(CheckpointWarning, match="replay is refilled"):
                resumed = lv.resume(first.path, until="updates=60", display="quiet")
        assert (resumed.summary.params_sha256 == whole.summary.params_sha256) is saves
        assert resumed.summary.updates == 60
    evaluation = lv.evaluate(whole.path, num_episodes=3)
    assert len(evaluation.episodes) == 3


@pytest.mark.parametrize("on", ["inline", "processes:1"])
def test_time_is_up_while_the_replay_is_filled(tmp_path: Path, on: str) -> None:
    """Nothing is reported meanwhile, which may be for hours."""
    options = {"buffer_size": 10_000_000, "learning_starts": 10_000_000, "out": tmp_path / "run", "display": "quiet"}
    done = lv.train("dqn", "CartPole-v1", until="minutes=0.02", on=on, **options)
    assert (done.summary.stopped_by, done.summary.updates) == ("minutes=0.02", 0)
    with pytest.warns(CheckpointWarning):
        assert lv.resume(done.path, until="minutes=0.04", display="quiet").summary.updates == 0


def test_it_may_be_linear() -> None:
    monitor, *_ = run(DQN(**QUICK | {"hidden_sizes": ()}), updates=2)
    assert monitor.updates == 2
