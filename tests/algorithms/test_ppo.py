"""PPO: it learns, it is reproducible, its loss is the paper's, its settings are checked."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from levada.algorithms.checks import ConfigError
from levada.algorithms.ppo import PPO, PPOLoss
from levada.flow import Report
from levada.math import Categorical
from levada.rl.envs.task import Task
from levada.rl.learning.loss import Networks
from levada.rl.replay.transitions import Transitions
from levada.run.monitor import Monitor
from levada.run.storage.hashing import params_sha256
from levada.runners.inline import Inline

QUICK = PPO(num_envs=4, num_steps=16, minibatch_size=32, num_epochs=2)


def run(hp: PPO, env: str = "CartPole-v1", *, seed: int = 1, updates: int = 5, adversary: int | None = None) -> Any:
    monitor = Monitor()
    opened = Inline(adversary=adversary).open(hp.flow(Task(env)), seed=seed, instruments=[monitor])
    last: Report | None = None
    for report in opened:
        last = report
        if report.firing == updates:
            break
    statistics = opened.statistics()
    weights = opened.node_state("learn").weights()
    opened.close()
    return monitor, statistics, weights, last


def test_it_learns_cartpole() -> None:
    hp = PPO(num_envs=8, num_steps=32, num_epochs=20, learning_rate=1e-3, discount=0.98, gae_lambda=0.8)
    monitor, *_ = run(hp, updates=80)
    assert monitor.env_steps > 19_000
    assert monitor.return_mean_100 > 90  # a random policy has 22


@pytest.mark.parametrize("activation", ["elu", "gelu", "silu"])
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of torch's own imports
def test_other_activation_functions_are_recorded_too(activation: Any, caplog: pytest.LogCaptureFixture) -> None:
    *_, weights, last = run(dataclasses.replace(QUICK, activation=activation), updates=2)
    assert last is not None and not caplog.records
    _, _, plain, _ = run(dataclasses.replace(QUICK, activation=activation, compile=False), updates=2)
    for name, array in weights.items():
        np.testing.assert_allclose(array, plain[name], rtol=1e-4, atol=1e-5)
    assert not np.array_equal(weights["network.policy.0.weight"], run(QUICK, updates=2)[2]["network.policy.0.weight"])


def test_it_learns_continuous_actions() -> None:
    hp = PPO(
        num_envs=8,
        num_steps=256,
        num_epochs=10,
        learning_rate=1e-3,
        discount=0.9,
        normalize_reward=True,
        normalize_obs=True,
    )
    monitor, *_ = run(hp, "Pendulum-v1", updates=24)
    assert monitor.return_mean_100 > -900  # a random policy has -1,200


@pytest.mark.parametrize("kind", ["Image", "DictImage"])
def test_images_learn_the_same_recorded_as_in_ordinary_torch(kind: str) -> None:
    hp = dataclasses.replace(QUICK, num_envs=2, num_steps=8, minibatch_size=8, precision="float32")
    env = f"support.envs.small:Small{kind}-v0"
    *_, recorded, _ = run(hp, env, updates=2)
    *_, ordinary, _ = run(dataclasses.replace(hp, compile=False), env, updates=2)
    for name, array in ordinary.items():
        np.testing.assert_allclose(recorded[name], array, rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("max_lag", [0, 1, 3])
def test_the_same_seed_gives_the_same_bits_in_any_order(max_lag: int) -> None:
    hp = dataclasses.replace(QUICK, shards=3, minibatch_size=48, max_lag=max_lag)
    fingerprints = {params_sha256(run(hp, adversary=adversary)[2]) for adversary in (None, None, 0, 1)}
    assert len(fingerprints) == 1
    assert fingerprints != {params_sha256(run(hp, seed=2)[2])}


@pytest.mark.parametrize("max_lag", [0, 1, 3])
def test_lag_is_exactly_the_bound_after_the_first_round(max_lag: int) -> None:
    hp = dataclasses.replace(QUICK, max_lag=max_lag)
    _, statistics, *_ = run(hp, updates=8)
    channel = statistics.channels["gae->batch"]
    assert (channel.lag["policy"].max, channel.lag["policy"].bound) == (max_lag, max_lag)
    assert channel.lag["policy"].mean == pytest.approx(np.mean([min(u, max_lag) for u in range(8)]))
    assert channel.ledger.balanced


def test_two_shards_make_a_batch_of_both() -> None:
    hp = dataclasses.replace(QUICK, shards=2, minibatch_size=128)
    monitor, statistics, *_ = run(hp, updates=3)
    assert statistics.channels["gae->batch"].ledger.consumed == 6
    assert monitor.env_steps <= 3 * hp.transitions_per_update == 384


def test_coefficients_are_annealed_by_env_steps() -> None:
    hp = PPO(learning_rate=1e-3, clip_range=0.2, anneal_steps=1000, anneal_clip_range=True)
    assert hp.coefficients(250) == pytest.approx({"learning_rate": 7.5e-4, "clip_range": 0.15})
    assert hp.coefficients(2000) == {"learning_rate": 0.0, "clip_range": 0.0}
    assert PPO(anneal_steps=1000).coefficients(500) == pytest.approx({"learning_rate": 1.5e-4, "clip_range": 0.2})
    cosine = PPO(learning_rate=1e-3, anneal_steps=1000, learning_rate_schedule="cosine")
    assert [cosine.coefficients(n)["learning_rate"] for n in (0, 250, 500, 1000, 2000)] == pytest.approx(
        [1e-3, 8.5355e-4, 5e-4, 0.0, 0.0], rel=1e-4
    )
    assert PPO(anneal_learning_rate=True).coefficients(10**9) == {"learning_rate": 3e-4, "clip_range": 0.2}


def _loss(hp: PPO, **columns: Any) -> tuple[float, dict[str, float]]:
    """The loss of four rows whose new log-probabilities and values are those of `logits` and `value`."""
    logits, value = columns.pop("logits"), columns.pop("value_now")
    batch = {name: torch.tensor(column) for name, column in columns.items()}
    batch |= {"obs": torch.zeros(len(logits), 1), "weight": torch.full((len(logits),), 1 / len(logits))}
    total, stats, _ = PPOLoss(hp)(
        Networks({"policy": lambda obs: (Categorical(torch.tensor(logits)), torch.tensor(value))}),  # type: ignore[dict-item]
        batch,
        {"clip_range": torch.tensor(hp.clip_range)},
    )
    return float(total), {name: float(stat) for name, stat in stats.items()}


ROWS: dict[str, Any] = {
    "logits": [[1.0, 0.0], [0.0, 1.0], [2.0, 0.0], [0.0, 0.0]],
    "value_now": [1.0, 2.0, 3.0, 4.0],
    "action": [0, 0, 0, 1],
    "log_prob": [-0.7, -0.7, -0.7, -0.7],
    "advantage": [1.0, 1.0, -2.0, -1.0],
    "target": [0.0, 2.5, 3.0, 6.0],
    "value": [0.0, 2.0, 3.5, 5.0],
}


def _by_hand(hp: PPO) -> tuple[float, float, float]:
    """Policy loss, value loss and entropy, row by row in plain Python from the paper's formulas."""
    from math import exp, log

    policy, value, entropy = [], [], []
    for logits, v, a, old, advantage, target, v_old in zip(*ROWS.values(), strict=True):
        norm = log(sum(exp(x) for x in logits))
        ratio = exp(logits[a] - norm - old)
        clipped = min(max(ratio, 1 - hp.clip_range), 1 + hp.clip_range)
        policy.append(-min(ratio * advantage, clipped * advantage))
        error = (v - target) ** 2
        if hp.clip_range_vf is not None:
            near = v_old + min(max(v - v_old, -hp.clip_range_vf), hp.clip_range_vf)
            error = max(error, (near - target) ** 2)
        value.append(0.5 * error)
        entropy.append(-sum(exp(x - norm) * (x - norm) for x in logits))
    return sum(policy) / 4, sum(value) / 4, sum(entropy) / 4


