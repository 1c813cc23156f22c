"""Compiled rollouts: what a learner gets is what the torch policy and the environments give step by step."""

from __future__ import annotations

import importlib.util
import logging
import os
import pickle
import signal
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

import levada as lv
from levada.flow import Shard
from levada.rl.acting.rollout import Rollout
from levada.rl.acting.sampler import LiveSampler, Sampler
from levada.rl.data.device_array import DeviceArray
from levada.rl.data.nest import flat
from levada.rl.data.spaces import leaves, map_nest
from levada.rl.envs.task import Task
from levada.rl.policies.heads.make import action_head
from levada.rl.policies.policy import Policy
from levada.rl.policies.recurrent import RecurrentNet
from levada.run.storage.hashing import params_sha256

CHOICES: list[Any] = [
    spaces.Discrete(3),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiBinary(4),
    spaces.Box(-1.0, 1.0, (2,)),
]


@pytest.mark.parametrize("space", CHOICES, ids=str)
@pytest.mark.parametrize("squash", [False, True])
def test_an_action_does_not_depend_on_the_array_library(space: Any, squash: bool) -> None:
    if squash and not isinstance(space, spaces.Box):
        pytest.skip("only a Box is squashed")
    jnp = pytest.importorskip("jax.numpy")
    head = action_head(space, tanh_squash=squash)
    rng = np.random.default_rng(0)
    noise = head.draw(rng, 1, 50)[0]
    params = rng.standard_normal((50, head.row_size)).astype(np.float32)
    masks = [None]
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        masks.append(np.maximum(rng.integers(0, 2, (50, head.num_params)), np.arange(head.num_params) % 2 == 0))
    for mask in masks:
        ours = head.choose(jnp, jnp.asarray(params), jnp.asarray(noise), mask)
        np.testing.assert_allclose(ours, head.sample(params, noise, mask), atol=1e-6)


installed = pytest.mark.skipif(
    importlib.util.find_spec("gymnax") is None, reason="JAX and gymnax are not installed: pip install 'levada[jax]'"
)

POLICIES: dict[str, tuple[Task, dict[str, Any]]] = {
    "discrete": (Task("gymnax:CartPole-v1"), {}),
    "normalized": (Task("gymnax:CartPole-v1"), {"normalize_obs": True, "normalize_reward": True}),
    "gaussian": (Task("gymnax:Pendulum-v1"), {"hidden_sizes": (16, 16), "activation": "gelu"}),
    "squashed": (Task("gymnax:Pendulum-v1"), {"tanh_squash": True, "activation": "silu"}),
    "masked": (Task("pgx:2048"), {"hidden_sizes": (8,)}),
    "denormalized": (Task("gymnax:CartPole-v1"), {"normalize_value": True}),
    "linear": (Task("gymnax:MountainCar-v0"), {"hidden_sizes": ()}),
    "saved resets": (Task("brax:fast", env_kwargs={"episode_length": 15}), {}),
    "images": (Task("pgx:minatar-breakout"), {"activation": "elu"}),
}


class Other(nn.Module):
    """A network that does not describe its layers."""

    def __init__(self, space: spaces.Box, num_params: int) -> None:
        super().__init__()
        self.layer = nn.Linear(space.shape[0], num_params + 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        both = self.layer(obs)
        return both[:, :-1], both[:, -1]


def sampler_of(task: Task, fields: dict[str, Any], *, seed: int = 3) -> tuple[LiveSampler, dict[str, Any]]:
    policy = Policy(observation_space=task.observation_space, action_space=task.action_space, **fields)
    sampler = Sampler(task=task, policy=policy, num_envs=3, num_steps=40)(Shard("rollout", 0, 1, seed))
    weights = policy.weights(policy.module(seed=7))
    rng = np.random.default_rng(1)
    for name, array in weights.items():
        if name.endswith(".mean"):
            weights[name] = np.asarray(0.1 * rng.standard_normal(array.shape), np.float32)
        elif name.endswith(".var"):
            weights[name] = np.asarray(rng.uniform(0.5, 2.0, array.shape), np.float32)
        elif name == "log_std":
            weights[name] = array - 0.7
    return sampler, weights


@installed
@pytest.mark.parametrize("name", POLICIES)
def test_a_compiled_rollout_is_the_one_that_steps_one_by_one(name: str) -> None:
    (compiled, weights), (ordinary, _) = (sampler_of(*POLICIES[name]) for _ in range(2))
    assert compiled._compiled is not None
    ordinary._compiled = None
    tolerance = 1e-3 if name in ("gaussian", "squashed") else 1e-5  # a pendulum's differences grow
    has_ended = False
    for _ in range(8 if name == "masked" else 2):
        ours, theirs = compiled(weights), ordinary(weights)
        has_ended |= bool((ours.terminated | ours.truncated).any())
        for column in ("action", "terminated", "truncated", "mask"):
            one, other = getattr(ours, column), getattr(theirs, column)
            assert one.dtype == other.dtype
            np.testing.assert_allclose(one, other, atol=1e-4)
        for column in ("obs", "reward", "log_prob", "value", "next_value"):
            map_nest(
                lambda one, other: np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance),
                getattr(ours, column),
                getattr(theirs, column),
            )
        assert [e.length for e in ours.episodes] == [e.length for e in theirs.episodes]
        assert ours.moments.keys() == theirs.moments.keys()
        for moments, others in zip(ours.moments.values(), theirs.moments.values(), strict=True):
            assert moments.count == others.count
            np.testing.assert_allclose(moments.mean, others.mean, rtol=tolerance, atol=tolerance)
            np.testing.assert_allclose(moments.var, others.var, rtol=tolerance, atol=tolerance)
    assert has_ended or name in ("gaussian", "squashed", "linear")


