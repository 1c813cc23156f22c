"""What sinks write can be read back, by us and by TensorBoard."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.runs.fakes import Clock, FullDisk
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from levada.run.sinks import JsonLines, TensorBoard


def test_json_lines_are_one_object_each_and_there_at_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    sink = JsonLines(path)
    sink.write(10, {"a": 1.5, "b": math.nan, "c": math.inf})
    assert path.read_bytes() == b'{"step":10,"a":1.5,"b":null,"c":null}\n'
    sink.write(20, {})
    sink.close()
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": 10, "a": 1.5, "b": None, "c": None},
        {"step": 20},
    ]


@pytest.mark.parametrize(
    ("before", "kept"),
    [(b"", b""), (b'{"step":1}\n', b'{"step":1}\n'), (b'{"step":1}\n{"st', b'{"step":1}\n'), (b'{"st', b"")],
)
def test_json_lines_go_on_after_the_last_whole_line(tmp_path, before, kept):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(before)
    sink = JsonLines(path)
    sink.write(2, {})
    sink.close()
    assert path.read_bytes() == kept + b'{"step":2}\n'


def test_a_full_disk_is_said_at_once(tmp_path, monkeypatch):
    sink = JsonLines(tmp_path / "metrics.jsonl")
    with monkeypatch.context() as patch:
        FullDisk(patch, "write")
        with pytest.raises(OSError, match="No space left"):
            sink.write(1, {})
    sink.close()


def events(directory):
    (path,) = directory.iterdir()
    assert "tfevents" in path.name
    return list(EventFileLoader(str(path)).Load())


def test_tensorboard_reads_what_was_written(tmp_path):
    clock = Clock(1_700_000_000.0)
    sink = TensorBoard(tmp_path / "run", clock=clock)
    clock.now += 5
    sink.write(2048, {"charts/SPS": 9500.0, "lag/rollout->learn/max": 1})
    before_closing = events(tmp_path / "run")
    sink.close()
    first, *values = events(tmp_path / "run")
    assert len(before_closing) == 1 + len(values)
    assert first.file_version == "brain.Event:2"
    found = {v.tag: v.tensor.float_val[0] for event in values for v in event.summary.value}
    assert found == {"charts/SPS": 9500.0, "lag/rollout->learn/max": 1.0}
    assert {(event.step, event.wall_time) for event in values} == {(2048, 1_700_000_005.0)}


def test_a_disk_that_takes_a_part_of_a_line_is_asked_again(tmp_path, monkeypatch):
    sink = JsonLines(tmp_path / "metrics.jsonl")
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: real(descriptor, bytes(data[:3])))
        sink.write(7, {"charts/SPS": 9500.0})
    sink.close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == b'{"step":7,"charts/SPS":9500.0}\n'


def test_two_writers_of_one_moment_get_files_of_their_own(tmp_path):
    clock = Clock(5.0)
    for _ in range(2):
        TensorBoard(tmp_path, clock=clock).close()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_resumed_run_hides_what_came_after_its_checkpoint(tmp_path):
    sink = TensorBoard(tmp_path, purge_step=30)
    sink.close()
    _, start = events(tmp_path)
    assert (start.step, start.session_log.status) == (30, start.session_log.START)


def test_neither_torch_nor_tensorflow_is_loaded_and_tensorboard_only_when_used(tmp_path):
    code = f"""
import pkgutil, importlib, sys
import levada.run
for module in pkgutil.iter_modules(levada.run.__path__):
    if module.name != "live":
        importlib.import_module(f"levada.run.{{module.name}}")
heavy = {{"torch", "tensorflow", "tensorboard", "gymnasium", "rich"}}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
from levada.run.sinks import TensorBoard
sink = TensorBoard({str(tmp_path)!r})
sink.write(1, {{"a": 1.0}})
sink.close()
assert not {{"torch", "tensorflow"}} & set(sys.modules)
"""
    source = Path(__file__).parents[2] / "src"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(source)},
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
