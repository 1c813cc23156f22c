"""`levada sweep`: options, the table, and sweeps that go on after their process was killed."""

import contextlib
import csv
import io
import json
import shlex
import signal
import time

import pytest
from support.runs import cli as cli_harness
from support.runs.written import begin_run, write_run

import levada
from levada.algorithms.ppo import PPO
from levada.cli.jobs import Job
from levada.cli.trial import options_of
from levada.cli.trials import Trials
from levada.run.storage.directory import RunDirectory
from levada.sweeps.errors import SweepError
from levada.sweeps.metric import Metric
from levada.sweeps.record import Record, read_record_of
from levada.sweeps.samplers import Listed, Median, Tpe
from levada.sweeps.space import parse_parameter

COMMAND = f"sweep ppo --env CartPole-v1 {cli_harness.TINY} --log none"


class Killed(BaseException):
    """Ends a sweep as SIGKILL does: nothing is done after it."""


class Crash:
    """Raises at the n-th of the moments at which something is written or started."""

    def __init__(self, at=None):
        self.left = at

    def __call__(self):
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Killed


class Ended:
    """Process of a run that has ended."""

    def __init__(self, code):
        self.code = code
        self.stdin = None
        self.stdout = io.BytesIO()

    def wait(self):
        return self.code

    def poll(self):
        return self.code


@pytest.fixture
def fake(monkeypatch):
    """Replace processes: a run is written at once, with a return that grows to its objective. Returns what sets the crash."""
    crash = Crash()
    write = Record.write

    def start(job):
        crash()
        is_begun = (job.path / "config.json").exists()
        if not is_begun:
            begin_run(job.path, seed=job.seed)
        crash()
        settings = dict(zip(job.words[::2], job.words[1::2], strict=True))
        final = 100 * float(settings["--learning-rate"]) + int(settings["--num-epochs"]) + job.seed
        if settings["--num-epochs"] != "7":  # which fails
            write_run(job.path, [final * n / 10 for n in range(1, 11)], seed=job.seed)
        job.process, job.state = Ended(settings["--num-epochs"] == "7"), "running"
        crash()
        return is_begun

    def write_record(record, folder):
        crash()
        write(record, folder)
        crash()

    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    monkeypatch.setattr(Job, "start", start)
    monkeypatch.setattr(Record, "write", write_record)
    return crash


SPACES = {
    "grid": ["learning_rate=0.1,0.3", "num_epochs=1,7,2"],
    "random": ["learning_rate=log:0.01:1", "num_epochs=int:1:9"],
    "tpe": ["learning_rate=log:0.01:1", "num_epochs=int:1:9"],
}


def make(folder, search, *, prune=False, seeds=(1, 2), is_json=False, is_minimized=False):
    space = [parse_parameter(text) for text in SPACES[search]]
    sampler = {
        "grid": lambda: Listed.grid(space),
        "random": lambda: Listed.random(space, 8),
        "tpe": lambda: Tpe(space, 12, is_minimized=is_minimized),
    }[search]()
    median = Median(is_minimized=is_minimized) if prune else None
    return Trials(
        [], PPO, folder, seeds=seeds, sampler=sampler, metric=Metric("return_mean_100", is_minimized), median=median,
        num_steps=1000, num_parallel=1, most_open=1, is_quiet=not is_json, is_json=is_json,
    )  # fmt: skip


def sweep(folder, search, **options):
    return make(folder, search, **options).execute(["sweep", search])


