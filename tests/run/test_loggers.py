"""What loggers write can be read back, by us and by TensorBoard."""

import csv
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.runs.fakes import Clock, FullDisk
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from levada.run.loggers import Csv, JsonLines, LogError, TensorBoard, parse_log


def test_json_lines_are_one_object_each_and_there_at_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    sink = JsonLines(path)
    sink.write(10, {"a": 1.5, "b": math.nan, "c": math.inf})
    assert path.read_bytes() == b'{"step":10,"a":1.5,"b":null,"c":null}\n'
    sink.write(20, {})
    sink.close(None)
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
    sink.close(None)
    assert path.read_bytes() == kept + b'{"step":2}\n'


def test_a_full_disk_is_said_at_once(tmp_path, monkeypatch):
    sink = JsonLines(tmp_path / "metrics.jsonl")
    with monkeypatch.context() as patch:
        FullDisk(patch, "write")
        with pytest.raises(OSError, match="No space left"):
            sink.write(1, {})
    sink.close(None)


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
    sink.close(None)
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
    sink.close(None)
    assert (tmp_path / "metrics.jsonl").read_bytes() == b'{"step":7,"charts/SPS":9500.0}\n'


def test_two_writers_of_one_moment_get_files_of_their_own(tmp_path):
    clock = Clock(5.0)
    for _ in range(2):
        TensorBoard(tmp_path, clock=clock).close(None)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_resumed_run_hides_what_came_after_its_checkpoint(tmp_path):
    sink = TensorBoard(tmp_path, purge_step=30)
    sink.close(None)
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
from levada.run.loggers import TensorBoard
sink = TensorBoard({str(tmp_path)!r})
sink.write(1, {{"a": 1.0}})
sink.close(None)
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


def rows_of(path):
    with path.open(encoding="utf-8", newline="") as file:
        return [{name: value for name, value in row.items() if value != ""} for row in csv.DictReader(file)]


def test_csv_gets_columns_for_metrics_that_appear_later(tmp_path):
    path = tmp_path / "metrics.csv"
    logger = Csv(path)
    logger.write(10, {"a": 1.5, "b": math.nan})
    logger.write(20, {"a": 2.0, "ü, \n": 3.0})
    logger.write(30, {"b": 1e300})
    logger.close(None)
    assert rows_of(path) == [
        {"step": "10", "a": "1.5"}, {"step": "20", "a": "2.0", "ü, \n": "3.0"}, {"step": "30", "b": "1e+300"},
    ]  # fmt: skip


def test_csv_follows_no_link_and_begins_with_earlier_rows(tmp_path):
    path, elsewhere = tmp_path / "metrics.csv", tmp_path / "elsewhere"
    elsewhere.write_text("precious")
    path.symlink_to(elsewhere)
    logger = Csv(path, [{"step": 1, "a": None}, {"step": 2, "b": 2.0}])
    logger.write(3, {"a": 3.0})
    logger.close(None)
    assert elsewhere.read_text() == "precious"
    assert rows_of(path) == [{"step": "1"}, {"step": "2", "b": "2.0"}, {"step": "3", "a": "3.0"}]


def test_csv_on_a_full_disk_is_said_at_once(tmp_path, monkeypatch):
    logger = Csv(tmp_path / "metrics.csv")
    logger.write(1, {"a": 1.0})
    with monkeypatch.context() as patch:
        FullDisk(patch, "write")
        with pytest.raises(OSError, match="No space left"):
            logger.write(2, {"a": 2.0})
    logger.close(None)


@pytest.mark.parametrize(
    ("log", "message"),
    [
        (
            "tensorbord",
            "no logger 'tensorbord', expected 'none', or some of tensorboard, csv, .*; did you mean 'tensorboard'",
        ),
        ("", "no logger ''"),
        ("csv,none", "no logger 'none'"),
        ("csv, csv", "csv is given 2 times; keep one"),
    ],
)
def test_invalid_names_of_loggers(log, message):
    with pytest.raises(LogError, match=message):
        parse_log(log)
