"""What goes wrong with workers, and what becomes of the run: it goes on, or it ends with words that help."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import pytest
from support.processes import samples
from support.processes.interrupting import interrupted_after
from support.processes.main_process import is_alive

from levada.algorithms.ppo import PPO
from levada.api.options import deployment
from levada.flow import Failed, Queue
from levada.flow.patience import listening
from levada.rl.compute.threads import set_threads
from levada.rl.envs.task import Task
from levada.run.monitor import Monitor
from levada.run.storage.hashing import params_sha256
from levada.runners import Inline, WorkerError
from levada.runners.flow_run import FlowRun
from levada.runners.processes import Processes, transport
from levada.runners.processes.inference import handle as place
from levada.runners.processes.ipc.weights_ring import WeightsGrownError
from levada.runners.processes.learner.connection import GoneError, Line
from levada.runners.processes.learner.handle import RemoteRun
from levada.runners.threads import Threads, ThreadTransport
from levada.runners.transport import WorkerBusy
from levada.runners.workers import Workers


class Failures:
    def __init__(self):
        self.seen = []

    def on_event(self, event):
        if isinstance(event, Failed):
            self.seen.append(event)


def flow_of(source, learner=None, **options):
    flow = samples.counting_flow(source, **options)
    if learner is not None:
        object.__setattr__(flow.nodes["learn"], "work", learner)
    return flow


def reach(run, update):
    """The run's report of an update."""
    return next(report for report in run if report.firing >= update)


def test_a_shard_that_begins_anew_after_some_kills_in_a_row_is_told(caplog):
    """Its state may be what kills it. Then the result is not that of an undisturbed run, which nobody may overlook."""
    failures, monitor = Failures(), Monitor()
    flow = flow_of(samples.Remembered(misbehave=samples.die_where_it_stands))
    with Processes(workers=4).open(flow, seed=1, instruments=[failures, monitor]) as run:
        reach(run, 5)
    assert [(each.shard, each.starts_from_scratch) for each in failures.seen] == [(1, False), (1, False), (1, True)]
    assert monitor.num_started_from_scratch == 1
    *again, anew = [record.message for record in caplog.records if "in a row" in record.message]
    assert again == [
        f"numbers 1: the worker ended by SIGKILL; it is made again (failure {count} of 3 in a row)" for count in (1, 2)
    ]
    assert anew == (
        "numbers 1: the worker ended by SIGKILL; it did not get on from its last state in 2 attempts: episodes start over, with "
        "other random numbers, and the result is not that of an undisturbed run (failure 3 of 3 in a row)"
    )


@pytest.mark.parametrize(("excuse", "said"), [("it has forgotten",) * 2, ("", "NotSavedError")])
def test_a_shard_whose_state_cannot_be_restored_begins_anew_and_is_told(caplog, excuse, said):
    failures, monitor = Failures(), Monitor()
    flow = flow_of(samples.Forgetful(misbehave=samples.die_where_it_stands, excuse=excuse))
    with Processes(workers=4).open(flow, seed=1, instruments=[failures, monitor]) as run:
        reach(run, 5)
        state = run.save()
    assert [(each.shard, each.starts_from_scratch) for each in failures.seen] == [(1, False), (1, True)]
    assert monitor.num_started_from_scratch == 1
    assert (
        f"numbers 1: {said}: episodes start over, with other random numbers, and the result is not that of an "
        "undisturbed run" in caplog.messages
    )
    for where in (Inline(), Processes(workers=2), Processes(workers=2, learner="worker")):
        monitor = Monitor()
        with where.open(flow, seed=1, state=state, instruments=[monitor]) as run:
            reach(run, 6)
        assert monitor.num_started_from_scratch == 4, where


@pytest.mark.parametrize("how", ["exit", "return"])
def test_what_a_shard_forks_is_no_second_worker(how):
    with Processes(workers=2).open(flow_of(samples.ForkingCarelessly(how)), seed=1) as run:
        reach(run, 5)
        [channel] = run.statistics().channels.values()
        assert (channel.ledger.lost, channel.ledger.balanced) == (0, True)


def test_many_messages_both_ways_do_not_lock_each_other_out():
    """While the learner is at work, the worker fills its socket; then there are as many tickets for it."""
    flow = samples.counting_flow(samples.Numbers(), shards=1, queue=Queue(max_lag=1))
    object.__setattr__(flow.nodes["batch"], "size", 6000)
    object.__setattr__(flow.nodes["learn"], "work", samples.Slow(seconds=0.3))
    with Processes(workers=1).open(flow, seed=1) as run:
        reach(run, 2)


def test_a_killed_worker_is_missed_although_what_it_has_forked_goes_on():
    with Processes(workers=2).open(flow_of(samples.Forking()), seed=1) as run:
        reach(run, 3)
        os.kill(run.worker_pids[0], signal.SIGKILL)
        reach(run, 10)


