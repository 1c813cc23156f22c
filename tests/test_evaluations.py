"""Evaluations during training: they change nothing, are the same everywhere, and what is made of their results."""

import json
import os
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

import gymnasium
import numpy as np
import onnx
import pytest
from support.envs.multi import CartPoles
from support.runs.cli import TINY_FIELDS, Shell

import levada as lv
from levada.algorithms.checks import ConfigError
from levada.api.load import LoadError
from levada.flow.patience import listening
from levada.run.until import UntilError

PPO = TINY_FIELDS | {"shards": 2}
CASES = {
    "ppo": ("CartPole-v1", "updates=7", 3, PPO | {"normalize_obs": True, "rnn_type": "gru", "rnn_size": 4}),
    "dqn": ("CartPole-v1", "steps=300", 2, {"hidden_sizes": (8,), "learning_starts": 50, "shards": 2, "compile": False}),
    "sac": ("Pendulum-v1", "updates=5", 2, {"hidden_sizes": (8,), "learning_starts": 20, "compile": False}),
    "impala": ("CartPole-v1", "updates=7", 3, {"hidden_sizes": (8,), "num_steps": 8, "order": "admission", "compile": False}),
}  # fmt: skip


def train(algorithm="ppo", *, out, on="inline", every=3, until=None, episodes=2, env=None, **more):
    usual, end, _, fields = CASES[algorithm]
    options = {} if every is None else {"eval_every": every, "eval_episodes": episodes}
    return lv.train(
        algorithm, env or usual, until=until or end, seed=5, on=on, out=out, display="quiet", log="none",
        **options, **fields, **more,
    )  # fmt: skip


def rows(run):
    return [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]


def found(run):
    """What the metrics say of evaluations: updates so far, and all numbers of the evaluation."""
    return [
        (row["charts/updates"], {name: value for name, value in row.items() if name.startswith("eval/")})
        for row in rows(run)
        if "eval/return" in row
    ]


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """A run of 7 updates, in which versions 3 and 6 were evaluated."""
    return train(out=tmp_path_factory.mktemp("evaluated") / "run")


@pytest.mark.parametrize("algorithm", CASES)
def test_they_change_no_bit_and_are_the_same_under_every_deployment(algorithm, tmp_path):
    every = CASES[algorithm][2]
    without = train(algorithm, out=tmp_path / "without", every=None)
    runs = [train(algorithm, out=tmp_path / on, on=on, every=every) for on in ("inline", "threads:2", "processes:2")]
    assert {run.summary.params_sha256 for run in runs} == {without.summary.params_sha256}
    assert len(found(runs[0])) >= 2
    for run in runs:
        assert found(run) == found(runs[0])
        assert run.summary.evaluations == runs[0].summary.evaluations
        assert (run.summary.env_steps, run.summary.episodes) == (without.summary.env_steps, without.summary.episodes)
        assert {name: lag.max for name, lag in run.summary.lag.items()} == {
            name: lag.max for name, lag in without.summary.lag.items()
        }


def test_a_learner_elsewhere(evaluated, tmp_path):
    run = train(out=tmp_path / "run", on="processes:2,learner=worker")
    assert run.summary.params_sha256 == evaluated.summary.params_sha256
    assert found(run) == found(evaluated)
    assert run.summary.evaluations == evaluated.summary.evaluations


def test_a_result_counts_when_the_next_version_is_due(evaluated):
    first, second = found(evaluated)
    assert (first[0], first[1]["eval/version"], first[1]["eval/env_steps"]) == (6, 3, 3 * 64)
    assert (second[0], second[1]["eval/version"]) == (7, 6)  # the end of the run
    assert set(first[1]) == {f"eval/{name}" for name in ("return", "return_std", "length", "version", "env_steps")}
    by_update = {row["charts/updates"]: row["step"] for row in rows(evaluated)}
    assert first[1]["eval/env_steps"] == by_update[3]


