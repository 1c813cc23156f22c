"""A2C, A3C and PG: gradients that are put together, gradients at the shards, and that they learn."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import levada as lv
from levada.algorithms.a2c import A2C
from levada.algorithms.a3c import A3C
from levada.algorithms.appo import APPO
from levada.algorithms.checks import ConfigError
from levada.algorithms.impala import IMPALA
from levada.algorithms.pg import PG
from levada.algorithms.ppo import PPO
from levada.algorithms.rollouts import RolloutAlgorithm
from levada.flow import Shard
from levada.rl.acting.actor import Actor
from levada.rl.compute.functional import Net
from levada.rl.learning.batches import MinibatchError
from levada.rl.learning.columns import to_tensors
from levada.rl.learning.gradients import GradientLearner, GradientSampler
from levada.rl.learning.step import GradientStep
from levada.rl.learning.unroll import Unrolled
from levada.run.monitor import Monitor
from levada.run.storage.hashing import params_sha256
from levada.runners.processes import Processes

TASK = lv.Task("CartPole-v1")
SMALL: dict[str, Any] = {"num_envs": 4, "num_steps": 8, "hidden_sizes": (16,)}


def run(hp: lv.Algorithm, *, on: Any = None, updates: int = 20, task: lv.Task = TASK, state: Any = None) -> Any:
    monitor = Monitor()
    with (on or lv.Inline()).open(hp.flow(task), seed=1, instruments=[monitor], state=state) as opened:
        for report in opened:
            if report.firing == updates:
                break
        return monitor, opened.node_state("learn").weights(), opened.save()


@pytest.mark.parametrize("hp", [
    A2C(learning_rate=3e-3, num_steps=16), A3C(learning_rate=2e-3, num_steps=16), PG(learning_rate=3e-3, baseline=True),
    IMPALA(learning_rate=2e-3, num_steps=16), APPO(learning_rate=2e-3, num_steps=16, num_epochs=2, target_update_interval=2),
], ids=lambda hp: type(hp).__name__)  # fmt: skip
def test_they_learn_cartpole(hp: RolloutAlgorithm) -> None:
    monitor, *_ = run(hp, updates=40_000 // (hp.num_envs * hp.num_steps))
    assert monitor.return_mean_100 > 60  # a random policy has 22


@pytest.mark.parametrize("algorithm", [A2C, APPO, IMPALA, PG, PPO])
def test_an_annealed_entropy_bonus_is_the_constant_one_at_first_and_falls(algorithm: type[RolloutAlgorithm]) -> None:
    def weights(*, anneal_steps: int, coef: float = 0.5, anneals: bool = False) -> np.ndarray[Any, Any]:
        fields = {"entropy_coef": coef, "anneal_entropy_coef": anneals, "anneal_steps": anneal_steps}
        hp = algorithm(**SMALL, **fields, learning_rate=0.03, compile=False)
        return np.concatenate([array.ravel() for array in run(hp, updates=20)[1].values()])

    forever, soon = 10**12, 20 * 4 * 8
    constant = weights(anneal_steps=forever)
    np.testing.assert_allclose(weights(anneal_steps=forever, anneals=True), constant, atol=1e-5)
    assert np.abs(weights(anneal_steps=forever, coef=0.0) - constant).max() > 1e-3
    assert np.abs(weights(anneal_steps=soon, anneals=True) - weights(anneal_steps=soon)).max() > 1e-3
    hp = algorithm(entropy_coef=0.5, anneal_entropy_coef=True, anneal_steps=1000)
    assert [hp.coefficients(n)["entropy_coef"] for n in (0, 250, 1000, 2000)] == [0.5, 0.375, 0.0, 0.0]


def test_shards_that_compute_gradients_cannot_anneal_the_entropy_bonus() -> None:
    with pytest.raises(ConfigError, match=r"^A3C\(anneal_entropy_coef=True\): expected False; the shards"):
        A3C(anneal_entropy_coef=True)


def test_shards_that_compute_gradients_are_not_compiled_by_xla() -> None:
    with pytest.raises(ConfigError, match=r"^A3C\(compile='xla'\): expected 'auto', True or False; XLA compiles"):
        A3C(compile="xla")


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("gymnax", "torchax")), reason="pip install 'levada[jax]'"
)
def test_nor_are_they_for_environments_in_jax() -> None:
    task = lv.Task("gymnax:CartPole-v1")
    assert A2C().resolved(task)[0].compile == "xla"
    assert A3C().resolved(task) == (A3C(), {})


def test_replayed_rollouts_do_not_count_for_the_entropy_bonus() -> None:
    hp = IMPALA(entropy_coef=0.5, anneal_entropy_coef=True, anneal_steps=1000, replay_ratio=1.0)
    assert hp.coefficients(1000)["entropy_coef"] == 0.25


def test_the_gradient_of_parts_is_that_of_the_whole() -> None:
    """CartPole's episodes end in the middle, so parts count for different numbers of transitions."""
    whole, parts = (
        run(A2C(**SMALL, shards=2, microbatch_size=size, compile=False), updates=5)[1] for size in (None, 16)
    )
    for name, array in whole.items():
        np.testing.assert_allclose(parts[name], array, rtol=1e-4, atol=1e-6)


