"""The trace of a run: what is in it is what happened, in every deployment, and in Perfetto's own format."""

import collections
import io
import logging

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent
from support.runs import cli as cli_harness
from support.trace_processor import needs_trace_processor, trace_processor

import levada
from levada.flow.events import Dropped, Failed, Fired, Published, Used
from levada.flow.items import Header
from levada.run.frames.file import RecordFile
from levada.run.trace.perfetto import records_of, write_trace
from levada.run.trace.recorder import TraceRecorder
from levada.run.trace.records import CountRecord, FiringRecord, MarkRecord, UseRecord


class Ledger:
    """Counts by itself what each update has used."""

    def __init__(self):
        self.used = collections.defaultdict(set)
        self.firing = {}
        self.fired = collections.Counter()

    def on_event(self, event):
        if isinstance(event, Fired):
            self.fired[event.node] += 1
            self.firing[event.node] = event.firing
        elif isinstance(event, Used):
            self.used[event.node, self.firing.get(event.node, 0)] |= {
                (h.source, h.shard, h.ticket) for h in event.headers
            }


class Perfetto:
    """A trace, read back as the trace processor does: flows join the slices that begin and end them."""

    def __init__(self, data):
        self.trace = Trace()
        self.trace.ParseFromString(data)
        self.tracks = {
            p.track_descriptor.uuid: p.track_descriptor for p in self.trace.packet if p.HasField("track_descriptor")
        }
        self.events = [p for p in self.trace.packet if p.HasField("track_event")]
        self.begins = [p for p in self.events if p.track_event.type == TrackEvent.TYPE_SLICE_BEGIN]

    def numbers(self, packet):
        return {each.name: each.int_value for each in packet.track_event.debug_annotations}

    def flows(self):
        """The firings of sources that lead to each update."""
        began = collections.defaultdict(set)
        for packet in self.begins:
            numbers = self.numbers(packet)
            for flow in packet.track_event.flow_ids:
                began[flow].add((packet.track_event.name, numbers["shard"], numbers["ticket"]))
        found = collections.defaultdict(set)
        for packet in self.begins:
            for flow in packet.track_event.terminating_flow_ids:
                found[packet.track_event.name, self.numbers(packet)["firing"]] |= began[flow]
        return found

    def slices(self):
        """Number of slices by track, which must be closed one after the other."""
        found, open_on = collections.Counter(), collections.Counter()
        for packet in self.events:
            event = packet.track_event
            name = self.tracks[event.track_uuid].name
            if event.type == TrackEvent.TYPE_SLICE_BEGIN:
                open_on[name] += 1
                assert open_on[name] == 1
                found[name] += 1
            elif event.type == TrackEvent.TYPE_SLICE_END:
                open_on[name] -= 1
        assert not any(open_on.values())
        return found


def written(run):
    out = io.BytesIO()
    num = write_trace(lambda: records_of(run.path), "a run", out)
    return num, Perfetto(out.getvalue())


PPO = ("ppo", cli_harness.TINY_FIELDS | {"shards": 2}, "updates=5")
SMALL = {"hidden_sizes": (8,), "compile": False}
DQN = ("dqn", SMALL | {"learning_starts": 64, "buffer_size": 1000, "batch_size": 16}, "updates=30")
IMPALA = ("impala", SMALL | {"num_envs": 2, "num_steps": 8, "shards": 2}, "updates=6")


@pytest.mark.parametrize("on", ["inline", "threads:2", "processes:2"])
@pytest.mark.parametrize(("algorithm", "fields", "until"), [PPO, DQN, IMPALA], ids=["ppo", "dqn", "impala"])
def test_arrows_lead_from_each_item_to_the_updates_that_used_it(tmp_path, on, algorithm, fields, until):
    ledger = Ledger()
    run = levada.train(
        algorithm, "CartPole-v1", until=until, on=on, seed=1, out=tmp_path / "run", trace=True, display="quiet",
        log="none", instruments=[ledger], **fields,
    )  # fmt: skip
    num, found = written(run)
    assert found.flows() == {update: items for update, items in ledger.used.items() if items}
    assert ledger.used
    assert num == sum(ledger.fired.values())
    names = collections.Counter(packet.track_event.name for packet in found.begins)
    assert {name: names[name] for name in ledger.fired} == ledger.fired
    tracks = found.slices()
    workers = {"main"} if on == "inline" else {"main", *(name for name in run.summary.times.workers)}
    assert tracks.keys() <= workers | set(run.flow.replays)
    assert len(tracks) >= min(2, len(workers))


# One query gives, for each update, the rollouts that it used.
USED = """
select learn.name as update_node, extract_arg(learn.arg_set_id, 'debug.firing') as firing,
  source.name as source, extract_arg(source.arg_set_id, 'debug.shard') as shard,
  extract_arg(source.arg_set_id, 'debug.ticket') as ticket
from flow join slice as source on source.id = flow.slice_out join slice as learn on learn.id = flow.slice_in
"""


