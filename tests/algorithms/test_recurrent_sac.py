"""Recurrent SAC: its losses are the paper's, padding teaches nothing, it remembers, it is the same under every deployment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.envs import small as small_envs

from levada.algorithms.checks import ConfigError
from levada.algorithms.recurrent_sac import RecurrentSAC, RecurrentSACLoss
from levada.math import Categorical
from levada.rl.data.spaces import SpaceError
from levada.rl.envs.task import Task
from levada.rl.learning.loss import Networks
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
    hp: Any, env: Any = "CartPole-v1", *, on: Any = None, seed: int = 1, updates: int = 15, state: Any = None
) -> Any:
    monitor = Monitor()
    with (on or Inline()).open(hp.flow(Task(env)), seed=seed, instruments=[monitor], state=state) as opened:
        for report in opened:
            if report.firing == updates:
                break
        return monitor, opened.statistics(), params_sha256(opened.node_state("learn").weights()), opened.save()


class Given:
    """Stands for a network: what it gives is made of the observations."""

    def __init__(self, make: Any) -> None:
        self.make = make

    def __call__(self, obs: Any, state: Any, is_first: Any) -> Any:
        return *self.make(obs), state

    frozen = property(lambda self: self)


@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_the_losses_are_those_of_the_paper(masked: bool, rescale: bool) -> None:
    """Written out in numpy, one step after the other; what stands in the padding changes nothing."""
    hp, rng = (
        RecurrentSAC(sequence_length=4, burn_in=3, n_step=2, target_entropy_ratio=0.4, value_rescaling=rescale),
        np.random.default_rng(0),
    )
    num, num_slots, num_actions, log_alpha = 5, 3 + 4 + 2, 3, -0.7
    obs = rng.normal(size=(num, num_slots, num_actions))
    allowed = rng.random(obs.shape) < (0.6 if masked else 2.0)
    allowed[..., 1] = True
    lengths = np.array([4, 4, 1, 2, 3])
    is_step = np.arange(4) < lengths[:, None]
    ahead = np.minimum(2, np.maximum(0, lengths[:, None] - np.arange(4)))
    ahead[0] = 2  # an episode that goes on
    action = rng.integers(0, num_actions, (num, 4))
    reward, discount = rng.normal(size=(num, 4)), rng.random((num, 4))

    def loss() -> Any:
        columns = {
            "obs": obs, "is_first": np.zeros((num, num_slots), bool), "state": np.zeros((num, 2)), "action": action,
            "reward": reward, "discount": discount, "ahead": ahead, "is_step": is_step,
        }  # fmt: skip
        batch: dict[str, Any] = {name: torch.from_numpy(array.copy()) for name, array in columns.items()}
        if masked:
            batch["obs"] = {"obs": batch["obs"], "action_mask": torch.from_numpy(allowed.copy())}

        def inner(seen: Any) -> Any:
            return seen["obs"] if masked else seen

        def critic(unit: float) -> Given:
            return Given(lambda seen: [torch.stack([unit * inner(seen), unit * inner(seen) ** 2 - 0.5])])

        def policy(seen: Any) -> Any:
            return Categorical(3.0 * inner(seen), seen["action_mask"] if masked else None), None

        parameter = torch.tensor([log_alpha], dtype=torch.float64, requires_grad=True)
        nets: Any = {"policy": Given(policy), "critic": Given(critic(1.0).make), "temperature": lambda: parameter}
        outcome = RecurrentSACLoss(hp, num_actions)(Networks(nets, {"critic": critic(2.0)}), batch, {})  # type: ignore[dict-item]
        [slope] = torch.autograd.grad(outcome.loss, parameter)
        return outcome, float(slope)

    alpha = np.exp(log_alpha)

    def probabilities(n: int, slot: int) -> Any:
        odds = np.exp(3.0 * obs[n, slot]) * allowed[n, slot]
        return odds / odds.sum()

    def soft(n: int, slot: int, unit: float) -> float:
        """Equation 10: the expectation over the policy of the smaller value, less alpha times the logarithm."""
        smaller = np.minimum(unit * obs[n, slot], unit * obs[n, slot] ** 2 - 0.5)
        if rescale:
            root = (np.sqrt(1 + 4e-3 * (abs(smaller) + 1 + 1e-3)) - 1) / 2e-3
            smaller = np.sign(smaller) * (root**2 - 1)
        pairs = zip(probabilities(n, slot), smaller, strict=True)
        return float(sum(p * (q - alpha * np.log(p)) for p, q in pairs if p > 0))

    critic_loss = actor_loss = gap = entropy = 0.0
    for n in range(num):
        for i in range(lengths[n]):
            y = reward[n, i] + discount[n, i] * soft(n, 3 + i + ahead[n, i], 2.0)
            if rescale:
                y = np.sign(y) * (np.sqrt(abs(y) + 1) - 1) + 1e-3 * y
            q = obs[n, 3 + i, action[n, i]]
            critic_loss += 0.5 * (y - q) ** 2 + 0.5 * (y - (q**2 - 0.5)) ** 2
            actor_loss -= soft(n, 3 + i, 1.0)
            h = -sum(p * np.log(p) for p in probabilities(n, 3 + i) if p > 0)
            entropy += h
            gap += h - 0.4 * np.log(allowed[n, 3 + i].sum())
    total = is_step.sum()
    outcome, slope = loss()
    assert outcome.stats["critic_loss"].item() == pytest.approx(critic_loss / total, rel=1e-6)
    assert outcome.stats["actor_loss"].item() == pytest.approx(actor_loss / total, rel=1e-6)
    assert outcome.stats["entropy"].item() == pytest.approx(entropy / total, rel=1e-6)
    assert slope == pytest.approx(gap / total, rel=1e-6)
    assert outcome.loss.item() == pytest.approx((critic_loss + actor_loss + log_alpha * gap) / total, rel=1e-6)
    for array in (reward, discount):
        array[~is_step] = 7.0
    action[~is_step] = 2
    obs[2, 3 + 1 + 1 :] = 9.0  # the third is over after one step
    again, _ = loss()
    assert again.loss.item() == outcome.loss.item()


@pytest.mark.parametrize("seed", [1, 2])
def test_it_remembers_what_a_memoryless_agent_forgets(seed: int) -> None:
    hp = RecurrentSAC(
        num_steps=10, sequence_length=5, burn_in=0, hidden_sizes=(16,), rnn_size=16, n_step=2, log_alpha_init=-3.0, tau=0.05,
        num_random_steps=300, samples_per_insert=32.0, learning_rate=3e-3, target_entropy_ratio=0.1,
    )  # fmt: skip
    monitor, *_ = run(hp, small_envs.Recall, seed=seed, updates=70)
    assert monitor.env_steps < 3_000
    assert monitor.return_mean_100 > 0.9


@pytest.mark.parametrize("options", [{}, {"shards": 2, "rnn_type": "gru", "overlap": 2, "n_step": 1}], ids=str)
def test_the_same_parameters_under_every_deployment(options: dict[str, Any]) -> None:
    hp = RecurrentSAC(**QUICK | options)
    expected = run(hp)[2]
    for place in (Processes(workers=2), Processes(workers=1, inference="worker")):
        assert run(hp, on=place)[2] == expected, place


def test_a_run_that_goes_on_ends_with_the_same_parameters() -> None:
    hp = RecurrentSAC(**QUICK)
    expected = run(hp, updates=25)[2]
    state = run(hp, updates=10)[3]
    assert state.is_exact
    assert run(hp, updates=25, state=state)[2] == expected


@pytest.mark.parametrize(
    "env", ["FrozenLake-v1", "support.envs.small:SmallMasked-v0", "support.envs.small:SmallDictObs-v0"]
)
def test_other_observations_and_action_masks(env: str) -> None:
    monitor, *_ = run(RecurrentSAC(**QUICK), env, updates=5)
    assert monitor.env_steps > 30


def test_settings_and_actions_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match=r"target_entropy_ratio=1\.5"):
        RecurrentSAC(target_entropy_ratio=1.5)
    with pytest.raises(ConfigError, match="burn_in=-1"):
        RecurrentSAC(burn_in=-1)
    with pytest.raises(SpaceError, match=r"RecurrentSAC needs Discrete actions, but .* has Box"):
        RecurrentSAC().flow(Task("Pendulum-v1"))
