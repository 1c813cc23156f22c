"""What a run tells its user about learning: schedules that end before it does, and a return that does not rise."""

import json
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from support.runs import cli as cli_harness
from support.runs.cli import TINY_FIELDS, Shell

import levada
from levada import PPO, Task
from levada.algorithms.dqn import DQN
from levada.algorithms.sac import SAC
from levada.algorithms.td3 import TD3
from levada.api.notes import advice, default_until
from levada.api.options import configure

ENDED = "from there on nothing is learned"
FLAT = "for half of the budget the mean return has not clearly risen"


class Nothing(gymnasium.Env):
    """Whatever is done, an episode takes five steps and brings -5."""

    observation_space = Box(-1.0, 1.0, (2,), np.float32)
    action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.num_steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.num_steps += 1
        return np.zeros(2, np.float32), -1.0, self.num_steps == 5, False, {}


gymnasium.register("Nothing-v0", f"{__name__}:Nothing")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def shell(capfd):
    return Shell(capfd)


def train(env="CartPole-v1", **more):
    return levada.train("ppo", env, **{"display": "quiet", "log": "none", **TINY_FIELDS, **more})


# ---- schedules and the end of a run


@pytest.mark.parametrize(
    ("algorithm", "fields", "expected"),
    [
        ("ppo", {}, "steps=100000"),  # the preset's
        ("ppo", {"anneal_steps": 5_000}, "steps=5000"),
        ("ppo", {"anneal_steps": None}, "steps=1000000"),
        ("ppo", {"anneal_learning_rate": False, "anneal_clip_range": False}, "steps=1000000"),
        (
            "ppo",
            {"anneal_learning_rate": False, "anneal_clip_range": False, "anneal_entropy_coef": True},
            "steps=100000",
        ),
        ("dqn", {}, "steps=100000"),
        ("impala", {}, "steps=250000"),
        ("sac", {}, "steps=1000000"),
    ],
)
def test_a_run_that_is_told_no_end_ends_where_its_schedules_do(algorithm, fields, expected):
    assert default_until(configure(algorithm, "CartPole-v1", fields)[0]) == expected


def test_the_end_that_was_chosen_is_written_down_and_nothing_is_warned_of(shell):
    done = shell(f"train ppo --env CartPole-v1 {cli_harness.TINY} --anneal-steps 320 --out run --log none")
    assert done.code == 0
    assert "until steps=320" in done.err
    assert ENDED not in done.err
    config = json.loads(Path("run/config.json").read_bytes())
    assert config["settings"]["until"] == {"value": "steps=320", "from": "default"}
    assert shell("resume run").code == 0


def test_a_last_update_that_takes_more_steps_than_asked_is_not_warned_of(shell):
    done = shell(f"train ppo --env CartPole-v1 {cli_harness.TINY} --anneal-steps 300 --out run --log none")
    assert levada.load("run").summary.env_steps > 300
    assert ENDED not in done.err


def test_a_run_that_goes_on_after_its_schedules_says_so_before_it_starts(shell):
    command = f"train ppo --env CartPole-v1 {cli_harness.TINY} --anneal-steps 320 --log none"
    done = shell(f"{command} --until steps=640 --out run")
    first = next(line for line in done.err.splitlines() if not line.startswith("ppo on CartPole-v1, seed 0"))
    assert first == (
        "learning_rate and clip_range fall to zero at 320 env steps: from there on nothing is learned. For a longer run set "
        "anneal_steps to its length; until='steps=320' ends it there"
    )
    assert done.err.count(ENDED) == 1
    assert levada.load("run").summary.notes == [first]
    done = shell("resume run --until steps=960")
    assert ENDED not in done.err  # it was said
    assert levada.load("run").summary.notes == [first]


def test_where_the_end_is_not_known_it_is_said_when_the_schedules_end(shell):
    command = f"train ppo --env CartPole-v1 {cli_harness.TINY} --anneal-steps 320 --log none --json"
    for until, is_told in (("updates=10", False), ("updates=20", True), ("return=20 updates=20", True)):
        lines = [json.loads(line) for line in shell(f"{command} --until {until}").out.splitlines()]
        kinds = [line["type"] for line in lines]
        notes = [line["text"] for line in lines if line["type"] == "note"]
        assert len(notes) == is_told, until
        assert lines[-1]["notes"] == notes
        assert kinds[0] == "start"


