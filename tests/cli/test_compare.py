"""`levada compare`, `levada plot` and `levada runs`, over real runs."""

import errno
import json
import os
import re
import shutil

import pytest
from support.runs import cli as cli_harness

import levada


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("some runs")
    for rate in (0.01, 0.001):
        for seed in (1, 2):
            fields = cli_harness.TINY_FIELDS | {"learning_rate": rate}
            out = folder / "runs" / f"{rate}-{seed}"
            levada.train(
                "ppo",
                "CartPole-v1",
                until="updates=12",
                seed=seed,
                out=out,
                display="quiet",
                log="none",
                **fields,
            )
    return folder


@pytest.fixture
def shell(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    return cli_harness.Shell(capsys)


def test_a_row_for_each_group(shell):
    done = shell("compare runs")
    assert (done.code, done.err) == (0, "")
    head, first, second, *notes = done.out.splitlines()
    assert head.split()[:3] == ["group", "runs", "return"]
    assert first.startswith("ppo learning_rate=0.001  ")
    assert second.startswith("ppo learning_rate=0.01  ")
    assert notes == ["- intervals from fewer than 5 runs are wide: more seeds narrow them"]


def test_json_is_that_of_the_function(shell):
    done = shell("compare runs --target 5 --json")
    assert json.loads(done.out) == json.loads(levada.compare(["runs"], target=5.0).to_json())


def test_a_notebook_shows_the_words_of_the_command(shell):
    done = shell("compare runs --target 5")
    shown = levada.compare(["runs"], target=5.0)._repr_html_()
    rows = [re.findall(r"<t[dh][^>]*>([^<]*)<", row) for row in shown.split("</tr>")]
    assert [" ".join(row).split() for row in rows if row] == [line.split() for line in done.out.splitlines()[:3]]


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_curves_are_drawn(shell, tmp_path, suffix):
    out = tmp_path / f"curves.{suffix}"
    done = shell(f"plot runs --out {out}")
    assert (done.code, done.out.strip()) == (0, str(out))
    assert out.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml", b"%PDF-")


def test_a_full_disk_leaves_no_part_of_a_picture(shell, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("levada.run.storage.files.os.write", full)
    done = shell(f"plot runs --out {tmp_path}/curves.png")
    assert (done.code, "curves.png cannot be written: No space left on device" in done.err) == (2, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("more", ["--x seconds", "--x updates", "--per-run", "--y losses/entropy"])
def test_axes_and_metrics(shell, tmp_path, more):
    assert shell(f"plot runs --out {tmp_path}/curves.png {more}").code == 0
    assert (tmp_path / "curves.png").stat().st_size > 5_000


def test_a_comparison_can_be_drawn(shell, tmp_path):
    assert shell(f"compare runs --plot {tmp_path}/curves.svg").code == 0
    text = (tmp_path / "curves.svg").read_text()
    assert "CartPole-v1" in text


def test_runs_that_have_not_finished_are_drawn_as_far_as_they_went(shell, folder, tmp_path):
    shutil.copytree(folder / "runs/0.01-1", tmp_path / "cut off")
    (tmp_path / "cut off/summary.json").unlink()
    os.utime(tmp_path / "cut off/frames.bin", (0, 0))
    done = shell(f"plot '{tmp_path}/cut off' --out {tmp_path}/curves.png")
    assert (done.code, done.err) == (0, "")
    assert (tmp_path / "curves.png").stat().st_size > 5_000
    refused = shell(f"compare '{tmp_path}/cut off'")
    assert refused.code == 2
    assert "compare: no run is left: left out: " in refused.err and "was cut off" in refused.err


def test_an_unfinished_run_does_not_shorten_the_curve_of_its_group(shell, folder, tmp_path):
    shutil.copytree(folder / "runs", tmp_path / "some")
    part = tmp_path / "some/0.01-1"
    (part / "summary.json").unlink()
    lines = (part / "metrics.jsonl").read_text().splitlines(keepends=True)
    (part / "metrics.jsonl").write_text("".join(lines[: len(lines) // 2]))
    assert shell(f"plot '{tmp_path}/some' --out {tmp_path}/curves.svg").code == 0
    text = (tmp_path / "curves.svg").read_text()
    assert "learning_rate=0.01 (1 run) -->" in text and "learning_rate=0.01, not finished -->" in text
    assert "learning_rate=0.001 (2 runs) -->" in text


def test_runs_without_env_steps_are_drawn_over_updates(shell, folder, tmp_path):
    shutil.copytree(folder / "runs/0.01-1", tmp_path / "cloned")
    metrics = tmp_path / "cloned/metrics.jsonl"
    lines = [json.loads(line) | {"step": 0} for line in metrics.read_text().splitlines()]
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert shell(f"plot '{tmp_path}/cloned' --out {tmp_path}/curves.svg --y losses/entropy").code == 0
    text = (tmp_path / "curves.svg").read_text()
    assert "<!-- updates -->" in text and "<!-- env steps -->" not in text


@pytest.mark.parametrize(
    ("runs", "fields", "words"),
    [
        ("runs", {}, "compare: runs is 'runs', expected a list of directories or patterns; did you mean ['runs']?"),
        ([5], {}, "compare: runs has 5, expected directories or patterns"),
        (["runs"], {"target": "x"}, "compare: target='x', expected a finite number"),
        (["runs"], {"at_steps": "x"}, "compare: at_steps='x', expected an integer"),
    ],
)
def test_arguments_of_other_types_are_told(shell, runs, fields, words):
    with pytest.raises(levada.LevadaError, match=re.escape(words)):
        levada.compare(runs, **fields)


def test_names_with_dollars_are_no_formulas(shell, folder, tmp_path):
    assert shell(f"plot 'a $x^ b=runs/0.01-*' --out {tmp_path}/curves.png").code == 0


def test_names_that_begin_with_an_underscore_are_in_the_legend(shell, tmp_path):
    assert shell(f"plot '_x=runs/0.01-*' --out {tmp_path}/curves.svg").code == 0
    assert "_x (2 runs) -->" in (tmp_path / "curves.svg").read_text()


def test_a_run_whose_summary_is_torn_is_drawn(shell, folder, tmp_path):
    run = tmp_path / "torn"
    shutil.copytree(next((folder / "runs").glob("0.01-*")), run)
    summary = run / "summary.json"
    summary.write_bytes(summary.read_bytes()[:100])
    done = shell(f"plot {run} --out {tmp_path}/curves.svg")
    assert (done.code, (tmp_path / "curves.svg").exists()) == (0, True)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("compare", ["which runs?"]),
        ("plot", ["which runs?"]),
        ("compare nowhere", ["nowhere", "no such directory"]),
        ("compare runs --normalize CartPole-v1=5", ["--normalize CartPole-v1=5", "ENV=LOW:HIGH"]),
        ("compare runs --at-steps 0", ["at_steps=0", "at least 1"]),
        ("plot runs --out curves.bmp", ["curves.bmp", ".png, .svg, .pdf"]),
        ("plot runs --out nowhere/curves.png", ["nowhere/curves.png cannot be written"]),
        ("plot runs --y nothing", ["no run has nothing in its metrics"]),
        ("plot runs --y charts/SP", ["no run has charts/SP in its metrics; did you mean charts/SPS?"]),
        ("runs nowhere", ["nowhere is no directory"]),
    ],
)
def test_mistakes_are_said(shell, command, words):
    done = shell(command)
    assert (done.code, done.out) == (2, "")
    for word in words:
        assert word in done.err


@pytest.mark.parametrize(("command", "name"), [("compare runs", "scipy"), ("plot runs", "matplotlib")])
def test_what_is_not_installed_is_said(shell, monkeypatch, command, name):
    monkeypatch.setattr("levada.cli.compare.find_spec", lambda asked: None if asked == name else object())
    done = shell(command)
    assert done.code == 2
    assert f"needs {name}: pip install 'levada[plot]'" in done.err


def test_runs_are_listed(shell):
    done = shell("runs")
    assert done.code == 0
    head, *lines = done.out.splitlines()
    assert head.split() == ["run", "algorithm", "env", "seed", "env", "steps", "return", "state", "began"]
    assert {line.split()[0] for line in lines} == {f"runs/{rate}-{seed}" for rate in (0.01, 0.001) for seed in (1, 2)}
    assert all("finished: updates=12" in line for line in lines)


def test_runs_are_listed_as_json(shell):
    found = [json.loads(line) for line in shell("runs --json").out.splitlines()]
    summary = levada.load("runs/0.01-2").summary
    [one] = [each for each in found if each["run"] == "runs/0.01-2"]
    assert (one["seed"], one["env_steps"], one["return_mean_100"]) == (2, summary.env_steps, summary.return_mean_100)
    assert [each["began_s"] for each in found] == sorted((each["began_s"] for each in found), reverse=True)


def test_damaged_and_unfinished_runs_are_lines(shell, folder, tmp_path, monkeypatch):
    for name in ("torn", "cut", "failed", "odd"):
        shutil.copytree(folder / "runs" / "0.01-1", tmp_path / name)
        (tmp_path / name / "summary.json").unlink()
        (tmp_path / name / "frames.bin").unlink()
    (tmp_path / "torn" / "config.json").write_text("{")
    (tmp_path / "failed" / "error.txt").touch()
    (tmp_path / "odd" / "metrics.jsonl").write_bytes(b"\xff" * 100 + b'\n{"step": 7}\n{"st')
    (tmp_path / "loop").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    done = shell(f"runs {tmp_path} --json")
    found = {each["run"].rpartition("/")[2]: each for each in map(json.loads, done.out.splitlines())}
    assert found.keys() == {"torn", "cut", "failed", "odd"}
    assert found["torn"]["state"].startswith("unreadable: ")
    assert (found["cut"]["state"], found["failed"]["state"]) == ("cut off", "failed")
    assert found["cut"]["env_steps"] > 0
    assert (found["odd"]["env_steps"], found["odd"]["return_mean_100"]) == (7, None)


def test_no_run_is_said(shell, tmp_path):
    assert shell(f"runs {tmp_path}").out.startswith("no run in ")