def table(folder):
    with (folder / "sweep.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def without_seconds(rows):
    return [row | {"wall_s": ""} for row in rows]


@pytest.mark.parametrize(
    ("search", "prune"), [("grid", False), ("grid", True), ("random", True), ("tpe", False), ("tpe", True)]
)
def test_a_sweep_killed_at_any_moment_ends_with_the_same_table(fake, tmp_path, search, prune):
    code = sweep(tmp_path / "whole", search, prune=prune)
    whole = table(tmp_path / "whole")
    assert code == any(row["state"] == "failed" for row in whole)
    assert not prune or search == "grid" or {"pruned", "finished"} <= {row["state"] for row in whole}
    for moments in (11, 17):  # after so many it is killed, again and again
        folder = tmp_path / f"killed-{moments}"
        for _ in range(20):
            fake.left = moments
            with contextlib.suppress(Killed):
                sweep(folder, search, prune=prune)
        fake.left = None
        assert sweep(folder, search, prune=prune) == code
        assert without_seconds(table(folder)) == without_seconds(whole)


def test_the_table_is_sorted_and_has_the_means_over_seeds(fake, tmp_path, capsys):
    assert sweep(tmp_path / "runs", "grid", is_json=True) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["trial"], line["state"]) for line in lines] == [
        (6, "finished"),
        (4, "finished"),
        (3, "finished"),
        (1, "finished"),
        (2, "failed"),
        (5, "failed"),
    ]
    assert lines[0] == {
        "trial": 6, "settings": {"learning_rate": 0.3, "num_epochs": 2}, "metric": "return_mean_100", "objective": 33.5,
        "seeds": {"1": 33.0, "2": 34.0}, "state": "finished", "wall_s": 2.0, "path": str(tmp_path / "runs" / "trial-0006"),
    }  # fmt: skip
    rows = table(tmp_path / "runs")
    assert list(rows[0].values()) == ["6", "0.3", "2", "33.5", "2 of 2", "finished", "2.0"]
    assert rows[-1]["return_mean_100"] == "" and rows[-1]["seeds"] == "0 of 2"
    assert sweep(tmp_path / "fewest", "grid", is_minimized=True) == 1
    assert [row["trial"] for row in table(tmp_path / "fewest")] == ["1", "3", "4", "6", "2", "5"]


def test_further_seeds_are_added_and_failed_runs_tried_again(fake, tmp_path):
    sweep(tmp_path, "grid", seeds=(1,))
    before = (tmp_path / "trial-0001/seed-1/summary.json").stat().st_mtime_ns
    sweep(tmp_path, "grid", seeds=(1, 2))
    assert {row["seeds"] for row in table(tmp_path)} == {"2 of 2", "0 of 2"}
    assert (tmp_path / "trial-0001/seed-1/summary.json").stat().st_mtime_ns == before
    for seed in (1, 2):  # whatever was wrong is right again
        for number in (2, 5):
            write_run(tmp_path / f"trial-000{number}/seed-{seed}", [7.0])
    assert sweep(tmp_path, "grid", seeds=(1, 2)) == 0


def test_pruned_runs_do_not_count_as_results(fake, tmp_path):
    sweep(tmp_path, "random", prune=True)
    pruned = [row for row in table(tmp_path) if row["state"] == "pruned"]
    assert pruned and {row["seeds"] for row in pruned} == {"-"}
    record = read_record_of(tmp_path / f"trial-{int(pruned[0]['trial']):04d}")
    assert (record.outcome, repr(record.values[-1])) == ("pruned", pruned[0]["return_mean_100"])
    assert [row["state"] for row in table(tmp_path)].index("pruned") >= 5


