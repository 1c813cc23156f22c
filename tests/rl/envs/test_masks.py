"""Masks in `info["action_mask"]` or `env.action_masks()` are found and used, or refused; `action_mask=None` trains without."""

import dataclasses
import json
import pickle
import sys
import threading
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from support.runs.cli import TINY, TINY_FIELDS, Shell

import levada
from levada.algorithms.checks import ConfigError
from levada.rl.data.spaces import SpaceError
from levada.rl.envs.batch import EnvError
from levada.rl.envs.masks import as_mask
from levada.rl.envs.task import Task, TaskError
from levada.run.display.displays import PlainDisplay

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
        log="none",
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
    assert done.err.count("action_mask: info, for Taxi-v4 has action masks") == 1
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
        levada.train("ppo", task, until="updates=1", display="quiet", log="none", out="run", **TINY_FIELDS)
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
        (Task(Elsewhere), "info"), (Task(by_method), "method"), (Task("CartPole-v1"), "auto"), (Task("Pendulum-v1"), "auto"),
        (Task(Elsewhere, action_mask="info"), "info"), (Task(Elsewhere, action_mask=None), None),
        (Task("support.envs.small:SmallMasked-v0"), "auto"), (Task(many, action_mask=None), None),
        (Task("support.envs.broken:BrokenRaisesInReset-v0"), "auto"), (Task("Taxi-v4", vectorization="async"), "info"),
    ],
)  # fmt: skip
def test_which_masks_are_found(task, source):
    assert task.resolved().action_mask == source
    assert task.resolved().resolved() == task.resolved()
    assert task.has_action_mask == (source in ("info", "method") or "SmallMasked" in task.name)
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
        (Task(Elsewhere, frame_stack=2), "cannot be used: frame_stack=2: observations are Dict"),
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
        (lambda: Task(Elsewhere, action_mask="obs"), TaskError, "='obs'.: expected 'auto', 'info', 'method' or None"),
        (lambda: Task(many, action_mask="info"), TaskError, "reads the masks of single environments"),
        (
            lambda: Task("CartPole-v1", vectorization="vector_entry_point", action_mask="info"), TaskError,
            "reads the masks of single environments",
        ),
        (lambda: Task("Pendulum-v1", action_mask="info").make(1), SpaceError, "only Discrete and MultiDiscrete actions can be"),
        (
            lambda: Task("support.envs.small:SmallMasked-v0", action_mask="info").make(1),
            SpaceError,
            "have an 'action_mask' already",
        ),
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
            EnvError,
            match=r"info\['action_mask'\] must be a mask at reset and at each step, but it is missing, expected",
        ):
            batch.step(obs["action_mask"].argmax(axis=1))
    with Task("CartPole-v1", action_mask="info").make(1) as batch, pytest.raises(EnvError, match="is missing"):
        batch.reset(seed=1)


def test_masks_of_several_choices():
    class Several(Elsewhere):
        action_space = MultiDiscrete([2, 2])

    assert Task(Several, action_mask="info").make(1).observation_space["action_mask"].shape == (4,)


class Counted(Elsewhere):
    """Counts what is done to all environments of the class."""

    made = resets = 0

    def __init__(self, **options):
        super().__init__(**options)
        type(self).made += 1

    def reset(self, **options):
        type(self).resets += 1
        return super().reset(**options)


def test_one_look_is_enough(monkeypatch):
    for name in ("made", "resets"):
        monkeypatch.setattr(Counted, name, 0)
    task = Task(Counted).resolved()
    assert (Counted.made, Counted.resets) == (2, 1)  # one that is reset, and one whose observations have the mask
    task.make(3).close()
    assert (task.observation_space, task.resolved().has_action_mask) == (task.observation_space, True)
    assert (Counted.made, Counted.resets) == (5, 1)


def test_box_actions_are_not_looked_for_masks(monkeypatch):
    monkeypatch.setattr(Counted, "resets", 0)
    monkeypatch.setattr(Counted, "action_space", Box(-1.0, 1.0, (2,)))
    assert Task(Counted).resolved().action_mask == "auto"
    assert Counted.resets == 0


def test_an_id_with_a_vector_environment_of_its_own_is_stepped_one_by_one(monkeypatch):
    gymnasium.register("Both-v0", entry_point=Elsewhere, vector_entry_point=many)
    gymnasium.register("OnlyMany-v0", vector_entry_point=many)
    try:
        with Task("Both-v0").make(8) as batch:
            assert batch.reset(seed=1)["action_mask"].shape == (8, 4)
        with pytest.raises(
            SpaceError, match=r"task 'OnlyMany-v0' has action masks in info.*which cannot be used: .*None"
        ):
            Task("OnlyMany-v0").resolved()
    finally:
        del gymnasium.registry["Both-v0"], gymnasium.registry["OnlyMany-v0"]


