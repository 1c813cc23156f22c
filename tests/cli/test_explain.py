"""`levada explain`."""

import json
import re

import msgspec
import pytest
from support.runs import cli as cli_harness

import levada
from levada.run.frames.file import FrameReader
from levada.run.storage.directory import SUMMARY


@pytest.fixture
def run(tmp_path):
    fields = cli_harness.TINY_FIELDS | {"num_steps": 128, "minibatch_size": 64}
    return levada.train(
        "ppo",
        "CartPole-v1",
        until="updates=10",
        seed=3,
        out=tmp_path / "run",
        display="quiet",
        log="none",
        **fields,
    )


@pytest.fixture
def shell(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    return cli_harness.Shell(capsys)


def test_times_bottleneck_and_advice_are_shown(shell, run):
    found = shell(f"explain {run.path}")
    assert found.code == 0
    assert found.err == ""
    first, header, *rows = found.out.splitlines()
    assert first.startswith("ppo on CartPole-v1, seed 3, inline: ")
    assert header.split() == ["share", "of", "the", "time", "in", "main"]
    shown = {row.rpartition(" ")[0].strip(): row.rpartition(" ")[2] for row in rows[:-2]}
    assert shown.keys() >= {"learn", "rollout: environment", "rollout: inference"}
    assert rows[-2] == f"What limits it: {run.summary.bottleneck}."
    assert rows[-1].startswith("What would help: ")


def test_of_a_resumed_run_the_times_are_those_of_its_last_part(shell, run):
    first = shell(f"explain {run.path}").out.partition("\n")[0]
    assert "the last" not in first
    levada.resume(run.path, until=f"updates={2 * run.summary.updates}", display="quiet")
    assert re.search(r": [\d,]+ steps/s, the last [\d.]+ s of [\d.]+ s on ", shell(f"explain {run.path}").out)


def test_json_is_that_of_the_summary(shell, run):
    found = json.loads(shell(f"explain {run.path} --json").out)
    assert found == {
        "bottleneck": run.summary.bottleneck,
        "advice": msgspec.to_builtins(run.summary.advice),
        "times": msgspec.to_builtins(run.summary.times),
    }
    total_s = sum(sum(own.values()) for own in found["times"]["workers"]["main"]["times_s"].values())
    assert found["times"]["wall_s"] - 1e-6 <= total_s <= run.summary.wall_s  # they are read between these two


def test_a_run_without_times_says_so(shell, run):
    summary = json.loads((run.path / SUMMARY).read_bytes())
    del summary["times"]
    (run.path / SUMMARY).write_text(json.dumps(summary))
    for frames in run.path.glob("frames*.bin"):
        frames.unlink()
    found = shell(f"explain {run.path}")
    assert found.code == 2
    assert "has no times yet" in found.err
    (run.path / SUMMARY).unlink()
    assert shell(f"explain {run.path}").code == 2


def test_a_run_that_has_not_ended_is_explained_by_its_last_frame(shell, run):
    summary = run.summary
    (run.path / SUMMARY).unlink()
    found = shell(f"explain {run.path}")
    assert found.code == 0
    assert "so far: still running, cut off, or without a summary" in found.out
    assert "learn" in found.out
    told = json.loads(shell(f"explain {run.path} --json").out)
    total_s = sum(sum(own.values()) for own in told["times"]["workers"]["main"]["times_s"].values())
    assert told["times"]["wall_s"] - 1e-6 <= total_s <= FrameReader(run.path).first()[-1].elapsed_s
    assert told["times"]["workers"].keys() == summary.times.workers.keys()
    assert ("What limits it: " in found.out) == (told["bottleneck"] is not None)


def test_a_run_whose_summary_is_torn_is_explained_by_its_last_frame(shell, run):
    data = (run.path / SUMMARY).read_bytes()
    (run.path / SUMMARY).write_bytes(data[: len(data) // 2])
    found = shell(f"explain {run.path}")
    assert found.code == 0
    assert "summary.json is torn or was edited" in found.err
    assert "so far: still running, cut off, or without a summary" in found.out


def test_hostile_names_are_printed_as_text(shell, run):
    summary = json.loads((run.path / SUMMARY).read_bytes())
    evil = "\x1b]0;owned\x07[bold]x"
    summary |= {"bottleneck": evil, "advice": {"setting": "workers", "value": evil, "words": evil, "speedup": 2.0}}
    summary["times"]["workers"][evil] = {"times_s": {evil: {evil: 1.0}}, "waits_for": {}}
    (run.path / SUMMARY).write_text(json.dumps(summary))
    found = shell(f"explain {run.path}")
    assert found.code == 0
    assert "\x1b" not in found.out
    assert "[bold]x" in found.out