@installed
@pytest.mark.parametrize("name", ["discrete", "masked"])
def test_a_state_is_restored_after_a_compiled_rollout(name: str) -> None:
    sampler, weights = sampler_of(*POLICIES[name])
    sampler(weights)
    state = sampler.state_dict()
    first = sampler(weights)
    sampler.load_state_dict(state)
    again = sampler(weights)
    assert all((a == b).all() for a, b in zip(leaves(first.obs), leaves(again.obs), strict=True))
    np.testing.assert_array_equal(first.action, again.action)


@installed
@pytest.mark.parametrize("name", POLICIES)
def test_what_a_compiled_rollout_reports_is_what_the_torch_policy_computes(name: str) -> None:
    sampler, weights = sampler_of(*POLICIES[name])
    rollout = sampler(weights)
    policy = sampler.recipe.policy
    module = policy.module(seed=0)
    module.load_state_dict({key: torch.from_numpy(np.asarray(array)) for key, array in weights.items()}, strict=False)
    obs: Any = map_nest(lambda leaf: torch.from_numpy(np.array(leaf[:-1])), rollout.obs)
    distribution, value, *_ = module(flat(obs))
    log_prob = distribution.log_prob(torch.from_numpy(flat(rollout.action).copy()))
    np.testing.assert_allclose(rollout.log_prob.ravel(), log_prob.detach().numpy(), atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(rollout.value.ravel(), value.detach().numpy(), atol=1e-5, rtol=1e-5)


@installed
def test_values_at_ends_are_those_of_the_true_last_observations() -> None:
    task = Task("gymnax:CartPole-v1", env_kwargs={"max_steps_in_episode": 6})
    (sampler, weights), (ordinary, _) = (sampler_of(task, {}) for _ in range(2))
    ordinary._compiled = None
    last: list[Any] = []  # step, environment and true last observation of each episode
    step = ordinary.envs.step

    def noted(actions: Any) -> Any:
        result = step(actions)
        if result.final_obs is not None:
            last.extend((t[0], index, obs) for index, obs in zip(*result.final_obs, strict=True))
        t[0] += 1
        return result

    t = [0]
    ordinary.envs.step = noted  # type: ignore[method-assign]
    ordinary(weights)
    rollout = sampler(weights)
    assert rollout.truncated.any()
    inside = ~(rollout.terminated | rollout.truncated)
    later = np.concatenate([rollout.value[1:], rollout.next_value[-1:]])
    np.testing.assert_allclose(rollout.next_value[inside], later[inside], atol=1e-6)
    assert len(last) == (~inside).sum()
    for t_end, index, obs in last:
        value = sampler.actor.value(obs[None])[0]
        np.testing.assert_allclose(rollout.next_value[t_end, index], value, atol=1e-5)
        assert abs(later[t_end, index] - value) > 1e-4  # the row that follows is of the next episode


@installed
@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"network": RecurrentNet}, "recurrent"), ({"network": Other}, "Other describes no layers")],
)
def test_a_policy_that_cannot_be_compiled_acts_step_by_step_and_says_so(
    fields: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        sampler, weights = sampler_of(Task("gymnax:CartPole-v1"), fields)
    assert any("not compiled" in record.message and reason in record.message for record in caplog.records)
    assert sampler(weights).mask.all()


TINY: dict[str, Any] = {"num_envs": 2, "num_steps": 16, "shards": 2, "minibatch_size": 32, "compile": False}


@installed
def test_deployments_give_the_same_bits_and_a_resumed_run_too(tmp_path: Any) -> None:
    def train(on: str, until: str = "updates=6") -> Any:
        return lv.train(
            "ppo", "gymnax:CartPole-v1", until=until, on=on, seed=1, out=tmp_path / f"{on}-{until}", display="quiet",
            log="none", **{**TINY, "compile": "auto"},
        )  # fmt: skip

    whole = train("inline")
    hashes = {train(on).summary.params_sha256 for on in ("processes:1", "processes:2")}
    assert hashes == {whole.summary.params_sha256}
    half = train("inline", "updates=3")
    resumed = lv.resume(half.path, until="updates=6", display="quiet")
    assert resumed.summary.params_sha256 == whole.summary.params_sha256
    assert resumed.summary.num_started_from_scratch == 0


@installed
def test_a_killed_worker_changes_no_bit() -> None:
    flow = lv.PPO(**TINY).flow(Task("gymnax:CartPole-v1"))

    def learned(on: Any, kill_at: int | None = None) -> str:
        with on.open(flow, seed=1) as run:
            for report in run:
                if report.firing == kill_at:
                    os.kill(run.worker_pids[0], signal.SIGKILL)
                if report.firing == 6:
                    return params_sha256(run.node_state("learn").weights())
        raise AssertionError

    assert learned(lv.Processes(workers=2), kill_at=2) == learned(lv.Inline())


@pytest.mark.parametrize("space", CHOICES, ids=str)
@pytest.mark.parametrize("squash", [False, True])
def test_a_log_probability_does_not_depend_on_the_array_library(space: Any, squash: bool) -> None:
    if squash and not isinstance(space, spaces.Box):
        pytest.skip("only a Box is squashed")
    jnp = pytest.importorskip("jax.numpy")
    head = action_head(space, tanh_squash=squash)
    rng = np.random.default_rng(0)
    params = rng.standard_normal((50, head.row_size)).astype(np.float32)
    action = head.sample(params, head.draw(rng, 1, 50)[0])
    mask = (
        np.ones((50, head.num_params), np.int8) if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) else None
    )
    ours = head.log_prob(jnp.asarray(params), jnp.asarray(action), mask, jnp)
    np.testing.assert_allclose(ours, head.log_prob(params, action, mask), atol=1e-5, rtol=1e-5)