@pytest.mark.parametrize("queue", [Queue(max_lag=1, on_stale="drop"), Queue(max_lag=None, capacity=12)], ids=str)
def test_one_that_hangs_is_missed_while_others_have_much_to_say(tmp_path, queue):
    source = samples.Numbers(misbehave=samples.Once(str(tmp_path), "sleep"))
    failures = Failures()
    flow = flow_of(source, samples.Slow(seconds=0.01), shards=6, queue=queue)
    with Processes(workers=6, hang_timeout_s=1.0).open(flow, seed=1, instruments=[failures]) as run:
        next(report for report in run if failures.seen)
    assert failures.seen[0].why == "the worker ended after 1 s without a sign of life"


def test_an_inference_that_does_not_answer_is_replaced(monkeypatch, caplog):
    monkeypatch.setattr(place, "ANSWER_S", 0.1)
    flow = samples.small_ppo(0)
    with Processes(workers=2, inference="worker", hang_timeout_s=4.0, max_restarts=30).open(flow, seed=1) as run:
        reach(run, 2)
        os.kill(run.transport.inference_pid, signal.SIGSTOP)
        reach(run, 5)
        fingerprint = params_sha256(run.node_state("learn").weights())
    assert "the inference does not answer, and is killed" in caplog.text
    with Inline().open(flow, seed=1) as run:
        reach(run, 5)
        assert params_sha256(run.node_state("learn").weights()) == fingerprint


def test_workers_that_do_not_end_are_killed_together(monkeypatch):
    monkeypatch.setattr(transport, "PATIENCE_S", 0.2)
    with Processes(workers=4).open(flow_of(samples.Sleeping(0.01)), seed=1) as run:
        reach(run, 1)
        pids = run.worker_pids
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
    assert not any(map(is_alive, pids))


@pytest.mark.parametrize("max_lag", [20, 300])
def test_registers_that_keep_many_versions(max_lag):
    flow = samples.counting_flow(samples.Numbers(), queue=Queue(max_lag=max_lag))
    with Processes(workers=2).open(flow, seed=1) as run:
        reach(run, 3)


@pytest.mark.parametrize(("source", "error", "match", "note"), [
    (samples.Unpicklable(), TypeError, "generator", "while sending what shard 1 of 'numbers' has made to another process"),
    (samples.BadState(), samples.StormError, "state_dict", "while saving the state of shard 1 of 'numbers'"),
], ids=["item", "state"])  # fmt: skip
def test_what_would_fail_again_and_again_ends_the_run_with_the_users_error(source, error, match, note):
    with (
        pytest.raises(error, match=match) as caught,
        Processes(workers=2).open(flow_of(source), seed=1) as run,
    ):
        reach(run, 100)
    [said] = caught.value.__notes__
    assert said.replace("shard 0", "shard 1") == note  # whichever comes first


def test_weights_that_grow_are_refused():
    with (
        pytest.raises(
            WeightsGrownError, match=r"version 1 of the weights takes 4,194,304 bytes, there is room for 65,"
        ),
        Processes(workers=1).open(flow_of(samples.Numbers(), samples.Fattening()), seed=1) as run,
    ):
        reach(run, 2)


WITHOUT_GUARD = """
from support.processes import samples
from levada.runners.processes import Processes

next(iter(Processes(workers=2).open(samples.counting_flow(samples.Numbers()), seed=1)))
"""


def run_script(tmp_path, text):
    (tmp_path / "main.py").write_text(text)
    paths = [str(Path(samples.__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, tmp_path / "main.py"]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=600, check=False, cwd=tmp_path
    )


@pytest.mark.parametrize("options", ["", ",learner=worker"])
def test_a_script_without_a_guard_is_told_so_before_a_worker_starts(tmp_path, options):
    place = f"Processes.parse(':2{options}')"
    done = run_script(tmp_path, WITHOUT_GUARD.replace("Processes(workers=2)", place))
    assert done.returncode == 1
    *trace, message = done.stderr.splitlines()
    assert message.startswith(
        "levada.flow.errors.DeploymentError: main.py, line 5, starts a run with workers outside of"
    )
    assert 'outside of `if __name__ == "__main__":`' in message
    assert len(trace) < 12
    assert sum(line.startswith("Traceback") for line in trace) == 1


TRAINS = """
import levada as lv
from gymnasium.envs.classic_control import CartPoleEnv

{above}

def train(env):
    fields = dict(shards=2, num_envs=1, num_steps=8, minibatch_size=16, num_epochs=1, compile=False)
    lv.train("ppo", env, until="updates=1", on="processes:2", display="quiet", log="none", out="run", **fields)

{below}
"""
MINE = "class Mine(CartPoleEnv): pass"
GUARD = 'if __name__ == "__main__":'


def test_training_in_a_script_without_a_guard_leaves_nothing_behind(tmp_path):
    done = run_script(tmp_path, TRAINS.format(above=MINE, below="train(Mine)"))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("levada.flow.errors.DeploymentError: main.py, line 11, starts a run")
    assert not (tmp_path / "run").exists()


def test_a_class_below_the_guard_is_named(tmp_path):
    done = run_script(tmp_path, TRAINS.format(above="", below=f"{GUARD}\n    {MINE}\n    train(Mine)"))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "levada.flow.errors.DeploymentError: Mine is defined below `if __name__"
    )
    assert done.stderr.splitlines()[-1].endswith("define it above that line")
    assert not (tmp_path / "run").exists()


