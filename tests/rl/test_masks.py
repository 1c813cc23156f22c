"""Masks in `info["action_mask"]` or `env.action_masks()` are found and used, or refused; `action_mask=None` trains without."""

import dataclasses
import json
import pickle
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from cli_harness import TINY, TINY_FIELDS, Shell
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

import levada
from levada.rl.env_batch import EnvError
from levada.rl.spaces import SpaceError
from levada.rl.task import Task, TaskError

NUM_ACTIONS = 4


class Elsewhere(gymnasium.Env):
    """Two of four actions are allowed at a time, and to choose another one is an error; the mask is not in the observation."""

    observation_space = Box(-1.0, 1.0, (2,), np.float32)
    action_space = Discrete(NUM_ACTIONS)

    def __init__(self, where="info", lasting=6, loses_at=None):
        self.where, self.lasting, self.loses_at = where, lasting, loses_at

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age = 0
        return self.look()

    def step(self, action):
        assert self.mask[action], f"action {action} is masked by {self.mask}"
        self.age += 1
        obs, info = self.look()
        return obs, 1.0, self.age == self.lasting, False, info

    def look(self):
        self.mask = np.zeros(NUM_ACTIONS, np.int8)
        self.mask[self.np_random.choice(NUM_ACTIONS, 2, replace=False)] = 1
        is_told = self.where == "info" and self.age != self.loses_at
        return np.zeros(2, np.float32), {"action_mask": self.mask} if is_told else {}


class ByMethod(Elsewhere):
    def __init__(self):
        super().__init__(where="method")

    def action_masks(self):
        return self.mask.astype(bool)


def by_method():
    return gymnasium.wrappers.TimeLimit(ByMethod(), 5)


def many(num_envs):
    return gymnasium.vector.SyncVectorEnv([Elsewhere] * num_envs)


EACH = [(Elsewhere, "info"), (by_method, "method")]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("env", "source"), [*EACH, (Elsewhere, "auto"), (by_method, "auto")])
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_only_allowed_actions_are_chosen_in_training_and_evaluation(env, source, algorithm):
    small = (
        {**TINY_FIELDS}
        if algorithm == "ppo"
        else {"learning_starts": 32, "batch_size": 8, "hidden_sizes": (8,), "compile": False}
    )
    run = levada.train(
        algorithm,
        env if source == "auto" else Task(env, action_mask=source),
        until="updates=6",
        display="quiet",
        tensorboard=False,
        out="run",
        **small,
    )
    assert run.summary.env_steps >= 100
    assert levada.evaluate(run, num_episodes=4).returns.min() >= 5.0


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize(("env", "source"), [*EACH, (Elsewhere, "auto"), (by_method, "auto")])
def test_masks_stand_beside_the_observation_at_reset_and_at_each_step(env, source, vectorization):
    with Task(env, action_mask=source, vectorization=vectorization).make(3) as batch:
        obs = batch.reset(seed=1)
        for _ in range(20):
            assert obs["obs"].shape == (3, 2)
            assert (obs["action_mask"].sum(axis=1) == 2).all()
            result = batch.step(obs["action_mask"].argmax(axis=1))
            obs = result.obs


def test_environments_with_masks_are_saved_and_go_on():
    task = Task("Taxi-v4", action_mask="info")
    with task.make(2) as batch, task.make(2) as other:
        obs = batch.reset(seed=1)
        other.reset(seed=2)
        other.restore(batch.save())
        actions = obs["action_mask"].argmax(axis=1)
        for name in ("obs", "action_mask"):
            np.testing.assert_array_equal(batch.step(actions).obs[name], other.step(actions).obs[name])


def test_masks_that_are_found_are_told_used_and_recorded(capsys):
    done = Shell(capsys)(f"train ppo --env Taxi-v4 {TINY} --until updates=1 --out run")
    assert done.code == 0
    assert done.err.count("action_mask: info, for Taxi-v4 gives action masks") == 1
    again = levada.load("run")
    assert again.task.action_mask == "info"
    assert again.policy.act({"obs": 0, "action_mask": np.array([0, 0, 0, 0, 1, 0], np.int8)}) == 4
    with pytest.raises(
        ValueError, match=r"trained with action masks: give \{'obs': observation, 'action_mask': mask\}"
    ):
        again.policy.act(0)
    assert levada.evaluate("run", num_episodes=2, env_kwargs={"is_rainy": True}).returns.shape == (2,)
    levada.resume("run", until="updates=2", display="quiet")
    assert Shell(capsys)("eval run --episodes 1").code == 0