def test_a_run_that_goes_on_is_asked_to_end(fake, tmp_path, monkeypatch):
    """At the third tenth, which is seen in the metrics that it has written so far."""
    trials = make(tmp_path, "random", prune=True)
    asked = []
    monkeypatch.setattr(Median, "is_pruned", lambda median, values: values[-1] == 3.0)
    monkeypatch.setattr(Job, "stop", lambda job, reason: asked.append((job.name, reason)))
    first, second = trials.next(), trials.next()
    assert first is second  # it has not been started
    first.start()
    (first.path / "summary.json").unlink(missing_ok=True)
    (first.path / "metrics.jsonl").write_text("")
    trials.begun(first, False)
    second = trials.next()
    assert (first.seed, second.seed) == (1, 2)
    for n in range(1, 5):
        monkeypatch.setattr("levada.cli.trials._LOOK_S", 0.0)
        trials.look()
        assert asked == ([] if n < 4 else [("trial 1, seed 1", "pruned")])
        with (first.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": 100 * n, "charts/episodic_return": n}) + "\n")
    assert trials.lines() == ["1 of 8 trials"]
    assert read_record_of(tmp_path / "trial-0001") == Record(
        settings=dict(Listed.random([parse_parameter(text) for text in SPACES["random"]], 1).suggest(1)),
        outcome="pruned", values=[1.0, 2.0, 3.0],
    )  # fmt: skip
    assert trials.next().name == "trial 2, seed 1"


def test_a_removed_record_is_made_again(fake, tmp_path):
    sweep(tmp_path, "tpe")
    whole = table(tmp_path)
    (tmp_path / "trial-0003/trial.json").unlink()
    sweep(tmp_path, "tpe")
    assert {row["trial"]: row["learning_rate"] for row in table(tmp_path) if row["trial"] != "3"} == {
        row["trial"]: row["learning_rate"] for row in whole if row["trial"] != "3"
    }


def test_a_record_of_another_sweep(fake, tmp_path):
    sweep(tmp_path, "grid")
    Record(settings={"learning_rate": "5"}).write(tmp_path / "trial-0002")
    with pytest.raises(SweepError, match="trial-0002: trial 2 was recorded with learning_rate=5"):
        sweep(tmp_path, "grid")


def wait_for(is_true):
    deadline_s = time.monotonic() + 300
    while not is_true():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


@pytest.fixture
def shell(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    return cli_harness.Shell(capsys)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "a sweep needs settings to vary: --over NAME=VALUES"),
        ("--over", "a sweep needs settings to vary"),
        ("--over lerning_rate=1,2", "no option --lerning-rate; did you mean --learning-rate?"),
        ("--over lrr=1,2", "--over lrr=1,2: no option --lrr; did you mean --lr?"),
        ("--over discount=1,0.9 --num-parallel 0", "--num-parallel 0: expected an integer >= 1"),
        ("--over n_steps=1,2", "no option --n-steps: here it is --num-steps"),
        ("--over seed=1,2", "--over seed=1,2: seed is no field of PPO; a sweep varies only these"),
        ("--over learning_rate=1e-3,fast", "--over learning_rate=fast: --lr/--learning-rate fast: expected a number"),
        ("--over learning_rate=1e-3,-1", "--over learning_rate=-1: PPO(learning_rate=-1.0): expected a"),
        ("--over num_envs=1,2", "--over num_envs and --num-envs contradict each other"),
        ("--over lr=1 learning_rate=2", "--over has learning_rate 2 times"),
        ("--over activation=int:1:2 --search random --trials 3", "--over activation: it takes no numbers"),
        ("--over max_lag=uniform:1:2 --search random --trials 3", "expected `max_lag=int:1:2`"),
        (
            "--over discount=uniform:0.5:2 --search random --trials 3",
            "--over discount=2.0: PPO(discount=2.0)",
        ),
        ("--over discount=uniform:0.5:0.9", "--over discount has a range, and a grid needs values"),
        ("--over discount=0.5 --trials 3", "--trials 3: the grid has 1; --trials is for --search random"),
        ("--over discount=0.5 --search random", "--search random needs a number of trials"),
        ("--over discount=0.5 --search random --trials 20000", "--trials 20000: expected at most 10,000"),
        ("--over discount=0.5 --search rand", "--search rand: expected grid, random or tpe"),
        ("--over discount=0.5 --seeds 1-2 --seed 3", "--seed and --seeds contradict each other"),
        ("--over discount=0.5 --quiet --json", "--quiet and --json contradict each other"),
        ("--over discount=0.5 --out s3://bucket/a", "expected a directory of this machine"),
        (
            "--over discount=0.5 --prune --until return=3",
            "trials are compared after equal numbers of env steps; add steps=N",
        ),
        ("--over discount=0.5 --prune --metric wall_s", "it is known at the end of a run alone"),
        ("--over discount=0.5 --metric ''", "--metric '': expected the name of a metric"),
        ("--over discount=0.5 --env Nope-v1", "--env is given 2 times"),
        ("--over discount=0.5 --on nowhere", "on='nowhere': expected 'inline'"),
        ("--over network=nowhere:net", "no module"),
        ("--over num_steps=16,9", "--over num_steps=9: PPO(minibatch_size=16) does not divide"),
        (
            "--over num_steps=16,8 num_envs=2,1",
            "trial 4, num_steps=8 num_envs=1: PPO(minibatch_size=16) does not divide",
        ),
    ],
)
def test_mistakes_are_found_before_anything_starts(shell, tmp_path, words, message):
    command = COMMAND if "num_steps" not in words else COMMAND.replace("--num-envs 2 --num-steps 16", "")
    done = shell(f"{command} {words}")
    assert (done.code, done.out) == (2, "")
    assert message in done.message
    assert not list(tmp_path.iterdir())


def test_settings_as_options():
    settings = {"normalize_obs": "True", "log_std_init": "-0.5", "optimizer_kwargs": "eps=1e-5", "compile": "False"}
    assert options_of(PPO, settings) == shlex.split(
        "--normalize-obs --log-std-init=-0.5 --optimizer-kwargs eps=1e-5 --compile False"
    )