class Lenient(Elsewhere):
    """Takes actions that are masked, too."""

    def step(self, action):
        self.mask[:] = 1
        return super().step(action)


class Late(Lenient):
    """Its first masks come with the first step, or its first reset fails."""

    def __init__(self, how="step"):
        super().__init__()
        self.how = how

    def reset(self, *, seed=None, options=None):
        if self.how == "unseeded" and seed is None:
            raise RuntimeError("not yet")
        obs, info = super().reset(seed=seed)
        return obs, {} if self.how == "step" else info


@pytest.mark.parametrize("how", ["step", "unseeded"])
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_masks_that_come_later_are_refused(algorithm, how):
    task = Task(Late, env_kwargs={"how": how})
    with pytest.raises(
        EnvError,
        match=r"info\['action_mask'\] has a mask, which cannot be used: the first reset .* had none.*None",
    ):
        levada.train(algorithm, task, until="steps=200", display="quiet", out="run", num_envs=2)


@pytest.mark.parametrize(
    ("task", "env"), [(Task(Lenient, action_mask=None), Lenient), (Task("Taxi-v4", action_mask=None), "Taxi-v4")]
)
def test_an_environment_that_is_given_again_has_the_masks_of_the_run(task, env):
    run = levada.train("ppo", task, until="updates=1", display="quiet", log="none", out="run", **TINY_FIELDS)
    again = levada.load("run", env=env)
    assert again.task.action_mask is None
    assert levada.resume("run", env=env, until="updates=2", display="quiet").summary.updates == 2
    assert levada.load("run", env=Task(env, action_mask="info")).task.action_mask == "info"
    assert run.task.action_mask is None


class Odd(Elsewhere):
    """Gives a mask in a form of its own."""

    def __init__(self, mask=None):
        super().__init__()
        self.odd = mask

    def look(self):
        obs, _ = super().look()
        self.mask = np.ones(NUM_ACTIONS)
        return obs, {"action_mask": self.odd}


@pytest.mark.parametrize(
    ("mask", "got"),
    [
        (["1", "0", "0", "0"], "holds <U1"), ([None] * 4, "holds object"), ([np.nan] * 4, "is not finite"), (None, "is missing"),
        ([[1, 0], [1]], "is ragged"), ([1j] * 4, "holds complex128"), (3, r"has shape \(\)"),
        ({}, r"has shape \(\)"), ("abcd", r"has shape \(\)"),
    ],
)  # fmt: skip
def test_what_is_no_mask_is_refused(mask, got):
    message = rf"info\['action_mask'\] must be a mask at reset and at each step, but it {got}.*action_mask=None"
    with Task(Odd, env_kwargs={"mask": mask}).make(1) as batch, pytest.raises(EnvError, match=message):
        batch.reset(seed=1)


@pytest.mark.parametrize(
    "mask", [[True, False, True, True], np.array([0.5, 0.0, 2.0, -1.0]), np.array([1, 0, 3, 1], np.uint8)]
)
def test_masks_are_whatever_numbers(mask):
    with Task(Odd, env_kwargs={"mask": mask}).make(1) as batch:
        assert batch.reset(seed=1)["action_mask"].tolist() == [[1, 0, 1, 1]]


def test_masks_of_several_choices_may_be_a_tuple_as_gymnasium_takes_it():
    space = MultiDiscrete([2, 3], seed=1)
    mask = (np.array([0, 1], np.int8), np.array([1, 0, 0], np.int8))
    assert space.sample(mask=mask).tolist() == [1, 0]
    assert as_mask(mask, (2, 3)).tolist() == [0, 1, 1, 0, 0]


def test_a_policy_takes_masks_as_the_environment_gives_them():
    task = Task(Odd, env_kwargs={"mask": np.array([0.0, 0.0, 1.0, 0.0])})
    run = levada.train("ppo", task, until="updates=1", display="quiet", log="none", out="run", **TINY_FIELDS)
    obs, info = Odd(np.array([0.0, 0.0, 1.0, 0.0])).reset(seed=1)
    assert run.policy.act({"obs": obs, "action_mask": info["action_mask"]}) == 2
    batch = {"obs": np.stack([obs, obs]), "action_mask": np.array([[0.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0]])}
    assert run.policy.act_batch(batch).tolist() == [2, 0]
    hint = r"trained with action masks: give \{'obs': observation, 'action_mask': mask\}"
    for call, given in (
        (run.policy.act, obs),
        (run.policy.act, (obs, info)),
        (run.policy.act_batch, np.stack([obs, obs])),
    ):
        with pytest.raises(ValueError, match=hint):
            call(given)
    with pytest.raises(ValueError, match="is not finite"):
        run.policy.act({"obs": obs, "action_mask": np.full(4, np.nan)})


class Attribute(Elsewhere):
    def __init__(self, kind):
        super().__init__(where="nowhere")
        if kind == "array":
            self.action_masks = np.ones(NUM_ACTIONS)
        elif kind == "argument":
            self.action_masks = lambda state: np.ones(NUM_ACTIONS)


