"""Runs in processes of their own: how they end when asked to, and when the process that started them is gone."""

import os
import subprocess
import time

import pytest
from support.runs import cli as cli_harness
from support.runs.written import begin_run, write_run

from levada.cli import jobs as jobs_module
from levada.cli.errors import UsageError
from levada.cli.folder import claimed, without
from levada.cli.jobs import Job, Jobs, clear_unbegun
from levada.comparison.records import runs_in
from levada.run.storage.directory import RunDirectory


def test_a_run_ends_when_its_parent_asks_for_it(tmp_path):
    """A line on the input of the process is the reason of the stop."""
    rows = tmp_path / "run/metrics.jsonl"
    command = f"train ppo --env CartPole-v1 {cli_harness.TINY} --log none --until steps=100_000_000 --out run --quiet"
    child = cli_harness.begin(command, cwd=tmp_path, module="levada.cli.child", stdin=subprocess.PIPE)
    deadline_s = time.monotonic() + 300
    while not (rows.exists() and rows.stat().st_size):
        assert child.poll() is None and time.monotonic() < deadline_s, child.communicate()
        time.sleep(0.02)
    child.stdin.write("pruned\n")
    child.stdin.flush()
    assert child.wait(timeout=300) == 0, child.stderr.read()
    child.communicate()
    summary = RunDirectory.open(tmp_path / "run").summary()
    assert summary.stopped_by == "pruned"
    assert RunDirectory.open(tmp_path / "run").steps()[-1] == summary.updates


def test_what_a_killed_process_leaves_of_a_directory_is_removed(tmp_path):
    def names(*made):
        path = tmp_path / str(len(list(tmp_path.iterdir())))
        path.mkdir()
        for name in made:
            (path / name).mkdir() if name == "checkpoints" else (path / name).write_text("")
        clear_unbegun(path)
        return {entry.name for entry in path.iterdir()}

    assert names() == names("checkpoints") == names("checkpoints", ".config.json.12-ab.tmp") == set()
    assert names("checkpoints", "thesis.tex") == {"checkpoints", "thesis.tex"}
    assert names(".hidden") == {".hidden"}
    (tmp_path / "kept/checkpoints/000000001").mkdir(parents=True)
    clear_unbegun(tmp_path / "kept")
    assert (tmp_path / "kept/checkpoints/000000001").exists()
    clear_unbegun(tmp_path / "missing")


class OneJob:
    """Plan of a run that another process still makes."""

    def __init__(self, job):
        self.job = job
        self.seen = []

    @property
    def is_over(self):
        return self.job.is_over

    def next(self):
        return self.job if self.job.state == "waiting" and not self.job.is_held else None

    def begun(self, job, is_resumed):
        self.seen.append(("begun", is_resumed))

    def ended(self, job):
        self.seen.append(job.state)

    def look(self):
        self.seen.append("look")

    def lines(self):
        return []


def test_a_run_waits_for_the_process_that_still_makes_it(tmp_path, monkeypatch):
    locked = [True, True, True, False]
    begin_run(tmp_path / "run")
    write_run(tmp_path / "run", [1.0], stopped_by="interrupted")
    job = Job("run", [], 1, tmp_path / "run", tmp_path / "log")
    assert not job.take_summary()
    plan = OneJob(job)
    monkeypatch.setattr(jobs_module, "POLL_S", 0.0)
    monkeypatch.setattr(jobs_module, "is_locked", lambda path: locked.pop(0) if locked else False)
    monkeypatch.setattr(jobs_module.sys, "executable", "true")  # a program that does nothing, with success
    Jobs(num_parallel=1, is_live=False, is_quiet=True).execute(plan)
    assert plan.seen[:4] == ["look", "look", "look", ("begun", True)]
    assert plan.seen[-1 - plan.seen[::-1].index("failed")] == "failed"
    assert job.why == f"exit code 0, see {tmp_path / 'log'}"


def test_two_commands_cannot_make_the_same_runs(tmp_path):
    held = claimed(tmp_path, ["sweep", "a"], "sweep")
    again = claimed(tmp_path, ["sweep", "a"], "sweep")
    with held, pytest.raises(UsageError, match="another process makes the runs in"), again:
        pass
    with (
        pytest.raises(UsageError, match="the runs of another command, `levada sweep a`"),
        claimed(tmp_path, ["b"], "--seeds"),
    ):
        pass


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written(tmp_path):
    tmp_path.chmod(0o500)
    with (
        pytest.raises(UsageError, match="cannot be used: Permission denied"),
        claimed(tmp_path / "new", ["a"], "sweep"),
    ):
        pass


def test_options_are_left_out_however_they_are_written():
    options = {"--num-parallel": True, "--prune": False, "--over": None}
    words = "ppo --num_parallel 2 --over a=1 b=2 --lr 3 --over=c=1 d=2 --prune --num-parallel=4 --seed 1"
    assert without(words.split(), options) == ["ppo", "--lr", "3", "--seed", "1"]


def test_runs_are_found_in_trials_and_links_are_not_followed(tmp_path):
    for name in ("sweep/trial-0001/seed-1", "sweep/trial-0001/seed-2", "sweep/trial-0002/seed-1", "other/run"):
        begin_run(tmp_path / name)
    (tmp_path / "sweep/link").symlink_to(tmp_path / "other")
    (tmp_path / "sweep/loop").symlink_to(tmp_path / "sweep")
    (tmp_path / "sweep/command.json").write_text("")
    found = [str(path.relative_to(tmp_path / "sweep")) for path in runs_in(tmp_path / "sweep")]
    assert found == ["trial-0001/seed-1", "trial-0001/seed-2", "trial-0002/seed-1"]
