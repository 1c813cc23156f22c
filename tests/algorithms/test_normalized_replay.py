"""Normalization with a replay: networks see what the statistics of the samples so far say, to the step; off by default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from support.envs.multi import Shifts
from torch import Tensor, nn

import levada as lv
from levada.algorithms.dqn import DQN
from levada.algorithms.r2d2 import R2D2
from levada.algorithms.sac import SAC
from levada.algorithms.vdn import VDN
from levada.rl.acting.exploration import GaussianNoise, PolicySampling
from levada.rl.acting.sequences import Sequences
from levada.rl.acting.step_sampler import NStep, StepSampler
from levada.rl.envs.agents.task import MultiAgentTask
from levada.rl.learning.learner import LiveLearner, NonFiniteError
from levada.rl.learning.step import GradientStep
from levada.rl.policies.recurrent import RecurrentNet
from levada.rl.replay.transitions import RETURN

QUICK: dict[str, Any] = {
    "num_envs": 2, "num_steps": 4, "learning_starts": 20, "batch_size": 8, "num_gradient_steps": 2, "samples_per_insert": 4.0,
    "hidden_sizes": (16,),
}  # fmt: skip
SEQUENCES: dict[str, Any] = QUICK | {"learning_starts": 6, "sequence_length": 4, "burn_in": 2, "batch_size": 4}
NORMALIZED = {"normalize_obs": True, "normalize_reward": True}
SEEN: list[np.ndarray] = []


class Peek(nn.Module):
    """Features that are the observation; keeps what learners show it."""

    def __init__(self, space: spaces.Box) -> None:
        super().__init__()

    def forward(self, obs: Tensor) -> Tensor:
        if not torch.is_inference_mode_enabled():  # as actors do
            SEEN.append(obs.detach().numpy().copy())
        return obs


def in_numpy(batches: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of all rows."""
    rows = np.concatenate(batches).astype(np.float64)
    return rows.mean(axis=0), rows.var(axis=0)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Batches of each update: as sampled, and as the loss gets them."""
    updates: list[tuple[dict[str, Any], dict[str, Any]]] = []
    update, on = LiveLearner.update, GradientStep.on

    def recorded_update(self: Any, batch: Any) -> Any:
        assert len(batch) == 1
        updates.append(({name: np.array(column) for name, column in batch[0].columns.items()}, {}))
        return update(self, batch)

    def recorded_on(self: Any, mode: Any, values: Any, buffers: Any, columns: Any) -> Any:
        updates[-1][1].update({name: column.numpy().copy() for name, column in columns.items()})
        return on(self, mode, values, buffers, columns)

    monkeypatch.setattr(LiveLearner, "update", recorded_update)
    monkeypatch.setattr(GradientStep, "on", recorded_on)
    return updates


def run(hp: Any, env: Any, updates: int) -> Any:
    SEEN.clear()
    with lv.Inline().open(hp.flow(lv.Task(env)), seed=1) as opened:
        seen = []
        for report in opened:
            seen.append(list(SEEN))
            SEEN.clear()
            if report.firing == updates:
                return seen, opened.node_state("learn").weights()
    raise AssertionError


def test_networks_see_the_normalized_transitions(told: Any) -> None:
    hp = SAC(**QUICK, **NORMALIZED, n_step=2, compile=False, features_extractor=Peek)
    seen, weights = run(hp, "Pendulum-v1", 3)
    seen[0] = [obs for obs in seen[0] if len(obs) == hp.batch_size]  # not the trials of the networks
    for number, (raw, given) in enumerate(told):
        mean, var = in_numpy([batch["obs"] for batch, _ in told[: number + 1]])
        _, of_returns = in_numpy([batch[RETURN] for batch, _ in told[: number + 1]])

        def normal(obs: np.ndarray, mean: np.ndarray = mean, var: np.ndarray = var) -> np.ndarray:
            return np.clip((obs - mean) / np.sqrt(var + 1e-8), -10.0, 10.0)

        assert np.allclose(given["reward"], raw["reward"] / np.sqrt(of_returns + 1e-8), rtol=1e-5)
        assert np.array_equal(given["obs"], raw["obs"])  # a replay holds raw ones
        parts = [slice(0, 8), slice(8, 16)]
        # actor and target critics on next observations; critics, actor, critics on observations
        expected = [raw[name][part] for part in parts for name in ("next_obs", "next_obs", "obs", "obs", "obs")]
        assert len(seen[number]) == len(expected)
        assert all(np.allclose(a, normal(b), atol=1e-4) for a, b in zip(seen[number], expected, strict=True))
    assert np.allclose(weights["normalizers.0.mean"], mean, rtol=1e-5)
    assert np.allclose(weights["normalizers.0.var"], var, rtol=1e-5)
    assert np.isclose(weights["returns.var"], of_returns, rtol=1e-5)


def test_networks_see_the_normalized_steps_of_sequences(told: Any) -> None:
    hp = R2D2(**SEQUENCES, **NORMALIZED, compile=False, features_extractor=Peek, prioritized=False)
    seen, weights = run(hp, "CartPole-v1", 3)
    steps = [batch["is_step"] for batch, _ in told]
    assert not all(mask.all() for mask in steps)  # some are padding, and do not count
    learned = [batch["obs"][:, hp.burn_in : hp.burn_in + 4][batch["is_step"]] for batch, _ in told]
    mean, var = in_numpy(learned)
    _, of_returns = in_numpy([batch[RETURN][batch["is_step"]] for batch, _ in told])
    assert np.allclose(weights["normalizers.0.mean"], mean, rtol=1e-4, atol=1e-6)
    assert np.allclose(weights["normalizers.0.var"], var, rtol=1e-4)
    raw, given = told[-1]
    assert np.allclose(given["reward"], raw["reward"] / np.sqrt(of_returns + 1e-8), rtol=1e-5)
    burnt_in = raw["obs"][:4, : hp.burn_in].swapaxes(0, 1).reshape(-1, 4)
    assert np.allclose(seen[-1][0], np.clip((burnt_in - mean) / np.sqrt(var + 1e-8), -10, 10), atol=1e-4)


def test_a_team_learns_from_standardized_rewards(told: Any) -> None:
    hp = VDN(**QUICK, standardize_reward=True, compile=False)
    task = MultiAgentTask(Shifts, policies={"team": tuple(f"agent_{index}" for index in range(4))})
    with lv.Inline().open(hp.flow(task), seed=1) as opened:
        for report in opened:
            if report.firing == 3:
                weights = opened.node_state("team/learn").weights()
                break
    for number, (raw, given) in enumerate(told):
        mean, var = in_numpy([batch["reward"] for batch, _ in told[: number + 1]])
        assert var > 0.0
        assert np.allclose(given["reward"], (raw["reward"] - mean) / np.sqrt(var + 1e-8), rtol=1e-4, atol=1e-5)
    assert np.allclose([weights["rewards.mean"], weights["rewards.var"]], [mean, var], rtol=1e-5)


@pytest.mark.parametrize("n_step", [1, 3])
def test_rows_hold_the_discounted_return_of_their_episode_so_far(n_step: int) -> None:
    task = lv.Task("Pendulum-v1", env_kwargs={"max_episode_steps": 7})
    policy = lv.Policy(
        observation_space=task.observation_space,
        action_space=task.action_space,
        tanh_squash=True,
        normalize_reward=True,
    )
    cut = NStep(discount=0.9, num_steps=n_step)
    sampler = StepSampler(
        task=task, policy=policy, explore=GaussianNoise(), num_envs=2, num_steps=5, discount=0.9,
        num_overlap_steps=cut.num_overlap_steps,
    )  # fmt: skip
    live, weights = sampler(lv.Shard(node="step", index=0, num_shards=1, seed=1)), policy.weights(policy.module(0))
    rows, walked = [], []
    for number in range(6):
        if number == 3:  # goes on after a restart
            state = live.state_dict()
            live.close()
            live = sampler(lv.Shard(node="step", index=0, num_shards=1, seed=9))
            live.load_state_dict(state)
        steps = live(weights)
        first = steps.num_overlap_steps
        walked.append(
            [column[first:].copy() for column in (steps.buffer.reward, steps.buffer.ended, steps.buffer.mask)]
        )
        rows.append(cut(steps).columns[RETURN].reshape(-1, 2))
    live.close()
    reward, ended, mask = (np.concatenate(columns) for columns in zip(*walked, strict=True))
    expected, total = [], np.zeros(2)
    for r, e, m in zip(reward, ended, mask, strict=True):
        total = 0.9 * total + r * m
        expected.append(total.copy())
        total[e] = 0.0
    found = np.concatenate(rows)
    assert ended.sum() >= 6 and len(found) == 30 - (n_step - 1)
    assert np.allclose(found, expected[: len(found)], rtol=1e-5)


def test_sequences_hold_it_too() -> None:
    task = lv.Task("CartPole-v1")
    cut = Sequences(discount=0.9, length=3, burn_in=2)
    policy = lv.Policy(
        observation_space=task.observation_space, action_space=task.action_space, network=RecurrentNet, normalize_reward=True
    )  # fmt: skip
    sampler = StepSampler(
        task=task, policy=policy, explore=PolicySampling(), num_envs=1, num_steps=40, discount=0.9,
        num_overlap_steps=cut.num_overlap_steps,
    )  # fmt: skip
    live = sampler(lv.Shard(node="step", index=0, num_shards=1, seed=1))
    made = cut(live(policy.weights(policy.module(0)))).columns
    live.close()
    # CartPole's reward is always 1, so the return says how old the episode is
    ages = np.log1p(-np.asarray(made[RETURN]) * 0.1) / np.log(0.9)
    is_step = np.asarray(made["is_step"])
    starts = np.array([row[0] for row in ages])
    assert np.allclose((ages - starts[:, None])[is_step], (np.arange(3) * is_step)[is_step], atol=1e-3)
    assert np.allclose((starts - 1) / 3, np.round((starts - 1) / 3), atol=1e-2)
    assert not np.asarray(made[RETURN])[~is_step].any()


def test_first_priorities_are_those_of_scaled_rewards() -> None:
    """With rewards a thousand times as large, statistics and priorities of both runs agree."""
    columns = []
    for scale in (1.0, 1000.0):
        hp = DQN(
            **QUICK,
            normalize_reward=True,
            prioritized=True,
            initial_priorities=True,
            epsilon_start=0.5,
            n_step=2,
            discount=0.5,
        )
        flow = hp.flow(lv.Task("support.envs.small:SmallPlain-v0", env_kwargs={"scale": scale}))
        policy, source, cut = (
            flow.learners()["learn"].policy, flow.nodes["step"].work, flow.nodes["n_step"].work
        )  # fmt: skip
        live = source(lv.Shard(node="step", index=0, num_shards=1, seed=1))
        weights = dict(policy.weights(policy.module(0))) | {"returns.var": np.float32(scale**2)}
        columns.append(cut(live(weights)).columns)
        live.close()
    small, large = columns
    assert np.allclose(large["reward"], 1000.0 * np.asarray(small["reward"]))
    assert np.allclose(large["priority"], small["priority"], rtol=1e-4)


@pytest.mark.parametrize("on", ["inline", "processes:2"])
@pytest.mark.parametrize(("algorithm", "env", "fields"), [
    ("sac", "Pendulum-v1", QUICK), ("rainbow", "CartPole-v1", QUICK | {"num_atoms": 5}), ("r2d2", "CartPole-v1", SEQUENCES),
])  # fmt: skip
def test_a_resumed_run_goes_on_to_the_bit(
    tmp_path: Path, algorithm: str, env: str, fields: dict[str, Any], on: str
) -> None:
    more: dict[str, Any] = {"seed": 3, "on": on, "display": "quiet", "save_replays": True, **fields, **NORMALIZED}
    whole = lv.train(algorithm, env, until="updates=6", out=tmp_path / "whole", **more)
    lv.train(algorithm, env, until="updates=3", out=tmp_path / "half", **more)
    half = lv.resume(tmp_path / "half", until="updates=6", display="quiet")
    assert half.summary.params_sha256 == whole.summary.params_sha256
    assert whole.policy.weights["normalizers.0.count"] > 0


def test_statistics_are_those_of_the_policy_afterwards(tmp_path: Path) -> None:
    task = lv.Task(_scaled, env_kwargs={"scale": 1e3})
    run = lv.train("sac", task, until="updates=4", out=tmp_path / "run", display="quiet", **QUICK, **NORMALIZED)
    assert run.policy.weights["normalizers.0.var"].min() > 1e4
    again = lv.load(tmp_path / "run", env=task)
    assert np.array_equal(run.policy.act(np.full(3, 500.0)), again.policy.act(np.full(3, 500.0)))


def test_what_exceeds_float32_is_refused() -> None:
    hp = SAC(**QUICK, normalize_obs=True)
    with pytest.raises(NonFiniteError, match="running statistics of 'obs'"):
        run(hp, _huge, 1)


class _Scaled(gymnasium.ObservationWrapper):
    def __init__(self, env: Any, scale: float) -> None:
        super().__init__(env)
        self.scale = scale
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,))

    def observation(self, observation: Any) -> Any:
        return (self.scale * observation).astype(np.float32)


def _scaled(scale: float) -> gymnasium.Env:
    return _Scaled(gymnasium.make("Pendulum-v1"), scale)


def _huge() -> gymnasium.Env:
    return _scaled(1e30)


def test_observations_that_are_a_thousand_times_as_large_teach_the_same() -> None:
    fields = QUICK | {"learning_starts": 64, "samples_per_insert": 8.0}
    found = {}
    for normalizes in (False, True):
        for scale in (1.0, 1024.0):
            task = lv.Task(_scaled, env_kwargs={"scale": scale})
            with lv.Inline().open(SAC(**fields, normalize_obs=normalizes).flow(task), seed=1) as opened:
                for report in opened:
                    if report.firing == 4:
                        break
                found[normalizes, scale] = opened.node_state("learn").state_dict()["step/params"]
    # Adam's steps enlarge rounding
    differs = {
        normalizes: np.abs(found[normalizes, 1.0] - found[normalizes, 1024.0]).mean() for normalizes in (False, True)
    }
    assert differs[True] < 0.02 * differs[False], differs
