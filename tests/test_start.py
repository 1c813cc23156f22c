"""Runs that start from another one's weights or settings, and runs whose code or environment lies elsewhere now."""

import json
import re
import shutil
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from support.runs import cli as cli_harness
from support.runs import hostile

import levada
from levada.api import LoadError
from levada.rl.learning.starting import StartError
from levada.run.storage.checkpoint import newest

TINY = {**cli_harness.TINY_FIELDS, "log": "none", "display": "quiet"}
SAC = {
    "learning_starts": 20, "batch_size": 8, "num_gradient_steps": 2, "samples_per_insert": 8.0, "hidden_sizes": (8,),
    "compile": False,
    "buffer_size": 1000, "log": "none", "display": "quiet",
}  # fmt: skip

ENV_FILE = """
import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

class Own(gymnasium.Env):
    observation_space = Box(-1.0, 1.0, (2,))
    action_space = Discrete(2)

    def __init__(self, length=4, width=2):
        self.length, self.observation_space = length, Box(-1.0, 1.0, (width,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age = 0
        return self.np_random.uniform(-1, 1, self.observation_space.shape).astype(np.float32), {}

    def step(self, action):
        self.age += 1
        obs = self.np_random.uniform(-1, 1, self.observation_space.shape).astype(np.float32)
        return obs, 0.96 / self.length, self.age == self.length, False, {}

def make_own(length=4):
    return Own(length)

if "Own-v0" not in gymnasium.registry:
    gymnasium.register(id="Own-v0", entry_point=Own)
"""


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """In a directory of its own, without what was imported from there staying behind."""
    monkeypatch.chdir(tmp_path)
    before, path = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    gymnasium.registry.pop("Own-v0", None)
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def forget(module):
    """As a new process would not know it."""
    sys.modules.pop(module, None)
    gymnasium.registry.pop("Own-v0", None)


@pytest.fixture
def shell(capfd):
    return cli_harness.Shell(capfd)


def weights_of(path):
    return {
        name: array
        for name, array in newest(path).arrays.items()
        if name.startswith("learners/") and ("weights/" in name or "step/params" in name)
    }


# ---- from another run's weights


@pytest.mark.parametrize(("algorithm", "on"), [("ppo", "inline"), ("ppo", "processes:1"), ("sac", "inline")])
def test_a_run_starts_from_the_weights_of_another(algorithm, on):
    """A learning rate of nearly 0 leaves them as they are; optimizer and counts are new."""
    env, fields = ("CartPole-v1", {**TINY, "normalize_obs": True}) if algorithm == "ppo" else ("Pendulum-v1", SAC)
    first = levada.train(algorithm, env, until="updates=3", seed=1, out="first", **fields)
    second = levada.train(
        algorithm, env, until="updates=1", seed=2, out="second", init_from=first.path, on=on,
        **{**fields, "learning_rate": 1e-30, **({"anneal_steps": None} if algorithm == "ppo" else {})},
    )  # fmt: skip
    was, now = weights_of("first"), weights_of("second")
    learned = [name for name in was if "normalizer" not in name]
    assert learned
    for name in learned:
        np.testing.assert_array_equal(was[name], now[name])
    if algorithm == "ppo":  # the statistics go on from what they were
        counts = [name for name in was if name.endswith("count")]
        assert all(now[name] > was[name] for name in counts)
    assert second.policy.version == second.summary.updates == 1
    assert json.loads((second.path / "config.json").read_text())["settings"]["init_from"]["value"] == str(first.path)


def test_the_same_seed_from_the_same_weights_is_the_same_run_and_is_resumed_bit_for_bit():
    levada.train("ppo", "CartPole-v1", until="updates=2", seed=1, out="first", **TINY)
    options = {"init_from": "first", "seed": 5, **TINY}
    whole = levada.train("ppo", "CartPole-v1", until="updates=4", out="whole", **options)
    levada.train("ppo", "CartPole-v1", until="updates=2", out="half", **options)
    assert (
        levada.resume("half", until="updates=4", display="quiet").summary.params_sha256 == whole.summary.params_sha256
    )
    other = levada.train("ppo", "CartPole-v1", until="updates=4", out="other", **{**options, "init_from": None})
    assert other.summary.params_sha256 != whole.summary.params_sha256
    shutil.rmtree("half/checkpoints")  # as if it had been killed before the first one
    (levada.load("whole").path / "checkpoints").rename("kept")
    (Path("half") / "checkpoints").mkdir()
    with pytest.warns(UserWarning, match="starts from scratch"):
        again = levada.resume("half", until="updates=4", display="quiet")
    assert again.summary.params_sha256 == whole.summary.params_sha256


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"hidden_sizes": (16,)}, r"network\.policy\.0\.weight is \(8, 4\), expected \(16, 4\)"),
        ({"hidden_sizes": (8, 8)}, "is missing"), ({"normalize_obs": True}, "is missing"),
    ],
)  # fmt: skip
def test_other_networks_are_refused_before_anything_starts(fields, said):
    levada.train("ppo", "CartPole-v1", until="updates=1", out="first", **TINY)
    with pytest.raises(StartError, match=said) as refused:
        levada.train("ppo", "CartPole-v1", out="second", init_from="first", **{**TINY, **fields})
    assert "the networks of ppo on CartPole-v1 do not fit learner 'learn' of 'ppo'" in str(refused.value)
    assert not Path("second").exists()


