"""`on_new_weights="cut"`: the shorter rollout is what it would have been, had it been meant to be so short."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from support.envs.pixels import make_pixels
from torch import nn

import levada as lv
from levada.algorithms.checks import ConfigError
from levada.algorithms.gae import GAE
from levada.algorithms.impala import IMPALA, VTraceLoss
from levada.flow import Shard
from levada.rl.acting.sampler import Sampler
from levada.rl.envs.task import Task
from levada.rl.learning.columns import to_tensors
from levada.rl.learning.step import GradientStep
from levada.rl.policies.policy import Policy
from levada.rl.policies.recurrent import RecurrentNet
from levada.runners.processes import Processes
from levada.runners.threads import Threads

CARTPOLE = Task("CartPole-v1")
LENGTH, NUM_STEPS, NUM_ENVS = 9, 24, 3


TASKS: list[Any] = [
    (CARTPOLE, {}),
    (CARTPOLE, {"network": partial(RecurrentNet, rnn_type="gru", rnn_size=4, hidden_sizes=(4,))}),
    (CARTPOLE, {"normalize_obs": True, "normalize_reward": True}),
    (Task("Pendulum-v1"), {}),
    (Task(make_pixels, frame_stack=3), {}),
    (Task(make_pixels, env_kwargs={"mode": "SameStep"}, frame_stack=3), {}),
]


def sampler(task: Task, options: dict[str, Any], num_steps: int, **more: Any) -> tuple[Any, Policy]:
    policy = Policy(observation_space=task.observation_space, action_space=task.action_space, **options)
    recipe = Sampler(task=task, policy=policy, num_envs=NUM_ENVS, num_steps=num_steps, on_new_weights="cut")
    return recipe(Shard("rollout", 0, 1, seed=3, **more)), policy


class After:
    """Newer weights come after so many steps."""

    def __init__(self, num_steps: int) -> None:
        self.left = num_steps

    def __call__(self) -> bool:
        self.left -= 1
        return self.left == 0


@pytest.fixture
def same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise that does not depend on how many steps it is drawn for."""
    for head in {type(sampler(task, options, 1)[1].head) for task, options in TASKS}:
        draw = head.draw
        monkeypatch.setattr(
            head,
            "draw",
            lambda self, rng, num_steps, num_envs, draw=draw: draw(self, rng, NUM_STEPS, num_envs)[:num_steps],
        )


@pytest.mark.usefixtures("same_noise")
@pytest.mark.parametrize(("task", "options"), TASKS)
def test_a_cut_rollout_is_a_shorter_one(task: Task, options: dict[str, Any]) -> None:
    (live, policy), (plain, _) = (
        sampler(task, options, NUM_STEPS, has_newer=After(LENGTH)),
        sampler(task, options, LENGTH),
    )
    weights = policy.weights(policy.module(0))
    cut, short = live(weights), plain(weights)
    assert not cut.mask[LENGTH:].any()
    assert cut.num_env_steps == short.num_env_steps
    assert cut.episodes == short.episodes
    for name in ("action", "terminated", "mask"):
        np.testing.assert_array_equal(getattr(cut, name)[:LENGTH], getattr(short, name), err_msg=name)
    for name in ("reward", "log_prob", "value", "next_value"):  # how many rows are computed at once decides last digits
        np.testing.assert_allclose(
            getattr(cut, name)[:LENGTH], getattr(short, name), rtol=1e-5, atol=1e-6, err_msg=name
        )
    np.testing.assert_array_equal(np.asarray(cut.obs)[: LENGTH + 1], np.asarray(short.obs))
    last = cut.mask[LENGTH - 1] & ~cut.terminated[LENGTH - 1]
    assert cut.truncated[LENGTH - 1][last].all()
    assert cut.moments.keys() == short.moments.keys()
    for key, moments in cut.moments.items():
        for name in ("count", "mean", "var"):
            np.testing.assert_allclose(getattr(moments, name), getattr(short.moments[key], name), rtol=1e-5)
    # and the next one goes on from there
    np.testing.assert_array_equal(np.asarray(live(weights).obs)[0], np.asarray(plain(weights).obs)[0])
    live.close()
    plain.close()


@pytest.mark.usefixtures("same_noise")
@pytest.mark.parametrize(("task", "options"), TASKS[:2])
def test_it_teaches_the_same(task: Task, options: dict[str, Any]) -> None:
    """Losses and gradients of V-trace, and advantages, are those of the shorter rollout."""
    (live, policy), (plain, _) = (
        sampler(task, options, NUM_STEPS, has_newer=After(LENGTH)),
        sampler(task, options, LENGTH),
    )
    module = policy.module(0)
    rollouts = [one(policy.weights(module)) for one in (live, plain)]
    step = GradientStep(nn.ModuleDict({"policy": module}), VTraceLoss(IMPALA()), ())
    params = step.layout.flatten({f"policy.{name}": tensor for name, tensor in module.named_parameters()})
    rows = torch.arange(NUM_ENVS)
    found = [step.on("eager", {}, {}, to_tensors(r.sequences()))(params, params[:0], rows) for r in rollouts]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    if not policy.state_size:
        gae = GAE(discount=0.99, lambda_=0.95)
        some, others = (gae(r).columns["advantage"].reshape(-1, NUM_ENVS)[:LENGTH] for r in rollouts)
        np.testing.assert_allclose(some, others, rtol=1e-4, atol=1e-5)
    live.close()
    plain.close()


class Slow(gymnasium.Env[Any, Any]):
    """Takes a millisecond for each step."""

    observation_space, action_space = spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        time.sleep(0.001)
        return np.zeros(2, np.float32), 1.0, False, False, {}


@pytest.mark.parametrize("place", [Processes(workers=2), Threads(workers=2)], ids=str)
def test_shards_notice_newer_weights_in_the_middle(place: Any) -> None:
    """Four shards, an update for each rollout: most of them come while others are being made."""
    hp = IMPALA(shards=4, num_envs=2, num_steps=64, max_lag=None, on_new_weights="cut")
    with place.open(hp.flow(Task(Slow)), seed=1) as run:
        for report in run:
            if report.firing == 60:
                break
        [channel] = run.statistics().channels.values()
        num_env_steps = run.node_state("learn").num_transitions
    assert channel.ledger.balanced
    assert 60 * 2 <= num_env_steps < 60 * 2 * 64  # some were cut, and each has a step at least


def test_inline_nothing_is_cut() -> None:
    counts = set()
    for how in ("cut", "continue"):
        hp = IMPALA(num_envs=2, num_steps=16, on_new_weights=how)
        with lv.Inline().open(hp.flow(CARTPOLE), seed=1) as run:
            for report in run:
                if report.firing == 5:
                    break
            counts.add(run.node_state("learn").num_transitions)
    assert counts == {160}


def test_what_would_depend_on_timing_in_admission_order_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"on_new_weights='cut', order='admission'\): expected order='arrival'"):
        IMPALA(order="admission", on_new_weights="cut")
    with pytest.raises(ConfigError, match="on_new_weights"):
        IMPALA(on_new_weights="drop")