def test_the_numbers_are_those_of_the_saved_policy(evaluated):
    last = evaluated.summary.evaluations["eval"]
    best = lv.load(evaluated.path, checkpoint="best")
    assert best.policy.version == last.best_version
    seed = lv.flow.derive_seed(5, "eval", last.best_version)
    again = lv.evaluate(evaluated.path, checkpoint="best", num_episodes=2, seed=seed)
    assert again.mean == last.best_return_mean == max(row[1]["eval/return"] for row in found(evaluated))


def test_the_summary_says_the_last_and_the_best(evaluated):
    last, [(_, first), (_, second)] = evaluated.summary.evaluations["eval"], found(evaluated)
    assert (last.version, last.env_steps) == (6, 6 * 64)
    assert (last.return_mean, last.return_std, last.length_mean) == tuple(
        second[f"eval/{name}"] for name in ("return", "return_std", "length")
    )
    assert last.best_version == (6 if second["eval/return"] > first["eval/return"] else 3)
    assert "eval return" in str(evaluated)
    assert f"(version {last.best_version})" in str(evaluated)


def test_a_run_that_goes_on_evaluates_as_if_it_had_not_been_interrupted(tmp_path):
    whole = train(out=tmp_path / "whole", until="updates=10")
    for half in (4, 5):
        first = train(out=tmp_path / f"half{half}", until=f"updates={half}")
        again = lv.resume(first.path, until="updates=10", display="quiet", on="threads:1" if half == 4 else None)
        assert again.summary.params_sha256 == whole.summary.params_sha256
        assert [numbers for _, numbers in found(again)] == [numbers for _, numbers in found(whole)]
        assert again.summary.evaluations == whole.summary.evaluations
        assert lv.load(again.path, checkpoint="best").policy.version == whole.summary.evaluations["eval"].best_version


def test_a_killed_run_evaluates_as_if_it_had_not_been_killed(tmp_path):
    whole = train(out=tmp_path / "whole", until="updates=9", checkpoint_every_updates=1)
    killed = train(out=tmp_path / "killed", until="updates=6", checkpoint_every_updates=2, on="processes:1")
    for name in ("summary.json", "checkpoints/000000006/meta.json"):
        (killed.path / name).unlink()
    shutil.rmtree(killed.path / "checkpoints/000000006")
    again = lv.resume(killed.path, until="updates=9", display="quiet")
    assert found(again) == found(whole)
    assert again.summary.evaluations == whole.summary.evaluations


def test_a_run_ends_when_an_evaluation_reaches_a_return(tmp_path):
    run = train(out=tmp_path / "run", until="eval_return=1 updates=20")
    assert (run.summary.stopped_by, run.summary.updates) == ("eval_return=1", 6)
    with_threads = train(out=tmp_path / "threads", until="eval_return=1 updates=20", on="threads:2")
    assert with_threads.summary.params_sha256 == run.summary.params_sha256


def test_a_run_ends_on_a_plateau(tmp_path):
    """Version 2 is the best, because all returns are the same: 3 and more evaluations without a higher one."""
    run = train(out=tmp_path / "run", env=lv.Task(Constant), until="plateau=3 updates=50", every=2)
    assert (run.summary.stopped_by, run.summary.updates) == ("plateau=3", 10)
    assert run.summary.evaluations["eval"].best_version == 2


def test_conditions_about_evaluations_need_some(tmp_path):
    for until in ("eval_return=3", "plateau=3 steps=100"):
        with pytest.raises(ConfigError, match="is about evaluations, and there are none: train with --eval-every"):
            train(out=tmp_path / "none", every=None, until=until)
    with pytest.raises(UntilError, match="plateau=0 must be positive"):
        train(out=tmp_path / "none", until="plateau=0")
    run = train(out=tmp_path / "run", every=None, until="updates=1")
    with pytest.raises(ConfigError, match="is about evaluations"):
        lv.resume(run.path, until="eval_return=3")


def test_cartpole_is_learned_until_an_evaluation_says_so(tmp_path):
    run = lv.train(
        "ppo", "CartPole-v1", until="eval_return=150 steps=40_000", seed=1, eval_every=5, eval_episodes=8, out=tmp_path / "run",
        display="quiet", log="none",
    )  # fmt: skip
    assert run.summary.stopped_by == "eval_return=150"
    assert lv.evaluate(run.path, checkpoint="best", num_episodes=8).mean >= 100


