"""`levada eval`."""

import json
import re
from pathlib import Path

import pytest
from support.runs import cli as cli_harness

import levada


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("eval") / "run"
    fields = cli_harness.TINY_FIELDS | {"num_steps": 128, "minibatch_size": 64}
    return levada.train(
        "ppo", "CartPole-v1", until="updates=10", seed=3, out=path, display="quiet", log="none", **fields
    )


@pytest.fixture
def shell(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    return cli_harness.Shell(capsys)


def test_the_likeliest_actions_give_the_same_each_time_and_as_from_python(shell, run):
    first, second = (shell(f"eval {run.path} --episodes 5 --json") for _ in range(2))
    assert (first.code, first.err) == (0, "")
    assert first.out == second.out
    found = json.loads(first.out)
    expected = levada.evaluate(run.path, num_episodes=5)
    assert found == {
        "run": str(run.path), "env": "CartPole-v1", "episodes": 5, "version": 10, "deterministic": True,
        "return_mean": expected.mean, "return_std": expected.std,
        "return_min": expected.returns.min(), "return_max": expected.returns.max(),
    }  # fmt: skip
    assert levada.evaluate(run, num_episodes=5).returns.tolist() == expected.returns.tolist()


def test_sampled_actions_follow_the_seed(shell, run):
    results = [shell(f"eval {run.path} --episodes 5 --stochastic --json --seed {seed}").out for seed in (0, 0, 1)]
    assert results[0] == results[1] != results[2]
    assert json.loads(results[0])["deterministic"] is False
    assert json.loads(results[0])["return_mean"] != levada.evaluate(run.path, num_episodes=5).mean


def test_what_is_printed(shell, run):
    done = shell(f"eval {run.path} --episodes 3")
    assert (done.code, done.err) == (0, "")
    assert re.fullmatch(
        r"ppo on CartPole-v1, version 10, 3 episodes, deterministic actions: return [\d.]+ \+- [\d.]+, from [\d.]+ to [\d.]+\n",
        done.out,
    )


@pytest.mark.filterwarnings("always::levada.run.storage.checkpoint.CheckpointWarning")
def test_a_killed_run_is_evaluated_from_its_newest_checkpoint(shell, run, tmp_path):
    """It has no summary.json; its config and a checkpoint are enough."""
    words = f"train ppo --env CartPole-v1 {cli_harness.TINY} --until updates=5 --checkpoint-every-updates 2 --out run --quiet"
    assert shell(words).code == 0
    Path("run/summary.json").unlink()
    (newest := Path("run/checkpoints/000000005/arrays.safetensors")).write_bytes(newest.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="000000005"):
        found = levada.load("run")
    assert (found.summary.stopped_by, found.summary.updates, found.policy.version) == ("cut off", 4, 4)
    done = shell("eval run --episodes 2")
    assert done.code == 0
    assert "version 4" in done.out
    assert done.err.startswith("levada: warning: ")
    assert done.err.count("\n") == 1


def test_a_run_on_a_callable_cannot_be_evaluated_from_its_directory(shell):
    from support.envs.small import Plain

    run = levada.train(
        "ppo", Plain, until="updates=1", out="run", display="quiet", log="none", **cli_harness.TINY_FIELDS
    )
    done = shell("eval run")
    assert (done.code, done.out) == (2, "")
    assert done.err == ("levada: run was trained on the callable Plain: give it, as in levada.load(path, env=Plain)\n")
    assert levada.evaluate(levada.load(run.path, env=Plain), num_episodes=2).returns.shape == (2,)