def test_what_a_run_is_shown_to_be_is_what_it_is(capsys):
    shown = Shell(capsys)(f"show ppo --env Taxi-v4 {TINY}").out
    shell = Shell(capsys)(f"train ppo --env Taxi-v4 {TINY} --until updates=1 --out run --quiet")
    assert (shell.code, json.loads(Path("run", "config.json").read_text())["identity"]["flow_hash"] in shown) == (
        0,
        True,
    )


@pytest.mark.parametrize("by", ["command line", "python"])
def test_a_run_without_masks_stays_without(capsys, by):
    if by == "python":
        task = Task("Taxi-v4", action_mask=None)
        levada.train("ppo", task, until="updates=1", display="quiet", tensorboard=False, out="run", **TINY_FIELDS)
    else:
        done = Shell(capsys)(f"train ppo --env Taxi-v4 --action-mask None {TINY} --until updates=1 --out run")
        assert (done.code, "action_mask" in done.err) == (0, False)
    again = levada.load("run")
    assert again.task.action_mask is None
    assert 0 <= again.policy.act(3) < 6
    levada.resume("run", until="updates=2", display="quiet")
    levada.evaluate("run", num_episodes=2)


@pytest.mark.parametrize(
    ("task", "source"),
    [
        (Task(Elsewhere), "info"), (Task(by_method), "method"), (Task("CartPole-v1"), None), (Task("Pendulum-v1"), None),
        (Task(Elsewhere, action_mask="info"), "info"), (Task(Elsewhere, action_mask=None), None),
        (Task("small_envs:SmallMasked-v0"), None), (Task(many, action_mask=None), None),
        (Task("broken_envs:BrokenRaisesInReset-v0"), None), (Task("Taxi-v4", vectorization="async"), "info"),
    ],
)  # fmt: skip
def test_which_masks_are_found(task, source):
    assert task.resolved().action_mask == source
    assert task.resolved().resolved() == task.resolved()
    assert task.has_action_mask == (source is not None or "SmallMasked" in task.name)
    assert pickle.loads(pickle.dumps(task.resolved())).observation_space == task.observation_space


class OneByOne(gymnasium.vector.VectorEnv):
    """A vector environment of a user's own, with masks by a method."""

    def __init__(self, num_envs):
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = Elsewhere.observation_space, Elsewhere.action_space
        self.metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}

    def action_masks(self):
        raise AssertionError


class Signs(Elsewhere):
    action_space = MultiBinary(2)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (Task(many), r"in info\['action_mask'\], which cannot be used: only masks of single environments are read"),
        (Task(OneByOne), r"in env.action_masks\(\), which cannot be used: only masks of single environments are read"),
        (Task(Signs), "only Discrete and MultiDiscrete actions can be masked, got MultiBinary"),
        (Task(Elsewhere, frame_stack=2), "observations are no Box|frame_stack"),
    ],
)
def test_masks_that_cannot_be_used_are_refused(task, message):
    with pytest.raises(SpaceError, match=message) as caught:
        levada.train("ppo", task, until="updates=1", display="quiet", out="run", **TINY_FIELDS)
    assert str(caught.value).count("task ") == 1
    assert str(caught.value).endswith("action_mask=None (`--action-mask None`) trains without masks")
    without = dataclasses.replace(task, action_mask=None)
    assert not without.has_action_mask


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Task(Elsewhere, action_mask="obs"), TaskError, "is 'obs', expected 'auto', 'info', 'method' or None"),
        (lambda: Task(many, action_mask="info"), TaskError, "reads the masks of single environments"),
        (
            lambda: Task("CartPole-v1", vectorization="vector_entry_point", action_mask="info"), TaskError,
            "reads the masks of single environments",
        ),
        (lambda: Task("Pendulum-v1", action_mask="info").make(1), SpaceError, "only Discrete and MultiDiscrete actions can be"),
        (lambda: Task("small_envs:SmallMasked-v0", action_mask="info").make(1), SpaceError, "have an 'action_mask' already"),
    ],
)  # fmt: skip
def test_what_cannot_be_masked_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_mask_that_is_missing_later_is_no_mask_that_allows_all():
    task = Task(Elsewhere, env_kwargs={"loses_at": 2}, action_mask="info")
    with task.make(2) as batch:
        obs = batch.reset(seed=1)
        obs = batch.step(obs["action_mask"].argmax(axis=1)).obs
        with pytest.raises(
            EnvError, match=r"needs info\['action_mask'\] of shape \(4,\) at reset and at each step, but it has none"
        ):
            batch.step(obs["action_mask"].argmax(axis=1))
    with Task("CartPole-v1", action_mask="info").make(1) as batch, pytest.raises(EnvError, match="has none"):
        batch.reset(seed=1)


def test_masks_of_several_choices():
    class Several(Elsewhere):
        action_space = MultiDiscrete([2, 2])

    assert Task(Several, action_mask="info").make(1).observation_space["action_mask"].shape == (4,)
