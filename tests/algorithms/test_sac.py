"""SAC: its losses are the papers', it learns, it is the same under every deployment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import levada as lv
from levada.algorithms.checks import ConfigError
from levada.algorithms.presets import preset
from levada.algorithms.sac import SAC, DiscreteSACLoss, SACLoss, _sample_action, soft_value
from levada.math import Categorical, SquashedGaussian
from levada.rl.compute.functional import Net
from levada.rl.data.spaces import SpaceError
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


def run(
    hp: SAC, env: str = "Pendulum-v1", *, on: Any = None, seed: int = 1, updates: int = 30, state: Any = None
) -> Any:
    monitor = Monitor()
    with (on or Inline()).open(hp.flow(Task(env)), seed=seed, instruments=[monitor], state=state) as opened:
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
    """arXiv 1812.05905, equations 5, 7 and 18, in numpy, with the density of a tanh of a Gaussian, in (-1, 1), written out."""
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
    outcome = SACLoss(SAC(), a)(Networks(nets, targets), rows, {})  # type: ignore[arg-type]

    def log_density(k: str) -> Any:
        x = mean[k] + np.exp(log_std[k]) * noise[k]
        normal = -0.5 * noise[k] ** 2 - log_std[k] - 0.5 * np.log(2 * np.pi)
        return (normal - np.log(1 - np.tanh(x) ** 2)).sum(1)

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
    from levada.rl.replay.transitions import Transitions

    live.update([Transitions(columns)])
    after = live.state_dict()["step/params"]
    assert (before != after).mean() > 0.9
    state = live.state_dict()
    assert [state[f"step/optimizer/{name}/step"] for name in ("policy", "critic", "temperature")] == [1.0, 1.0, 1.0]


def test_it_learns_pendulum() -> None:
    hp = SAC(
        learning_starts=400, batch_size=64, samples_per_insert=64.0, hidden_sizes=(64, 64), num_envs=4, num_steps=4
    )
    monitor, report, *_ = run(hp, updates=700)
    assert 5_500 < monitor.env_steps < 6_500
    assert report.values["losses/alpha"] < 0.9
    assert monitor.return_mean_100 > -1_000  # a random policy has -1,200, and the first episodes are


@pytest.mark.parametrize("options", [{}, {"shards": 2, "n_step": 3}], ids=str)
def test_the_same_parameters_under_every_deployment_and_after_a_break(options: dict[str, Any]) -> None:
    hp = SAC(**QUICK | options)
    expected = run(hp)[2]
    assert run(hp, on=Processes(workers=2))[2] == expected
    state = run(hp, on=Processes(workers=1), updates=13)[3]
    assert state.is_exact
    assert run(hp, state=state)[2] == expected


@pytest.mark.parametrize(("fields", "match"), [
    ({"tau": 0.0}, "tau=0.0"), ({"samples_per_insert": -1.0}, "samples_per_insert"), ({"hidden_sizes": (0,)}, "hidden_sizes"),
    ({"target_entropy": float("nan")}, "target_entropy"), ({"target_entropy_ratio": 1.5}, "target_entropy_ratio=1.5"),
])  # fmt: skip
def test_settings_that_cannot_be(fields: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        SAC(**fields)


def test_other_actions_are_refused() -> None:
    with pytest.raises(SpaceError, match=r"SAC needs Box or Discrete actions, but .* has MultiDiscrete\(\[2 3\]\)"):
        SAC().flow(Task("support.envs.small:SmallMultiDiscreteAction-v0"))


# ---- Where an action is a choice


@pytest.mark.parametrize("is_masked", [False, True])
def test_the_losses_of_choices_by_an_independent_count(is_masked: bool) -> None:
    """arXiv 1910.07207, equations 4, 5, 10, 11 and 12: sums over the actions that are allowed, in numpy."""
    rng, n, a, share, log_alpha = np.random.default_rng(0), 6, 4, 0.7, -0.4
    logits = {k: rng.normal(size=(n, a)) for k in "ab"}
    slow, values = (rng.normal(size=(2, n, a)) for _ in range(2))
    reward, discount, action = rng.normal(size=n), 0.9 * rng.integers(0, 2, n), rng.integers(0, a, n)
    mask = {k: rng.random((n, a)) < (0.5 if is_masked else 2.0) for k in "ab"}
    mask["a"][np.arange(n), action] = mask["b"][:, 0] = True

    def tensor(array: Any) -> torch.Tensor:
        return torch.from_numpy(np.asarray(array))

    obs = {k: {"obs": k, "action_mask": tensor(mask[k])} if is_masked else k for k in "ab"}

    def policy(seen: Any) -> Any:
        k = seen["obs"] if is_masked else seen
        return Categorical(tensor(logits[k]), tensor(mask[k])), None

    nets = {
        "policy": Fake(policy), "temperature": Fake(lambda: tensor([log_alpha])), "critic": Fake(lambda obs: tensor(values)),
    }  # fmt: skip
    rows = {
        "obs": obs["a"], "next_obs": obs["b"], "action": tensor(action), "reward": tensor(reward), "discount": tensor(discount),
    }  # fmt: skip
    loss = DiscreteSACLoss(SAC(target_entropy_ratio=share), a)
    outcome = loss(Networks(nets, {"critic": lambda obs: tensor(slow)}), rows, {})  # type: ignore[arg-type, dict-item]

    alpha, critic, actor, temperature = np.exp(log_alpha), 0.0, 0.0, 0.0
    for i in range(n):
        p = {}
        for k in "ab":
            which = np.flatnonzero(mask[k][i])
            weights = np.exp(logits[k][i, which])
            p[k] = list(zip(which, weights / weights.sum(), strict=True))
        after = sum(q * (min(slow[:, i, j]) - alpha * np.log(q)) for j, q in p["b"])
        target = reward[i] + discount[i] * after
        critic += sum(0.5 * (value - target) ** 2 for value in values[:, i, action[i]]) / n
        actor += sum(q * (alpha * np.log(q) - min(values[:, i, j])) for j, q in p["a"]) / n
        entropy = -sum(q * np.log(q) for _, q in p["a"])
        temperature += log_alpha * (entropy - share * np.log(mask["a"][i].sum())) / n
    assert float(outcome.stats["critic_loss"]) == pytest.approx(critic, rel=1e-6)
    assert float(outcome.stats["actor_loss"]) == pytest.approx(actor, rel=1e-6)
    assert float(outcome.loss) == pytest.approx(critic + actor + temperature, rel=1e-6)


def test_each_network_learns_from_its_own_loss_alone_with_choices() -> None:
    """The gradient of the sum: that of the actor's loss for the actor, of the critics' for them, none of targets."""
    flow = SAC(**QUICK).flow(Task("CartPole-v1"))
    recipe = flow.learners()["learn"]
    rng = np.random.default_rng(0)
    obs, next_obs = (torch.from_numpy(rng.normal(size=(16, 4)).astype(np.float32)) for _ in range(2))
    rows = {
        "obs": obs, "next_obs": next_obs, "action": torch.from_numpy(rng.integers(0, 2, 16)), "reward": torch.ones(16),
        "discount": torch.full((16,), 0.9),
    }  # fmt: skip
    torch.manual_seed(0)
    modules = {"policy": recipe.policy.module(0), **{name: make() for name, make in recipe.networks.items()}}
    nets = {name: Net(module, dict(module.named_parameters()), True) for name, module in modules.items()}
    outcome = recipe.loss(Networks(nets, {"critic": nets["critic"].frozen}), rows, {})
    values, (policy, _) = nets["critic"](obs), nets["policy"](obs)
    soft = soft_value(nets["policy"].frozen(next_obs)[0], nets["critic"].frozen(next_obs), torch.ones(1))
    error = values.gather(2, rows["action"].expand(2, 16)[..., None])[..., 0] - (1.0 + 0.9 * soft).detach()
    alone = {
        "critic": 0.5 * error.square().mean(1).sum(),
        "policy": (policy.log_probs.exp() * (policy.log_probs - values.detach().amin(0))).sum(1).mean(),
    }
    for name, loss in alone.items():
        params = list(modules[name].parameters())
        together = torch.autograd.grad(outcome.loss, params, retain_graph=True)
        for got, expected in zip(together, torch.autograd.grad(loss, params), strict=True):
            torch.testing.assert_close(got, expected)
            assert expected.any()


def test_the_entropy_goes_where_the_temperature_aims() -> None:
    """The environment pays for one of three actions more than for the others; without entropy only that one was left."""
    hp = SAC(**QUICK | {"learning_rate": 3e-3, "hidden_sizes": (32,)}, target_entropy_ratio=0.5)
    with Inline().open(hp.flow(Task("support.envs.small:SmallPlain-v0")), seed=1) as opened:
        entropies = [report.values["losses/entropy"] for report, _ in zip(opened, range(800), strict=False)]
    assert entropies[0] == pytest.approx(np.log(3), abs=0.2)
    assert np.mean(entropies[400:]) == pytest.approx(0.5 * np.log(3), abs=0.05)


def test_it_learns_cartpole() -> None:
    hp = SAC(**dict(preset("sac", "CartPole-v1")) | {"hidden_sizes": (64, 64)})
    monitor, *_ = run(hp, "CartPole-v1", updates=400)
    assert 12_000 < monitor.env_steps < 15_000
    assert monitor.return_mean_100 > 80  # a random policy has 22


@pytest.mark.parametrize("options", [{}, {"shards": 3, "num_envs": 2, "n_step": 3}], ids=str)
def test_choices_under_every_deployment_and_after_a_break(options: dict[str, Any]) -> None:
    hp, env = SAC(**QUICK | options), "CartPole-v1"
    expected = run(hp, env)[2]
    for place in (Processes(workers=2), Inline(adversary=1)):
        assert run(hp, env, on=place)[2] == expected
    state = run(hp, env, on=Processes(workers=1), updates=13)[3]
    assert state.is_exact
    assert run(hp, env, state=state)[2] == expected
    assert run(hp, env, seed=2)[2] != expected


@pytest.mark.parametrize(
    "env", ["FrozenLake-v1", *(f"support.envs.small:Small{name}-v0" for name in ("Masked", "DictObs", "Image"))]
)
def test_choices_with_other_observations_and_action_masks(env: str) -> None:
    monitor, report, *_ = run(SAC(**QUICK), env, updates=15)
    assert monitor.env_steps > 60
    if "Masked" in env:
        assert 0 < report.values["losses/entropy"] <= np.log(2) + 1e-6


def test_how_much_is_explored_does_not_depend_on_the_units_of_the_actions() -> None:
    """The same network, batch and noise, with actions in (-1, 1) and in (-0.1, 0.1): the same losses."""
    found = []
    for size in (1.0, 0.1):
        space = spaces.Box(-size, size, (2,), np.float32)
        policy = lv.Policy(
            observation_space=spaces.Box(-1.0, 1.0, (3,)),
            action_space=space,
            tanh_squash=True,
            state_dependent_std=True,
        )
        module = policy.module(0)
        net = Net(module, dict(module.named_parameters()), learns=True)
        obs, noise = torch.linspace(-1.0, 1.0, 12).reshape(4, 3), torch.linspace(-2.0, 2.0, 8).reshape(4, 2)
        action, log_prob = _sample_action(net, obs, noise)
        found.append((action / size, log_prob))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_actions_that_cannot_vary_are_refused() -> None:
    space = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 0.0], np.float32))
    with pytest.raises(SpaceError, match="bounds apart from each other"):
        lv.Policy(observation_space=spaces.Box(-1.0, 1.0, (3,)), action_space=space, tanh_squash=True)
