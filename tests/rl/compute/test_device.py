"""Computing on a GPU, as far as it can be seen without one: graphs give the same bits, nothing stays behind on the processor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from support.envs.multi import Shifts
from support.envs.pixels import make_pixels
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import levada as lv
from levada.algorithms.a2c import A2C
from levada.algorithms.a3c import A3C
from levada.algorithms.appo import APPO
from levada.algorithms.checks import ConfigError
from levada.algorithms.dqn import DQN
from levada.algorithms.impala import IMPALA
from levada.algorithms.maddpg import MADDPG
from levada.algorithms.pg import PG
from levada.algorithms.ppo import PPO
from levada.algorithms.r2d2 import R2D2
from levada.algorithms.rainbow import Rainbow
from levada.algorithms.recurrent_sac import RecurrentSAC
from levada.algorithms.replayed import ReplayAlgorithm
from levada.algorithms.rollouts import RolloutAlgorithm
from levada.algorithms.sac import SAC
from levada.algorithms.td3 import TD3
from levada.rl.compute import device
from levada.rl.data.nest import flatten, rebuild
from levada.rl.envs.agents.agents_task import AgentsTask
from levada.rl.learning.learner import Learner
from levada.rl.learning.step import GradientStep
from levada.rl.policies.policy import Policy
from levada.run.storage.hashing import params_sha256

IMAGES = spaces.Box(0, 255, (4, 84, 84), np.uint8)
SMALL: dict[str, Any] = {"num_envs": 4, "num_steps": 8, "hidden_sizes": (16,)}
REPLAYED: dict[str, Any] = {
    "num_envs": 2, "num_steps": 4, "hidden_sizes": (16,), "learning_starts": 20, "batch_size": 8, "num_gradient_steps": 2,
    "samples_per_insert": 4.0,
}  # fmt: skip
SEQUENCES: dict[str, Any] = {**REPLAYED, "learning_starts": 6, "sequence_length": 4, "burn_in": 2, "batch_size": 4}
CARTPOLE, PENDULUM, PIXELS = lv.Task("CartPole-v1"), lv.Task("Pendulum-v1"), lv.Task(make_pixels, frame_stack=3)


class Normed(nn.Module):
    """A network that changes its buffers while it learns."""

    def __init__(self, space: spaces.Box, num_params: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(space.shape[0], 8), nn.BatchNorm1d(8), nn.Tanh())
        self.policy, self.value = nn.Linear(8, num_params), nn.Linear(8, 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        hidden_sizes = self.layers(obs)
        return self.policy(hidden_sizes), self.value(hidden_sizes).squeeze(-1)


class NoCopies(TorchDispatchMode):
    """Refuses copies from main memory to torch's device `meta`."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default):
            source = args[-1] if func is torch.ops.aten.copy_.default else args[0]
            assert not (source.device.type == "cpu" and made.device.type == "meta"), f"{func} of {source}"
        return made


class Features(nn.Module):
    """A feature extractor of the user's."""

    def __init__(self, space: spaces.Box) -> None:
        super().__init__()
        self.layer = nn.Linear(space.shape[0], 8)

    def forward(self, obs: Tensor) -> Tensor:
        return self.layer(obs).tanh()


CASES = [
    (PPO(**SMALL, num_epochs=2, minibatch_size=16, normalize_obs=True, normalize_reward=True), CARTPOLE),
    (PPO(**SMALL, num_epochs=2, minibatch_size=16), PENDULUM),
    (PPO(num_envs=4, num_steps=8, minibatch_size=16, network=Normed), CARTPOLE),
    (PPO(num_envs=4, num_steps=8, minibatch_size=16), PIXELS),
    (PPO(**SMALL, minibatch_size=16, rnn_type="lstm"), CARTPOLE),
    (IMPALA(**SMALL, microbatch_size=16), CARTPOLE),
    (IMPALA(num_envs=4, num_steps=8, microbatch_size=16), PIXELS),
    (APPO(**SMALL, target_update_interval=2, rnn_type="gru"), CARTPOLE),
    (A2C(**SMALL, microbatch_size=16), CARTPOLE),
    (PG(**SMALL, baseline=True), CARTPOLE),
    (A3C(**SMALL), CARTPOLE),
    (DQN(**REPLAYED), CARTPOLE),
    (DQN(**REPLAYED, distribution="quantile", prioritized=True, dueling=True), CARTPOLE),
    (DQN(**REPLAYED), PIXELS),
    (Rainbow(**REPLAYED, num_atoms=5), CARTPOLE),
    (SAC(**REPLAYED), PENDULUM),
    (SAC(**REPLAYED), CARTPOLE),
    (TD3(**REPLAYED), PENDULUM),
    (SAC(**REPLAYED), lv.Task("support.envs.small:SmallDictBoxAction-v0")),
    (SAC(**REPLAYED, features_extractor=Features), PENDULUM),
    (SAC(**REPLAYED, features_extractor=Features, normalize_obs=True, normalize_reward=True), PENDULUM),
    (RecurrentSAC(**SEQUENCES, normalize_obs=True, normalize_reward=True), CARTPOLE),
    (TD3(**REPLAYED), lv.Task("support.envs.small:SmallImageBoxAction-v0")),
    (R2D2(**SEQUENCES), CARTPOLE),
    (RecurrentSAC(**SEQUENCES), CARTPOLE),
    (MADDPG(**{**REPLAYED, "learning_starts": 64, "num_steps": 8}), AgentsTask.of(lv.Task(Shifts))),
]
each_case = pytest.mark.parametrize(
    ("hp", "task"), CASES, ids=[f"{type(hp).__name__}-{task.name}-{n}" for n, (hp, task) in enumerate(CASES)]
)


