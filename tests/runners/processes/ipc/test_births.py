"""Processes that are met by a signal while they start, and a forkserver that is met by one at any time."""

import multiprocessing.forkserver as forkserver
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from textwrap import dedent

import pytest
from support.processes import samples
from support.processes.main_process import is_alive
from support.processes.replays import replay_flow

from levada.flow import Failed, Queue
from levada.runners import WorkerError, workers
from levada.runners.processes import Processes
from levada.runners.processes.ipc.forkserver import prepare


class Births:
    """Sends signals to the next processes, before they have read what they are told to be."""

    def __init__(self, monkeypatch):
        self._connect = forkserver.connect_to_new_process
        self.plans: list[tuple[int, ...]] = []
        monkeypatch.setattr(forkserver, "connect_to_new_process", self)

    def __call__(self, descriptors):
        status, writer = self._connect(descriptors)
        if not self.plans:
            return status, writer
        pid = forkserver.read_signed(status)
        process = os.pidfd_open(pid)
        for number in (numbers := self.plans.pop(0)):
            os.kill(pid, number)
        if signal.SIGKILL in numbers:
            select.select([process], [], [])
            unread = select.poll()
            unread.register(writer, 0)
            unread.poll(
                60_000.0
            )  # the forkserver has an end of the pipe, too, for a moment; now there is nobody to read
        os.close(process)
        again, told = os.pipe()
        forkserver.write_signed(told, pid)
        os.close(told)  # nobody will say how it ended: as if the forkserver had gone, too
        os.close(status)
        return again, writer


class Failures:
    def __init__(self):
        self.seen = []

    def on_event(self, event):
        if isinstance(event, Failed):
            self.seen.append(event.why)


def remembering():
    return samples.counting_flow(samples.Remembering(), shards=1, queue=Queue(max_lag=0))


def counted(run):
    """What the learner was given, in order."""
    return [tuple(item) for batch in run.node_state("learn").batches for item in batch]


UNDISTURBED = [(0.0, 0.0, float(number)) for number in range(1, 9)]


def reach(run, update):
    next(report for report in run if report.firing >= update)


def test_workers_that_are_killed_as_soon_as_they_are_forked_change_nothing(monkeypatch):
    births, failures = Births(monkeypatch), Failures()
    with Processes(workers=1).open(remembering(), seed=1, instruments=[failures]) as run:
        reach(run, 4)
        births.plans = [(signal.SIGKILL,), (signal.SIGKILL,)]
        os.kill(run.worker_pids[0], signal.SIGKILL)
        reach(run, 8)
        assert counted(run) == UNDISTURBED
        [channel] = run.statistics().channels.values()
        assert channel.ledger.balanced
    assert len(failures.seen) == 3
    assert failures.seen[1:] == ["the worker ended while it was being started (BrokenPipeError)"] * 2


def test_a_worker_that_is_stopped_as_soon_as_it_is_forked_is_missed(monkeypatch):
    births, failures = Births(monkeypatch), Failures()
    with Processes(workers=1, hang_timeout_s=15.0).open(remembering(), seed=1, instruments=[failures]) as run:
        reach(run, 4)
        monkeypatch.setattr(workers, "START_S", 5.0)
        births.plans = [(signal.SIGSTOP,)]
        os.kill(run.worker_pids[0], signal.SIGKILL)
        reach(run, 8)
        assert counted(run) == UNDISTURBED
    assert failures.seen == ["the worker ended by SIGKILL", "the worker ended after 15 s without a sign of life"]


def test_workers_that_never_start_end_the_run(monkeypatch):
    births = Births(monkeypatch)
    births.plans = [(signal.SIGKILL,)] * 2
    with pytest.raises(WorkerError, match=r"numbers 0 ended 2 times in a row, now while it was being started"):
        Processes(workers=1, max_restarts=1).open(remembering(), seed=1)


