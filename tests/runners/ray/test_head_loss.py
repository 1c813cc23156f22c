"""The loss of the head: all processes of a cluster end at once, and the run continues from its URL on a new cluster."""

import os
import signal
import time
from pathlib import Path

import pytest
from support.runs.cli import TINY, Shell, begin, in_process

import levada

pytest.importorskip("ray")

TRAIN = f"train ppo --env CartPole-v1 --shards 2 {TINY} --seed 3 --quiet"


def session(leader: int) -> list[int]:
    """Return the live processes of a session, in which all processes of a cluster are that a run has started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of, *_ = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
        if int(of) == leader and state != "Z":
            found.append(int(stat.parent.name))
    return found


def kill_cluster(leader: int) -> None:
    while pids := session(leader):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def newest(run: Path) -> int:
    """Return the update of the newest checkpoint that was uploaded whole, or 0."""
    return max((int(meta.parent.name) for meta in run.glob("checkpoints/*/meta.json")), default=0)


def test_a_run_that_has_lost_its_cluster_continues_on_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "stored"
    options = f"--until updates=1000000 --checkpoint-every-updates 1 --on ray:1 --out {run.as_uri()}"
    with begin(f"{TRAIN} {options}", cwd=tmp_path, start_new_session=True) as process:
        try:
            while newest(run) < 3:
                assert process.poll() is None, process.communicate()
                time.sleep(0.05)
            assert len(session(process.pid)) > 3  # the run, a worker, the learner, and Ray's own
        finally:
            kill_cluster(process.pid)
    num_updates = newest(run) + 10

    done = in_process(f"resume {run.as_uri()} --trust --quiet --until updates={num_updates}", cwd=tmp_path)
    assert done.code == 0, done.err
    undisturbed = tmp_path / "undisturbed"
    assert Shell(capsys)(f"{TRAIN} --until updates={num_updates} --out {undisturbed}").code == 0
    expected, found = (levada.load(where, trust=True).summary for where in (undisturbed, run.as_uri()))
    assert (found.updates, found.deployment) == (num_updates, "ray:1")
    assert found.params_sha256 == expected.params_sha256