def test_a_script_with_a_guard_trains(tmp_path):
    done = run_script(tmp_path, TRAINS.format(above=MINE, below=f"{GUARD}\n    train(Mine)"))
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "run" / "summary.json").exists()


def test_environments_may_have_processes_of_their_own():
    flow = samples.small_ppo(0)
    sampler = flow.nodes["rollout"].work
    object.__setattr__(sampler, "task", Task("CartPole-v1", vectorization="async"))
    with Processes(workers=2).open(flow, seed=1) as run:
        reach(run, 2)


def test_a_run_that_nobody_closes_does_not_keep_the_process(tmp_path):
    for options in ("", ",learner=worker"):
        lines = WITHOUT_GUARD.replace("next(iter(", "run = ").replace(", seed=1)))", ", seed=1)\n    next(iter(run))")
        lines = lines.replace("run = Processes(workers=2)", f"run = Processes.parse(':2{options}')")
        lines = lines.replace("\nrun = ", "\nif __name__ == '__main__':\n    run = ")
        (tmp_path / "main.py").write_text(lines)
        environment = {**os.environ, "PYTHONPATH": str(Path(samples.__file__).parents[2])}
        done = subprocess.run([sys.executable, tmp_path / "main.py"], env=environment, timeout=600, check=False)
        assert done.returncode == 0


def test_whoever_waits_for_a_report_can_be_interrupted(tmp_path, monkeypatch):
    monkeypatch.setattr("levada.runners.processes.learner.handle.PATIENCE_S", 120.0)
    source = samples.Numbers(misbehave=samples.Once(str(tmp_path), "sleep"))
    with Processes(workers=2, learner="worker").open(flow_of(source), seed=1) as run:
        reach(run, 2)
        with interrupted_after(tmp_path / "sleep"):
            reach(run, 5)
        assert run.statistics().versions == {"policy": 2}
        assert run.node_state("learn").num_updates == 2
        for pid in run.worker_pids:
            os.kill(pid, signal.SIGKILL)  # else closing is patient with the one that sleeps


def test_an_error_of_a_learner_elsewhere_leaves_what_was_learned():
    learner = samples.Harmful(what="raise")
    with Processes(workers=2, learner="worker").open(flow_of(samples.Numbers(), learner), seed=1) as run:
        with pytest.raises(samples.StormError):
            reach(run, 5)
        assert run.node_state("learn").num_updates == 2


def test_acting_and_learning_have_their_own_numbers_of_threads_wherever_they_are():
    settings = {"num_envs": 8, "num_steps": 64, "minibatch_size": 512, "num_epochs": 1}
    flow = PPO(shards=4, compile=False, **settings).flow(Task("CartPole-v1"))
    prints = {}
    try:
        set_threads(2)
        for on in (
            "inline",
            *(f"processes:2{more}" for more in ("", ",learner=worker", ",inference=worker", ",threads=2")),
        ):
            with deployment(on).open(flow, seed=1) as run:
                reach(run, 2)
                prints[on] = params_sha256(run.node_state("learn").weights())
    finally:
        set_threads(1)
    assert prints.pop("processes:2,threads=2") != prints["inline"]  # it does matter
    assert len(set(prints.values())) == 1, prints


def test_workers_that_cannot_even_begin():
    with pytest.raises(WorkerError, match=r"a worker ended with exit code 1 before it had begun"):
        Processes(workers=1).open(flow_of(samples.ExitsAtOnce()), seed=1)


@pytest.mark.parametrize("delay_s", [0.0, 0.05])
def test_a_main_process_that_is_killed_at_once_leaves_no_folder(tmp_path, delay_s):
    """The forkserver has not even heard of the folder yet; what it left would be seen in a second or two."""
    lines = f"""
        import os, signal, time
        from levada.runners.processes.ipc.forkserver import prepare
        prepare()
        time.sleep({delay_s})
        os.kill(os.getpid(), signal.SIGKILL)
    """
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", dedent(lines)], env=environment, timeout=600, check=False)
    deadline_s = time.monotonic() + 120.0
    while list(tmp_path.iterdir()) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not list(tmp_path.iterdir())


