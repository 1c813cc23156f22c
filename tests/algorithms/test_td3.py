"""TD3 and DDPG: the loss is the paper's, the actor takes its turns, they learn, they are the same under every deployment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from support.envs import small as small_envs

from levada.algorithms.checks import ConfigError
from levada.algorithms.ddpg import DDPG
from levada.algorithms.sac import SAC
from levada.algorithms.td3 import TD3, TD3Loss
from levada.math import SquashedGaussian
from levada.rl.envs.task import Task
from levada.rl.learning.loss import Networks
from levada.run.monitor import Monitor
from levada.run.storage.hashing import params_sha256
from levada.runners import Inline
from levada.runners.processes import Processes

QUICK = {
    "num_steps": 4,
    "learning_starts": 40,
    "batch_size": 16,
    "num_gradient_steps": 2,
    "samples_per_insert": 8.0,
    "hidden_sizes": (16,),
}


def run(hp: TD3, *, on: Any = None, updates: int = 30, state: Any = None) -> Any:
    monitor = Monitor()
    with (on or Inline()).open(hp.flow(Task("Pendulum-v1")), seed=1, instruments=[monitor], state=state) as opened:
        for report in opened:
            if report.firing == updates:
                break
        learner = opened.node_state("learn")
        return monitor, learner.state_dict(), params_sha256(learner.weights()), opened.save()


class Fake:
    def __init__(self, function: Any, learns: bool = True) -> None:
        self.function = self.frozen = function
        self.learns = learns

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)


@pytest.mark.parametrize("learns", [True, False])
def test_the_loss_by_an_independent_count(learns: bool) -> None:
    """arXiv 1802.09477, algorithm 1, in numpy."""
    rng, n, a = np.random.default_rng(0), 7, 2
    mean, noise = rng.normal(size=(n, a)), rng.normal(size=(n, a)) * 4
    slow, values, own = (rng.normal(size=(2, n)) for _ in range(3))
    reward, discount = rng.normal(size=n), 0.9 * rng.integers(0, 2, n)
    box = spaces.Box(np.array([-2.0, -1.0], np.float32), np.array([2.0, 3.0], np.float32))
    asked = []

    def tensor(array: Any) -> torch.Tensor:
        return torch.from_numpy(np.asarray(array, np.float64))

    def policy(obs: str) -> Any:
        low, high = tensor(box.low), tensor(box.high)
        return SquashedGaussian(tensor(mean), torch.zeros(a, dtype=torch.float64), low, high), None

    def target_critic(obs: str, action: torch.Tensor) -> torch.Tensor:
        asked.append(action.numpy())
        return tensor(slow)

    stored = object()
    nets = {
        "policy": Fake(policy, learns), "critic": Fake(lambda obs, action: tensor(values if action is stored else own)),
    }  # fmt: skip
    rows = {"obs": "a", "next_obs": "b", "action": stored, "reward": tensor(reward), "discount": tensor(discount),
            "noise": tensor(noise)}  # fmt: skip
    targets = {"policy": policy, "critic": target_critic}
    outcome = TD3Loss(TD3(), box)(Networks(nets, targets), rows, {})  # type: ignore[arg-type]

    half = (box.high - box.low) / 2.0
    best = box.low + half * (1.0 + np.tanh(mean))
    after = np.clip(best + np.clip(0.2 * noise, -0.5, 0.5) * half, box.low, box.high)
    np.testing.assert_allclose(asked[0], after, rtol=1e-6)
    target = reward + discount * slow.min(0)
    critic_loss = sum(0.5 * ((value - target) ** 2).mean() for value in values)
    actor_loss = -own[0].mean() if learns else 0.0
    assert float(outcome.loss) == pytest.approx(critic_loss + actor_loss, rel=1e-6)
    assert np.isnan(float(outcome.stats["actor_loss"])) != learns


@pytest.mark.filterwarnings("ignore:.*Casting input x")  # a number is no array, says the space
@pytest.mark.parametrize("env", [small_envs.NumberAction, small_envs.MatrixAction])
@pytest.mark.parametrize("kind", [TD3, DDPG, SAC])
def test_actions_that_are_no_vectors(kind: Any, env: Any) -> None:
    with Inline().open(kind(**QUICK).flow(Task(env)), seed=1) as opened:
        report = next(report for report in opened if report.firing == 4)
    assert np.isfinite(report.values["losses/critic_loss"])


def test_the_actor_takes_its_turns() -> None:
    _, state, *_ = run(TD3(**QUICK, policy_delay=3), updates=5)
    assert [state[f"step/optimizer/{name}/step"] for name in ("policy", "critic")] == [3.0, 10.0]
    _, state, *_ = run(DDPG(**QUICK), updates=5)
    assert [state[f"step/optimizer/{name}/step"] for name in ("policy", "critic")] == [10.0, 10.0]


@pytest.mark.parametrize("kind", [TD3, DDPG])
def test_it_learns_pendulum(kind: type[TD3]) -> None:
    hp = kind(
        learning_starts=400, batch_size=64, samples_per_insert=64.0, hidden_sizes=(64, 64), num_envs=4, num_steps=4
    )
    monitor, *_ = run(hp, updates=1_100)
    assert 9_000 < monitor.env_steps < 9_500
    assert monitor.return_mean_100 > -1_050  # a random policy has -1,200, and the first episodes are


@pytest.mark.parametrize("kind", [TD3, DDPG])
def test_the_same_parameters_under_every_deployment_and_after_a_break(kind: type[TD3]) -> None:
    hp = kind(**QUICK, shards=2, n_step=2)
    expected = run(hp)[2]
    assert run(hp, on=Processes(workers=2))[2] == expected
    state = run(hp, on=Processes(workers=1), updates=13)[3]
    assert state.is_exact
    assert run(hp, state=state)[2] == expected


@pytest.mark.parametrize(("fields", "match"), [
    ({"policy_delay": 0}, "policy_delay=0"), ({"exploration_noise": -0.1}, "exploration_noise"), ({"num_critics": 1.5},
    "num_critics"),
])  # fmt: skip
def test_settings_that_cannot_be(fields: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        TD3(**fields)
