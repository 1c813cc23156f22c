"""The trace in the format of Perfetto: a file that ui.perfetto.dev and its trace processor open.

There is a track for each worker, with a slice for each firing, and arrows (flows) from the firing of a source to each update that
has used its item, or to the replay into which it was inserted. The file is written piece by piece, so that a long trace needs no
memory.

The format: perfetto.dev, "TrackEvent" and protos/perfetto/trace/trace_packet.proto.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Final

from levada.run.frames.file import RecordReader
from levada.run.trace.records import TRACE, Batch, CountRecord, FiringRecord, MarkRecord, Record, UseRecord

_PROCESS: Final = 1
_SEQUENCE: Final = 1
_PACKET: Final = b"\x0a"
"""Field 1 of the message `Trace`, with a length."""


def records_of(directory: Path) -> Iterator[Record]:
    """Yield the records of a run's trace, oldest first."""
    reader: RecordReader[list[Record]] = RecordReader(directory, TRACE, Batch)
    try:
        for batch in reader.all():
            yield from batch
    finally:
        reader.close()


def write_trace(records: Callable[[], Iterator[Record]], name: str, out: IO[bytes]) -> int:
    """Write records as a Perfetto trace.

    Args:
        records: called twice; yields the records.
        name: name of the run.
        out: file to write to.

    Returns:
        The number of firings.

    Raises:
        ModuleNotFoundError: the package `perfetto` is not installed.
    """
    consumers: dict[str, set[str]] = {}
    for record in records():
        if isinstance(record, UseRecord):
            for source, _, _ in record.items:
                consumers.setdefault(source, set()).add(record.node)
    writer = _Writer(name, consumers, out)
    for record in records():
        writer.write(record)
    writer.finish()
    return writer.num_firings


class _Writer:
    def __init__(self, name: str, consumers: dict[str, set[str]], out: IO[bytes]) -> None:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2

        self._protos: Any = perfetto_trace_pb2
        self._consumers = consumers
        self._out = out
        self._tracks: set[int] = set()
        self._held: dict[str, FiringRecord] = {}
        self.num_firings = 0
        packet = self._protos.TracePacket()
        packet.track_descriptor.uuid = _PROCESS
        packet.track_descriptor.process.pid = 1
        packet.track_descriptor.process.process_name = name
        self._put(packet)

    def write(self, record: Record) -> None:
        """Write a record; a firing waits for what it has used, which comes next."""
        if isinstance(record, FiringRecord):
            self._release(record.node)
            if record.shard is None:
                self._held[record.node] = record
            else:
                self.num_firings += 1
                self._slice(record, ())
        elif isinstance(record, UseRecord):
            firing = self._held.pop(record.node, None)
            if firing is None:  # a replay
                firing = FiringRecord(record.node, record.node, None, 0, None, record.at_s, record.at_s)
            else:
                self.num_firings += 1
            self._slice(firing, record.items)
        elif isinstance(record, CountRecord):
            track = self._track(f"count {record.name}", record.name, is_counter=True)
            packet = self._event(track, record.at_s, self._protos.TrackEvent.TYPE_COUNTER)
            packet.track_event.double_counter_value = record.value
            self._put(packet)
        elif isinstance(record, MarkRecord):
            track = self._track("marks", "what happened")
            packet = self._event(track, record.at_s, self._protos.TrackEvent.TYPE_INSTANT)
            packet.track_event.name = record.text
            self._put(packet)

    def finish(self) -> None:
        """Write the firings that still wait."""
        for node in list(self._held):
            self._release(node)

    def _release(self, node: str) -> None:
        """Write the firing of a node that waits, which has used nothing."""
        if (firing := self._held.pop(node, None)) is not None:
            self.num_firings += 1
            self._slice(firing, ())

    def _slice(self, firing: FiringRecord, used: Any) -> None:
        track = self._track(f"worker {firing.worker}", firing.worker)
        packet = self._event(track, firing.start_s, self._protos.TrackEvent.TYPE_SLICE_BEGIN)
        event = packet.track_event
        event.name = firing.node
        numbers = {"firing": firing.firing, "shard": firing.shard, "ticket": firing.ticket}
        for key, value in numbers.items():
            if value is not None:
                annotation = event.debug_annotations.add()
                annotation.name, annotation.int_value = key, value
        if firing.shard is not None and firing.ticket is not None:
            to = sorted(self._consumers.get(firing.node, ()))
            event.flow_ids.extend(_id("flow", firing.node, firing.shard, firing.ticket, node) for node in to)
        event.terminating_flow_ids.extend(
            dict.fromkeys(_id("flow", source, shard, ticket, firing.node) for source, shard, ticket in used)
        )
        self._put(packet)
        self._put(self._event(track, firing.end_s, self._protos.TrackEvent.TYPE_SLICE_END))

    def _track(self, key: str, name: str, *, is_counter: bool = False) -> int:
        uuid = _id("track", key)
        if uuid not in self._tracks:
            self._tracks.add(uuid)
            packet = self._protos.TracePacket()
            descriptor = packet.track_descriptor
            descriptor.uuid, descriptor.parent_uuid, descriptor.name = uuid, _PROCESS, name
            if is_counter:
                descriptor.counter.SetInParent()
            self._put(packet)
        return uuid

    def _event(self, track: int, at_s: float, kind: int) -> Any:
        packet = self._protos.TracePacket()
        packet.timestamp = max(0, round(at_s * 1e9))
        packet.track_event.track_uuid = track
        packet.track_event.type = kind
        return packet

    def _put(self, packet: Any) -> None:
        packet.trusted_packet_sequence_id = _SEQUENCE
        data = packet.SerializeToString()
        self._out.write(_PACKET + _varint(len(data)) + data)


def _id(*parts: object) -> int:
    """Return a number of 63 bits for these parts."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little") >> 1


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