def test_whoever_compiles_says_so():
    heard = []
    flow = flow_of(samples.Compiling(), samples.CompilingLearner(), shards=1)
    with listening(heard.append), Processes(workers=1, learner="worker").open(flow, seed=1) as run:
        reach(run, 3)
    assert heard == ["compiling", ""] * 2


def test_a_worker_that_compiles_does_not_hang(monkeypatch):
    killed, elsewhere = [], ThreadTransport()
    monkeypatch.setattr(elsewhere, "kill", lambda worker, why: killed.append(why))
    with FlowRun(flow_of(samples.Numbers()), elsewhere, seed=1, max_restarts=0, hang_timeout_s=60.0) as run:
        [state] = run.workers.states.values()  # it has tickets, which nobody has handed out
        for what, expected in (("compiling", []), ("", ["after 60 s without a sign of life"])):
            run._on_event(state, WorkerBusy(what))
            state.last_event_s = 0.0
            run.workers.kill_the_silent(time.perf_counter())
            assert killed == expected


def test_tickets_that_wait_to_be_sent_are_no_hang(monkeypatch):
    """As they do while a report is looked at. The worker has nothing to do meanwhile: all of its tickets wait for the update."""
    killed, elsewhere, now_s = [], ThreadTransport(), [0.0]
    monkeypatch.setattr(elsewhere, "kill", lambda worker, why: killed.append(why))
    monkeypatch.setattr("levada.runners.workers.perf_counter", lambda: now_s[0])
    looks = []

    def look():
        if state.worker._tickets:
            looks.append(1)
            now_s[0] += 100.0

    flow = flow_of(samples.Sleeping(0.01), shards=1, queue=Queue(max_lag=0))
    with FlowRun(flow, elsewhere, seed=1, max_restarts=0, hang_timeout_s=60.0) as run:
        [state] = run.workers.states.values()
        state.has_begun = True  # a thread does not say so
        run.on_turn = look
        reach(run, 2)
    assert looks
    assert not killed


class StandIn:
    """A worker without shards."""

    shards, pid = (), 1


@pytest.mark.parametrize("has_event", [True, False])
def test_the_clock_of_a_worker_begins_when_work_is_sent_to_it(has_event):
    """That of one that was only silent goes on."""
    killed = []
    transport = SimpleNamespace(
        is_here=False,
        start=lambda shards: StandIn(),
        flush=lambda: None,
        wait=lambda timeout_s: [(state.worker, None)] if has_event else [],
        kill=lambda worker, why: killed.append(worker),
    )
    workers = Workers(transport, SimpleNamespace(sources={}), hang_timeout_s=60.0)
    state = workers.start(())
    state.unopened.add(("numbers", 0))
    state.has_begun = True
    assert len(list(workers.listen())) == has_event
    state.last_event_s = 0.0  # a report was looked at for a long time
    workers.flush()
    workers.kill_the_silent(1.0)
    assert killed == ([] if has_event else [state.worker])


def test_a_learner_that_compiles_does_not_hang():
    here, there = map(Line, multiprocessing.Pipe())
    running, done = os.pipe()
    run = RemoteRun.__new__(RemoteRun)
    run._line, run._child = here, SimpleNamespace(sentinel=running, kill=lambda why: None)

    def speak():
        threading.Event().wait(0.6)
        there.send("busy", "")
        there.send("report")

    there.send("busy", "compiling")  # before anybody waits: the thread may begin late
    speaker = threading.Thread(target=speak)
    speaker.start()
    assert run._receive(0.3) == ("report",)
    speaker.join()
    with pytest.raises(GoneError):
        run._receive(0.01)
    for line in (here, there):
        line.close()
    for descriptor in (running, done):
        os.close(descriptor)


def test_where_memory_runs_out_a_worker_goes_first():
    with Processes(workers=1).open(flow_of(samples.Numbers()), seed=1) as run:
        reach(run, 1)
        [pid] = run.worker_pids
        assert int(Path(f"/proc/{pid}/oom_score_adj").read_text()) >= 500


def test_states_that_grow_beyond_measure_are_not_taken(monkeypatch, caplog):
    monkeypatch.setattr("levada.runners.snapshots.LARGEST", samples.BALLAST)
    for where in (Inline(), Threads(workers=1)):
        caplog.clear()
        with where.open(flow_of(samples.Remembering(), shards=1), seed=1) as run:
            reach(run, 5)
            [why] = run.save().unsaved.values()
        assert why == "its state takes 0 MiB, more than 0; does the environment leak memory?"
        assert caplog.text.count("a shard is not saved any more: its state takes") == 1