def test_a_critic_of_another_kind_and_another_algorithm_are_refused():
    levada.train("sac", "Pendulum-v1", until="updates=1", out="first", **SAC)
    with pytest.raises(StartError, match="do not fit"):
        levada.train("td3", "Pendulum-v1", out="second", init_from="first", **SAC)
    shutil.rmtree("first/checkpoints")
    with pytest.raises(LoadError, match="no valid checkpoint"):
        levada.train("sac", "Pendulum-v1", out="second", init_from="first", **SAC)


# ---- with another run's settings


def test_a_run_is_done_again_from_its_settings(shell):
    done = shell(
        f"train ppo --env CartPole-v1 --env-kwargs sutton_barto_reward=true {cli_harness.TINY} --until updates=2 --seed 7 "
        "--frame-stack 2 --learning-rate 1e-3 --log none --quiet --out first"
    )
    assert (done.code, done.err) == (0, "")
    sha = levada.load("first").summary.params_sha256
    again = levada.train(**levada.settings("first/config.json"), out="python", display="quiet")
    assert again.summary.params_sha256 == sha
    assert shell("train --config first/config.json --quiet --out cli").code == 0
    assert shell("train ppo --config=first --quiet --out named").code == 0
    assert {levada.load(path).summary.params_sha256 for path in ("cli", "named")} == {sha}
    written = json.loads(Path("cli/config.json").read_text())["settings"]
    assert written["learning_rate"] == {"value": 1e-3, "from": "config"}
    assert {written[name]["from"] for name in ("until", "seed", "frame_stack", "env_kwargs")} == {"config"}


def test_what_stands_beside_the_settings_goes_before(shell):
    levada.train("ppo", "CartPole-v1", until="updates=2", seed=7, out="first", **TINY)
    assert shell("train --config first --seed 8 --until updates=1 --hidden-sizes 4 --quiet --out cli").code == 0
    written = json.loads(Path("cli/config.json").read_text())["settings"]
    assert [written[name]["value"] for name in ("seed", "until", "hidden_sizes", "num_envs")] == [
        8,
        "updates=1",
        [4],
        2,
    ]
    assert [written[name]["from"] for name in ("seed", "hidden_sizes", "num_envs")] == [
        "command line",
        "command line",
        "config",
    ]
    python = levada.train(
        **{**levada.settings("first"), "seed": 8, "until": "updates=1", "hidden_sizes": (4,)},
        out="python",
        display="quiet",
    )
    assert python.summary.params_sha256 == levada.load("cli").summary.params_sha256
    elsewhere = shell("train --config first --env Acrobot-v1 --quiet --out other --until updates=1")
    assert (elsewhere.code, levada.load("other").summary.env) == (0, "Acrobot-v1")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("train dqn --config first", "is of ppo, not of dqn; leave the algorithm out"), ("train --config", "without a file"),
        ("train --config nowhere", "there is no run at 'nowhere'"), ("train --config first --lag", "max"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_used(shell, command, said):
    levada.train("ppo", "CartPole-v1", until="updates=1", out="first", **TINY)
    done = shell(command)
    assert done.code == 2
    assert said in done.message


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("num_envs", "2", "num_envs of PPO was saved as '2', which cannot be read back (Expected `int`, got `str`)"),
        ("num_envs", 2.0, "num_envs of PPO was saved as 2.0, which cannot be read back (Expected `int`, got `float`)"),
        ("learning_rate", "1e-3", "Expected `float`, got `str`"), ("normalize_obs", "true", "Expected `bool`, got `str`"),
        ("learning_rate", "inf", "PPO(learning_rate=inf): expected a finite number > 0"),
        ("seed", 2.0, "seed=2.0: expected an integer >= 0"),
        ("nun_envs", 2, "config.json has 'nun_envs', which is no setting of PPO; did you mean 'num_envs'?"),
        ("clip", 0.2, "config.json has 'clip', which is no setting of PPO: here it is 'clip_range'"),
        ("tau", 0.1, "config.json has 'tau', which is no setting of PPO: dqn, sac, td3 and others have it"),
    ],
)  # fmt: skip
def test_settings_are_read_as_strictly_as_arguments(shell, name, value, said):
    levada.train("ppo", "CartPole-v1", until="updates=1", out="first", **TINY)
    hostile.edit_config(Path("first"), lambda settings: settings.update({name: value}))
    done = shell("train --config first/config.json --quiet --out second")
    assert (done.code, Path("second").exists()) == (2, False)
    assert said in done.message
    with pytest.raises(ValueError, match=re.escape(said)):
        levada.settings("first")
    if name != "seed":
        with pytest.raises(ValueError, match=re.escape(said)):
            levada.load("first")


