"""`levada train --seeds`: a run for each seed, of which some may fail, be finished, or be interrupted."""

import json
import signal
import time
from pathlib import Path

import pytest
from support.runs import cli as cli_harness

from levada.cli.errors import UsageError
from levada.cli.folder import MAX_SEEDS, default_num_parallel, folder_of, parse_seeds
from levada.cli.jobs import take_line
from levada.cli.seeds import Seeds
from levada.run.storage.directory import RunDirectory

COMMAND = f"train ppo --env CartPole-v1 {cli_harness.TINY} --log none"


@pytest.fixture
def shell(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    return cli_harness.Shell(capsys)


@pytest.mark.parametrize("text", ["", "a", "1,", "3-1", "-1", "1-", "1.5", "²", "9" * 30])
def test_what_are_no_seeds(text):
    with pytest.raises(UsageError, match="expected integers >= 0 and ranges"):
        parse_seeds(text)


def test_too_many_seeds_and_repeated_ones():
    with pytest.raises(UsageError, match="more than 10,000 seeds"):
        parse_seeds(f"0-{MAX_SEEDS}")
    with pytest.raises(UsageError, match="seed 2 is given 2 times"):
        parse_seeds("1-3,2")
    assert len(parse_seeds(f"1-{MAX_SEEDS}")) == MAX_SEEDS


def test_num_parallel_is_what_the_cores_have_room_for(monkeypatch):
    monkeypatch.setattr("levada.cli.folder.num_cores", lambda: 8)
    places = {"inline": 8, "processes:2": 4, "processes": 1, "threads:4": 2, "auto": 1}
    assert {on: default_num_parallel(on, 1) for on in places} == places
    assert default_num_parallel("inline", 3) == 2


def test_each_seed_is_a_run_and_the_command_again_goes_on(shell, tmp_path):
    single = shell(f"{COMMAND} --until updates=2 --seed 1 --quiet --out single")
    done = shell(f"{COMMAND} --until updates=2 --seeds 1-2 --out 'my rüns'")
    assert (single.code, done.code) == (0, 0)
    folder = tmp_path / "my rüns"
    summaries = {seed: RunDirectory.open(folder / f"seed-{seed}").summary() for seed in (1, 2)}
    assert summaries[1].params_sha256 == RunDirectory.open(tmp_path / "single").summary().params_sha256
    head, *rows, mean, where = done.out.splitlines()
    assert head.split() == ["seed", "return", "seconds", "state"]
    assert [row.split()[::3] for row in rows] == [["1", "finished"], ["2", "finished"]]
    returns = [summary.return_mean_100 for summary in summaries.values()]
    assert mean == f"interquartile mean of the returns of 2 runs: {sum(returns) / 2:.2f}"
    assert where == "The runs lie in my rüns."
    assert "seed 1: started" in done.err and "seed 2: finished" in done.err

    # one was interrupted, and one has not begun
    (folder / "seed-2" / "summary.json").unlink()
    before = (folder / "seed-1" / "summary.json").read_bytes()
    again = shell(f"{COMMAND} --until updates=2 --seeds 1-2 --json --out 'my rüns'")
    assert again.code == 0
    assert [(line["seed"], line["state"]) for line in map(json.loads, again.out.splitlines())] == [
        (1, "finished"),
        (2, "finished"),
    ]
    assert (folder / "seed-1" / "summary.json").read_bytes() == before
    assert RunDirectory.open(folder / "seed-2").summary().params_sha256 == summaries[2].params_sha256

    other = shell(f"{COMMAND} --until updates=3 --seeds 1-2 --out 'my rüns'")
    assert other.code == 2
    assert "holds the runs of another command" in other.message and "--until updates=2" in other.message


def test_a_seed_that_fails_does_not_stop_the_others(shell, tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "command.json").write_bytes(
        json.dumps(f"{COMMAND} --until updates=1".split()[1:], separators=(",", ":")).encode()
    )
    (tmp_path / "runs" / "seed-1").mkdir()
    (tmp_path / "runs" / "seed-1" / "thesis.tex").write_text("not a run")
    done = shell(f"{COMMAND} --until updates=1 --seeds 1-2 --num-parallel 2 --out runs")
    assert done.code == 1
    assert "seed 1: failed: exit code 2, see runs/seed-1.log" in done.err
    assert [line.split()[-1] for line in done.out.splitlines()[1:3]] == ["failed", "finished"]
    assert "runs/seed-1 holds other files (thesis.tex)" in (tmp_path / "runs" / "seed-1.log").read_text()


def test_ctrl_c_ends_all_runs_saved(tmp_path):
    process = cli_harness.begin(
        f"{COMMAND} --until steps=100_000_000 --seeds 1-3 --num-parallel 2 --checkpoint-every-updates None --out runs",
        cwd=tmp_path,
    )
    begun = [tmp_path / "runs" / f"seed-{seed}" / "metrics.jsonl" for seed in (1, 2)]
    deadline_s = time.monotonic() + 300
    while not all(path.exists() and path.stat().st_size for path in begun):
        assert process.poll() is None and time.monotonic() < deadline_s, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    assert [line.split()[-1] for line in out.splitlines()[1:4]] == ["interrupted"] * 3
    for seed in (1, 2):
        directory = RunDirectory.open(tmp_path / "runs" / f"seed-{seed}")
        summary = directory.summary()
        assert (summary.stopped_by, directory.steps()) == ("interrupted", (summary.updates,))
    assert not (tmp_path / "runs" / "seed-3").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--seeds 1-2 --seed 3", "--seed and --seeds contradict each other"),
        ("--num-parallel 2", "--num-parallel is of several runs: add --seeds"),
        ("--seeds 1-2 --num-parallel 0", "--num-parallel 0: expected an integer >= 1"),
        ("--seeds 1-2 --out s3://bucket/a", "expected a directory of this machine"),
        ("--seeds 1-2 --out full", "full is not empty, and no command with --seeds has written it"),
        ("--seeds 1-2 --out torn", "torn/command.json is not the command that it should hold"),
        ("--seeds 1-2 --out file", "file cannot be used: there is a file of that name"),
    ],
)
def test_commands_that_cannot_be_carried_out(shell, tmp_path, words, message):
    for name, file in (("full", "a"), ("torn", "command.json")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text('["train", 3')
    (tmp_path / "file").write_text("")
    done = shell(f"{COMMAND} {words}")
    assert done.code == 2
    assert message in done.message


def test_the_default_directory_depends_on_the_command(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    paths = [folder_of(None, "ppo-my/env:Mine-v0", words, "--seeds") for words in (["a"], ["b"], ["a"])]
    assert paths[0] == paths[2] != paths[1]
    assert paths[0].parent == tmp_path / "runs" and paths[0].name.startswith("ppo-my-env-Mine-v0-seeds-")


def test_progress_shows_what_a_run_says(tmp_path):
    seeds = Seeds([1], [], tmp_path, num_parallel=1, is_quiet=True, is_json=False)
    (job,) = seeds._jobs
    assert seeds.lines() == ["seed 1: waiting"]
    for line in (
        b'{"type":"progress","env_steps":2048,"updates":3,"return_mean_100":null}',
        b"no json",
        b'{"type":"note"}',
    ):
        take_line(job, line)
    assert seeds.lines() == ["seed 1: waiting, steps 2,048, updates 3"]


@pytest.mark.parametrize("command", ["train ppo --seeds 1-2", "sweep ppo --over num_epochs=1,2"])
def test_a_deployment_that_chooses_settings_is_refused(shell, command):
    done = shell(f"{command} --env CartPole-v1 --on auto,max_envs=16")
    assert done.code == 2
    assert "--on auto,max_envs=16: each run would choose settings of its own" in done.message


@pytest.mark.parametrize("on", ["auto", "auto,max_probes=2"])
def test_runs_that_plan_are_made_one_at_a_time(on):
    assert default_num_parallel(on, threads=1) == 1


def test_a_log_that_cannot_be_written_fails_its_run_alone(shell):
    first = shell(f"{COMMAND} --until updates=1 --seeds 2 --out runs")
    Path("runs/seed-1.log").mkdir()
    done = shell(f"{COMMAND} --until updates=1 --seeds 1-2 --out runs")
    assert (first.code, done.code) == (0, 1)
    assert "seed 1: failed: runs/seed-1.log: Is a directory" in done.message
    assert [line.split()[-1] for line in done.out.splitlines()[1:3]] == ["failed", "finished"]


def test_several_runs_are_not_watched_one_by_one(shell, tmp_path):
    done = shell(f"{COMMAND} --seeds 1-2 --until updates=1 --watch --out runs")
    assert done.code == 2
    assert "levada watch DIR" in done.err
    assert not (tmp_path / "runs").exists()