def weights(hp: RolloutAlgorithm | ReplayAlgorithm, task: lv.Task, updates: int = 6) -> dict[str, Any]:
    with lv.Inline().open(replace(hp, compile=False).flow(task), seed=1) as run:
        for report in run:
            if report.firing == updates:
                break
        return dict(run.node_state("learn").weights())


@each_case
def test_graphs_make_the_same_bits(
    hp: RolloutAlgorithm | ReplayAlgorithm, task: lv.Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = weights(hp, task)
    monkeypatch.setattr(Learner, "first_mode", lambda self, device: "graph")
    assert params_sha256(weights(hp, task)) == params_sha256(expected)


@each_case
def test_losses_and_networks_stay_on_one_device(
    hp: RolloutAlgorithm | ReplayAlgorithm, task: lv.Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors of torch's device `meta` have no numbers, and none of them goes together with one that lies elsewhere."""
    on, seen = GradientStep.on, []

    def away(nest: Any) -> Any:
        leaves: list[Tensor] = []
        structure = flatten(nest, leaves)
        return rebuild(structure, [leaf.to("meta") for leaf in leaves])

    def also_elsewhere(self: Any, mode: Any, values: Any, buffers: Any, columns: Any) -> Any:
        here = on(self, mode, values, buffers, columns)
        there = on(self, "eager", values, away(buffers), away(columns))

        def run(*args: Any) -> Any:
            away = [arg.to("meta") if isinstance(arg, Tensor) else arg for arg in args]
            there(*away)
            with NoCopies():  # which a CUDA graph cannot contain
                found = there(*away)
            seen.append({tensor.device.type for tensor in found})
            return here(*args)

        return run

    asked, autocast = torch.is_autocast_enabled, torch.autocast  # neither knows `meta`
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: kind != "meta" and asked(kind))
    monkeypatch.setattr(
        torch, "autocast", lambda kind, *args, **more: autocast("cpu" if kind == "meta" else kind, *args, **more)
    )
    monkeypatch.setattr(GradientStep, "on", also_elsewhere)
    weights(hp, task, updates=2)
    assert all(kinds == {"meta"} for kinds in seen) and seen


def test_a_graph_changes_what_the_function_changes() -> None:
    def count(step: Tensor, total: Tensor) -> tuple[Tensor, ...]:
        total.add_(step)
        return (2.0 * total,)

    step, total = torch.tensor(3.0), torch.tensor(1.0)
    run = device.as_graph(count, (step, total), changed=(1,))
    assert [run(step, total)[0].item(), run(torch.tensor(4.0), total)[0].item(), total.item()] == [8.0, 16.0, 8.0]


@pytest.mark.parametrize(("name", "what"), [
    ("gpu", "device is 'gpu', expected 'cpu', 'cuda'"), ("cuda:x", "expected"), ("mps", "expected"),
])  # fmt: skip
def test_other_devices_are_refused(name: str, what: str) -> None:
    with pytest.raises(device.DeviceError, match=what):
        Policy(observation_space=IMAGES, action_space=spaces.Discrete(6), device=name)
    with pytest.raises(device.DeviceError, match=what):
        PPO(device=name).flow(CARTPOLE)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_missed_before_anything_starts() -> None:
    with pytest.raises(device.DeviceError, match=r"device is 'cuda:0', but torch .*; use device='cpu', or 'auto'"):
        PPO(device="cuda:0").flow(CARTPOLE)


def test_a_device_is_a_name() -> None:
    with pytest.raises(ConfigError, match="device=0"):
        PPO(device=0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("has_gpu", "space", "chosen"),
    [
        (True, IMAGES, "cuda"),
        (False, IMAGES, "cpu"),
        (True, spaces.Box(-1.0, 1.0, (4,)), "cpu"),
        (True, spaces.Box(0, 255, (10, 10, 3), np.uint8), "cpu"),
    ],
)
def test_auto_takes_a_gpu_for_large_images(
    monkeypatch: pytest.MonkeyPatch, has_gpu: bool, space: spaces.Space[Any], chosen: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    assert device.choose_device(space)[0] == chosen


def test_the_device_is_no_part_of_the_flow_and_stands_in_the_summary(tmp_path: Any) -> None:
    assert PPO(device="cpu").flow(CARTPOLE).hash() == PPO().flow(CARTPOLE).hash()
    result = lv.train(
        PPO(**SMALL, minibatch_size=32), "CartPole-v1", until="updates=1", out=tmp_path / "run", display="quiet"
    )
    assert result.summary.device == "cpu"
    # as if it had been trained where there is a GPU: what it has learned acts here
    config = tmp_path / "run" / "config.json"
    text = config.read_text()
    assert text.count('"auto"') >= 1
    config.write_text(text.replace('"device": {\n      "value": "auto"', '"device": {\n      "value": "cuda"'))
    assert config.read_text() != text
    assert lv.evaluate(tmp_path / "run", num_episodes=1).returns[0] > 0
