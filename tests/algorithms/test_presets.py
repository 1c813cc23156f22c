"""Each preset for Gymnasium's classic control and toy text is found, is one of its algorithm, and learns."""

import gymnasium
import numpy as np
import pytest

import levada
from levada.algorithms.checks import ConfigError
from levada.algorithms.presets import PRESETS
from levada.api.options import configure
from levada.rl.envs.task import Task
from levada.rl.policies.networks import NatureCNN

QUICK_KINDS = ("gymnasium.envs.classic_control", "gymnasium.envs.toy_text")


def is_quick(env):
    spec = gymnasium.registry.get(env)
    return spec is not None and str(spec.entry_point).startswith(QUICK_KINDS)


PAIRS = [(algorithm, env) for algorithm, presets in PRESETS.items() for env in presets if is_quick(env)]


CHOICES = (
    "Acrobot-v1", "CartPole-v1", "MountainCar-v0", "Blackjack-v1", "CliffWalking-v1", "CliffWalkingSlippery-v1", "FrozenLake-v1",
    "FrozenLake8x8-v1", "Taxi-v4",
)  # fmt: skip
NUMBERS = ("MountainCarContinuous-v0", "Pendulum-v1")


def test_each_quick_task_has_one():
    assert {*CHOICES, *NUMBERS} <= {*PRESETS["ppo"]}
    assert {*CHOICES} <= {*PRESETS["dqn"]}


@pytest.mark.parametrize(("algorithm", "env"), PAIRS)
def test_a_preset_is_found_builds_and_updates_twice(algorithm, env, tmp_path):
    chosen, settings = configure(algorithm, env, {})
    for name, value in PRESETS[algorithm][env].items():
        assert settings[name].value == getattr(chosen, name) == value
        assert settings[name].origin == "preset"
    run = levada.train(
        algorithm,
        env,
        until="updates=2",
        seed=1,
        compile=False,
        log="none",
        display="quiet",
        out=tmp_path / "run",
    )
    assert run.summary.updates >= 2
    assert all(np.isfinite(array).all() for array in run.policy.weights.values())
    observation, info = gymnasium.make(env).reset(seed=1)
    if Task(env).has_action_mask:
        observation = {"obs": observation, "action_mask": info["action_mask"]}
    assert Task(env).action_space.contains(run.policy.act(observation))


@pytest.mark.parametrize("algorithm", ["ppo", "appo", "impala"])
@pytest.mark.parametrize("given", [{"rnn_type": "gru"}, {"hidden_sizes": (8,)}, {"features_extractor": NatureCNN}])
def test_a_network_of_ones_own_replaces_the_presets(algorithm, given):
    (with_preset, _), (own, settings) = (configure(algorithm, "ALE/Pong-v5", fields) for fields in ({}, given))
    assert with_preset.network is not None
    assert (own.network, settings["network"].origin) == (None, "default")
    assert (own.shards, settings["shards"].origin) == (2, "preset")


def test_without_anneal_steps_a_preset_anneals_nothing():
    assert configure("ppo", "ALE/Pong-v5", {})[0].anneal_entropy_coef
    assert configure("ppo", "CartPole-v1", {})[0].anneal_clip_range
    for env in ("ALE/Pong-v5", "CartPole-v1"):
        hp, settings = configure("ppo", env, {"anneal_steps": None})
        assert (hp.anneal_steps, hp.anneal_entropy_coef, hp.anneal_clip_range) == (None, False, False)
        assert (settings["anneal_steps"].origin, settings["anneal_entropy_coef"].origin) == ("argument", "default")
        assert settings["learning_rate"].origin == "preset"
    with pytest.raises(ConfigError, match="expected anneal_steps"):
        configure("ppo", "ALE/Pong-v5", {"anneal_steps": None, "anneal_entropy_coef": True})


def test_nor_does_that_of_an_algorithm_inside_another():
    of = configure("diloco", "CartPole-v1", {"of": "ppo", "of_kwargs": {"anneal_steps": None}})[0].algorithm
    assert (of.anneal_steps, of.anneal_clip_range, of.num_epochs) == (None, False, 10)


def test_critics_keep_the_presets_widths_beside_a_network_of_ones_own():
    assert (
        configure("sac", "CartPole-v1", {"network": NatureCNN})[0].hidden_sizes
        == PRESETS["sac"]["CartPole-v1"]["hidden_sizes"]
    )


def test_a_preset_learns_in_seconds(tmp_path):
    """FrozenLake without its slippery ice, from about 0.01 by random actions."""
    task = Task("FrozenLake-v1", env_kwargs={"is_slippery": False})
    run = levada.train(
        "ppo", task, until="return=0.95 steps=40_000", seed=1, compile=False, log="none", display="quiet",
        out=tmp_path / "run",
    )  # fmt: skip
    assert run.summary.stopped_by == "return=0.95"
    assert run.summary.notes == []
    assert levada.evaluate(run, num_episodes=5).mean == 1.0