def test_signals_of_the_group_do_not_reach_what_is_just_forked(monkeypatch):
    """It does not know yet what it is, so they are held back until it does."""
    births, failures = Births(monkeypatch), Failures()
    births.plans = [(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with Processes(workers=1).open(remembering(), seed=1, instruments=[failures]) as run:
        reach(run, 2)
    assert failures.seen == []


@pytest.mark.parametrize("options", [{"learner": "worker"}, {"inference": "worker"}], ids=str)
def test_what_is_not_a_worker_may_fail_while_it_starts(monkeypatch, options):
    births, flow = Births(monkeypatch), samples.small_ppo(0)
    births.plans = [(signal.SIGKILL,)]
    with Processes(workers=1, **options).open(flow, seed=1) as run:
        reach(run, 1)


def test_a_table_may_fail_while_it_starts(monkeypatch):
    births = Births(monkeypatch)
    births.plans = [(signal.SIGKILL,)]
    with Processes(workers=1, replays="worker").open(replay_flow(), seed=1) as run:
        reach(run, 2)


def test_a_learner_that_never_starts_ends_the_run_in_words(monkeypatch):
    births = Births(monkeypatch)
    births.plans = [(signal.SIGKILL,)] * 2
    with pytest.raises(WorkerError, match=r"the process of the learner ended 2 times in a row, now while it was being"):
        Processes(workers=1, learner="worker", max_restarts=1).open(remembering(), seed=1)


def server():
    return forkserver._forkserver._forkserver_pid


def status(pid):
    """State of a process, and its parent."""
    state, parent, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return state, int(parent)


def stop(pid):
    """Stop a process. It stops when it is its turn, and only then is seen to."""
    os.kill(pid, signal.SIGSTOP)
    while status(pid)[0] not in "Tt":
        time.sleep(0.01)


def test_workers_do_not_need_the_forkserver():
    failures = Failures()
    with Processes(workers=2).open(samples.counting_flow(samples.Numbers()), seed=1, instruments=[failures]) as run:
        reach(run, 1)
        os.kill(server(), signal.SIGKILL)
        os.waitid(os.P_PID, server(), os.WEXITED | os.WNOWAIT)
        reach(run, 50)
        assert failures.seen == []
        pids = run.worker_pids
    assert not any(map(is_alive, pids))


def test_a_forkserver_that_was_stopped_holds_up_nothing():
    with Processes(workers=2).open(samples.counting_flow(samples.Numbers()), seed=1) as run:
        stop(server())
        os.kill(run.worker_pids[0], signal.SIGKILL)
        reach(run, 2)  # with a worker that another one has forked
        stop(server())


def test_a_learner_in_a_process_starts_workers_from_the_forkserver_that_forked_it():
    """Another one would load everything again."""
    with Processes(workers=2, learner="worker").open(samples.counting_flow(samples.Numbers()), seed=1) as run:
        reach(run, 1)
        assert {status(pid)[1] for pid in run.worker_pids} == {server()}


@pytest.mark.parametrize("lose", [lambda pid: os.kill(pid, signal.SIGKILL), stop], ids=["killed", "stopped"])
def test_a_learner_in_a_process_whose_forkserver_is_lost_starts_another_one(lose):
    with Processes(workers=1, learner="worker").open(remembering(), seed=1) as run:
        reach(run, 4)
        before, lost = set(run.worker_pids), server()
        lose(lost)
        os.kill(min(before), signal.SIGKILL)
        reach(run, 8)
        assert counted(run) == UNDISTURBED
        [pid] = run.worker_pids
        assert pid not in before and status(pid)[1] != lost
    assert not is_alive(pid)


def test_a_forkserver_that_is_killed_and_not_gone_yet_costs_no_attempt(tmp_path, monkeypatch):
    """Its sockets are closed some time before it can be waited for; until then it refuses everyone, and counts as alive."""
    monkeypatch.setattr("levada.runners.processes.ipc.child.PATIENCE_S", 60.0)
    prepare()
    dying = server()
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(tmp_path / "deaf"))
        forkserver._forkserver._forkserver_address = deaf.getsockname()  # until there is another one
        gone = threading.Timer(0.5, os.kill, (dying, signal.SIGKILL))
        gone.start()
        failures = Failures()
        with Processes(workers=1).open(samples.counting_flow(samples.Numbers()), seed=1, instruments=[failures]) as run:
            reach(run, 1)
        gone.join()
    assert failures.seen == []
    assert server() != dying


SIGNALLED = """
    import multiprocessing.forkserver as forkserver
    import os, signal
    from support.processes import samples
    from levada.runners.processes import Processes
    from levada.runners.processes.ipc.forkserver import prepare

    if __name__ == "__main__":
        prepare()
        pid = forkserver._forkserver._forkserver_pid
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, number)  # it is just beginning to load
        with Processes(workers=1).open(samples.counting_flow(samples.Numbers()), seed=1) as run:
            next(iter(run))
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                os.kill(pid, number)
            os.kill(run.worker_pids[0], signal.SIGKILL)
            next(report for report in run if report.firing > 3)
        assert forkserver._forkserver._forkserver_pid == pid
"""


def test_signals_of_the_group_do_not_end_the_forkserver(tmp_path):
    (tmp_path / "main.py").write_text(dedent(SIGNALLED))
    temporary = tmp_path / "t"
    temporary.mkdir()
    environment = os.environ | {"PYTHONPATH": f"{Path(samples.__file__).parents[2]}:{os.environ.get('PYTHONPATH', '')}"}
    environment["TMPDIR"] = str(temporary)
    command = [sys.executable, tmp_path / "main.py"]
    done = subprocess.run(command, env=environment, timeout=600, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert not list(temporary.iterdir())


ENDING = """
    import os, sys
    from levada.runners.processes.ipc import forkserver

    parent, (when, now) = os.getpid(), os.pipe()
    if os.fork() == 0:
        os.close(when)
        getppid, told = os.getppid, []

        def asked():
            found = getppid()
            if not told:
                told.append(os.close(now))  # only from here on may the parent end
            return found

        os.getppid = asked
        forkserver._ENDING_S = 120.0  # the parent may be slow
        forkserver._remove(sys.argv[1], parent)
        print("removed" if not os.path.exists(sys.argv[1]) else "left", flush=True)
        os._exit(0)
    os.close(now)
    os.read(when, 1)
"""


def test_the_folder_of_a_process_that_is_just_ending_is_removed(tmp_path):
    """Its descriptors are closed, which ends the forkserver, while it still counts as the parent."""
    (folder := tmp_path / "folder").mkdir()
    command = [sys.executable, "-c", dedent(ENDING), str(folder)]
    done = subprocess.run(command, timeout=600, check=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("removed\n", "")
