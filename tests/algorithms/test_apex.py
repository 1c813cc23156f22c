"""Ape-X: it learns with tables in processes of their own, survives kills, and its first priorities are errors."""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from support.envs import small as small_envs

from levada.algorithms.apex_ddpg import ApexDDPG
from levada.algorithms.apex_dqn import ApexDQN
from levada.algorithms.checks import ConfigError
from levada.algorithms.dqn import DQN, TDError, td_loss_of
from levada.algorithms.replayed import ReplayAlgorithm
from levada.algorithms.sac import SAC
from levada.algorithms.td3 import TD3
from levada.rl.acting.actor import Actor
from levada.rl.acting.exploration import EpsilonGreedy
from levada.rl.envs.task import Task
from levada.rl.policies.networks import value_network
from levada.rl.policies.policy import Policy
from levada.run.monitor import Monitor
from levada.run.storage.hashing import params_sha256
from levada.runners import Inline
from levada.runners.processes import Processes

QUICK: dict[str, Any] = {
    "num_steps": 4, "learning_starts": 60, "batch_size": 16, "num_gradient_steps": 2, "samples_per_insert": 8.0,
    "hidden_sizes": (16,),
}  # fmt: skip


def run(hp: ReplayAlgorithm, env: Any, *, on: Any = None, updates: int = 40, state: Any = None) -> Any:
    monitor = Monitor()
    with (on or Inline()).open(hp.flow(Task(env)), seed=1, instruments=[monitor], state=state) as opened:
        for report in opened:
            if report.firing == updates:
                break
        return monitor, opened.statistics(), params_sha256(opened.node_state("learn").weights()), opened.save()