def test_gradients_at_the_shards_are_those_of_a_learner() -> None:
    hp, whole = A3C(**SMALL, compile=False), A2C(**SMALL, compile=False)
    there = hp.flow(TASK)
    source, learner = there.nodes["gradient"].work, there.nodes["learn"].work.open(3)
    here = whole.flow(TASK)
    sampler, gae, expected = (here.nodes[name].work for name in ("rollout", "gae", "learn"))
    expected = expected.open(3)
    shard = Shard("any", 0, 1, seed=1)
    live, plain = source(shard), sampler(shard)
    for _ in range(5):
        learner.update([live(learner.weights())])
        expected.update([gae(plain(expected.weights()))])
    for name, array in expected.weights().items():
        np.testing.assert_allclose(learner.weights()[name], array, rtol=1e-4, atol=1e-6)
    live.close()
    plain.close()


def test_gradients_cross_processes() -> None:
    hp = A3C(**SMALL, shards=1, max_lag=0)
    monitor, expected, _ = run(hp)
    again, found, state = run(hp, on=Processes(workers=1))
    assert params_sha256(found) == params_sha256(expected)
    assert again.env_steps == monitor.env_steps == 20 * 32
    assert state.learners["learn"]["counts"].tolist()[2] == 20 * 32


def test_a_gradient_says_what_it_is_of() -> None:
    hp = A3C(**SMALL, normalize_obs=True)
    policy = hp.policy(TASK)
    flow = hp.flow(TASK)
    source = flow.nodes["gradient"].work
    assert isinstance(source, GradientSampler)
    assert isinstance(source.learner, GradientLearner)
    live = source(Shard("gradient", 0, 4, seed=1))
    gradient = live(policy.weights(policy.module(0)))
    assert gradient.num_env_steps == 32
    assert gradient.values.dtype == np.float32
    assert set(gradient.stats) == {"policy_loss", "value_loss", "entropy"}
    assert gradient.moments["obs"].count == 32
    live.load_state_dict(live.state_dict())
    live.close()


def test_a_target_is_saved() -> None:
    hp = APPO(**SMALL, max_lag=0, target_update_interval=7, num_epochs=2)
    expected = run(hp, updates=20)[1]
    state = run(hp, updates=11)[2]
    assert not np.array_equal(
        state.learners["learn"]["step/target"], run(hp, updates=20)[2].learners["learn"]["step/target"]
    )
    assert params_sha256(run(hp, updates=20, state=state)[1]) == params_sha256(expected)