def test_the_best_checkpoint_is_kept_at_a_url(tmp_path):
    run = train(out="memory://evaluated/run")
    best = run.summary.evaluations["eval"].best_version
    assert lv.load("memory://evaluated/run", checkpoint="best").policy.version == best
    again = lv.resume("memory://evaluated/run", until="updates=13", display="quiet")
    best = again.summary.evaluations["eval"].best_version
    del run, again
    assert lv.load("memory://evaluated/run", checkpoint="best").policy.version == best


# ---- environments


class Constant(gymnasium.Env):
    """Three steps, each with the same reward."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, reward=5.0, size=2):
        self.reward = reward
        if size != 2:
            self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (size,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.num_steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.num_steps += 1
        return np.zeros(2, np.float32), self.reward, self.num_steps == 3, False, {}


def test_returns_are_raw_and_the_environment_may_be_another(tmp_path):
    clipped = train(out=tmp_path / "clipped", env=lv.Task(Constant, reward_clip=1.0))
    assert clipped.summary.evaluations["eval"].return_mean == 15.0
    assert clipped.summary.evaluations["eval"].length_mean == 3.0
    other = train(out=tmp_path / "other", env=lv.Task(Constant), eval_env_kwargs={"reward": 2.0})
    assert other.summary.evaluations["eval"].return_mean == 6.0
    assert other.summary.return_mean_100 == 15.0


def test_an_environment_with_other_spaces_is_refused(tmp_path):
    with pytest.raises(
        ConfigError, match=r"eval_env_kwargs \{'size': 3\} make other observations than the policy was trained"
    ):
        train(out=tmp_path / "run", env=lv.Task(Constant), eval_env_kwargs={"size": 3})
    assert not (tmp_path / "run").exists()


@dataclass
class Fragile:
    """Makes environments; those of evaluations break."""

    marker: str = ""
    what: str = ""

    def __call__(self, what=""):
        env = Constant()
        if what == "raise":
            env.step = self.fail
        if what == "kill" and not Path(self.marker).exists():
            env.step = self.kill
        return env

    def fail(self, action):
        raise OverflowError("the pole is too long")

    def kill(self, action):
        Path(self.marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("on", ["inline", "processes:1"])
def test_an_environment_that_fails_ends_the_run_with_its_own_error(on, tmp_path):
    with pytest.raises(OverflowError, match="the pole is too long") as caught:
        train(out=tmp_path / "run", env=lv.Task(Fragile()), on=on, eval_env_kwargs={"what": "raise"})
    assert caught.traceback[-1].name == "fail"
    assert any("in node 'eval' of flow 'ppo', which evaluates version 3" in note for note in caught.value.__notes__)
    assert any("what was learned in" in note for note in caught.value.__notes__)
    assert lv.load(tmp_path / "run", env=lv.Task(Fragile())).policy.version >= 2


def test_a_killed_evaluator_changes_nothing(evaluated, tmp_path, caplog):
    env = lv.Task(Fragile(str(tmp_path / "killed")))
    whole = train(out=tmp_path / "whole", env=env)
    run = train(out=tmp_path / "run", env=env, on="processes:1", eval_env_kwargs={"what": "kill"})
    assert "the process of the evaluations ended by SIGKILL" in caplog.text
    assert run.summary.params_sha256 == whole.summary.params_sha256
    assert found(run) == found(whole)


def test_sampled_actions(evaluated, tmp_path):
    run = train(out=tmp_path / "run", eval_stochastic=True)
    assert run.summary.params_sha256 == evaluated.summary.params_sha256
    assert found(run) != found(evaluated)


# ---- refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eval_every": 0}, "eval_every"),
        ({"eval_every": 2, "eval_episodes": 0}, "eval_episodes"),
        ({"eval_every": 2, "eval_env_kwargs": [1]}, r"eval_env_kwargs=\[1\]: expected a mapping from names to values"),
        ({"eval_every": 2, "eval_stochastic": "yes"}, "eval_stochastic"),
        ({"eval_episodes": 3}, "eval_episodes is of evaluations, and there are none: add --eval-every 10"),
        ({"eval_env_kwargs": {"a": 1}}, "eval_env_kwargs is of evaluations, and there are none"),
    ],
)
def test_invalid_options_are_refused(options, message, tmp_path):
    with pytest.raises((ValueError, TypeError), match=message):
        lv.train("ppo", "CartPole-v1", out=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_several_agents_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="eval_every: this run has several agents"):
        lv.train("ippo", CartPoles, eval_every=2, out=tmp_path / "run", display="quiet")


def test_the_best_checkpoint_is_handed_on(evaluated, tmp_path):
    best = evaluated.summary.evaluations["eval"].best_version
    exported = lv.export(evaluated.path, tmp_path / "policy.onnx", checkpoint="best")
    assert {each.key: each.value for each in onnx.load(exported.path).metadata_props}["updates"] == str(best)
    lv.push(evaluated.path, "user/name", out=tmp_path / "pushed", num_episodes=0)
    assert lv.load(tmp_path / "pushed", checkpoint="best", trust=True).policy.version == best
    with pytest.raises(LoadError, match="checkpoint and at are for the directory of a run"):
        lv.export(evaluated, checkpoint="best")


def test_an_evaluation_that_takes_long_is_announced_inline(monkeypatch, tmp_path):
    monkeypatch.setattr("levada.runners.evaluators.place.QUIET_S", 0.0)
    heard: list[str] = []
    with listening(heard.append):
        train(out=tmp_path / "run", until="updates=3")
    assert "evaluating, in node eval" in heard


def test_without_evaluations_there_is_no_best_checkpoint(tmp_path):
    run = train(out=tmp_path / "run", every=None, until="updates=1")
    assert run.summary.evaluations == {}
    with pytest.raises(LoadError, match="has no best checkpoint: runs with --eval-every keep one"):
        lv.load(run.path, checkpoint="best")
    with pytest.raises(LoadError, match="has no checkpoint='worst'"):
        lv.load(run.path, checkpoint="worst")


def test_a_torn_best_checkpoint_is_refused(evaluated, tmp_path):
    shutil.copytree(evaluated.path, tmp_path / "run")
    [arrays] = (tmp_path / "run/checkpoints/best").rglob("arrays.safetensors")
    arrays.write_bytes(b"")
    with pytest.raises(ValueError, match=r"is torn: arrays\.safetensors has 0 bytes"):
        lv.load(tmp_path / "run", checkpoint="best")


# ---- the command line


@pytest.fixture
def shell(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    return Shell(capsys)


def test_the_command_line(shell, evaluated):
    fields = (
        "--shards 2 --num-envs 2 --num-steps 16 --minibatch-size 16 --num-epochs 1 --hidden-sizes 8 --compile False"
    )
    same = f"{fields} --normalize-obs --rnn-type gru --rnn-size 4 --seed 5 --eval-every 3"
    done = shell(
        f"train ppo --env CartPole-v1 --until updates=7 --out run {same} --eval-episodes 2 --log none "
        "--eval-env-kwargs max_episode_steps=500 --json"
    )
    assert done.code == 0, done.err
    summary = json.loads(done.out.splitlines()[-1])
    assert summary["params_sha256"] == evaluated.summary.params_sha256
    assert summary["evaluations"]["eval"]["version"] == 6
    settings = json.loads(Path("run/config.json").read_text())["settings"]
    assert settings["eval_env_kwargs"] == {"value": {"max_episode_steps": 500}, "from": "command line"}
    played = shell("eval run --checkpoint best --episodes 2 --json")
    assert json.loads(played.out)["version"] == summary["evaluations"]["eval"]["best_version"]
    assert shell("eval run --checkpoint worst").code == 2
    again = shell("train --config run --out again --until updates=7 --json")
    assert json.loads(again.out.splitlines()[-1])["evaluations"] == summary["evaluations"]
    assert "eval (evaluate every 3 updates)" in shell("show --config run").out
    assert "eval (evaluate every 4 updates)" in shell("show ppo --env CartPole-v1 --eval-every 4").out
