"""A network of the user's own reaches the policy, from Python and from the command line, and is found again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import levada as lv
from levada.algorithms.network import find_network
from levada.algorithms.registry import AlgorithmError
from levada.cli import main

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
        ("levada.rl.models:MPL", "levada.rl.models has no class or function 'MPL'"),
        ("no_such_module:Net", "no module 'no_such_module'"),
        ("nets.py:Net", "no file 'nets.py'"),
    ],
)
def test_a_network_that_is_not_there(network: str, message: str) -> None:
    with pytest.raises(AlgorithmError, match=message):
        find_network(network)


def test_a_network_of_the_wrong_shape_is_refused_before_anything_starts(tmp_path: Path) -> None:
    def wrong(space: object, num_params: int) -> nn.Module:
        return nn.Linear(4, num_params)

    with pytest.raises(TypeError, match="does forward return both, params and value"):
        lv.train("ppo", "CartPole-v1", until="updates=2", out=tmp_path / "run", display="quiet", network=wrong)


def test_the_default_is_a_multilayer_perceptron() -> None:
    assert find_network(None) is None
    policy = lv.PPO().flow(lv.Task("CartPole-v1")).learners()["learn"].policy
    assert sum(isinstance(layer, torch.nn.Linear) for layer in policy.module(0).modules()) == 6