def test_ape_x_learns_cartpole_while_a_table_and_workers_are_killed() -> None:
    hp = ApexDQN(
        num_envs=2,
        hidden_sizes=(64, 64),
        samples_per_insert=16.0,
        target_update_interval=100,
        epsilon_base=0.05,
        tolerance=2_000.0,
    )
    monitor = Monitor(target_return=80.0)  # a random policy has 22
    with Processes(workers=2, replays="worker").open(
        hp.flow(Task("CartPole-v1")), seed=1, instruments=[monitor]
    ) as opened:
        for report in opened:
            if report.firing in (50, 150):
                os.kill(opened.table_place.pids[report.firing // 50 % 2], signal.SIGKILL)
                os.kill(opened.worker_pids[0], signal.SIGKILL)
            if monitor.solved_at_s is not None or report.firing == 2_000:
                break
        replay = opened.statistics().replays["replay"]
    assert monitor.solved_at_s is not None
    assert report.firing > 150
    assert replay.lost > 0
    assert replay.ledger.balanced


def test_ape_x_ddpg_runs_with_tables_apart() -> None:
    monitor, statistics, *_ = run(
        ApexDDPG(**QUICK | {"tolerance": 100.0}), "Pendulum-v1", on=Processes(workers=2, replays="worker")
    )
    assert monitor.env_steps > 60
    assert statistics.replays["replay"].ledger.balanced


@pytest.mark.parametrize(("hp", "env"), [
    (ApexDQN(**QUICK | {"order": "admission", "tolerance": 0.0}), "CartPole-v1"),
    (ApexDDPG(**QUICK | {"order": "admission", "tolerance": 0.0}), "Pendulum-v1"),
    (TD3(**QUICK, shards=2, prioritized=True), "Pendulum-v1"), (SAC(**QUICK, shards=2, prioritized=True), "Pendulum-v1"),
    (SAC(**QUICK, shards=2, prioritized=True), "CartPole-v1"),
], ids=lambda hp: hp if isinstance(hp, str) else type(hp).__name__)  # fmt: skip
def test_in_admission_order_they_are_the_same_under_every_deployment_and_after_a_resume(hp: Any, env: str) -> None:
    *_, expected, _ = run(hp, env)
    assert run(hp, env, on=Processes(workers=2, replays="worker"))[2] == expected
    *_, state = run(hp, env, updates=17, on=Processes(workers=2))
    assert run(hp, env, state=state)[2] == expected


@pytest.mark.parametrize("num_steps", [1, 2, 3])
def test_items_that_are_shorter_than_a_window(num_steps: int) -> None:
    hp = ApexDQN(**QUICK | {"num_steps": num_steps, "n_step": 3, "num_envs": 2})
    _, statistics, *_ = run(hp, "CartPole-v1", updates=5)
    assert statistics.replays["replay"].fill >= 60


@pytest.mark.parametrize("distribution", ["categorical", "quantile"])
def test_first_priorities_are_of_the_size_of_later_ones(distribution: Any) -> None:
    """KL divergences and quantile losses, and no errors in units of return."""
    hp = ApexDQN(**QUICK, distribution=distribution, v_min=-1_000.0, v_max=1_000.0)
    flow = hp.flow(Task("CartPole-v1"))
    first = flow.nodes["n_step"].work.priority
    rows = np.zeros((1, 4, first.policy.head.row_size), np.float32)
    found = first(
        rows, np.zeros((1, 4), np.int64), np.full((1, 4), 500.0, np.float32), np.ones((1, 4), np.float32), rows, None
    )
    kind = first.policy.head.kind
    atoms = torch.zeros(1, kind.num_atoms)
    _, later = td_loss_of(kind, atoms, atoms, torch.tensor([500.0]), torch.ones(1), huber_delta=hp.huber_delta)
    np.testing.assert_allclose(found, np.full((1, 4), float(later)), rtol=1e-5)


def test_first_priorities_with_action_masks() -> None:
    _, statistics, *_ = run(ApexDQN(**QUICK), small_envs.Masked, updates=5)
    assert statistics.replays["replay"].fill >= 60


def test_priorities_change_what_is_learned() -> None:
    assert len({run(TD3(**QUICK, prioritized=some), "Pendulum-v1")[2] for some in (False, True)}) == 2


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("is_masked", [False, True])
def test_first_priorities_by_an_independent_count(dueling: bool, is_masked: bool) -> None:
    """|r + discount * max Q(s') - Q(s, a)|, with Q from the module of the policy, and the maximum over allowed actions."""
    policy = Policy(
        observation_space=spaces.Box(-1.0, 1.0, (3,)), action_space=spaces.Discrete(4), output="q_values", dueling=dueling,
        network=partial(value_network, hidden_sizes=(8,)),
    )  # fmt: skip
    module, actor = policy.module(seed=2), Actor(policy)
    actor.load(policy.weights(module))
    rng = np.random.default_rng(0)
    obs, after = rng.standard_normal((2, 10, 3)).astype(np.float32)
    action, reward, discount = rng.integers(0, 4, (5, 2)), rng.random((5, 2)), rng.random((5, 2)) < 0.7
    rows = [actor.params(o).reshape(5, 2, -1).copy() for o in (obs, after)]
    mask = rng.integers(0, 2, (5, 2, 4), np.int8)
    mask[..., 1] = 1
    allowed = mask.reshape(10, 4) != 0 if is_masked else np.ones((10, 4), bool)
    found = TDError(policy, huber_delta=None)(
        rows[0], action, reward, 0.9 * discount, rows[1], mask if is_masked else None
    )
    with torch.no_grad():
        q_tm1, q_t = (module(torch.from_numpy(o))[0].values.numpy() for o in (obs, after))
    for number in range(10):
        i, j = divmod(number, 2)
        target = reward[i, j] + 0.9 * discount[i, j] * q_t[number][allowed[number]].max()
        assert found[i, j] == pytest.approx(abs(target - q_tm1[number, action[i, j]]), rel=1e-4, abs=1e-5)


def test_the_ladder_is_that_of_the_paper() -> None:
    flow = DQN(shards=2, num_envs=2, epsilon_base=0.4).flow(Task("CartPole-v1"))
    explore = flow.nodes["step"].work.explore
    assert explore == EpsilonGreedy(base=0.4)


@pytest.mark.parametrize(("options", "said"), [
    ({"epsilon_base": 1.5}, "epsilon_base"), ({"tables": 0}, "tables"), ({"order": "any"}, "'admission' or 'arrival'"),
    ({"prioritized": 1}, "prioritized"), ({"importance_sampling_exponent": 2.0}, "importance_sampling_exponent"),
    ({"priority_exponent": -1.0}, "priority_exponent"),
])  # fmt: skip
def test_what_cannot_be_is_refused(options: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ApexDQN(**options)


@pytest.mark.parametrize("options", [{"buffer_size": 14}, {"buffer_size": 100, "tables": 20}])
def test_a_table_that_cannot_hold_an_item_is_refused(options: Any) -> None:
    with pytest.raises(ConfigError, match="may be 16 entries, and a table holds"):
        DQN(num_envs=2, num_steps=8, learning_starts=5, **options).flow(Task("CartPole-v1"))
