"""`levada watch`, `report`, `trace` and `export` as commands; what they show and write is tested in folders of their own."""

import errno
import http.client
import re
import signal
from urllib.parse import urlsplit

import pytest
from support.runs import cli as cli_harness

import levada


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "first"
    levada.train("ppo", "CartPole-v1", until="updates=2", out=out, display="quiet", **cli_harness.TINY_FIELDS)
    return out


@pytest.fixture
def shell(run, monkeypatch, capsys):
    monkeypatch.chdir(run.parent)
    return cli_harness.Shell(capsys)


def status(url):
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=300)
    try:
        connection.request("GET", parts.path)
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_page_is_served_until_ctrl_c(run):
    with cli_harness.begin("watch first", cwd=run.parent) as server:
        url = server.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", url)
        assert status(url) == 200
        server.send_signal(signal.SIGINT)
        _, err = server.communicate(timeout=300)
    assert (server.returncode, err) == (0, "")


UNTIL_SEEN = """
import os, time
from gymnasium.envs.classic_control import CartPoleEnv

class UntilSeen(CartPoleEnv):
    def reset(self, **options):
        while os.path.exists("run") and not os.path.exists("seen"):
            time.sleep(0.01)
        return super().reset(**options)
"""
"""An environment whose training goes on when somebody has seen its page."""


def test_training_serves_its_page_and_ends_it(tmp_path):
    (tmp_path / "until_seen.py").write_text(UNTIL_SEEN)
    command = f"train ppo --env until_seen.py:UntilSeen --until updates=200 --out run --watch {cli_harness.TINY}"
    with cli_harness.begin(command, cwd=tmp_path) as training:
        lines = iter(training.stderr.readline, "")
        url = next(line for line in lines if line.startswith("watch: ")).removeprefix("watch: ").strip()
        assert status(url) == 200
        (tmp_path / "seen").touch()
        _, err = training.communicate(timeout=300)
    assert training.returncode == 0
    assert "stopped by updates=200" in err
    with pytest.raises(ConnectionRefusedError):
        status(url)


def test_what_is_watched_does_not_change(tmp_path):
    hashes = set()
    for more in ("", "--watch"):
        command = f"train ppo --env CartPole-v1 --until updates=5 --out run{more} --json {more} {cli_harness.TINY}"
        done = cli_harness.in_process(command, cwd=tmp_path)
        assert done.code == 0
        hashes.add(levada.load(tmp_path / f"run{more}").summary.params_sha256)
    assert len(hashes) == 1


def test_a_report_lies_in_the_run(shell, run):
    done = shell("report first")
    assert (done.code, done.out.strip()) == (0, "first/report.html")
    assert (run / "report.html").read_text().startswith("<!doctype html>")
    assert levada.load(run).summary.updates == 2


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("watch", ["which run?", "levada watch RUN"]),
        ("report", ["which run?", "levada report RUN"]),
        ("watch nothing", ["nothing"]),
        ("watch first nothing", ["nothing"]),
        ("watch s3://bucket/run", ["s3://bucket/run", "directories alone"]),
        ("report s3://bucket/run", ["s3://bucket/run", "directories alone"]),
        ("watch first --port 70000", ["--port 70000", "0 to 65535"]),
        ("watch first --port -1", ["--port -1", "0 to 65535"]),
        ("watch first --host 192.0.2.1", ["cannot listen at 192.0.2.1", "Cannot assign requested address"]),
        ("watch first --host nowhere.invalid", ["cannot listen at nowhere.invalid", "not known"]),
        ("report first first", ["--out FILE"]),
        ("report first --out .", ["--out . is a directory", "./report.html"]),
        ("report first --out nowhere/report.html", ["nowhere/report.html cannot be written", "No such file"]),
    ],
)
def test_mistakes_are_said(shell, command, words):
    done = shell(command)
    assert (done.code, done.out) == (2, "")
    for word in words:
        assert word in done.err


def test_what_is_not_installed_is_said(shell, monkeypatch):
    monkeypatch.setattr("levada.cli.watch.find_spec", lambda name: None if name == "uvicorn" else object())
    for command, shown in (("watch first", "levada watch"), ("train ppo --env CartPole-v1 --watch", "--watch")):
        done = shell(command)
        assert done.code == 2
        assert f"`{shown}` needs uvicorn: pip install 'levada[watch]'" in done.err


def test_a_trace_is_written(shell, tmp_path):
    command = f"train ppo --env CartPole-v1 --until updates=3 --out {tmp_path}/run --trace --quiet {cli_harness.TINY}"
    assert shell(command).code == 0
    done = shell(f"trace {tmp_path}/run")
    assert done.code == 0
    assert done.out.startswith(f"{tmp_path}/run/trace.pftrace: 15 firings; open it in https://ui.perfetto.dev")
    assert (tmp_path / "run" / "trace.pftrace").stat().st_size > 1_000


def test_a_trace_that_cannot_be_written_leaves_the_old_one(shell, tmp_path, monkeypatch):
    run = tmp_path / "run"
    assert (
        shell(f"train ppo --env CartPole-v1 --until updates=1 --out {run} --trace --quiet {cli_harness.TINY}").code == 0
    )
    (run / "trace.pftrace").write_bytes(b"old")

    def fail(records, name, out):
        out.write(b"new")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("levada.cli.trace.write_trace", fail)
    done = shell(f"trace {run}")
    assert (done.code, "cannot be written: No space left on device" in done.err) == (2, True)
    assert (run / "trace.pftrace").read_bytes() == b"old"
    assert not [path for path in run.iterdir() if path.name.endswith(".tmp")]
    (run / "trace.bin").write_bytes(b"\xff" * 3000)
    assert "has a trace without records, or a damaged one" in shell(f"trace {run}").err


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("trace first", ["first has no trace", "--trace"]),
        ("trace nowhere", ["nowhere"]),
        ("trace .", ["is not a run", "did you mean", "first"]),
        ("trace s3://bucket/run", ["directories alone"]),
    ],
)
def test_mistakes_with_traces_are_said(shell, command, words):
    done = shell(command)
    assert (done.code, done.out) == (2, "")
    for word in words:
        assert word in done.err


def test_a_policy_is_exported(shell, tmp_path):
    done = shell(f"export first --out {tmp_path}/policy.onnx --loader")
    assert done.code == 0
    assert f"{tmp_path}/policy.onnx: " in done.out
    assert "differs from the policy by at most" in done.out
    assert {path.name for path in tmp_path.iterdir()} == {"policy.onnx", "policy.py"}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("export nowhere", ["nowhere"]),
        ("export first --policy other", ["has one policy", "'other'"]),
        ("export first --out nowhere/policy.onnx", ["nowhere/policy.onnx", "cannot be written"]),
    ],
)
def test_mistakes_with_exports_are_said(shell, command, words):
    done = shell(command)
    assert (done.code, done.out) == (2, "")
    for word in words:
        assert word in done.err
