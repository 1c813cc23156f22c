"""The learner in a process of its own: the same bits, looked at from afar."""

import os
import signal
import time
from contextlib import suppress

import pytest
from support.processes import samples
from support.processes.interrupting import interrupted_after
from support.processes.main_process import MainProcess, is_alive
from support.processes.replays import end, replay_flow

import levada
from levada.flow import DeploymentError
from levada.run.monitor import Monitor
from levada.run.storage.hashing import params_sha256
from levada.runners import Inline, WorkerError
from levada.runners.processes import Processes

THERE = Processes(workers=2, learner="worker")


def learned(flow, on, num_updates=6, state=None, instruments=()):
    with on.open(flow, seed=1, state=state, instruments=instruments) as run:
        for report in run:
            if report.firing == num_updates:
                return params_sha256(run.node_state("learn").weights()), run.save()
    raise AssertionError


@pytest.mark.parametrize("lag", [0, 3])
def test_as_inline_bit_for_bit(lag):
    flow, here, there = samples.small_ppo(lag), Monitor(), Monitor()
    expected = learned(flow, Inline(), instruments=[here])[0]
    assert learned(flow, THERE, instruments=[there])[0] == expected
    assert (there.env_steps, there.episodes, there.updates) == (here.env_steps, here.episodes, here.updates)


def test_with_inference_elsewhere():
    flow = samples.small_ppo(1)
    place = Processes(workers=2, learner="worker", inference="worker")
    assert learned(flow, place)[0] == learned(flow, Inline())[0]


def test_saved_there_it_goes_on_anywhere():
    flow = samples.small_ppo(1)
    _, state = learned(flow, THERE, 4)
    assert state.is_exact, state.unsaved
    assert learned(flow, Inline(), 9, state)[0] == learned(flow, Inline(), 9)[0]


def test_a_killed_learner_is_replaced_and_changes_no_bit():
    flow, seen, monitor = samples.small_ppo(1), [], Monitor()
    with THERE.open(flow, seed=1, instruments=[monitor]) as run:
        for report in run:
            seen.append(report.firing)
            if report.firing == 4:
                assert run.save().is_exact
            if report.firing in (2, 6):
                os.kill(run.learner_pid, signal.SIGKILL)
            if report.firing == 9:
                break
        assert seen == list(range(1, 10))
        assert params_sha256(run.node_state("learn").weights()) == learned(flow, Inline(), 9)[0]
    here = Monitor()
    learned(flow, Inline(), 9, instruments=[here])
    assert (monitor.env_steps, monitor.episodes) == (here.env_steps, here.episodes)


@pytest.mark.parametrize("replays", [True, False])
def test_what_was_not_saved_when_a_learner_is_killed_is_told(replays, caplog):
    flow, monitor = replay_flow(), Monitor()
    with THERE.open(flow, seed=1, instruments=[monitor]) as run:
        for report in run:
            if report.firing == 4:
                run.save(replays)
            if report.firing in (5, 6):
                os.kill(run.learner_pid, signal.SIGKILL)
            if report.firing == 9:
                break
    text = "the replay replay is refilled (contents of replays are not saved unless that is asked for)"
    told = [message for message in caplog.messages if message.startswith(text)]
    if replays:
        assert report.values["w"] == end(flow, Inline(), 9)[0]
        assert (monitor.num_started_from_scratch, told) == (0, [])
    else:
        assert monitor.num_started_from_scratch == 1
        assert told == [f"{text}: the result is not that of an undisturbed run"]


def test_what_goes_wrong_while_another_learner_catches_up_counts(tmp_path):
    flow, monitor = samples.counting_flow(samples.Remembered(misbehave=samples.Asked(f"{tmp_path}/asked"))), Monitor()
    with THERE.open(flow, seed=1, instruments=[monitor]) as run:
        for report in run:
            if report.firing == 2:
                run.save()
            if report.firing == 6:
                pids = (run.learner_pid, *run.worker_pids)
                os.kill(run.learner_pid, signal.SIGKILL)
                while any(map(is_alive, pids)):
                    time.sleep(0.01)
                (tmp_path / "asked").touch()
            if report.firing == 8:
                break
    assert monitor.num_started_from_scratch == 1


def test_a_learner_that_is_killed_again_and_again_ends_the_run():
    source = samples.Numbers()
    flow = samples.counting_flow(source)
    object.__setattr__(flow.nodes["learn"], "work", samples.Harmful())
    with pytest.raises(WorkerError, match=r"the process of the learner ended 2 times in a row, now by SIGKILL"):
        learned(flow, Processes(workers=2, learner="worker", max_restarts=1))


def test_a_learner_that_hangs_is_replaced(tmp_path, caplog):
    flow = samples.counting_flow(samples.Sleeping(0.01))
    object.__setattr__(flow.nodes["learn"], "work", samples.Hanging(marker=tmp_path / "hung"))
    with Processes(workers=2, learner="worker", hang_timeout_s=2.0, max_restarts=10).open(flow, seed=1) as run:
        seen = [report.firing for report, _ in zip(run, range(6), strict=False)]
    assert seen == [1, 2, 3, 4, 5, 6]
    assert "the process of the learner ended after 3 s without a sign of life; another goes on" in caplog.text