def test_an_integer_is_read_as_a_float():
    levada.train("ppo", "CartPole-v1", until="updates=1", out="first", **TINY)
    hostile.edit_config(Path("first"), lambda settings: settings.update(discount=1, max_grad_norm=2))
    config = levada.settings("first")["algorithm"]
    assert (repr(config.discount), repr(config.max_grad_norm)) == ("1.0", "2.0")


# ---- an environment in a file; code that has moved


def test_an_environment_in_a_file_is_trained_on_loaded_and_resumed(shell, tmp_path):
    (tmp_path / "own.py").write_text(ENV_FILE)
    command = f"{cli_harness.TINY} --until updates=1 --log none --quiet"
    assert shell(f"train ppo --env own.py:Own --env-kwargs length=3 {command} --out run").code == 0
    assert shell("resume run --until updates=2 --quiet").code == 0
    assert shell("check ppo --env own.py:Own --env-kwargs length=3").code == 0
    done = shell("eval run --episodes 3")
    assert done.code == 0
    assert (
        "ppo on own.py:Own, version 2, 3 episodes, deterministic actions: return 0.960 +- 0.0, from 0.960 to 0.960"
        in done.out
    )
    assert shell(f"train ppo --env own.py:make_own {command} --vectorization sync --out made").code == 0
    for env, said in {
        "own.py:Other": "no class or function 'Other'",
        "gone.py:Own": "there is no file 'gone.py'",
    }.items():
        done = shell(f"train ppo --env {env} {command} --out refused")
        assert done.code == 2
        assert said in done.message
    assert (
        "vector_entry_point"
        in shell(f"train ppo --env own.py:Own --vectorization vector_entry_point {command}").message
    )


@pytest.mark.parametrize("env", ["own_envs:Own-v0", "own_envs.py:Own"])
def test_a_run_whose_environment_lies_elsewhere_is_found_again(shell, tmp_path, monkeypatch, env):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "own_envs.py").write_text(ENV_FILE)
    monkeypatch.chdir("there")
    command = f"train ppo --env {env} {cli_harness.TINY} --until updates=1 --log none --quiet --out ../run"
    assert shell(command).code == 0
    monkeypatch.chdir(tmp_path)
    forget("own_envs")
    done = shell("eval run --episodes 2")
    assert done.code == 2
    assert "if it is elsewhere now, say where: --at DIR, in Python at=DIR" in done.message
    assert shell("eval run --episodes 2 --at there").code == 0
    forget("own_envs")
    assert shell("resume run --until updates=2 --quiet --at there").code == 0
    forget("own_envs")
    assert levada.evaluate("run", num_episodes=2, at="there").version == 2
    assert "is no directory" in shell("eval run --at nowhere").message


def test_an_algorithm_whose_file_has_moved_is_found_again(shell, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom levada import PPO\n\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Mine(PPO):\n    pass\n"
    )
    command = f"--env CartPole-v1 {cli_harness.TINY} --until updates=1 --log none --quiet --out run"
    assert shell(f"train mine.py:Mine {command}").code == 0
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "mine.py").rename(tmp_path / "elsewhere" / "mine.py")
    forget("mine")
    assert "--at DIR" in shell("eval run --episodes 1").message
    assert shell("eval run --episodes 1 --at elsewhere").code == 0


# ---- another checkpoint, other keyword arguments


def test_a_checkpoint_is_chosen_by_its_number_of_updates(shell):
    levada.train("ppo", "CartPole-v1", until="updates=4", out="run", checkpoint_every_updates=2, **TINY)
    assert levada.load("run", checkpoint=2).policy.version == 2
    assert levada.load("run", checkpoint=2).summary.updates == 2
    assert levada.load("run", checkpoint=4).summary == levada.load("run").summary
    assert levada.evaluate("run", num_episodes=1, checkpoint=2).version == 2
    assert json.loads(shell("eval run --episodes 1 --checkpoint 2 --json").out)["version"] == 2
    done = shell("eval run --checkpoint 3")
    assert done.code == 2
    assert "has no checkpoint=3, expected the number of updates of one that was kept: 2, 4" in done.message
    with pytest.raises(LoadError, match="for the directory of a run"):
        levada.evaluate(levada.load("run"), checkpoint=2)


def test_an_environment_is_evaluated_with_other_keyword_arguments(shell, tmp_path):
    (tmp_path / "own.py").write_text(ENV_FILE)
    run = levada.train("ppo", "own.py:Own", until="updates=1", out="run", **TINY)
    assert levada.evaluate(run, num_episodes=2).episodes[0].length == 4
    assert levada.evaluate(run, num_episodes=2, env_kwargs={"length": 9}).episodes[0].length == 9
    assert "3 episodes" in shell("eval run --episodes 3 --env-kwargs length=9").out
    done = shell("eval run --env-kwargs width=3")
    assert done.code == 2
    assert "make other observations than the policy was trained for" in done.message
    assert "expected name=value" in shell("eval run --env-kwargs length").message