@pytest.mark.parametrize("clip_range_vf", [None, 0.2])
def test_the_loss_is_that_of_the_paper(clip_range_vf: float | None) -> None:
    hp = PPO(normalize_advantage=False, clip_range_vf=clip_range_vf, entropy_coef=0.01, value_coef=0.5)
    policy, value, entropy = _by_hand(hp)
    total, stats = _loss(hp, **ROWS)
    assert stats["policy_loss"] == pytest.approx(policy, rel=1e-5)
    assert stats["value_loss"] == pytest.approx(value, rel=1e-5)
    assert stats["entropy"] == pytest.approx(entropy, rel=1e-5)
    assert total == pytest.approx(policy + 0.5 * value - 0.01 * entropy, rel=1e-5)


def test_advantages_are_normalized_within_the_minibatch() -> None:
    shifted = {**ROWS, "advantage": [10.0 * a + 7.0 for a in ROWS["advantage"]]}
    hp = PPO(normalize_advantage=True)
    assert _loss(hp, **ROWS)[1]["policy_loss"] == pytest.approx(_loss(hp, **shifted)[1]["policy_loss"], rel=1e-4)


@pytest.mark.parametrize("size", [1e20, -1e20, np.inf, np.nan])
@pytest.mark.parametrize("clip_range_vf", [None, 0.2])
def test_what_masked_rows_hold_teaches_nothing(size: float, clip_range_vf: float | None) -> None:
    hp = PPO(
        num_envs=3,
        num_steps=4,
        minibatch_size=12,
        num_epochs=2,
        clip_range_vf=clip_range_vf,
        entropy_coef=0.01,
        compile=False,
    )
    rng, mask = np.random.default_rng(0), np.arange(12) % 4 != 1
    columns: dict[str, Any] = {
        name: rng.normal(size=12).astype(np.float32) for name in ("advantage", "target", "value", "log_prob")
    }
    fixed = {"obs": rng.normal(size=(12, 4)).astype(np.float32), "action": rng.integers(0, 2, 12), "mask": mask}
    updates = []
    for held in (0.5, size):
        rows = {name: np.where(mask, column, np.float32(held)) for name, column in columns.items()}
        live = hp.flow(Task("CartPole-v1")).nodes["learn"].work.open(seed=1)
        updates.append(live.update([Transitions({**fixed, **rows})]))
    one, other = updates
    assert one.stats == other.stats
    for name, weight in one.weights.items():
        np.testing.assert_array_equal(weight, other.weights[name], err_msg=name)


