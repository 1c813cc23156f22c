"""Tables in processes of their own: the same bits, and what becomes of a run when one is killed, hangs, or refuses."""

import gc
import os
import signal
import time

import numpy as np
import pytest
from support.processes.main_process import is_alive
from support.processes.replays import Growing, Rows, WordCounter, Words, end, replay_flow

from levada.flow import DeploymentError, Emptied, Flow
from levada.rl.replay.transitions import Transitions
from levada.runners import Inline, WorkerError
from levada.runners.processes import Processes
from levada.runners.processes.tables.handle import TableProcesses
from levada.runners.tables import TableRecipe

APART = Processes(workers=2, replays="worker")


class Losses:
    def __init__(self):
        self.seen = []

    def on_event(self, event):
        if isinstance(event, Emptied):
            self.seen.append(event)


def kill(run, table=0):
    os.kill(run.table_place.pids[table], signal.SIGKILL)


@pytest.mark.parametrize("tables", [1, 2])
@pytest.mark.parametrize("options", [{}, {"prioritized": False, "tolerance": 8.0, "order": "arrival"}], ids=str)
def test_a_killed_table_is_filled_anew_and_the_account_names_the_loss(tables, options):
    flow, losses = replay_flow(tables=tables, **options), Losses()
    with APART.open(flow, seed=1, instruments=[losses]) as run:
        for report in run:
            if report.firing in (40, 120, 200):
                kill(run, report.firing // 40 % tables)
            if report.firing == 300:
                break
        replay = run.statistics().replays["replay"]
    assert replay.ledger.balanced
    assert replay.ledger.lost == 0
    assert len(losses.seen) == 3
    assert replay.lost == sum(event.num_entries for event in losses.seen) > 0
    assert replay.reuse == pytest.approx(4.0, abs=0.2)


def test_tables_and_workers_can_be_killed_together():
    with APART.open(replay_flow(source=Rows(sleep_s=0.001), tables=2), seed=1) as run:
        for report in run:
            if report.firing in (20, 60, 100):
                kill(run, report.firing // 20 % 2)
                os.kill(run.worker_pids[report.firing // 20 % 2], signal.SIGKILL)
            if report.firing == 150:
                break
        ledger = run.statistics().replays["replay"].ledger
    assert ledger.balanced
    assert ledger.lost >= 1


def test_a_table_that_always_ends_ends_the_run():
    with Processes(workers=1, replays="worker", max_restarts=2).open(replay_flow(), seed=1) as run:
        reports = iter(run)
        next(reports)
        process = run.table_place._tables[0]
        process.sample = lambda *sizes: kill(run) or time.sleep(0.05) or type(process).sample(process, *sizes)
        with pytest.raises(WorkerError, match=r"table 0 of replay 'replay' ended 3 times in a row, now by SIGKILL"):
            for _ in reports:
                pass


def test_a_table_that_hangs_is_killed():
    with Processes(workers=1, replays="worker", hang_timeout_s=2.0).open(replay_flow(), seed=1) as run:
        for report in run:
            if report.firing == 10:
                os.kill(run.table_place.pids[0], signal.SIGSTOP)
            if report.firing == 30:
                break
        assert run.statistics().replays["replay"].lost > 0


def test_what_was_refused_says_of_what_and_leaves_no_answer_behind():
    recipe = TableRecipe(replay_flow().replays["replay"], 0, 1)
    [table] = (place := TableProcesses(max_restarts=0, hang_timeout_s=30.0)).open([recipe])
    try:
        for _ in range(5):
            table.insert(Transitions({"value": np.arange(6.0)}))
            _, entries = table.sample(4, 4)
            table.reprioritize(entries, np.full(4, np.nan))
            with pytest.raises(ValueError, match="4 priorities were expected") as caught:
                table.sample(4, 4)
            assert caught.value.__notes__ == ["while giving new priorities to samples of the replay 'replay'"]
            assert len(table.state_dict()["rows/value"]) > 0
            [batch], _ = table.sample(4, 4)
            assert batch.num_rows == 4
    finally:
        place.close()


def test_descriptors_meant_for_a_table_that_is_gone_are_closed():
    recipe, num = TableRecipe(replay_flow().replays["replay"], 0, 1), list[int]()
    [table] = (place := TableProcesses(max_restarts=0, hang_timeout_s=30.0)).open([recipe])
    try:
        for _ in range(5):
            os.kill(pid := table.pid, signal.SIGKILL)
            while os.path.exists(f"/proc/{pid}"):
                time.sleep(0.01)
            table.insert(Transitions({"value": np.arange(6.0)}))
            assert table.how_it_ended
            table.start()
            gc.collect()
            num.append(len(os.listdir("/proc/self/fd")))
    finally:
        place.close()
    assert num[-1] <= num[0] + 1


def test_a_table_that_cannot_be_opened_says_why():
    flow = replay_flow(capacity=10**14)
    with pytest.raises(MemoryError) as caught, APART.open(flow, seed=1) as run:
        next(iter(run))
    assert "while opening table 0 of the replay 'replay'" in caught.value.__notes__


def test_a_run_can_be_saved_while_a_table_is_gone():
    with APART.open(replay_flow(), seed=1) as run:
        for report in run:
            if report.firing == 20:
                kill(run)
                state = run.save()
            if report.firing == 40:
                break
    assert list(state.unsaved_replays) == ["replay"]
    assert "has ended" in state.unsaved_replays["replay"]
    assert end(replay_flow(), Inline(), 60, state=state)[1].replays["replay"].ledger.balanced


def test_what_a_table_refuses_is_the_users_error():
    flow = replay_flow(source=Growing())
    with APART.open(flow, seed=1) as run, pytest.raises(ValueError, match="column 'value' of a replay") as caught:
        for _ in run:
            pass
    assert "levada/rl/replay/columns.py" in str(caught.getrepr())


def test_items_of_any_kind_do_not_change_when_their_memory_is_used_again():
    """Objects stay in the table for long, and the slots that they were made in go back to the worker."""
    flow, learner = Flow("words"), WordCounter()
    weights = flow.latest("weights", of=learner)
    words = flow.source("write", Words(), reads=weights, shards=2)
    replay = flow.replay("replay", of=dict, capacity=200, min_size=50, samples_per_insert=2.0)
    flow.store(words, to=replay)
    update = flow.learn("learn", learner, flow.sample("sample", replay, size=8))
    flow.publish(update.weights, to=weights)
    flow.report(update.stats)
    for place in (APART, Processes(workers=2)):
        assert end(flow, place, 80)[0] == end(flow, Inline(), 80)[0]


def test_large_contents_are_saved_where_they_lie():
    """The memory of the run does not grow by what the table holds."""
    flow = replay_flow(source=Rows(num=50_000), capacity=200_000, min_size=150_000, size=10_000, samples_per_insert=0.5)
    with APART.open(flow, seed=1) as run:
        next(iter(run))
        state = run.save()
        [table] = state.replays["replay"]
        value = table["rows/value"]
        assert len(value) >= 150_000
        assert not value.flags.owndata
        assert np.unique(value).size > 50_000


def test_nothing_is_left_behind():
    num_open = []
    for _ in range(3):
        with APART.open(replay_flow(tables=2), seed=1) as run:
            next(iter(run))
            run.save()
            pids = run.table_place.pids
            kill(run, 1)
        assert not any(map(is_alive, pids))
        del run
        gc.collect()
        num_open.append(len(os.listdir("/proc/self/fd")))
    assert num_open[-1] <= num_open[0]


def test_only_known_places():
    with pytest.raises(DeploymentError, match=r"replays='main'.*expected 'learner' or 'worker'"):
        Processes(replays="main")  # type: ignore[arg-type]
    assert str(Processes.parse(":2,replays=worker")) == "processes:2,replays=worker"
