"""Computing on a GPU, where there is one. What can be seen without one is in test_device.py."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from rl.compute.test_device import CARTPOLE, CASES, PENDULUM, PIXELS, REPLAYED, SMALL

import levada as lv
from levada.algorithms.ppo import PPO
from levada.algorithms.replayed import ReplayAlgorithm
from levada.algorithms.rollouts import RolloutAlgorithm
from levada.algorithms.sac import SAC
from levada.rl.compute.xla import missing_for_xla, missing_in_jax, prepare_jax
from levada.rl.data.device_array import DeviceArray

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def trained(hp: Any, task: lv.Task, updates: int) -> dict[str, Any]:
    with lv.Inline().open(hp.flow(task), seed=1) as run:
        for report in run:
            if report.firing == updates:
                break
        return {name: np.asarray(array) for name, array in run.node_state("learn").weights().items()}


def distance(some: dict[str, Any], others: dict[str, Any]) -> float:
    return float(np.sqrt(sum(np.square(some[name] - others[name], dtype=np.float64).sum() for name in some)))


@pytest.mark.parametrize(
    ("hp", "task"), CASES, ids=[f"{type(hp).__name__}-{task.name}-{n}" for n, (hp, task) in enumerate(CASES)]
)
def test_a_gpu_learns_what_a_processor_learns(
    hp: RolloutAlgorithm | ReplayAlgorithm, task: lv.Task, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        there = trained(replace(hp, device="cuda"), task, updates=5)
    assert "captured" not in caplog.text
    assert all(np.isfinite(array).all() for array in there.values())
    if task is PIXELS or "Image" in task.name:
        return  # other rounding of the convolutions draws other actions
    first, here = (trained(hp, task, updates) for updates in (1, 5))
    assert distance(there, here) < 0.1 * distance(first, here)


@pytest.mark.parametrize(("hp", "task"), [(PPO(**SMALL), CARTPOLE), (SAC(**REPLAYED), PENDULUM)], ids=["PPO", "SAC"])
def test_processes_act_for_a_learner_on_a_gpu(hp: Any, task: lv.Task, tmp_path: Any) -> None:
    result = lv.train(
        replace(hp, device="cuda"), task, on="processes:2", until="updates=5", out=tmp_path / "run", display="quiet"
    )
    assert result.summary.updates >= 5


@pytest.mark.skipif(missing_for_xla() is not None, reason="JAX or torchax is not installed")
class TestFunctional:
    """Environments in JAX, and a learner, on the same GPU."""

    TASK = lv.Task("gymnax:CartPole-v1")
    IMAGES = lv.Task("gymnax:Breakout-MinAtar")

    def hp(self, device: str) -> PPO:
        return PPO(num_envs=8, num_steps=16, minibatch_size=32, device=device, compile="xla")

    def test_observations_stay_there(self) -> None:
        prepare_jax("cuda")
        assert missing_in_jax("cuda") is None
        flow = self.hp("cuda").flow(self.IMAGES)
        sampler = flow.nodes["rollout"].work(lv.flow.Shard("rollout", 0, 1, seed=1))
        rollout = sampler(flow.learners()["learn"].open(1).weights())
        assert isinstance(rollout.obs, DeviceArray) and rollout.obs.tensor.is_cuda
        assert rollout.obs.shape == (17, 8, 10, 10, 4)
        assert rollout.obs.dtype == np.float32

    @pytest.mark.parametrize("task", [TASK, IMAGES], ids=["small", "large"])
    def test_it_learns_what_a_processor_learns(self, task: lv.Task, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING):
            there = trained(self.hp("cuda"), task, updates=5)
        assert "compile" not in caplog.text  # both parts are compiled, and none falls back to another way
        first, here = (trained(self.hp("cpu"), task, updates) for updates in (1, 5))
        assert distance(there, here) < 0.1 * distance(first, here)
