"""R2D2: its loss is the paper's, padding teaches nothing, it remembers, and it is the same under every deployment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.envs import small as small_envs

import levada as lv
from benchmarks._hidden import hidden_cartpole
from levada.algorithms.checks import ConfigError
from levada.algorithms.dqn import DQN
from levada.algorithms.r2d2 import R2D2, R2D2Loss
from levada.flow import Shard
from levada.rl.acting.exploration import EpsilonGreedy
from levada.rl.acting.step_sampler import StepSampler
from levada.rl.envs.task import Task
from levada.rl.learning.loss import Networks
from levada.rl.policies.networks import ValueMLP
from levada.rl.policies.q_distributions import ActionValues, MeanValues
from levada.rl.policies.recurrent import RecurrentNet
from levada.rl.policies.user_networks import ModelError
from levada.rl.replay.transitions import Transitions, concatenate
from levada.run.monitor import Monitor
from levada.run.storage.hashing import params_sha256
from levada.runners import Inline
from levada.runners.processes import Processes

QUICK = {
    "num_envs": 2, "num_steps": 6, "sequence_length": 4, "burn_in": 2, "learning_starts": 10, "batch_size": 8,
    "num_gradient_steps": 2,
    "hidden_sizes": (8,), "rnn_size": 8,
}  # fmt: skip


def run(
    hp: Any, env: Any = "CartPole-v1", *, on: Any = None, seed: int = 1, updates: int = 20, state: Any = None
) -> Any:
    monitor = Monitor()
    with (on or Inline()).open(hp.flow(Task(env)), seed=seed, instruments=[monitor], state=state) as opened:
        for report in opened:
            if report.firing == updates:
                break
        return monitor, opened.statistics(), params_sha256(opened.node_state("learn").weights()), opened.save()


RECALL = {
    "num_steps": 10, "sequence_length": 5, "burn_in": 0, "hidden_sizes": (16,), "rnn_size": 16, "n_step": 2,
    "epsilon_steps": 2_000,
    "epsilon_end": 0.02,
}  # fmt: skip


@pytest.mark.parametrize("seed", [1, 2])
def test_it_remembers_what_a_memoryless_agent_forgets(seed: int) -> None:
    for hp, updates in (
        (R2D2(**RECALL), 80),
        (R2D2(**{**RECALL, "sequence_length": 2, "burn_in": 5, "rnn_type": "gru"}), 200),
    ):
        monitor, *_ = run(hp, small_envs.Recall, seed=seed, updates=updates)
        assert monitor.env_steps < 4_000
        assert monitor.return_mean_100 > 0.9
    memoryless = DQN(hidden_sizes=(16,), epsilon_steps=2_000, epsilon_end=0.02)
    monitor, *_ = run(memoryless, small_envs.Recall, seed=seed, updates=120)
    assert monitor.env_steps > 4_000
    assert 0.35 < monitor.return_mean_100 < 0.65  # one half by chance, +- 3 standard deviations of 100 episodes


def test_it_learns_cartpole_without_velocities() -> None:
    hp = R2D2(epsilon_steps=6_000, epsilon_end=0.02)
    monitor, statistics, *_ = run(hp, hidden_cartpole, updates=220)
    assert 20_000 < monitor.env_steps < 35_000
    assert monitor.return_mean_100 > 35  # a random policy has 22
    assert statistics.replays["replay"].reuse == pytest.approx(16.0, rel=0.05)


class Given:
    """Stands for a network: the observations are its values, in one unit or another."""

    def __init__(self, unit: float) -> None:
        self.unit = unit
        self.num_calls = 0

    def __call__(self, obs: Any, state: Any, is_first: Any) -> Any:
        self.num_calls += 1
        mask = None
        if isinstance(obs, dict):
            mask, obs = obs["action_mask"] != 0, obs["obs"]
        values = torch.tanh(self.unit * obs) + state[:, None, :1].mean()
        return ActionValues(MeanValues(), values[..., None], mask), values.mean(dim=2), state + 0.25

    frozen = property(lambda self: self)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    "fields", [{}, {"double": False}, {"value_rescaling": False, "max_priority_weight": 0.5}], ids=str
)
def test_the_loss_is_that_of_the_paper(fields: dict[str, Any], masked: bool) -> None:
    """Written out in numpy, one step after the other."""
    hp, rng = R2D2(sequence_length=4, burn_in=3, n_step=2, **fields), np.random.default_rng(0)
    num, num_slots, num_actions = 5, 3 + 4 + 2, 3
    obs = rng.normal(size=(num, num_slots, num_actions))
    allowed = rng.random(obs.shape) < 0.6
    allowed[..., 1] = True
    state = rng.normal(size=(num, 2))
    lengths = np.array([4, 4, 1, 2, 3])
    is_step = np.arange(4) < lengths[:, None]
    ahead = np.minimum(2, np.maximum(0, lengths[:, None] - np.arange(4)))
    ahead[0] = 2  # an episode that goes on
    action = rng.integers(0, num_actions, (num, 4))
    reward, discount = rng.normal(size=(num, 4)) * 3.0, rng.random((num, 4)) * is_step
    importance = rng.random(num)
    columns = {
        "obs": obs, "is_first": np.zeros((num, num_slots), bool), "state": state, "action": action, "reward": reward,
        "discount": discount, "ahead": ahead, "is_step": is_step, "importance": importance,
    }  # fmt: skip
    batch: dict[str, Any] = {name: torch.from_numpy(array) for name, array in columns.items()}
    if masked:
        batch["obs"] = {"obs": batch["obs"], "action_mask": torch.from_numpy(allowed)}
    else:
        allowed[...] = True
    outcome = R2D2Loss(hp)(Networks({"policy": Given(1.0)}, {"policy": Given(2.0)}), batch, {})  # type: ignore[dict-item]

    def h(x: float) -> float:
        return float(np.sign(x) * (np.sqrt(abs(x) + 1) - 1) + 1e-3 * x) if hp.value_rescaling else x

    def h_inverse(x: float) -> float:
        root = (np.sqrt(1 + 4e-3 * (abs(x) + 1 + 1e-3)) - 1) / 2e-3
        return float(np.sign(x) * (root**2 - 1)) if hp.value_rescaling else x

    def values(unit: float) -> Any:
        return np.tanh(unit * obs) + (state[:, 0] + 0.25).mean()  # the state after the burn-in

    online, slow = values(1.0), values(2.0)
    total, priorities = 0.0, []
    for n in range(num):
        errors = []
        for i in range(lengths[n]):
            slot = 3 + i + ahead[n, i]
            chooser = np.where(allowed[n, slot], (online if hp.double else slow)[n, slot], -np.inf)
            y = h(reward[n, i] + discount[n, i] * h_inverse(slow[n, slot, chooser.argmax()]))
            errors.append(y - online[n, 3 + i, action[n, i]])
        total += importance[n] * sum(0.5 * error**2 for error in errors)
        size = np.abs(errors)
        priorities.append(hp.max_priority_weight * size.max() + (1 - hp.max_priority_weight) * size.mean())
    assert outcome.loss.item() == pytest.approx(total / is_step.sum(), rel=1e-6)
    assert outcome.priorities is not None
    np.testing.assert_allclose(outcome.priorities, priorities, rtol=1e-6)


def rows_of(hp: R2D2, task: Task, num: int) -> tuple[Any, Transitions]:
    """A learner and what it would learn from."""
    [recipe] = hp.flow(task).learners().values()
    learner = recipe.open(1)
    sampler = StepSampler(
        task=task,
        policy=recipe.policy,
        explore=EpsilonGreedy(),
        num_envs=4,
        num_steps=12,
        num_overlap_steps=hp.sequences.num_overlap_steps,
    )(Shard("step", 0, 1, seed=5))
    parts: list[Transitions] = []
    while sum(part.num_rows for part in parts) < num:
        parts.append(hp.sequences(sampler(learner.weights())))
    sampler.close()
    whole = concatenate(parts)
    return learner, Transitions({name: column[:num] for name, column in whole.columns.items()})


@pytest.mark.parametrize("compile_", [False, "auto"])
def test_padding_changes_no_bit(compile_: Any) -> None:
    hp = R2D2(**{**QUICK, "sequence_length": 6, "n_step": 2, "batch_size": 32, "compile": compile_})
    learner, rows = rows_of(hp, Task(hidden_cartpole), 64)
    columns = {name: np.array(column) for name, column in rows.columns.items()}
    slot, is_step, rng = np.arange(columns["obs"].shape[1]), columns["is_step"], np.random.default_rng(0)
    last = hp.burn_in + (np.arange(hp.sequence_length) + columns["ahead"]).max(axis=1, where=is_step, initial=0)
    first = np.where(columns["is_first"].any(axis=1), columns["is_first"].argmax(axis=1), 0)
    is_padding = (slot > last[:, None]) | (slot < first[:, None])
    assert is_padding[:, : hp.burn_in].sum() > 5 and is_padding[:, hp.burn_in :].sum() > 5
    columns["obs"][is_padding] = rng.normal(size=columns["obs"][is_padding].shape) * 5.0
    columns["state"][first > 0] = 9.0
    for name, worst in (("action", 2), ("ahead", 3)):
        columns[name][~is_step] = rng.integers(0, worst, (~is_step).sum())
    for name in ("reward", "discount"):
        columns[name][~is_step] = rng.normal(size=(~is_step).sum()) * 100.0
    one = learner.update([rows])
    other_learner, _ = rows_of(hp, Task(hidden_cartpole), 1)
    two = other_learner.update([Transitions(columns)])
    assert params_sha256(one.weights) == params_sha256(two.weights)
    np.testing.assert_array_equal(one.priorities, two.priorities)
    assert one.stats == two.stats
    columns["reward"][is_step] += 1.0  # and what is none does
    third, _ = rows_of(hp, Task(hidden_cartpole), 1)
    assert params_sha256(third.update([Transitions(columns)]).weights) != params_sha256(one.weights)


def test_updates_are_recorded_and_the_same(caplog: pytest.LogCaptureFixture) -> None:
    task = Task(hidden_cartpole)
    found = []
    for compile_ in (False, "auto"):
        learner, rows = rows_of(R2D2(**{**QUICK, "compile": compile_}), task, 16)
        found.append(learner.update([rows]).weights)
    for name, array in found[0].items():
        np.testing.assert_allclose(found[1][name], array, rtol=1e-4, atol=1e-6)
    assert "cannot be recorded" not in caplog.text


OPTIONS = [
    {}, {"shards": 3, "prioritized": False, "n_step": 1, "dueling": True, "rnn_type": "gru", "overlap": 2, "epsilon_base": 0.4},
    {"burn_in": 0, "samples_per_insert": 3.0, "double": False, "value_rescaling": False},
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_same_parameters_under_every_deployment(options: dict[str, Any]) -> None:
    hp = R2D2(**QUICK | options)
    expected = run(hp)[2]
    for place in (Processes(workers=2), Processes(workers=1, inference="worker"), Inline(adversary=1)):
        assert run(hp, on=place)[2] == expected, place
    assert run(hp, seed=2)[2] != expected


def test_a_run_that_goes_on_ends_with_the_same_parameters() -> None:
    hp = R2D2(**QUICK, shards=2)
    expected = run(hp, updates=30)[2]
    state = run(hp, on=Processes(workers=2), updates=12)[3]
    assert state.is_exact
    assert run(hp, updates=30, state=state)[2] == expected


@pytest.mark.parametrize(
    "env", ["FrozenLake-v1", *(f"support.envs.small:Small{name}-v0" for name in ("Masked", "DictObs", "Image"))]
)
def test_other_observations_and_action_masks(env: str) -> None:
    monitor, *_ = run(R2D2(**QUICK), env, updates=5)
    assert monitor.env_steps > 30


@pytest.mark.parametrize(("fields", "match"), [
    ({"sequence_length": 0}, "sequence_length=0"), ({"burn_in": -1}, "burn_in=-1"), ({"max_priority_weight": 1.5},
    "max_priority_weight=1.5"), ({"epsilon_base": 2.0}, "epsilon_base=2.0"),
    ({"rnn_type": "rnn"}, "rnn_type='rnn'"), ({"value_rescaling": 1}, "value_rescaling=1"), ({"rnn_size": 0}, "rnn_size=0"),
    ({"overlap": 20}, r"overlap=20\): expected an integer below sequence_length=20"), ({"batch_size": 0}, "batch_size=0"),
])  # fmt: skip
def test_settings_that_cannot_be(fields: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        R2D2(**fields)


def test_networks_of_the_other_kind_are_refused() -> None:
    with pytest.raises(ModelError, match=r"network=.*ValueMLP.*, expected a recurrent one"):
        R2D2(network=ValueMLP).flow(Task("CartPole-v1")).check()
    with pytest.raises(ModelError, match=r"network=.*RecurrentNet.*, expected a network that is not recurrent"):
        DQN(network=RecurrentNet).flow(Task("CartPole-v1")).check()
    assert R2D2(network="levada.rl.policies.recurrent:RecurrentNet").flow(Task("CartPole-v1")).nodes


def test_sequences_are_counted_and_steps_annealed() -> None:
    hp = R2D2(sequence_length=20, overlap=10, batch_size=32, samples_per_insert=16.0, anneal_steps=1_000)
    num_steps = 500 / 10 * 16 / 32  # gradient steps for 500 env steps, which are 50 sequences
    assert hp.coefficients(int(num_steps) * hp.batch_size)["learning_rate"] == pytest.approx(5e-4, rel=0.02)
    for spi, every in ((16.0, 1), (64.0, 4)):  # an item of 8 x 20 steps is 8 sequences, an update draws 128
        flow = R2D2(samples_per_insert=spi).flow(Task("CartPole-v1"))
        assert [edge.every for edge in flow.edges if edge.kind == "publish"] == [every]


def test_a_run_from_the_command_on(tmp_path: Path) -> None:
    """Trained, cut off, resumed, loaded, and played with."""
    options: Any = {"seed": 3, "display": "quiet", "log": "none", **QUICK}
    whole = lv.train("r2d2", "CartPole-v1", until="updates=30", out=tmp_path / "whole", **options)
    first = lv.train("r2d2", "CartPole-v1", until="updates=12", out=tmp_path / "first", save_replays=True, **options)
    resumed = lv.resume(first.path, until="updates=30", display="quiet")
    assert resumed.summary.params_sha256 == whole.summary.params_sha256
    loaded = lv.load(whole.path)
    assert lv.evaluate(loaded, num_episodes=3).returns.tolist() == lv.evaluate(whole, num_episodes=3).returns.tolist()
    obs = np.zeros(4, np.float32)
    actions = [loaded.policy.act(obs) for _ in range(5)]
    loaded.policy.reset()
    assert actions == [loaded.policy.act(obs) for _ in range(5)]
