"""Masks in `info["action_mask"]` or `env.action_masks()`: used where that is asked for, and else said to be idle."""

import gymnasium
import numpy as np
import pytest
from cli_harness import TINY, TINY_FIELDS, Shell
from gymnasium.spaces import Box, Discrete, MultiDiscrete

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


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("env", "source"), [(Elsewhere, "info"), (by_method, "method")])
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_only_allowed_actions_are_chosen_in_training_and_evaluation(env, source, algorithm):
    small = (
        {**TINY_FIELDS} if algorithm == "ppo" else {"min_size": 32, "batch_size": 8, "hidden": (8,), "compile": False}
    )
    task = Task(env, action_mask=source)
    run = levada.train(algorithm, task, until="updates=6", display="quiet", tensorboard=False, out="run", **small)
    assert run.summary.env_steps >= 100
    assert levada.evaluate(run, num_episodes=4).returns.min() >= 5.0


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize(("env", "source"), [(Elsewhere, "info"), (by_method, "method")])
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


def test_a_loaded_run_uses_the_same_masks(capsys):
    done = Shell(capsys)(f"train ppo --env Taxi-v4 --action-mask info {TINY} --until updates=1 --out run")
    assert done.code == 0
    assert "says in" not in done.err
    again = levada.load("run")
    assert again.task.action_mask == "info"
    assert again.policy.act({"obs": 0, "action_mask": np.array([0, 0, 0, 0, 1, 0], np.int8)}) == 4


def test_masks_that_are_not_used_are_named_when_a_run_begins(capsys):
    done = Shell(capsys)(f"train ppo --env Taxi-v4 {TINY} --until updates=1 --out run")
    note = (
        "Taxi-v4 says in info['action_mask'] which actions are allowed; that is not used: `--action-mask info`, or in Python "
        "Task(..., action_mask='info'), uses it"
    )
    assert (done.code, done.err.count(note)) == (0, 1)


@pytest.mark.parametrize(
    ("task", "where"),
    [
        (Task(Elsewhere), "info['action_mask']"), (Task(by_method), "env.action_masks()"), (Task("CartPole-v1"), None),
        (Task("Pendulum-v1"), None), (Task(Elsewhere, action_mask="info"), None), (Task("small_envs:SmallMasked-v0"), None),
        (Task(many), None), (Task("broken_envs:BrokenRaisesInReset-v0"), None),
    ],
)  # fmt: skip
def test_what_is_idle(task, where):
    assert task.idle_mask() == where


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Task(Elsewhere, action_mask="obs"), TaskError, "action_mask is 'obs', expected 'info', 'method' or None"),
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