@pytest.fixture(scope="module")
def load():
    with trace_processor() as load:
        yield load


@needs_trace_processor
@pytest.mark.parametrize(("algorithm", "fields", "until"), [PPO, DQN, IMPALA], ids=["ppo", "dqn", "impala"])
def test_perfettos_trace_processor_gives_for_each_update_the_rollouts_it_used(tmp_path, load, algorithm, fields, until):
    ledger = Ledger()
    run = levada.train(
        algorithm, "CartPole-v1", until=until, on="processes:2", seed=1, out=tmp_path / "run", trace=True,
        display="quiet", log="none", instruments=[ledger], **fields,
    )  # fmt: skip
    out = io.BytesIO()
    write_trace(lambda: records_of(run.path), "a run", out)
    processor = load(out.getvalue())
    found = collections.defaultdict(set)
    for row in processor.query(USED):
        found[row["update_node"], row["firing"]].add((row["source"], row["shard"], row["ticket"]))
    assert found == {update: items for update, items in ledger.used.items() if items}
    counted = {row["name"]: row["num"] for row in processor.query("select name, count(*) as num from slice group by 1")}
    assert {name: counted[name] for name in ledger.fired} == ledger.fired
    assert processor.query("select name from stats where severity = 'error' and value > 0") == []


@needs_trace_processor
def test_perfettos_trace_processor_refuses_what_is_no_trace(load):
    with pytest.raises(ValueError, match="Unknown trace type"):
        load(b"\x00 no trace")


def test_a_trace_changes_no_bit(tmp_path):
    hashes = {
        levada.train(
            "ppo", "CartPole-v1", until="updates=4", seed=3, out=tmp_path / str(trace), trace=trace, display="quiet",
            **cli_harness.TINY_FIELDS,
        ).summary.params_sha256
        for trace in (False, True)
    }  # fmt: skip
    assert len(hashes) == 1


def test_counters_and_marks(tmp_path):
    clock = iter(range(1, 1000)).__next__
    recorder = TraceRecorder(tmp_path, clock=lambda: float(clock()))
    header = Header({"policy": 0}, "rollout", 1, 7, 8, ())
    for event in (
        Published("weights", 3),
        Dropped("rollout->batch", header, "stale"),
        Failed("rollout", 1, "killed"),
        Fired("learn", None, 4, 1.0, 2.0, "learner"),
        Used("learn", (header,)),
    ):
        recorder.on_event(event)
    recorder.fill("rollout->batch", 2)
    recorder.fill("rollout->batch", 2)
    recorder.close()
    records = list(records_of(tmp_path))
    marks = [record.text for record in records if isinstance(record, MarkRecord)]
    assert marks == [
        "weights: version 3",
        "rollout->batch dropped an item of rollout 1: stale",
        "rollout 1 failed: killed",
    ]
    assert FiringRecord("learn", "learner", None, 4, None, 1.0, 2.0) in records
    assert [("rollout", 1, 7)] in [record.items for record in records if isinstance(record, UseRecord)]
    assert [record.value for record in records if isinstance(record, CountRecord)] == [2.0]


def test_a_full_disk_ends_the_trace_and_not_the_run(tmp_path, monkeypatch, caplog):
    def full(self, record):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RecordFile, "write", full)
    recorder = TraceRecorder(tmp_path)
    with caplog.at_level(logging.WARNING):
        for number in range(3000):
            recorder.on_event(Fired("learn", None, number, 0.0, 1.0))
        recorder.close()
    assert [record.getMessage()[:40] for record in caplog.records] == ["the run goes on, but its trace ends here"]


def test_a_resumed_run_goes_on_with_its_trace(tmp_path):
    fields = cli_harness.TINY_FIELDS | {"display": "quiet", "log": "none"}
    run = levada.train("ppo", "CartPole-v1", until="updates=3", out=tmp_path / "run", trace=True, **fields)
    before, _ = written(run)
    after, _ = written(levada.resume(run.path, until="updates=6", display="quiet"))
    assert after == 2 * before


@pytest.mark.parametrize("size", [0, 1, 10, 100])
def test_a_trace_that_was_cut_off_is_read_up_to_there(tmp_path, size):
    recorder = TraceRecorder(tmp_path, clock=lambda: 0.0)  # batches are written by their size only
    for number in range(5000):
        recorder.on_event(Fired("learn", None, number, float(number), number + 0.5))
    recorder.close()
    path = tmp_path / "trace.bin"
    path.write_bytes(path.read_bytes()[: -size or None])
    out = io.BytesIO()
    assert write_trace(lambda: records_of(tmp_path), "x", out) == (5000 if size == 0 else 4000)
    assert Perfetto(out.getvalue()).slices()["main"] == (5000 if size == 0 else 4000)
