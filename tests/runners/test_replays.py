"""Replays at run time: the same under every deployment, in balance whatever the speed, and nothing unaccounted for."""

import copy
import os
import signal

import pytest
from support.processes.replays import Mixer, Rows, _LiveRows, end, replay_flow
from support.runs.saved import as_read

from levada.run.storage import checkpoint
from levada.run.storage.state import pack, unpack
from levada.runners import Inline
from levada.runners.processes import Processes
from levada.runners.threads import Threads

PLACES = [Inline(), Inline(adversary=3), Threads(workers=2), Processes(workers=1), Processes(workers=2),
          Processes(workers=2, replays="worker")]  # fmt: skip


@pytest.mark.parametrize("options", [
    {}, {"prioritized": False}, {"every": 3}, {"tables": 3}, {"removal": "reservoir"}, {"shards": 1, "tickets": 1},
    {"samples_per_insert": 0.7, "size": 5}, {"tickets": 7},
], ids=str)  # fmt: skip
def test_the_same_bits_under_every_deployment(options):
    """Exact, and by chance only if timing had no say: the weights mix everything that was ever drawn, in its order."""
    slow = replay_flow(source=Rows(delays=True), **options)
    expected, statistics = end(replay_flow(**options), PLACES[0], 150)
    assert statistics.replays["replay"].ledger.balanced
    for place in PLACES[1:]:
        assert end(slow, place, 150)[0] == expected, place


def test_another_order_gives_other_bits():
    flow = replay_flow(source=Rows(delays=True), order="arrival")
    assert len({end(flow, Threads(workers=2), 100)[0] for _ in range(3)}) > 1


@pytest.mark.parametrize("place", [Inline(), Processes(workers=2)], ids=str)
@pytest.mark.parametrize("who_is_slow", ["nobody", "learner", "sampler"])
@pytest.mark.parametrize("options", [{}, {"tolerance": 16.0}], ids=str)
def test_the_reuse_asked_for_is_the_reuse_that_comes_out(place, who_is_slow, options):
    source = Rows(sleep_s=0.002 if who_is_slow == "sampler" else 0.0)
    learner = Mixer(sleep_s=0.002 if who_is_slow == "learner" else 0.0)
    flow = replay_flow(source=source, learner=learner, samples_per_insert=4.0, capacity=500, size=16, **options)
    replay = end(flow, place, 600)[1].replays["replay"]
    assert replay.asked == 4.0
    assert replay.reuse == pytest.approx(4.0, abs=0.01)
    assert replay.sampled == pytest.approx(
        (replay.inserted - 8) * 4.0, abs=flow.replays["replay"].tolerance + 16.0 + 12.0
    )
    assert replay.fill == 500


@pytest.mark.parametrize(
    "options", [{}, {"prioritized": False, "removal": "reservoir"}, {"every": 3, "tables": 2}], ids=str
)
@pytest.mark.parametrize("place", [Inline(), Processes(workers=2), Processes(workers=2, replays="worker")], ids=str)
def test_a_run_goes_on_from_its_contents_bit_for_bit(tmp_path, place, options):
    flow = replay_flow(**options)
    expected, statistics = end(flow, Inline(), 200)
    state = saved(flow, place, 77)
    assert state.is_exact
    state = through_a_checkpoint(state, tmp_path)
    for second in (Inline(), Processes(workers=1), Processes(workers=1, replays="worker")):
        found, after = end(flow, second, 200, state=state)
        assert found == expected
        assert after.replays["replay"].ledger.balanced
        assert after.replays["replay"].inserted == statistics.replays["replay"].inserted


@pytest.mark.parametrize(("options", "are_needed"), [
    ({"size": 12}, False), ({"size": 12, "shards": 1}, False),
    ({"shards": 1, "every": 3}, False),
    ({}, True),  # draws wait for items that are made with old weights
], ids=str)  # fmt: skip
def test_inline_takes_states_of_shards_only_where_a_save_may_need_them(options, are_needed, monkeypatch):
    num_taken = [0]

    def counted(self, state_dict=_LiveRows.state_dict):
        num_taken[0] += 1
        return state_dict(self)

    flow = replay_flow(**options)
    expected, _ = end(flow, Inline(), 60)
    monkeypatch.setattr(_LiveRows, "state_dict", counted)
    assert end(flow, Inline(), 60)[0] == expected
    assert (num_taken[0] > flow.nodes["rollout"].shards) is are_needed  # each was taken once when it was opened
    states = []
    with Inline().open(flow, seed=1) as run:
        for report in run:
            states.append(copy.deepcopy(run.save()))  # the run goes on to change its replay
            if report.firing == 12:
                break
    for state in states:
        assert state.is_exact
        assert end(flow, Inline(), 60, state=state)[0] == expected


def test_without_its_contents_a_replay_is_filled_anew(tmp_path):
    flow = replay_flow(capacity=500, min_size=100)
    state = saved(flow, Inline(), 77, replays=False)
    assert not state.is_exact
    assert list(state.unsaved_replays) == ["replay"]
    _, statistics = end(flow, Processes(workers=2), 177, state=through_a_checkpoint(state, tmp_path))
    replay = statistics.replays["replay"]
    assert replay.ledger.balanced
    assert replay.sampled in (400, 404)  # the next draw may have begun
    assert replay.inserted >= 100 + 400 / 4.0 - 3


def saved(flow, place, num_updates, **options):
    with place.open(flow, seed=1) as run:
        for report in run:
            if report.firing == num_updates:
                return as_read(run.save(**options))
    raise AssertionError


def through_a_checkpoint(state, directory):
    arrays, meta = pack(state)
    found = checkpoint.load(checkpoint.save(directory, 1, arrays, meta))
    return unpack(found.arrays, found.meta, found.replays)


def test_workers_that_are_killed_change_nothing_and_the_ledger_names_the_loss():
    flow = replay_flow(source=Rows(sleep_s=0.001))
    expected, _ = end(flow, Inline(), 300)
    with Processes(workers=2).open(flow, seed=1) as run:
        for report in run:
            if report.firing in (40, 120, 200):
                os.kill(run.worker_pids[report.firing % 2], signal.SIGKILL)
            if report.firing == 300:
                ledger = run.statistics().replays["replay"].ledger
                break
        assert report.values["w"] == expected
    assert ledger.balanced
    assert 1 <= ledger.lost <= 3