def test_a_schedule_that_does_not_fall_is_not_warned_of():
    assert train(anneal_steps=None, until="steps=400").summary.notes == []
    run = train(anneal_steps=320, anneal_clip_range=False, until="steps=400")
    assert run.summary.notes[0].startswith("learning_rate falls to zero at 320 env steps")
    still_learns = {"anneal_learning_rate": False, "anneal_clip_range": False, "anneal_entropy_coef": True}
    assert train(anneal_steps=320, **still_learns, until="steps=400").summary.notes == []


# ---- a return that does not rise


def test_a_run_that_learns_nothing_says_so_in_the_output_and_the_summary(shell):
    words = f"train ppo --env {__name__}:Nothing-v0 {cli_harness.TINY} --log none --until updates=60"
    done = shell(f"{words} --out run")
    assert done.err.count(FLAT) == 1
    (note,) = levada.load("run").summary.notes
    assert note in done.err
    assert note.startswith(
        f"{FLAT} (-5.00 at first, -5.00 now); try more exploration (entropy_coef=0.01), normalize_obs=True"
    )
    assert "num_steps=64" in note
    lines = [json.loads(line) for line in shell(f"{words} --json").out.splitlines()]
    assert [line["text"] for line in lines if line["type"] == "note"] == [note] == lines[-1]["notes"]


def test_the_live_display_shows_it(capfd):
    run = train(Nothing, until="updates=60", display="live")
    shown = " ".join(capfd.readouterr().err.split())
    assert shown.count(FLAT) == 1
    assert len(run.summary.notes) == 1


def test_what_is_learned_does_not_depend_on_what_is_said(monkeypatch):
    told = train(Nothing, until="updates=40")
    monkeypatch.setattr("levada.run.stagnation.MIN_UPDATES", 1_000)
    untold = train(Nothing, until="updates=40")
    assert len(told.summary.notes) == 1
    assert untold.summary.notes == []
    assert told.summary.params_sha256 == untold.summary.params_sha256


def test_a_run_that_learns_is_told_nothing():
    fields = {"num_envs": 8, "num_steps": 32, "num_epochs": 10, "minibatch_size": 256, "hidden_sizes": (64, 64)}
    assert train(until="steps=15_360", seed=1, anneal_steps=None, **fields).summary.notes == []


def test_a_run_whose_schedules_have_ended_is_told_both():
    ended, flat = train(Nothing, until="steps=1_920", anneal_steps=320).summary.notes
    assert ENDED in ended
    assert FLAT in flat


@pytest.mark.parametrize(
    ("config", "env", "expected"),
    [
        (PPO(), "Acrobot-v1", ["the preset of ppo for Acrobot-v1"]),
        (PPO(), "Pendulum-v1", ["the preset of ppo", "log_std_init=1"]),
        (SAC(), "Pendulum-v1", ["an algorithm with a preset for Pendulum-v1 (ppo", "log_alpha_init=2", "n_step=3"]),
        (TD3(), "Pendulum-v1", ["noise=0.3"]),
        (DQN(n_step=3), "CartPole-v1", ["the preset of dqn", "epsilon_steps=50000"]),
        (PPO(), f"{__name__}:Nothing-v0", ["entropy_coef=0.01", "normalize_obs=True", "num_steps=512", "replay (dqn)"]),
        (PPO(normalize_obs=True, entropy_coef=0.1), f"{__name__}:Nothing-v0", ["entropy_coef=0.3"]),
    ],
)
def test_advice_names_what_can_be_set(config, env, expected):
    text = advice(config, Task(env))
    for words in expected:
        assert words in text
    assert ("normalize_obs" in text) is (isinstance(config, PPO) and not config.normalize_obs)
    assert ("n_step=" in text) is (isinstance(config, SAC | TD3))


def test_a_preset_that_is_in_use_is_not_advised():
    config, _ = configure("ppo", "Acrobot-v1", {})
    assert "preset" not in advice(config, Task("Acrobot-v1"))