@installed
def test_a_compiled_rollout_can_be_written_to() -> None:
    """PyTorch warns of memory that cannot be."""
    sampler, weights = sampler_of(Task("gymnax:CartPole-v1"), {})
    rollout = sampler(weights)
    for name in ("action", "reward", "terminated", "truncated", "mask", "log_prob", "value", "next_value"):
        assert getattr(rollout, name).flags.writeable, name
    map_nest(lambda leaf: leaf.setflags(write=True), rollout.obs)


@installed
@pytest.mark.parametrize("task", [POLICIES["discrete"][0], POLICIES["masked"][0]], ids=["array", "dict"])
def test_observations_that_stay_on_a_device_change_no_bit(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    from levada.rl.acting.compiled import rollout as compiled

    class OnGpu(compiled.JaxPlace):
        def __init__(self, device: str) -> None:
            super().__init__(device)
            self.is_gpu = True

    def learned() -> str:
        hp = lv.PPO(**TINY)
        with lv.Inline().open(hp.flow(task), seed=1) as run:
            for report in run:
                if report.firing == 3:
                    return params_sha256(run.node_state("learn").weights())
        raise AssertionError

    def rolled() -> Rollout:
        sampler, weights = sampler_of(task, {})
        return sampler(weights)

    expected, usual = learned(), rolled()
    monkeypatch.setattr(compiled, "JaxPlace", OnGpu)
    monkeypatch.setattr(compiled, "_LARGE_BYTES", 0)
    assert learned() == expected
    kept = rolled()
    assert {type(leaf) for leaf in leaves(kept.obs)} == {DeviceArray}
    for some in (kept, pickle.loads(pickle.dumps(kept))):
        map_nest(lambda one, other: np.testing.assert_array_equal(np.asarray(one), other), some.obs, usual.obs)
    assert {type(leaf) for leaf in leaves(pickle.loads(pickle.dumps(kept)).obs)} == {np.ndarray}


@installed
@pytest.mark.parametrize("num_ended", [0, 1, 4, 5, 32])
def test_next_values_are_those_of_final_observations_where_episodes_end(num_ended: int) -> None:
    import jax

    from levada.rl.acting.compiled.rollout import _next_values, _next_values_of_all

    rng = np.random.default_rng(num_ended)
    following = rng.standard_normal((8, 4)).astype(np.float32)
    ended = np.zeros(32, np.bool_)
    ended[rng.permutation(32)[:num_ended]] = True
    last_obs = {"x": rng.standard_normal((32, 3)).astype(np.float32)}
    expected = np.where(ended, last_obs["x"].sum(1), following.ravel()).reshape(8, 4)
    for function in (_next_values, _next_values_of_all):
        found = jax.jit(partial(function, lambda obs: obs["x"].sum(1)))(following, ended.reshape(8, 4), last_obs)
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@installed
def test_small_results_of_one_type_are_packed_and_large_ones_are_not() -> None:
    import jax
    import jax.numpy as jnp

    from levada.rl.acting.compiled.packing import Packing

    tree = {
        "large": jnp.ones((200, 200)), "rows": jnp.arange(6.0).reshape(2, 3), "none": None, "number": jnp.float32(7.0),
        "empty": jnp.zeros((0, 3)), "flags": (jnp.array([True, False]), jnp.array([[True]])), "count": jnp.int32(3),
    }  # fmt: skip
    packing = Packing()
    made = jax.jit(packing.pack)(tree)
    assert len(made) == 4
    found = packing.unpack(made)
    assert jax.tree.structure(found) == jax.tree.structure(tree)
    for expected, array in zip(jax.tree.leaves(tree), jax.tree.leaves(found), strict=True):
        assert isinstance(array, np.ndarray)
        assert array.dtype == expected.dtype
        np.testing.assert_array_equal(array, expected)
