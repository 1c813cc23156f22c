"""What a user's program and environments do beside training: print, fork, change directory, train in several threads."""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
import torch
from support.envs import small as small_envs
from support.runs import cli as cli_harness
from support.runs.cli import TINY, TINY_FIELDS, Shell

import levada as lv
from levada.algorithms.checks import ConfigError
from levada.flow import DeploymentError, Flow, Queue
from levada.run.display.stdout import reserved_stdout
from levada.run.storage.directory import RunDirectoryError
from levada.runners import Inline
from levada.runners.firing import WorkError

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(HERE)


def in_a_process(script: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Run a script as a user does."""
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    Path("script.py").write_text(script)
    return subprocess.run(
        [sys.executable, "script.py", *args], capture_output=True, text=True, timeout=600, check=False,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


# ---- printing


@pytest.mark.parametrize("on", ["inline", "processes:1"])
def test_with_json_each_line_on_stdout_is_an_object_whatever_an_environment_prints(on):
    """By Python, by descriptor, by a process that it starts."""
    command = f"train ppo --env support.envs.small:SmallChatty-v0 {TINY} --until updates=2 --json --out run --on {on}"
    process = cli_harness.begin(command, cwd=Path.cwd())
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    lines = [json.loads(line) for line in out.splitlines()]
    assert lines[0]["type"] == "start" and lines[-1]["type"] == "summary"
    assert "said by Python" in err and "said by descriptor" in err


def test_eval_json_is_one_object(capfd):
    assert (
        Shell(capfd)(f"train ppo --env support.envs.small:SmallChatty-v0 {TINY} --until updates=1 --out run").code == 0
    )
    process = cli_harness.begin("eval run --episodes 1 --json", cwd=Path.cwd())
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert json.loads(out)["episodes"] == 1
    assert "said by Python" in err


def test_stdout_is_given_back(capfd):
    with reserved_stdout() as stdout:
        print("theirs")
        print("ours", file=stdout)
    print("after")
    assert capfd.readouterr() == ("ours\nafter\n", "theirs\n")


def test_standard_output_that_is_closed_is_reserved_for_nobody():
    done = in_a_process("""
import os, sys
from levada.run.display.stdout import reserved_stdout
os.close(1)
with reserved_stdout():
    print("said", file=sys.stderr)
os._exit(0)
""")
    assert (done.returncode, done.stderr) == (0, "said\n")


def test_json_for_a_disk_that_is_full_does_not_end_the_run():
    with open("/dev/full", "w") as full:
        process = cli_harness.begin(
            f"train ppo --env CartPole-v1 {TINY} --until updates=2 --json --out run", cwd=Path.cwd(), stdout=full
        )
        _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert err.strip() == "levada: warning: nothing more is shown, for it cannot be written: No space left on device"
    assert json.loads(Path("run/summary.json").read_text())["updates"] == 2


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("step", "reports a metric 'step', which is the number of env steps"),
        ("a\udc80", "no valid Unicode"),
        (7, "got the name 7 (int), expected text"),
    ],
)
def test_a_metric_that_cannot_be_written_is_refused_where_it_is_reported(name, said):
    flow = Flow("metrics")
    flow.report(flow.map("stats", lambda number: {name: float(number)}, flow.source("count", _numbers).via(_FREE)))
    with Inline().open(flow) as run, pytest.raises(WorkError, match=f"node 'report' .*{re.escape(said)}"):
        next(iter(run))


_FREE = Queue(max_lag=None, capacity=2)


def _numbers(shard):
    return lambda weights: 1


# ---- directories


@pytest.mark.parametrize("when", ["init", "step"])
def test_an_environment_that_changes_the_directory_does_not_move_the_run(when, capfd):
    done = Shell(capfd)(
        f"train ppo --env support.envs.small:SmallWandering-v0 --env-kwargs when={when} {TINY} --until updates=2 --out run"
    )
    assert done.code == 0, done.err
    os.chdir(Path(small_envs.Wandering.began_in))
    assert json.loads(Path("run/summary.json").read_text())["updates"] == 2


def test_a_run_goes_where_it_is_told_although_the_working_directory_is_gone(tmp_path):
    (tmp_path / "gone").mkdir()
    os.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    options = {"until": "updates=1", "display": "quiet", "log": "none", **TINY_FIELDS}
    assert lv.train("ppo", "CartPole-v1", out=tmp_path / "run", **options).summary.updates == 1
    with pytest.raises(RunDirectoryError, match="the working directory was removed; change to another one"):
        lv.train("ppo", "CartPole-v1", **options)


@pytest.mark.parametrize(("switch", "back", "said"), [
    (lambda: torch.set_default_dtype(torch.float64), lambda: torch.set_default_dtype(torch.float32), "dtype is torch.float64"),
    (lambda: torch.set_default_device("meta"), lambda: torch.set_default_device(None), "default device is meta"),
])  # fmt: skip
def test_what_torch_was_switched_to_is_refused_with_the_way_back(switch, back, said):
    switch()
    try:
        with pytest.raises(ConfigError, match=said):
            lv.train("ppo", "CartPole-v1", until="updates=1", out="run")
    finally:
        back()
    with torch.inference_mode(), pytest.raises(ConfigError, match=r"inference_mode\(\) is on"):
        lv.train("ppo", "CartPole-v1", until="updates=1", out="run")
    assert not Path("run").exists()


def test_a_script_from_standard_input_is_told_to_be_a_file():
    script = 'import levada as lv\nlv.train("ppo", "CartPole-v1", until="updates=1", on="processes:1", out="run")\n'
    done = subprocess.run([sys.executable, "-"], input=script, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 1
    assert "DeploymentError: the script is <stdin>, which is no file that workers could import" in done.stderr
    assert not Path("run").exists()


def test_a_temporary_directory_too_long_for_a_socket_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    (place := tmp_path / ("long" * 20)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    with pytest.raises(DeploymentError, match=r"characters, expected at most 75.*set TMPDIR to a shorter one"):
        lv.train("ppo", "CartPole-v1", until="updates=1", on="processes:1", display="quiet", out="run", **TINY_FIELDS)
    assert not Path("run").exists()


# ---- forks


@pytest.mark.parametrize("how", ["return", "raise", "exit"])
def test_what_an_environment_forks_inline_is_no_second_run(how):
    done = in_a_process(_FORKING, how)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2", "True"]


_FORKING = """
import sys, tempfile
import levada as lv
from support.envs import small as small_envs
if __name__ == "__main__":
    task = lv.Task("support.envs.small:SmallForking-v0", env_kwargs={"how": sys.argv[1]})
    fields = dict(num_envs=2, num_steps=16, minibatch_size=16, num_epochs=1, hidden_sizes=(8,), compile=False)
    run = lv.train("ppo", task, until="updates=2", display="quiet", out="run", checkpoint_every_updates=1, **fields)
    print(run.summary.updates, (run.path / "summary.json").exists())
"""


@pytest.mark.parametrize("how", ["os", "multiprocessing"])
def test_processes_train_in_a_program_that_has_forked(how):
    done = in_a_process(_FORKED, how)
    assert done.returncode == 0, done.stderr
    hashes = done.stdout.split()
    assert len(hashes) == 3 and len(set(hashes)) == 1


_FORKED = f"""
import multiprocessing, os, sys
import levada as lv
def one(out):
    run = lv.train("ppo", "CartPole-v1", until="updates=1", on="processes:1", display="quiet", out=out, **{TINY_FIELDS})
    print(run.summary.params_sha256, flush=True)
if __name__ == "__main__":
    one("a")
    if sys.argv[1] == "os":
        pid = os.fork()
        if pid == 0:
            one("b")
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    else:
        process = multiprocessing.get_context("fork").Process(target=one, args=("b",))
        process.start()
        process.join()
        assert process.exitcode == 0
    one("c")
"""


def test_a_run_is_free_again_though_an_environment_has_forked_a_process_that_stays():
    """The lock of the directory is not left to it."""
    task = lv.Task("support.envs.small:SmallForking-v0", env_kwargs={"how": "stay"})
    run = lv.train("ppo", task, until="updates=1", display="quiet", out="run", **TINY_FIELDS)
    assert lv.resume(run.path, until="updates=2", display="quiet").summary.updates == 2


# ---- threads


@pytest.mark.parametrize(("algorithm", "on"), [("ppo", "inline"), ("dqn", "inline"), ("ppo", "processes:1")])
def test_trainings_in_threads_of_one_process_do_not_change_each_other(algorithm, on):
    fields = {"hidden_sizes": (8,), "compile": False} if algorithm == "dqn" else TINY_FIELDS

    def learned(seed: int, out: str) -> str:
        run = lv.train(
            algorithm, "CartPole-v1", until="updates=1", seed=seed, on=on, display="quiet", out=out, **fields
        )
        return run.summary.params_sha256

    seeds = range(3)
    alone = [learned(seed, f"alone{seed}") for seed in seeds]
    for turn in range(3 if on == "inline" else 1):
        found: dict[int, str] = {}

        def learn(seed: int, turn: int = turn, found: dict[int, str] = found) -> None:
            found[seed] = learned(seed, f"turn{turn}-{seed}")

        threads = [threading.Thread(target=learn, args=(seed,)) for seed in seeds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [found.get(seed) for seed in seeds] == alone