# ---- policies that remember


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("env", ["CartPole-v1", "Acrobot-v1"])
def test_what_acted_and_what_learns_remember_the_same(cell: Any, env: str) -> None:
    """Over rollouts in which episodes end, also by truncation; with each way of vectorizing."""
    for num_envs in (2, 8):
        task = lv.Task(env, env_kwargs={"max_episode_steps": 13})
        hp = PPO(num_envs=num_envs, num_steps=20, minibatch_size=20 * num_envs, rnn_type=cell, rnn_size=8)
        policy = hp.policy(task)
        module = policy.module(0)
        live = hp.sampler(task, policy)(Shard("rollout", 0, 1, seed=1))
        for _ in range(3):
            rollout = live(policy.weights(module))
            batch = to_tensors(rollout.sequences())
            found = Unrolled.of(Net(module, dict(module.named_parameters())), batch)
            np.testing.assert_allclose(found.log_prob.detach(), rollout.log_prob, atol=1e-5)
            np.testing.assert_allclose(found.value.detach(), rollout.value, atol=1e-5)
            inside = ~(rollout.terminated | rollout.truncated)
            ahead = np.concatenate([found.value.detach()[1:], found.last_value.detach()[None]])
            np.testing.assert_allclose(ahead[inside], rollout.next_value[inside], atol=1e-5)
            assert rollout.truncated.any()
        live.close()


def test_a_truncated_episode_is_worth_its_last_observation_after_all_that_was_seen() -> None:
    task = lv.Task("CartPole-v1", env_kwargs={"max_episode_steps": 5})
    hp = PPO(num_envs=2, num_steps=5, minibatch_size=10, rnn_type="gru", rnn_size=8)
    policy = hp.policy(task)
    module = policy.module(0)
    live = hp.sampler(task, policy)(Shard("rollout", 0, 1, seed=1))
    rollout = live(policy.weights(module))
    assert rollout.truncated[4].all()
    actor = Actor(policy)
    actor.load(policy.weights(module))
    env = task.make(2)
    obs, state = env.reset(1), actor.initial_state(2)
    for t in range(5):
        np.testing.assert_array_equal(obs, rollout.obs[t])
        _, _, state = actor.step(obs, state)
        step = env.step(rollout.action[t])
        obs = step.obs
    assert step.final_obs is not None
    np.testing.assert_allclose(actor.step(step.final_obs[1], state)[1], rollout.next_value[4], atol=1e-5)
    live.close()


@pytest.mark.parametrize("hp", [
    PPO(num_envs=4, num_steps=8, minibatch_size=16, rnn_type="gru", rnn_size=8, shards=2),
    A2C(num_envs=4, num_steps=8, microbatch_size=16, rnn_type="lstm", rnn_size=8, shards=2),
    IMPALA(num_envs=4, num_steps=8, rnn_type="gru", rnn_size=8, max_lag=1, order="admission"),
    APPO(num_envs=4, num_steps=8, rnn_type="gru", rnn_size=8, max_lag=1, order="admission"),
], ids=lambda hp: type(hp).__name__)  # fmt: skip
def test_recurrent_policies_learn_the_same_everywhere(hp: RolloutAlgorithm) -> None:
    expected = run(hp, updates=6)[1]
    assert params_sha256(run(hp, updates=6, on=Processes(workers=2))[1]) == params_sha256(expected)


def test_settings_that_cannot_be() -> None:
    with pytest.raises(MinibatchError, match="multiple of num_steps=8"):
        PPO(num_envs=4, num_steps=8, minibatch_size=4, rnn_type="gru").flow(TASK).check()
    with pytest.raises(MinibatchError, match=r"minibatch_size=32 in 8 microbatches, of 4: a recurrent .* num_steps=8"):
        A2C(num_envs=4, num_steps=8, microbatch_size=4, rnn_type="gru").flow(TASK).check()
    with pytest.raises(ConfigError, match="expected at most one of them"):
        PPO(rnn_type="gru", network="levada.rl.policies.networks:MLP")
    with pytest.raises(ConfigError, match="target_update_interval=0"):
        APPO(target_update_interval=0)
    with pytest.raises(ConfigError, match="max_lag=-1"):
        replace(IMPALA(), max_lag=-1)


@pytest.mark.parametrize(("asked", "expected"), [(False, "eager"), ("auto", "recorded"), (True, "compiled")])
def test_gradients_at_shards_are_computed_as_asked(asked: Any, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    modes, on = [], GradientStep.on
    monkeypatch.setattr("levada.rl.learning.learner.has_compiler", lambda: True)
    monkeypatch.setattr(GradientStep, "on", lambda step, mode, *args: modes.append(mode) or on(step, "eager", *args))
    run(A3C(**SMALL, shards=1, compile=asked), updates=2)
    assert set(modes) == {expected}