SLOW_AT_FIRST = """
import os, time
from gymnasium.envs.classic_control import CartPoleEnv

class SlowAtFirst(CartPoleEnv):
    def step(self, action):
        if not os.path.exists("faster"):
            time.sleep(0.02)
        return super().step(action)
"""
"""An environment for a run of minutes, unless it is told to be faster."""


def test_a_sweep_killed_by_sigkill_goes_on(shell, tmp_path):
    """With real processes: the run that it leaves ends by itself, saved, and the sweep ends as if it had not been killed."""
    (tmp_path / "slow_at_first.py").write_text(SLOW_AT_FIRST)
    env = "slow_at_first.py:SlowAtFirst"
    sweep = COMMAND.replace("CartPole-v1", env)
    options = "--until steps=6000 --checkpoint-every-updates None"
    command = f"{sweep} {options} --over learning_rate=1e-3 --out 'a sweep'"
    killed = cli_harness.begin(command, cwd=tmp_path)
    path = tmp_path / "a sweep/trial-0001/seed-0"
    wait_for(lambda: (path / "metrics.jsonl").exists() and (path / "metrics.jsonl").stat().st_size)
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=300)
    wait_for((path / "summary.json").exists)
    assert RunDirectory.open(path).summary().stopped_by == "interrupted"
    (tmp_path / "faster").touch()

    done = shell(command)
    assert done.code == 0, done.err
    assert "trial 1: goes on with learning_rate=1e-3" in done.err
    own = RunDirectory.open(path).summary()
    alone = levada.train(
        "ppo", env, until="steps=6000", learning_rate=1e-3, log="none", display="quiet", out="alone",
        **cli_harness.TINY_FIELDS,
    )  # fmt: skip
    assert own.params_sha256 == alone.summary.params_sha256
    (row,) = table(tmp_path / "a sweep")
    assert row["return_mean_100"] == repr(own.return_mean_100)
    best = f"{shlex.join(shlex.split(sweep)[1:])} {options} --learning-rate 1e-3"
    assert done.out.splitlines()[-1] == f"  levada train {best}"

    shorter = shell(f"{command} --metric updates --minimize --json")
    assert (shorter.code, json.loads(shorter.out)["objective"]) == (0, own.updates)
    other = shell(f"{command} --prune")
    assert other.code == 2
    assert "a sweep holds the runs of another command, `levada sweep ppo --env" in other.message
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn/command.json").write_text("[3")
    torn = shell(f"{COMMAND} --over learning_rate=1 --out torn")
    assert torn.code == 2 and "torn/command.json is not the command that it should hold" in torn.message
    found = levada.compare([tmp_path / "a sweep"])
    assert [row.name for row in found.groups] == ["ppo"]


def test_a_metric_that_no_run_has_is_a_failure_after_the_first_trial(shell, tmp_path):
    command = f"{COMMAND} --until updates=1 --over learning_rate=1e-3,1e-4 --num-parallel 1 --out sweep"
    for _ in range(2):
        done = shell(f"{command} --metric losses/polcy")
        assert done.code == 1
        assert "it has no metric losses/polcy; did you mean losses/policy_loss?" in done.message
        assert "No trial has losses/polcy, so no further one was made." in done.out
        assert len(table(tmp_path / "sweep")) == 1
    assert shell(f"{command} --metric losses/policy_loss").code == 0
    assert len(table(tmp_path / "sweep")) == 2


def test_a_return_that_the_first_trial_lacks_ends_no_sweep(shell, tmp_path):
    command = f"{COMMAND} --until steps=1 --over learning_rate=1e-3,1e-4 --num-parallel 1 --out sweep"
    assert shell(f"{command} --metric charts/unshaped_return").code == 1
    assert len(table(tmp_path / "sweep")) == 2


def test_evaluations_are_compared_if_there_are_some(shell):
    done = shell(
        f"{COMMAND} --until updates=3 --eval-every 2 --eval-episodes 1 --over learning_rate=1e-3 --out evaluated --json"
    )
    (trial,) = [json.loads(line) for line in done.out.splitlines()]
    evaluation = RunDirectory.open("evaluated/trial-0001/seed-0").summary().evaluations["eval"]
    assert (done.code, trial["objective"]) == (0, evaluation.return_mean)