def test_target_kl_cuts_an_update_short() -> None:
    hp = dataclasses.replace(QUICK, learning_rate=0.1, num_epochs=10, target_kl=1e-4)
    *_, cut = run(hp, updates=1)
    *_, whole = run(dataclasses.replace(hp, target_kl=None), updates=1)
    assert cut.values["losses/approx_kl"] < whole.values["losses/approx_kl"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"minibatch_size": 100}, r"shards \* num_envs \* num_steps = 1 \* 8 \* 128 = 1024; try 64 or 128"),
        ({"discount": 1.5}, r"PPO\(discount=1.5\): expected a number from 0 to 1"),
        ({"learning_rate": 0.0}, r"PPO\(learning_rate=0.0\): expected a finite number > 0"),
        ({"learning_rate": float("nan")}, r"PPO\(learning_rate=nan\): expected a finite number > 0"),
        ({"num_envs": 0}, r"PPO\(num_envs=0\): expected an integer >= 1"),
        ({"num_envs": True}, r"PPO\(num_envs=True\): expected an integer >= 1"),
        ({"entropy_coef": -0.1}, r"PPO\(entropy_coef=-0.1\): expected a finite number >= 0"),
        ({"clip_range_vf": -1.0}, r"PPO\(clip_range_vf=-1.0\): expected a finite number > 0"),
        ({"learning_rate": "1e-3"}, r"PPO\(learning_rate='1e-3'\): expected a finite number > 0"),
        ({"learning_rate": None}, r"PPO\(learning_rate=None\): expected a finite number > 0"),
        ({"max_lag": -1}, r"PPO\(max_lag=-1\): expected an integer >= 0"),
        ({"max_lag": 0.5}, r"PPO\(max_lag=0.5\): expected an integer >= 0"),
        ({"anneal_steps": 1e5}, r"PPO\(anneal_steps=100000.0\): expected an integer >= 1, or None"),
        ({"anneal_steps": 0}, r"PPO\(anneal_steps=0\): expected an integer >= 1, or None"),
        ({"normalize_obs": "no"}, r"PPO\(normalize_obs='no'\): expected True or False"),
        ({"anneal_clip_range": 1}, r"PPO\(anneal_clip_range=1\): expected True or False"),
        ({"hidden_sizes": 32}, r"PPO\(hidden_sizes=32\): expected a sequence of integers >= 1, such as \(64, 64\)"),
        ({"hidden_sizes": (32, 0)}, r"PPO\(hidden_sizes=\(32, 0\)\): expected a sequence"),
        ({"hidden_sizes": (32.0,)}, r"PPO\(hidden_sizes=\(32.0,\)\): expected a sequence"),
        ({"hidden_sizes": "32"}, r"PPO\(hidden_sizes='32'\): expected a sequence"),
        ({"activation": "swish"}, r"PPO\(activation='swish'\): expected 'tanh', 'relu', 'elu', 'gelu' or 'silu'"),
        ({"compile": "always"}, r"PPO\(compile='always'\): expected 'auto', 'xla', True or False"),
        ({"compile": 1}, r"PPO\(compile=1\): expected 'auto', 'xla', True or False"),
        ({"log_std_init": float("inf")}, r"PPO\(log_std_init=inf\): expected a finite number"),
        ({"learning_rate": float("inf")}, r"PPO\(learning_rate=inf\): expected a finite number > 0"),
        (
            {"learning_rate_schedule": "cosine"},
            r"PPO\(learning_rate_schedule='cosine', anneal_steps=None\): expected anneal_steps",
        ),
        (
            {"anneal_entropy_coef": True},
            r"PPO\(anneal_entropy_coef=True, anneal_steps=None\): expected anneal_steps, .* the entropy bonus is constant",
        ),
        (
            {"anneal_clip_range": True},
            r"PPO\(anneal_clip_range=True, anneal_steps=None\): expected anneal_steps, .* the clip range is constant",
        ),
        (
            {"num_envs": 10**400},
            r"PPO\(num_envs=<an integer of 1329 bits>\): expected an integer >= 1, of at most 64 bits",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PPO(**fields)