def test_a_learner_that_waits_for_long_is_left_alone():
    flow = samples.counting_flow(samples.Sleeping(1.0), shards=10)
    with Processes(workers=1, learner="worker", hang_timeout_s=6.0, max_restarts=0).open(flow, seed=1) as run:
        assert next(iter(run)).firing == 1  # after ten such items, which take longer than the learner may be silent


def test_a_learner_that_is_gone_when_it_is_asked_for_its_state_comes_back():
    flow = samples.small_ppo(1)
    with THERE.open(flow, seed=1) as run:
        for report in run:
            if report.firing == 3:
                os.kill(run.learner_pid, signal.SIGKILL)
                state = run.save()
                break
    assert state.is_exact
    assert learned(flow, Inline(), 6, state)[0] == learned(flow, Inline(), 6)[0]


def test_an_error_of_the_loss_comes_back_with_its_traceback():
    flow = samples.counting_flow(samples.Numbers())
    object.__setattr__(flow.nodes["learn"], "work", samples.Raising())
    with pytest.raises(samples.StormError, match="storm") as caught:
        learned(flow, THERE)
    assert caught.traceback[-1].name == "do_harm"
    assert any("in node 'learn' of flow 'counting'" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("when", ["open", "update"])
def test_a_connection_error_of_the_users_is_not_the_end_of_the_process(when):
    flow = samples.counting_flow(samples.Numbers())
    object.__setattr__(flow.nodes["learn"], "work", samples.Unconnected(when=when))
    with pytest.raises(ConnectionRefusedError, match="no licence server"):
        learned(flow, THERE)


def test_a_question_that_raises_is_answered_and_the_process_goes_on():
    with THERE.open(samples.counting_flow(samples.Numbers()), seed=1) as run:
        reports = iter(run)
        next(reports)
        pid = run.learner_pid
        assert not hasattr(run.node_state("learn"), "_repr_html_")
        with pytest.raises(TypeError, match="update"):
            run.node_state("learn").update()
        assert next(reports).firing == 2
        assert run.learner_pid == pid


def test_what_hangs_when_it_is_interrupted_is_not_trained_again(monkeypatch, tmp_path):
    monkeypatch.setattr("levada.runners.processes.learner.handle.PATIENCE_S", 0.3)
    flow = samples.counting_flow(samples.Numbers())
    object.__setattr__(flow.nodes["learn"], "work", samples.Stuck(marker=tmp_path / "stuck"))
    with THERE.open(flow, seed=1) as run:
        reports = iter(run)
        assert next(reports).firing == 1
        with interrupted_after(tmp_path / "stuck"):
            next(reports)
        for ask in (run.statistics, run.save):
            with pytest.raises(WorkerError, match="what was learned since it was saved last is lost"):
                ask()


def test_what_cannot_be_sent_is_refused():
    flow = samples.counting_flow(samples.Numbers())
    object.__setattr__(flow.nodes["learn"], "work", samples.Unsendable())
    with pytest.raises(
        DeploymentError, match=r"the work of node 'learn' of flow 'counting' cannot be sent .*Unsendable"
    ):
        THERE.open(flow)
    with pytest.raises(DeploymentError, match=r"learner='there'.*expected 'main' or 'worker'"):
        Processes(learner="there")


def test_train_and_resume(tmp_path):
    sizes = {"shards": 2, "num_envs": 2, "num_steps": 16, "minibatch_size": 32, "display": "quiet"}
    there = levada.train("ppo", "CartPole-v1", until="updates=6", on=THERE, out=tmp_path / "there", **sizes)
    here = levada.train("ppo", "CartPole-v1", until="updates=6", out=tmp_path / "here", **sizes)
    assert there.summary.deployment == "processes:2,learner=worker"
    assert there.summary.params_sha256 == here.summary.params_sha256
    assert there.policy.version == 6
    assert there.summary.ledger["gae->batch"].lost == 0
    again = [levada.resume(run.path, until="updates=9", display="quiet").summary for run in (there, here)]
    assert again[0].params_sha256 == again[1].params_sha256
    assert again[0].deployment == "processes:2,learner=worker"


MAIN = """
from support.processes import samples
from levada.runners.processes import Processes

if __name__ == "__main__":
    run = Processes(workers=2, learner="worker").open(samples.counting_flow(samples.Numbers()), seed=1)
    reports = iter(run)
    next(reports)
    print(run.learner_pid, *run.worker_pids, flush=True)
    while True:
        next(reports)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_all_processes_end_with_the_main_one(tmp_path, number):
    main = MainProcess(MAIN, tmp_path)
    assert len(main.children) == 3
    main.end(number)


def test_nothing_is_left_behind():
    learned(samples.small_ppo(0), THERE, 1)
    before = len(os.listdir("/proc/self/fd"))
    with THERE.open(samples.counting_flow(samples.Numbers()), seed=1) as run:
        next(iter(run))
        pids = [run.learner_pid, *run.worker_pids]
    assert not any(map(is_alive, pids))
    assert len(os.listdir("/proc/self/fd")) <= before
    with suppress(ProcessLookupError):
        os.kill(pids[0], 0)
