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
from levada.rl.learning.optimizers import Adam, Part, TorchOptimizer, find_optimizer
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
        "tensorboard": False,
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
        {"optimizer": "adamw", "optimizer_kwargs": {"betas": (0.5, 0.9), "amsgrad": True}},
        {"learning_rate": 1, "max_grad_norm": 1, "discount": 1, "entropy_coef": 0},
    ],
)
def test_settings_are_read_back_as_they_were_given(more):
    fields = TINY_FIELDS | more | {"display": "quiet", "tensorboard": False}
    run = levada.train("ppo", "CartPole-v1", until="updates=1", out="run", **fields)
    assert levada.load("run").flow.hash() == run.flow.hash()
    assert levada.resume("run", until="updates=2", display="quiet").summary.updates == 2


def test_each_optimizer_learns_something_else():
    hashes = {
        levada.train(
            "ppo", "CartPole-v1", until="updates=2", out=f"run-{n}", optimizer=kind, display="quiet", tensorboard=False,
            **TINY_FIELDS,
        ).summary.params_sha256
        for n, kind in enumerate(["adam", *KINDS])
    }  # fmt: skip
    assert len(hashes) == len(KINDS) + 1


def test_on_the_command_line(capsys):
    done = Shell(capsys)(
        f"train ppo --env CartPole-v1 {TINY} --until updates=1 --out run --optimizer adamw "
        "--optimizer-kwargs weight_decay 0.01 amsgrad True betas 0.5 0.9"
    )
    assert done.code == 0
    settings = json.loads(Path("run/config.json").read_text())["settings"]
    assert settings["optimizer"]["value"] == "adamw"
    assert settings["optimizer_kwargs"]["value"] == {"weight_decay": 0.01, "amsgrad": True, "betas": [0.5, 0.9]}
    assert levada.load("run").summary.updates == 1
    assert Shell(capsys)("train ppo --env CartPole-v1 --optimizer adom").message == (
        "levada: PPO: optimizer='adom': expected 'adam', 'adamw', 'rmsprop', 'sgd', 'adagrad', 'radam', 'nadam', "
        "a class of torch.optim, or 'module:Class'"
    )


@pytest.mark.parametrize(("fields", "message"), [
    ({"optimizer": "LBFGS"}, "evaluates the loss several times"), ({"optimizer": "Optimizer"}, "expected 'adam'"),
    ({"optimizer": "os:system"}, "expected 'adam'"), ({"optimizer": "no_such_module:Best"}, "expected 'adam'"),
    ({"optimizer": "sgd", "optimizer_kwargs": {"momentun": 0.9}}, r"PPO: optimizer='sgd' cannot be made with .*momentun"),
    ({"optimizer": "sgd", "optimizer_kwargs": {"momentum": -1.0}}, "Invalid momentum"),
    ({"optimizer_kwargs": {"betas": 1.0}}, "expected none for optimizer='adam', which has the field adam_eps"),
    ({"optimizer": ""}, "optimizer"), ({"optimizer": 3}, "optimizer"),
])  # fmt: skip
def test_what_cannot_be_is_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        PPO(**fields)


def test_state_that_cannot_be_saved_is_refused():
    class Listing(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            for state in self.state.values():
                state["list"] = []

    torch.optim.Listing = Listing
    try:
        with pytest.raises(ConfigError, match="Listing keeps 'list', a list, which cannot be saved"):
            DQN(**REPLAYED, optimizer="Listing")
    finally:
        del torch.optim.Listing


def test_a_foreign_run_does_not_bring_its_own(tmp_path):
    levada.train(
        "ppo", "CartPole-v1", until="updates=1", out="run", display="quiet", optimizer="levada_test_optimizers:Signs",
        **TINY_FIELDS,
    )  # fmt: skip
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["hmac"] = "0" * 64
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    with pytest.raises(UntrustedError, match="optimizer is 'levada_test_optimizers:Signs'"):
        levada.load("run")
