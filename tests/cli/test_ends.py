"""Environments that end badly, or not at all, and what becomes of a run that is done, or of one that is to stop."""

import os

import pytest
from support.runs import cli as cli_harness
from support.runs.cli import TINY, Shell

import levada
from levada.run.storage import checkpoint
from levada.run.summary import Summary

SMALL = "--num-envs 1 --num-steps 2 --minibatch-size 2 --num-epochs 1 --hidden-sizes 8 --compile False"
"""The third update is the one in which the environments of `support.envs.broken` break."""


@pytest.fixture
def shell(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Shell(capfd)


@pytest.mark.parametrize("on", ["inline,max_restarts=0", "threads:1,max_restarts=0"])
def test_a_base_exception_of_an_environment_is_an_error(shell, on):
    done = shell(
        f"train ppo --env support.envs.broken:BrokenRaisesStray-v0 {SMALL} --on {on} --until updates=9 --out run"
    )
    assert done.code == 1
    assert "levada: StrayError: Stray: lost (a BaseException that the environment" in done.message
    assert "in broken: raise Stray" in done.message
    assert "what was learned in 2 updates is saved in" in done.message
    with open("run/error.txt") as file:
        assert "support.envs.broken.Stray: lost" in file.read()


@pytest.mark.filterwarnings("always::RuntimeWarning")
def test_an_environment_that_does_not_close_is_left(shell, monkeypatch):
    monkeypatch.setattr("levada.rl.envs.batch.CLOSE_S", 0.01)
    done = shell(f"train ppo --env support.envs.broken:BrokenHangsInClose-v0 {TINY} --until updates=2 --out run")
    assert done.code == 0
    assert "close() did not return within 0.01 s, and was left" in done.message
    assert os.path.exists("run/summary.json")


@pytest.mark.filterwarnings("always::RuntimeWarning")
def test_an_environment_that_fails_to_close_does_not_undo_what_was_learned(shell):
    done = shell(f"train ppo --env support.envs.broken:BrokenFailsInClose-v0 {SMALL} --until updates=2 --out run")
    assert done.code == 0
    assert "OSError: cannot be closed; that was when the run in run was closed" in done.message


@pytest.mark.filterwarnings("always::RuntimeWarning")
def test_an_environment_that_fails_in_a_step_and_in_close_is_reported_by_its_step(shell):
    env = "support.envs.broken:BrokenRaisesAndNeverCloses-v0"
    done = shell(f"train ppo --env {env} {SMALL} --on inline,max_restarts=0 --until updates=9 --out run")
    assert done.code == 1
    assert "ValueError: lost" in done.message
    assert "what was learned in 2 updates is saved in run" in done.message
    with open("run/error.txt") as file:
        assert "ValueError: lost" in file.read()


@pytest.mark.filterwarnings("always::RuntimeWarning")
@pytest.mark.parametrize("on", ["inline", "auto", "threads:1", "processes:1"])
def test_an_environment_that_can_never_be_closed_is_trained_and_played_with(shell, on):
    done = shell(
        f"train ppo --env support.envs.broken:BrokenNeverCloses-v0 {SMALL} --until updates=2 --on {on} --out run"
    )
    assert done.code == 0
    assert (
        "warning: environment 'support.envs.broken:BrokenNeverCloses-v0': close() raised OSError: cannot be closed"
        in done.message
    )
    played = shell("eval run --episodes 1 --trust")
    assert (played.code, " 1 episode," in played.out) == (0, True)
    assert "close() raised OSError: cannot be closed" in played.message


@pytest.mark.filterwarnings("always::RuntimeWarning")
def test_sys_exit_in_close_says_where_and_ends_nothing(shell):
    done = shell(f"train ppo --env support.envs.broken:BrokenExitsInClose-v0 {SMALL} --until updates=2 --out run")
    assert done.code == 0
    assert "environment 'support.envs.broken:BrokenExitsInClose-v0': close() called sys.exit(3)" in done.message
    assert os.path.exists("run/summary.json")


@pytest.mark.parametrize("on", ["inline", "processes:1"])
def test_threads_that_an_environment_leaves_do_not_keep_the_process(tmp_path, on):
    command = f"train ppo --env support.envs.broken:BrokenLeavesThread-v0 {SMALL} --on {on} --until updates=2 --out run"
    done = cli_harness.in_process(command, cwd=tmp_path)
    assert done.code == 0
    assert "ended with threads that the environment has left running: 'forgotten'" in done.message


@pytest.mark.parametrize(("on", "num_steps"), [
    ("inline", 2), ("threads:1", 8), ("processes:1", 8), ("processes:1,learner=worker", 8),
])  # fmt: skip
def test_ctrl_c_does_not_wait_for_a_step_that_hangs(tmp_path, monkeypatch, on, num_steps):
    """Inline, in the third update; elsewhere in the first, so that the learner does nothing but wait."""
    for patience in ("run.interrupt.HUNG_S", "runners.threads.PATIENCE_S", "runners.processes.transport.PATIENCE_S"):
        monkeypatch.setattr(f"levada.{patience}", 0.2)
    fields = {
        "num_envs": 1,
        "num_steps": num_steps,
        "minibatch_size": num_steps,
        "hidden_sizes": (8,),
        "compile": False,
    }
    task = levada.Task("support.envs.broken:BrokenHangsInStep-v0", env_kwargs={"main": os.getpid()})
    with pytest.raises(KeyboardInterrupt):
        levada.train("ppo", task, until="updates=9", on=on, out=tmp_path / "run", display="quiet", **fields)
    summary = Summary.from_json((tmp_path / "run" / "summary.json").read_bytes())
    num_updates = 4 // num_steps
    assert (summary.stopped_by, summary.updates) == ("interrupted", num_updates)
    saved = checkpoint.newest(tmp_path / "run")
    assert (saved.step, saved.meta["between_updates"]) == (num_updates, False)
