"""Any optimizer of PyTorch learns as in a loop by hand, is saved and resumed to the bit, and is refused if it cannot be."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from support.runs.cli import TINY, TINY_FIELDS, Shell

import levada
from levada.algorithms.checks import ConfigError
from levada.algorithms.dqn import DQN
from levada.algorithms.ppo import PPO
from levada.rl.learning.optimizers import Adam, OptimizerError, Part, TorchOptimizer, clipped, find_optimizer
from levada.run.storage.trust import UntrustedError

KINDS = {
    "adamw": {"weight_decay": 0.1}, "rmsprop": {"momentum": 0.9, "centered": 1.0}, "sgd": {"momentum": 0.9, "dampening": 0.5},
    "adagrad": {"lr_decay": 0.1}, "NAdam": {}, "levada_test_optimizers:Signs": {},
}  # fmt: skip
REPLAYED = {
    "num_envs": 2, "num_steps": 4, "hidden_sizes": (8,), "learning_starts": 20, "batch_size": 8, "num_gradient_steps": 2,
    "samples_per_insert": 4.0, "compile": False,
}  # fmt: skip
OWN = """
import torch


class Signs(torch.optim.Optimizer):
    '''Signs of gradients, with a number that counts, and a decay of it.'''

    def __init__(self, params, lr, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    state = self.state[param]
                    state["count"] = state.get("count", 0) + 1
                    param.sub_(param.grad.sign(), alpha=group["lr"] / state["count"])
"""


@pytest.fixture(autouse=True)
def _own(tmp_path, monkeypatch):
    (tmp_path / "levada_test_optimizers.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("kind", [None, *KINDS])
@pytest.mark.parametrize("max_grad_norm", [None, 0.5])
def test_steps_are_those_of_a_loop_by_hand(kind, max_grad_norm):
    generator = torch.Generator().manual_seed(1)
    sizes = {"policy": 7, "critic": 5}
    ours = {name: torch.randn(size, generator=generator) for name, size in sizes.items()}
    theirs = {name: torch.nn.Parameter(vector.clone()) for name, vector in ours.items()}
    if kind is None:
        recipe, by_hand = (
            Adam(eps=1e-5, max_grad_norm=max_grad_norm),
            torch.optim.Adam(theirs.values(), lr=0.1, eps=1e-5),
        )
    else:
        recipe = TorchOptimizer(optimizer=kind, kwargs=KINDS[kind], max_grad_norm=max_grad_norm)
        by_hand = find_optimizer(kind)(theirs.values(), lr=0.1, **KINDS[kind])
    live = recipe.open(ours)
    state = live.init()
    for step in range(12):
        active = [name for name in sizes if name == "policy" or step % 3 == 2]
        grads = {name: torch.randn(size, generator=generator) for name, size in sizes.items() if name in active}
        parts = {name: Part(ours[name], grad, state[name]) for name, grad in grads.items()}
        norm = live.step(parts, learning_rate=0.1)
        by_hand.zero_grad()
        for name, grad in grads.items():
            theirs[name].grad = grad.clone()
        expected = torch.cat(list(grads.values())).norm()
        if max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(theirs.values(), max_grad_norm)
        by_hand.step()
        assert float(norm) == pytest.approx(float(expected), rel=1e-6)
        for name in sizes:
            torch.testing.assert_close(ours[name], theirs[name].detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["adam", *KINDS])
@pytest.mark.parametrize(("algorithm", "env"), [("ppo", "CartPole-v1"), ("dqn", "CartPole-v1"), ("td3", "Pendulum-v1")])
def test_runs_with_it_go_on_to_the_bit(algorithm, env, kind):
    fields = TINY_FIELDS if algorithm == "ppo" else REPLAYED
    more = {
        "optimizer": kind,
        "optimizer_kwargs": KINDS.get(kind, {}),
        "display": "quiet",
        "log": "none",
        "seed": 1,
    }
    more["save_replays"] = True
    whole = levada.train(algorithm, env, until="updates=6", out="whole", **fields, **more)
    levada.train(algorithm, env, until="updates=3", out="parts", **fields, **more)
    parts = levada.resume("parts", until="updates=6", display="quiet")
    assert parts.summary.params_sha256 == whole.summary.params_sha256
    assert all(np.isfinite(array).all() for array in whole.policy.weights.values())


@pytest.mark.parametrize(
    "more",
    [
        {"optimizer": "sgd", "optimizer_kwargs": {"momentum": 0.9, "nesterov": True, "weight_decay": 1}},
        {"optimizer": "sgd", "optimizer_kwargs": {"momentum": np.float64(0.5), "nesterov": np.bool_(True)}},
        {"optimizer": "adamw", "optimizer_kwargs": {"betas": (0.5, 0.9), "amsgrad": True}},
        {"learning_rate": 1, "max_grad_norm": 1, "discount": 1, "entropy_coef": 0},
    ],
)
def test_settings_are_read_back_as_they_were_given(more):
    fields = TINY_FIELDS | more | {"display": "quiet", "log": "none"}
    run = levada.train("ppo", "CartPole-v1", until="updates=1", out="run", **fields)
    assert levada.load("run").flow.hash() == run.flow.hash()
    assert levada.resume("run", until="updates=2", display="quiet").summary.updates == 2


def test_each_optimizer_learns_something_else():
    hashes = {
        levada.train(
            "ppo", "CartPole-v1", until="updates=2", out=f"run-{n}", optimizer=kind, display="quiet", log="none",
            **TINY_FIELDS,
        ).summary.params_sha256
        for n, kind in enumerate(["adam", *KINDS])
    }  # fmt: skip
    assert len(hashes) == len(KINDS) + 1


def test_on_the_command_line(capsys):
    done = Shell(capsys)(
        f"train ppo --env CartPole-v1 {TINY} --until updates=1 --out run --optimizer adamw "
        "--optimizer-kwargs weight_decay=0.01 amsgrad=true betas=[0.5,0.9]"
    )
    assert done.code == 0
    settings = json.loads(Path("run/config.json").read_text())["settings"]
    assert settings["optimizer"]["value"] == "adamw"
    assert settings["optimizer_kwargs"]["value"] == {"weight_decay": 0.01, "amsgrad": True, "betas": [0.5, 0.9]}
    assert Shell(capsys)("train --config run --out again --log none --quiet").code == 0
    assert levada.load("again").summary.params_sha256 == levada.load("run").summary.params_sha256
    assert levada.load("run").summary.updates == 1
    assert Shell(capsys)("train ppo --env CartPole-v1 --optimizer adom").message == (
        "levada: PPO: optimizer='adom': expected 'adam', 'adamw', 'rmsprop', 'sgd', 'adagrad', 'radam', 'nadam', "
        "a class of torch.optim, 'module:Class' or 'path/to/file.py:Class'"
    )
    for kwargs, said in {
        "weight_decay 0.01": "weight_decay: expected name=value, such as `--optimizer-kwargs weight_decay=0.01`",
        "alpha=1 alpha=2": "has alpha twice; keep one",
        "alpha=high": "alpha=high: expected values of bool | int | float | tuple[float, float]",
    }.items():
        done = Shell(capsys)(f"train ppo --env CartPole-v1 --optimizer rmsprop --optimizer-kwargs {kwargs}")
        assert (done.code, done.message) == (2, f"levada: --optimizer-kwargs {said}")


@pytest.mark.parametrize("on", ["inline", "processes:1,learner=worker"])
def test_one_in_a_file_is_trained_with_loaded_and_resumed(tmp_path, capsys, on):
    shell = Shell(capsys)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "signs.py").write_text(OWN)
    train = f"train ppo --env CartPole-v1 {TINY} --log none --quiet --on {on} --until updates=2"
    assert shell(f"{train} --optimizer ./mine/signs.py:Signs --out run").code == 0
    assert shell(f"{train} --optimizer levada_test_optimizers:Signs --out module").code == 0
    assert levada.load("run").summary.params_sha256 == levada.load("module").summary.params_sha256
    (tmp_path / "mine").rename(tmp_path / "there")
    moved = "(no file './mine/signs.py'); if it is elsewhere now, say where: --at DIR"
    assert moved in shell("eval run --episodes 1").message
    assert shell("resume run --until updates=3 --at there --quiet").code == 0
    for name, said in {"there/signs.py:Other": "no attribute 'Other'", "gone.py:Signs": "no file 'gone.py'"}.items():
        assert said in shell(f"{train} --optimizer {name} --out refused").message


@pytest.mark.parametrize(("fields", "message"), [
    ({"optimizer": "LBFGS"}, "evaluates the loss several times"), ({"optimizer": "Optimizer"}, "expected 'adam'"),
    ({"optimizer": "os:system"}, "expected 'adam'"), ({"optimizer": "no_such_module:Best"}, "expected 'adam'"),
    ({"optimizer": "sgd", "optimizer_kwargs": {"momentun": 0.9}}, r"PPO: optimizer='sgd' cannot be made with .*momentun"),
    ({"optimizer": "sgd", "optimizer_kwargs": {"momentum": -1.0}}, "Invalid momentum"),
    ({"optimizer_kwargs": {"betas": 1.0}}, "expected none for optimizer='adam', which has the field adam_eps"),
    ({"optimizer": "sgd", "optimizer_kwargs": {"foreach": None}}, "expected values by name, each True or False"),
    ({"optimizer": "sgd", "optimizer_kwargs": {"lr": 0.1}}, "lr is the field learning_rate"),
    ({"optimizer": ""}, "optimizer"), ({"optimizer": 3}, "optimizer"),
])  # fmt: skip
def test_what_cannot_be_is_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        PPO(**fields)


class Listing(torch.optim.SGD):
    """Keeps a list beside each parameter."""

    def step(self, closure=None):
        super().step(closure)
        for state in self.state.values():
            state["list"] = []


class Growing(torch.optim.SGD):
    """Keeps an estimate of its own in the settings of a group, as Prodigy and D-Adaptation do."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            group["distance"] = (
                group.get("distance", 1e-6) + torch.stack([p.grad.norm() for p in group["params"]]).sum()
            )