def test_a_method_that_cannot_be_called_names_the_way_out():
    with pytest.raises(SpaceError, match=r"env.action_masks is a ndarray, expected a method .*action_mask=None"):
        Task(Attribute, env_kwargs={"kind": "array"}).resolved()
    with Task(Attribute, env_kwargs={"kind": "argument"}).make(1) as batch, pytest.raises(TypeError) as caught:
        batch.reset(seed=1)
    assert any("action_mask=None" in note for note in caught.value.__notes__)


def test_settings_of_the_environment_are_pointed_to_the_task():
    with pytest.raises(
        ConfigError, match=r"PPO has no field 'action_mask'; it is a setting of the environment: Task\(env, act"
    ):
        levada.train("ppo", Elsewhere, action_mask=None)


def test_a_first_reset_that_takes_long_is_told(monkeypatch, capsys):
    told, note = threading.Event(), PlainDisplay.note

    class Slow(Elsewhere):
        def reset(self, **options):
            told.wait(60.0)  # the first takes until it is told
            return super().reset(**options)

    monkeypatch.setattr(PlainDisplay, "note", lambda self, text: (note(self, text), told.set()))
    monkeypatch.setattr(sys.modules["levada.api.train"], "LOOK_S", 0.1)
    levada.train("ppo", Slow, until="updates=1", display="plain", log="none", out="run", **TINY_FIELDS)
    assert "1 envs, reset, seed None: this step has taken more than 0.1 s" in capsys.readouterr().err


class Both(Elsewhere):
    """Has its mask in the observation, and in the info as well."""

    observation_space = Dict({"obs": Box(-1.0, 1.0, (2,)), "action_mask": MultiBinary(NUM_ACTIONS)})

    def look(self):
        obs, info = super().look()
        return {"obs": obs, "action_mask": info["action_mask"].copy()}, info


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_masks_in_observations_and_in_the_info_are_those_of_the_observations(algorithm):
    fields = TINY_FIELDS if algorithm == "ppo" else {"learning_starts": 32, "batch_size": 8, "hidden_sizes": (8,)}
    run = levada.train(algorithm, Both, until="updates=6", display="quiet", log="none", out="run", **fields)
    assert levada.evaluate(run, num_episodes=2).returns.min() >= 5.0


class Unbounded(Lenient):
    action_space = Box(-1.0, 1.0, (2,))


def late(num_envs):
    return gymnasium.vector.SyncVectorEnv([Late] * num_envs)


@pytest.mark.parametrize(
    ("task", "what"),
    [
        (Task(Unbounded), r"only Discrete and MultiDiscrete actions can be masked, got Box"),
        (Task(Late, vectorization="async"), "the first reset of an environment had none"),
        (Task(late), "the first reset of an environment had none"),
    ],
)
def test_masks_in_infos_that_are_not_used_are_refused_however_environments_are_stepped(task, what):
    def play(batch):
        batch.reset(seed=1)
        for _ in range(3):
            batch.step(np.zeros((2, *task.action_space.shape), task.action_space.dtype))

    with (
        task.make(2) as made,
        pytest.raises(EnvError, match=rf"has a mask, which cannot be used: {what}.*action_mask=None"),
    ):
        play(made)


def test_a_policy_takes_a_tuple_of_masks():
    space = MultiDiscrete([2, 3])

    class Tuples(Lenient):
        action_space = space

        def look(self):
            self.mask = np.ones(NUM_ACTIONS, np.int8)
            return np.zeros(2, np.float32), {"action_mask": (np.array([0, 1]), np.array([1, 0, 0]))}

        def step(self, action):
            assert action.tolist() == [1, 0]
            self.age += 1
            obs, info = self.look()
            return obs, 1.0, self.age == 6, False, info

    run = levada.train("ppo", Tuples, until="updates=1", display="quiet", log="none", out="run", **TINY_FIELDS)
    obs, info = Tuples().reset(seed=1)
    assert run.policy.act({"obs": obs, "action_mask": info["action_mask"]}).tolist() == [1, 0]


@pytest.mark.parametrize("action_mask", ["auto", "info"])
def test_masks_of_vector_environments_made_in_a_file_are_refused(tmp_path, action_mask):
    file = tmp_path / "own_vector.py"
    file.write_text(f"from {__name__} import many\n")
    with pytest.raises(SpaceError, match="only masks of single environments are read"):
        Task(f"{file}:many", action_mask=action_mask).make(2)
    with pytest.raises(TaskError, match="its function takes num_envs, so only vectorization='auto' takes effect"):
        Task(f"{file}:many", vectorization="async", action_mask=None).make(2)


def test_keyword_arguments_are_checked_before_masks():
    with pytest.raises(TaskError, match="env_kwargs is 5, expected a mapping"):
        Task(many, env_kwargs=5, action_mask="info")
