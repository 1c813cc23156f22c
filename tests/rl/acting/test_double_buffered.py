"""Groups of environments that act at once: the rollout is theirs side by side, whichever is quicker."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from support.envs.pixels import make_pixels

import levada as lv
from levada.algorithms.checks import ConfigError
from levada.algorithms.impala import IMPALA
from levada.algorithms.ppo import PPO
from levada.flow import Shard
from levada.flow.items import derive_seed
from levada.rl.acting.double_buffered import DoubleBufferedSampler
from levada.rl.acting.sampler import Sampler
from levada.rl.envs.task import Task
from levada.rl.policies.policy import Policy
from levada.rl.policies.recurrent import RecurrentNet
from levada.run.storage.hashing import params_sha256
from levada.runners.processes import Processes

CARTPOLE = Task("CartPole-v1")
GRU = {"network": partial(RecurrentNet, rnn_type="gru", rnn_size=4, hidden_sizes=(4,))}
CASES: list[Any] = [
    (CARTPOLE, {}),
    (CARTPOLE, GRU),
    (CARTPOLE, {"normalize_obs": True, "normalize_reward": True}),
    (Task(make_pixels, frame_stack=3), {}),
]
COLUMNS = ("obs", "action", "reward", "terminated", "truncated", "mask", "log_prob", "value", "next_value", "is_first")
SHARD = Shard("rollout", 0, 1, seed=5)


def made(task: Task, options: dict[str, Any], num_envs: int = 6) -> tuple[Sampler, Any]:
    policy = Policy(observation_space=task.observation_space, action_space=task.action_space, **options)
    return Sampler(task=task, policy=policy, num_envs=num_envs, num_steps=12), policy.weights(policy.module(0))


@pytest.mark.parametrize(("task", "options"), CASES)
def test_the_rollout_is_those_of_the_groups_side_by_side(task: Task, options: dict[str, Any]) -> None:
    sampler, weights = made(task, options)
    ring = DoubleBufferedSampler(sampler=sampler, num_groups=2)(SHARD)
    half, _ = made(task, options, num_envs=3)
    halves = [half(Shard("rollout", 0, 1, seed=derive_seed(5, f"group{number}"))) for number in range(2)]
    for _ in range(4):
        found, parts = ring(weights), [one(weights) for one in halves]
        for name in COLUMNS:
            if (column := getattr(found, name)) is not None:
                side_by_side = np.concatenate([np.asarray(getattr(part, name)) for part in parts], axis=1)
                np.testing.assert_array_equal(np.asarray(column), side_by_side, err_msg=name)
        if found.state is not None:
            np.testing.assert_array_equal(found.state, np.concatenate([part.state for part in parts]))
        assert found.episodes == parts[0].episodes + parts[1].episodes
        assert {key: some.count for key, some in found.moments.items()} == {
            key: sum(part.moments[key].count for part in parts) for key in parts[0].moments
        }
    for live in (ring, *halves):
        live.close()


def test_it_goes_on_from_where_it_was_saved() -> None:
    sampler, weights = made(CARTPOLE, {})
    recipe = DoubleBufferedSampler(sampler=sampler, num_groups=3)
    live, other = recipe(SHARD), recipe(SHARD)
    for _ in range(3):
        live(weights)
    other.load_state_dict(live.state_dict())
    np.testing.assert_array_equal(live(weights).obs, other(weights).obs)
    live.close()
    other.close()


@pytest.mark.parametrize(
    "hp", [PPO(num_envs=4, num_steps=8, minibatch_size=16, shards=2), IMPALA(num_envs=4, num_steps=8)]
)
def test_every_deployment_makes_the_same_of_it(hp: Any) -> None:
    hp = type(hp)(**{**vars(hp), "num_groups": 2, "order": "admission"})
    found = set()
    for place in (lv.Inline(), lv.Inline(), Processes(workers=2)):
        with place.open(hp.flow(CARTPOLE), seed=3) as run:
            for report in run:
                if report.firing == 4:
                    break
            found.add(params_sha256(run.node_state("learn").weights()))
    assert len(found) == 1


class Together(gymnasium.Env[Any, Any]):
    """Steps that wait until another environment steps too; the third of those that are told to fails."""

    observation_space, action_space = spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(2)
    barrier = threading.Barrier(2, timeout=20.0)

    def __init__(self, fails: bool = False) -> None:
        self.fails, self.num_steps = fails, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.num_steps += 1
        if self.fails and self.num_steps == 3:
            raise ConnectionError("the game is gone")
        self.barrier.wait()
        return np.zeros(2, np.float32), 1.0, False, False, {}


def test_while_one_steps_the_other_does_too() -> None:
    sampler, weights = made(Task(Together), {}, num_envs=2)
    live = DoubleBufferedSampler(sampler=sampler, num_groups=2)(SHARD)
    assert live(weights).num_env_steps == 24
    live.close()


def test_an_environment_that_fails_says_so_when_all_groups_are_done() -> None:
    sampler, weights = made(Task(Together, env_kwargs={"fails": True}), {}, num_envs=2)
    live = DoubleBufferedSampler(sampler=sampler, num_groups=2)(SHARD)
    with pytest.raises(ConnectionError, match="the game is gone"):
        live(weights)
    live.close()


def test_groups_that_cannot_be_are_refused() -> None:
    sampler, _ = made(CARTPOLE, {})
    for num_groups in (0, 4, True, 2.0):
        with pytest.raises(ValueError, match=f"num_groups={num_groups}.* divides num_envs=6"):
            DoubleBufferedSampler(sampler=sampler, num_groups=num_groups)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"num_groups=3\) does not divide num_envs = 8; try 2 or 4"):
        PPO(num_envs=8, num_groups=3)


def test_inference_elsewhere_is_refused() -> None:
    hp = IMPALA(num_envs=4, num_steps=8, num_groups=2)
    with (
        pytest.raises(ValueError, match="groups compute actions in the sampler"),
        Processes(workers=1, inference="learner").open(hp.flow(CARTPOLE), seed=1) as run,
    ):
        next(iter(run))