class Counting(torch.optim.SGD):
    """Counts its steps in an attribute."""

    num_steps = 0

    def step(self, closure=None):
        super().step(closure)
        self.num_steps += 1


class GlobalKey(torch.optim.SGD):
    """Counts its steps in the state, but not in that of a parameter."""

    def step(self, closure=None):
        super().step(closure)
        self.state["all"]["steps"] = self.state["all"].get("steps", 0) + 1


class Late(torch.optim.SGD):
    """Keeps one more entry from the third step on, as lookahead does."""

    def step(self, closure=None):
        super().step(closure)
        for state in self.state.values():
            state["steps"] = state.get("steps", 0) + 1
            if state["steps"] == 3:
                state["slow"] = torch.zeros(1)


class Replacing(torch.optim.Optimizer):
    """SGD with momentum that makes new tensors and a new state in each step, in place of changing the old ones."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    mean = self.state[param].get("mean", torch.zeros_like(param)) * 0.9 + param.grad
                    self.state[param] = {"mean": mean}
                    param.data = param.data - group["lr"] * mean


def test_what_a_step_replaces_is_kept(monkeypatch):
    monkeypatch.setattr(torch.optim, "Replacing", Replacing, raising=False)
    ours, theirs = torch.ones(4), torch.nn.Parameter(torch.ones(4))
    live = TorchOptimizer(optimizer="Replacing").open({"policy": ours})
    by_hand, state = torch.optim.SGD([theirs], lr=0.1, momentum=0.9), live.init()
    for step in range(5):
        theirs.grad = torch.full((4,), step + 1.0)
        live.step({"policy": Part(ours, theirs.grad.clone(), state["policy"])}, learning_rate=0.1)
        by_hand.step()
        torch.testing.assert_close(ours, theirs.detach())


def test_state_that_comes_later_ends_the_run(monkeypatch):
    monkeypatch.setattr(torch.optim, "Late", Late, raising=False)
    live, params = TorchOptimizer(optimizer="Late").open({"policy": torch.ones(2)}), torch.ones(2)
    state = live.init()["policy"]
    for _ in range(2):
        live.step({"policy": Part(params, torch.ones(2), state)}, learning_rate=0.1)
    with pytest.raises(OptimizerError, match=r"optimizer='Late': 'slow' in self.state\[parameter\] came or went"):
        live.step({"policy": Part(params, torch.ones(2), state)}, learning_rate=0.1)


@pytest.mark.parametrize(("cls", "message"), [
    (Listing, "Listing keeps 'list', a list, which cannot be saved"),
    (Growing, r"Growing changes param_groups\[\.\.\.\]\['distance'\], which would be lost when a run is resumed"),
    (Counting, r"Counting changes self\.num_steps, which would be lost when a run is resumed"),
    (GlobalKey, r"GlobalKey changes self\.state\['all'\], which would be lost when a run is resumed"),
])  # fmt: skip
def test_state_that_cannot_be_saved_is_refused(cls, message, monkeypatch):
    monkeypatch.setattr(torch.optim, cls.__name__, cls, raising=False)
    with pytest.raises(ConfigError, match=message):
        DQN(**REPLAYED, optimizer=cls.__name__)


@pytest.mark.parametrize("optimizer", ["levada_test_optimizers:Signs", "./levada_test_optimizers.py:Signs"])
def test_a_foreign_run_does_not_bring_its_own(tmp_path, optimizer):
    levada.train(
        "ppo", "CartPole-v1", until="updates=1", out="run", display="quiet", optimizer=optimizer, **TINY_FIELDS,
    )  # fmt: skip
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["hmac"] = "0" * 64
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    with pytest.raises(UntrustedError, match=f"optimizer is '{optimizer}'"):
        levada.load("run")


@pytest.mark.parametrize("size", [0.0, 1.0, 9.8, 9.99, 10.0, 10.01, 1e4])
def test_a_gradient_that_is_not_clipped_keeps_its_bits(size):
    grad = torch.randn(100, generator=torch.Generator().manual_seed(0))
    grad *= size / grad.norm()
    norm, [found] = clipped([grad], 10.0)
    assert torch.equal(found, grad * (10.0 / (norm + 1e-6)).clamp(max=1.0))
