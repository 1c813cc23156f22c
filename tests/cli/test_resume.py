"""`levada resume`: the run goes on as if nothing had happened."""

import errno
import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.envs import small as small_envs
from support.runs.cli import TINY, TINY_FIELDS, Shell, begin

import levada
from levada.api import LoadError
from levada.rl.learning.learner import Learner
from levada.run.storage.checkpoint import CheckpointWarning, list_checkpoints, sealed
from levada.run.storage.directory import RunDirectory, RunDirectoryError

SIZES = TINY.replace("--minibatch-size 16", "--minibatch-size 32 --shards 2 --max-lag 1")
COMMAND = f"train ppo --env CartPole-v1 {SIZES} --seed 3"


@pytest.fixture
def shell(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Shell(capsys)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The parameters after 60 updates that nobody interrupted."""
    fields = {**TINY_FIELDS, "shards": 2, "minibatch_size": 32, "max_lag": 1}
    out = tmp_path_factory.mktemp("whole") / "run"
    run = levada.train("ppo", "CartPole-v1", until="updates=60", seed=3, out=out, display="quiet", **fields)
    return run.summary


@pytest.mark.parametrize(("before", "after"), [("inline", "processes:2"), ("processes:2", "inline")])
def test_a_run_that_ended_goes_on(shell, expected, before, after):
    assert shell(f"{COMMAND} --until updates=25 --on {before} --out run --quiet").code == 0
    done = shell(f"resume run --until updates=60 --on {after}")
    assert done.code == 0
    assert f"ppo on CartPole-v1, seed 3, {after}, until updates=60" in done.err
    assert "warning" not in done.err
    summary = levada.load("run").summary
    assert summary.params_sha256 == expected.params_sha256
    for name in ("env_steps", "episodes", "updates", "return_mean_100", "flow_hash"):
        assert getattr(summary, name) == getattr(expected, name), name
    steps = [line["charts/updates"] for line in RunDirectory.open("run").metrics()]
    assert steps == list(range(1, 61))


@pytest.mark.parametrize("on", ["inline", "processes:2"])
def test_a_run_with_nothing_left_to_do_keeps_its_times(shell, on):
    assert shell(f"{COMMAND} --until updates=5 --on {on} --out run --quiet").code == 0
    before = levada.load("run").summary
    assert shell("resume run --quiet").code == 0
    after = levada.load("run").summary
    assert before.times is not None
    for name in ("times", "efficiency", "bottleneck", "advice", "updates", "params_sha256"):
        assert getattr(after, name) == getattr(before, name), name


@pytest.mark.parametrize("on", ["inline", "processes:2"])
def test_a_killed_run_goes_on_from_its_newest_checkpoint(shell, expected, tmp_path, on):
    command = f"{COMMAND} --until updates=100_000 --on {on} --checkpoint-every-updates 7 --out run --quiet"
    main = begin(command, cwd=tmp_path)
    deadline_s = time.monotonic() + 300.0
    while len(list_checkpoints("run")) < 2:
        assert main.poll() is None, main.communicate()
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    main.send_signal(signal.SIGKILL)
    main.communicate()
    saved = int(list_checkpoints("run")[-1].name)
    goal = 60 if saved < 60 else saved + 30
    done = shell(f"resume run --until updates={goal} --quiet")
    assert (done.code, done.err) == (0, "")
    if goal == 60:
        assert levada.load("run").summary.params_sha256 == expected.params_sha256
    assert levada.load("run").summary.updates == goal


def test_resuming_what_is_done_does_nothing(shell):
    shell(f"{COMMAND} --until updates=5 --out run --quiet")
    before = levada.load("run").summary
    assert shell("resume run --quiet").code == 0
    assert levada.load("run").summary.params_sha256 == before.params_sha256


def test_two_processes_do_not_run_the_same(shell, tmp_path):
    shell(f"{COMMAND} --until updates=3 --out run --quiet")
    with RunDirectory.open("run").locked():
        done = shell("resume run --until updates=5")
    assert (done.code, done.err) == (
        2,
        "levada: run is being run by another process; wait until that has ended, or end it\n",
    )
    assert shell("resume run --until updates=5 --quiet").code == 0


@pytest.mark.filterwarnings("always::levada.run.storage.checkpoint.CheckpointWarning")
def test_a_run_whose_environments_cannot_be_saved_says_so(shell):
    shell(f"train ppo --env LunarLander-v3 {TINY} --until updates=3 --out run --quiet")
    done = shell("resume run --until updates=5")
    assert done.code == 0
    assert (
        "levada: warning: run goes on, but not bit for bit as it would have: episodes start over in rollout 0 (LunarLander is "
        "pickled by its arguments (gymnasium's EzPickle), so its state would be lost)"
    ) in done.err
    assert levada.load("run").summary.updates == 5


@pytest.mark.filterwarnings("always::levada.run.storage.checkpoint.CheckpointWarning")
def test_a_run_that_was_killed_before_its_first_checkpoint_begins_anew(shell, expected, tmp_path):
    shell(f"{COMMAND} --until updates=60 --out run --quiet")
    for path in list_checkpoints("run"):
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    done = shell("resume run")
    assert "warning: run has no checkpoint: it ended before the first one was due, and starts from scratch" in done.err
    assert levada.load("run").summary.params_sha256 == expected.params_sha256


def test_an_algorithm_of_ones_own(shell, tmp_path):
    (tmp_path / "mine.py").write_text("from levada import PPO\n\n\nclass Mine(PPO):\n    pass\n")
    shell(f"train mine.py:Mine --env CartPole-v1 {TINY} --until updates=2 --out run --quiet")
    done = shell("resume run --until updates=3")
    assert "levada show --config run " in done.err
    assert "flow mine" in shell("show --config run").out


@pytest.mark.filterwarnings("always::levada.run.storage.checkpoint.CheckpointWarning")
def test_a_refused_resume_changes_nothing(shell):
    shell(f"train ppo --env CartPole-v1 {TINY} --until updates=2 --out run --quiet")
    for path in list_checkpoints("run"):
        meta = path / "meta.json"
        record = json.loads(meta.read_text().replace('"generations"', '"something"'))
        meta.write_text(json.dumps(sealed(record)))
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    done = shell("resume run --until updates=4")
    assert done.code == 2
    assert "is not the state of a run" in done.message
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before


@pytest.mark.filterwarnings("always::levada.run.storage.checkpoint.CheckpointWarning")
def test_resuming_where_nothing_can_be_written_is_refused(shell, monkeypatch):
    def refuse(path, data):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    shell(f"train ppo --env CartPole-v1 {TINY} --until updates=2 --out run --quiet")
    monkeypatch.setattr("levada.run.storage.directory.write_synced", refuse)
    done = shell("resume run --until updates=4")
    assert (done.code, "Traceback" in done.err) == (2, False)
    assert "levada: cannot write the run directory run: Read-only file system; give a directory" in done.message


def test_a_learner_that_cannot_be_saved_is_said_to_be_lost(tmp_path):
    config = Forgetful(**TINY_FIELDS)
    run = levada.train(config, "CartPole-v1", until="updates=2", out=tmp_path / "run", display="quiet")
    with pytest.warns(CheckpointWarning, match=r"what learn had learned is lost \(the learner has no state_dict\)"):
        levada.resume(run.path, until="updates=3", display="quiet", algorithm=config)


@dataclass(frozen=True, kw_only=True)
class Forgetful(levada.PPO):
    """PPO whose learner has no state_dict."""

    def flow(self, task):
        flow = super().flow(task)
        learner = flow.nodes["learn"].work
        object.__setattr__(flow.nodes["learn"], "work", ForgetfulLearner(**vars(learner)))
        return flow


class ForgetfulLearner(Learner):
    def open(self, seed):
        return Forgetting(super().open(seed))


class Forgetting:
    def __init__(self, live):
        self.live, self.update, self.weights = live, live.update, live.weights

    @property
    def num_updates(self):
        return self.live.num_updates


def test_a_changed_algorithm_is_refused(tmp_path):
    run = levada.train("ppo", small_envs.Plain, until="updates=2", out=tmp_path / "run", display="quiet", **TINY_FIELDS)
    config = levada.PPO(**{**TINY_FIELDS, "num_steps": 32})
    with pytest.raises(LoadError, match=r"was a run of another flow .* has changed since"):
        levada.resume(run.path, env=small_envs.Plain, algorithm=config)
    again = levada.resume(run.path, env=small_envs.Plain, until="updates=4", display="quiet")
    assert again.summary.updates == 4


@pytest.mark.parametrize(("command", "said"), [
    ("resume", "which run? `levada resume RUN`"),
    ("resume nowhere", "no run at 'nowhere'"),
    ("resume run --until nonsense", "nonsense"),
    ("resume run --on mars", "on='mars'"),
    ("resume run --quiet --json", "contradict"),
])  # fmt: skip
def test_bad_input(shell, command, said):
    levada.train("ppo", "CartPole-v1", until="updates=1", out="run", display="quiet", **TINY_FIELDS)
    done = shell(command)
    assert done.code == 2
    assert said in done.message


def test_the_lock_goes_with_the_process(tmp_path):
    run = levada.train("ppo", "CartPole-v1", until="updates=1", out=tmp_path / "run", display="quiet", **TINY_FIELDS)
    child = os.fork()
    if child == 0:
        with RunDirectory.open(run.path).locked():
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    first, second = (RunDirectory.open(run.path) for _ in range(2))
    with first.locked(), pytest.raises(RunDirectoryError, match="another process"), second.locked():
        pass
