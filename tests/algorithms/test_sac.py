"""SAC: its losses are the papers', it learns, it is the same under every deployment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from levada.algorithms.checks import ConfigError
from levada.algorithms.sac import SAC, SACLoss
from levada.math import SquashedGaussian
from levada.rl.task import Task
from levada.run.hashing import params_sha256
from levada.run.monitor import Monitor
from levada.runners import Inline
from levada.runners.processes import Processes

QUICK = {
    "num_steps": 4,
    "min_size": 40,
    "batch_size": 16,
    "num_gradient_steps": 2,
    "samples_per_insert": 8.0,
    "hidden": (16,),
}


def run(hp: SAC, *, on: Any = None, seed: int = 1, updates: int = 30, state: Any = None) -> Any:
    monitor = Monitor()
    with (on or Inline()).open(hp.flow(Task("Pendulum-v1")), seed=seed, instruments=[monitor], state=state) as opened:
        for report in opened:
            if report.firing == updates:
                break
        return monitor, report, params_sha256(opened.node_state("learn").weights()), opened.save()


class Fake:
    """A network that gives what it is told to, by which observations it is asked for."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.frozen = function
        self.learns = True

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)


def test_the_losses_by_an_independent_count() -> None:
    """arXiv 1812.05905, equations 5, 7 and 18, in numpy, with the density of a tanh of a Gaussian written out."""
    rng, n, a = np.random.default_rng(0), 6, 2
    mean, log_std = {k: rng.normal(size=(n, a)) for k in "ab"}, {k: rng.normal(size=(n, a)) * 0.3 for k in "ab"}
    noise = {k: rng.normal(size=(n, a)) for k in "ab"}
    slow, values, own = (rng.normal(size=(2, n)) for _ in range(3))
    reward, discount, log_alpha = rng.normal(size=n), 0.9 * rng.integers(0, 2, n), -0.7
    low, high = np.array([-2.0, -1.0]), np.array([2.0, 3.0])

    def tensor(array: Any) -> torch.Tensor:
        return torch.from_numpy(np.asarray(array, np.float64))

    def policy(obs: str) -> Any:
        return SquashedGaussian(tensor(mean[obs]), tensor(log_std[obs]), tensor(low), tensor(high)), None

    stored = object()
    nets = {
        "policy": Fake(policy), "temperature": Fake(lambda: tensor([log_alpha])),
        "critic": Fake(lambda obs, action: tensor(values if action is stored else own)),
    }  # fmt: skip
    rows = {
        "obs": "a", "next_obs": "b", "action": stored, "reward": tensor(reward), "discount": tensor(discount),
        "noise": tensor(noise["a"]), "next_noise": tensor(noise["b"]),
    }  # fmt: skip
    targets = {"critic": lambda obs, action: tensor(slow)}
    outcome = SACLoss(SAC(), a)(nets, targets, rows, {})  # type: ignore[arg-type]

    def log_density(k: str) -> Any:
        x = mean[k] + np.exp(log_std[k]) * noise[k]
        normal = -0.5 * noise[k] ** 2 - log_std[k] - 0.5 * np.log(2 * np.pi)
        return (normal - np.log((1 - np.tanh(x) ** 2) * (high - low) / 2)).sum(1)

    alpha = np.exp(log_alpha)
    target = reward + discount * (slow.min(0) - alpha * log_density("b"))
    critic_loss = sum(0.5 * ((value - target) ** 2).mean() for value in values)
    actor_loss = (alpha * log_density("a") - own.min(0)).mean()
    alpha_loss = -log_alpha * (log_density("a") - a).mean()
    assert float(outcome.stats["critic_loss"]) == pytest.approx(critic_loss, rel=1e-5)
    assert float(outcome.stats["actor_loss"]) == pytest.approx(actor_loss, rel=1e-5)
    assert float(outcome.loss) == pytest.approx(critic_loss + actor_loss + alpha_loss, rel=1e-5)


def test_each_network_learns_from_its_own_loss_alone() -> None:
    """The gradient of the sum is that of the critic's loss for the critic, of the actor's for the actor."""
    hp = SAC(**QUICK)
    live = hp.flow(Task("Pendulum-v1")).learners()["learn"].open(0)
    live.recipe.policy.module(0)
    before = live.state_dict()["step/params"]
    rng = np.random.default_rng(0)
    columns = {
        "obs": rng.normal(size=(16, 3)).astype(np.float32), "next_obs": rng.normal(size=(16, 3)).astype(np.float32),
        "action": rng.uniform(-2, 2, (16, 1)).astype(np.float32), "reward": np.zeros(16, np.float32),
        "discount": np.full(16, 0.9, np.float32),
    }  # fmt: skip
    from levada.rl.transitions import Transitions

    live.update([Transitions(columns)])
    after = live.state_dict()["step/params"]
    assert (before != after).mean() > 0.9
    assert live.state_dict()["step/counts"].tolist() == [1.0, 1.0, 1.0]


def test_it_learns_pendulum() -> None:
    hp = SAC(min_size=400, batch_size=64, samples_per_insert=64.0, hidden=(64, 64), num_envs=4, num_steps=4)
    monitor, report, *_ = run(hp, updates=900)
    assert 6_500 < monitor.env_steps < 8_000
    assert report.values["losses/alpha"] < 0.9
    assert monitor.return_mean_100 > -900  # a random policy has -1,200, and the first episodes are


@pytest.mark.parametrize("options", [{}, {"shards": 2, "lookahead": 3}], ids=str)
def test_the_same_parameters_under_every_deployment_and_after_a_break(options: dict[str, Any]) -> None:
    hp = SAC(**QUICK | options)
    expected = run(hp)[2]
    assert run(hp, on=Processes(workers=2))[2] == expected
    state = run(hp, on=Processes(workers=1), updates=13)[3]
    assert state.is_exact
    assert run(hp, state=state)[2] == expected


@pytest.mark.parametrize(("fields", "match"), [
    ({"tau": 0.0}, "tau=0.0"), ({"samples_per_insert": -1.0}, "samples_per_insert"), ({"hidden": (0,)}, "hidden"),
    ({"entropy_per_action": float("nan")}, "entropy_per_action"),
])  # fmt: skip
def test_settings_that_cannot_be(fields: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        SAC(**fields)


def test_choices_are_refused() -> None:
    with pytest.raises(ValueError, match="squash=True needs a Box"):
        SAC().flow(Task("CartPole-v1"))
