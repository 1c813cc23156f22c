"""The recorder writes what happens in a run, costs next to nothing, and cannot break it."""

import logging
from itertools import pairwise

import pytest
from support.runs import cli as cli_harness

import levada
from levada.flow.events import Consumed, Failed
from levada.flow.items import Header
from levada.run.frames.file import FRAMES, FrameFile, FrameReader
from levada.run.frames.recorder import EVERY_S, MOST_EVENTS, SHARE, Recorder


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


def trained(out, **options):
    fields = cli_harness.TINY_FIELDS | options
    return levada.train("ppo", "CartPole-v1", seed=3, out=out, display="quiet", log="none", **fields)


@pytest.fixture(params=[{"on": "inline"}, {"on": "threads:2", "max_lag": 1}, {"on": "processes:2", "max_lag": 1}])
def run(request, tmp_path):
    return trained(tmp_path / "run", until="updates=6", shards=2, **request.param)


def test_the_last_frame_is_the_end_of_the_run(run):
    last = FrameReader(run.path).first()[-1]
    summary = run.summary
    assert (last.env_steps, last.updates, last.episodes) == (summary.env_steps, summary.updates, summary.episodes)
    assert last.bottleneck == summary.bottleneck or last.updates
    assert last.nodes.keys() == run.flow.nodes.keys()
    for node in last.nodes.values():
        total_s = node.busy_s + node.idle_s + node.room_s + node.weights_s
        assert total_s == pytest.approx(last.wall_s, rel=0.05, abs=0.02)
    [(name, channel)] = last.channels.items()
    assert summary.lag[name].max == channel.lag["policy"].max
    counts = channel.lag["policy"].counts
    assert sum(num for *_, num in counts) == channel.ledger.consumed
    assert max(made + waited for made, waited, _ in counts) == channel.lag["policy"].max
    for worker in last.workers.values():
        total_s = sum(sum(own.values()) for own in worker.times_s.values())
        assert last.wall_s - 1e-6 <= total_s <= last.elapsed_s  # they are read between these two
    assert last.nbytes > 1 << 20
    assert 0 < last.free_nbytes <= last.total_nbytes


def test_frames_change_no_bit(tmp_path, monkeypatch):
    monkeypatch.setattr("levada.run.frames.recorder.EVERY_S", 3600.0)
    first = trained(tmp_path / "one", until="updates=4")
    monkeypatch.setattr("levada.run.frames.recorder.EVERY_S", 0.0)
    monkeypatch.setattr("levada.run.frames.recorder.SHARE", 1e9)
    often = trained(tmp_path / "two", until="updates=4")
    assert len(FrameReader(often.path).first()) > len(FrameReader(first.path).first())
    assert often.summary.params_sha256 == first.summary.params_sha256


def test_a_full_disk_ends_the_frames_and_not_the_run(tmp_path, monkeypatch, caplog):
    def full(self, frame):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FrameFile, "write", full)
    with caplog.at_level(logging.WARNING):
        run = trained(tmp_path / "run", until="updates=4")
    assert run.summary.updates == 4
    [record] = [found for found in caplog.records if "watched" in found.getMessage()]
    assert record.getMessage().startswith("the run goes on, but cannot be watched any more: [Errno 28]")


def test_expensive_frames_are_rare(tmp_path, monkeypatch):
    clock = Clock()
    recorder = Recorder(tmp_path, 1, clock=clock)
    written = []

    def slow(run, monitor):
        written.append(clock.now_s)
        clock.now_s += 0.1

    monkeypatch.setattr(recorder, "write", slow)
    while clock.now_s < 60.0:
        clock.now_s += 0.01
        recorder.look(None, None)
    gaps = {round(after - before, 1) for before, after in pairwise(written)}
    assert gaps == {round(max(EVERY_S, 0.1 / SHARE), 1)}


def test_failures_and_lags_are_counted(tmp_path):
    recorder = Recorder(tmp_path, 1)
    header = Header({"policy": 0}, "rollout", 0, 0, 8, ())
    for lag, waited in ((3, 1), (3, 1), (500, 2)):
        recorder.on_event(Consumed("rollout->batch", header, {"policy": lag}, waited))
    recorder.on_event(Consumed("rollout->batch", header, {}))
    for number in range(2 * MOST_EVENTS):
        recorder.on_event(Failed("rollout", number, "killed"))
    assert recorder._counts["rollout->batch", "policy"] == {(2, 1): 2, (64, 2): 1}
    assert recorder._num_restarts == 2 * MOST_EVENTS


def test_a_resumed_run_goes_on_with_a_new_file(tmp_path):
    run = trained(tmp_path / "run", until="updates=4")
    before = len(FrameReader(run.path).first())
    levada.resume(run.path, until="updates=8", display="quiet")
    frames = FrameReader(run.path).first()
    assert len(frames) > before
    assert frames[-1].updates == 8
    assert (run.path / FRAMES).exists()
