"""A network of the user's own reaches the policy, from Python and from the command line, and is found again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import levada as lv
from levada.algorithms.user_classes import AlgorithmError, find_network
from levada.cli import main
from levada.rl.policies.policy import ModelError

SOURCE = """
from torch import nn

class Net(nn.Module):
    def __init__(self, space, num_params):
        super().__init__()
        self.params, self.value = nn.Linear(4, num_params), nn.Linear(4, 1)

    def forward(self, obs):
        return self.params(obs), self.value(obs).squeeze(-1)
"""


class Linear(nn.Module):
    def __init__(self, space: object, num_params: int) -> None:
        super().__init__()
        self.params, self.value = nn.Linear(4, num_params), nn.Linear(4, 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        params: Tensor = self.params(obs)
        value: Tensor = self.value(obs).squeeze(-1)
        return params, value


def test_a_class_from_python(tmp_path: Path) -> None:
    run = lv.train("ppo", "CartPole-v1", until="updates=2", out=tmp_path / "run", display="quiet", network=Linear)
    assert run.policy.weights["network.params.weight"].shape == (2, 4)


def test_a_file_from_the_command_line_is_found_again(tmp_path: Path) -> None:
    file, out = tmp_path / "nets.py", tmp_path / "run"
    file.write_text(SOURCE)
    argv = ["train", "ppo", "--env", "CartPole-v1", "--until", "updates=2", "--out", str(out), "--quiet"]
    assert main([*argv, "--network", f"{file}:Net"]) == 0
    assert lv.load(out).policy.weights["network.value.weight"].shape == (1, 4)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ("levada.rl.policies.networks:MPL", "levada.rl.policies.networks has no class or function 'MPL'"),
        ("no_such_module:Net", "no module 'no_such_module'"),
        ("nets.py:Net", "no file 'nets.py'"),
    ],
)
def test_a_network_that_is_not_there(network: str, message: str) -> None:
    with pytest.raises(AlgorithmError, match=message):
        find_network(network)


def wrong_output(space: object, num_params: int) -> nn.Module:
    return nn.Linear(4, num_params)


def a_loss(apply: object, batch: object, coefficients: object) -> None:
    raise AssertionError


def forgetful(space: object, num_params: int) -> None:
    Linear(space, num_params)


class NoModule:
    def __init__(self, space: object, num_params: int) -> None:
        pass


class NoArguments:
    pass


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (wrong_output, "does forward return both, params and value"),
        (
            a_loss,
            r"network=a_loss does not take two arguments \(missing a required argument: 'coefficients'\), expected a class",
        ),
        (NoArguments, "network=NoArguments does not take two arguments"),
        (NoModule, "network=NoModule made a NoModule, expected.*; does it derive from nn.Module"),
        (forgetful, "network=forgetful made None, expected.*; did you forget `return`"),
        (Linear(None, 2), "network=Linear is a module already, expected.*; did you mean its class"),
        (5, r"network=5 \(int\) cannot be called, expected"),
    ],
)
def test_what_is_no_network_is_refused_before_anything_starts(network: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        lv.PPO(network=network).flow(lv.Task("CartPole-v1")).check()
    with pytest.raises(ValueError, match=message):
        lv.train("ppo", "CartPole-v1", until="updates=2", out=tmp_path / "run", display="quiet", network=network)
    assert not (tmp_path / "run").exists()


def test_the_command_line_calls_it_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "losses.py", tmp_path / "run"
    file.write_text("def loss(apply, batch, coefficients):\n    pass\n")
    argv = ["train", "ppo", "--env", "CartPole-v1", "--until", "updates=2", "--out", str(out), "--quiet"]
    assert main([*argv, "--network", f"{file}:loss"]) == 2
    assert "levada: network=loss does not take two arguments" in capsys.readouterr().err
    assert not out.exists()


def test_the_default_is_a_multilayer_perceptron() -> None:
    assert find_network(None) is None
    policy = lv.PPO().flow(lv.Task("CartPole-v1")).learners()["learn"].policy
    assert sum(isinstance(layer, torch.nn.Linear) for layer in policy.module(0).modules()) == 6
