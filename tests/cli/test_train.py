"""`levada train`: what a run writes, what it shows, how it ends."""

import contextlib
import dataclasses
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.runs import cli as cli_harness
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import levada
from levada.algorithms.presets import PRESETS
from levada.run.identity import OPTIONAL_PACKAGES
from levada.run.storage import checkpoint
from levada.run.storage.directory import RunDirectory

COMMAND = f"train ppo --env CartPole-v1 --seed 1 {cli_harness.TINY}"
KEYS = {
    "algorithm", "env", "seed", "deployment", "flow_hash", "env_steps", "updates", "episodes", "wall_s", "startup_s",
    "steps_per_s", "return_mean_100", "solved_at_s", "solved_at_steps", "lag", "ledger", "params_sha256", "stopped_by",
}  # fmt: skip
"""What summary.json has at least."""


@pytest.fixture
def shell(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return cli_harness.Shell(capsys)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of five updates, and what it printed."""
    path = tmp_path_factory.mktemp("train") / "run"
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        words = f"{COMMAND} --until updates=5 --checkpoint-every-updates 2 --out {path}".split()
        assert levada.cli.main(words) == 0
    return path, out.getvalue(), err.getvalue()


def summary_of(path):
    return json.loads((Path(path) / "summary.json").read_bytes())


def test_keyword_arguments_reach_the_environment(shell, tmp_path):
    words = "--env-kwargs sutton_barto_reward=true --until updates=1 --json --out run"
    assert shell(f"{COMMAND} {words}").code == 0
    written = json.loads((tmp_path / "run" / "config.json").read_bytes())["settings"]["env_kwargs"]
    assert written == {"value": {"sutton_barto_reward": True}, "from": "command line"}
    run = levada.load(tmp_path / "run")
    assert run.task.env_kwargs == {"sutton_barto_reward": True}


# ---- what is written


def test_a_run_directory_holds_what_the_manual_lists(run):
    path, _, _ = run
    names = {re.sub(r"tfevents\..*", "tfevents", name) for name in cli_harness.tree(path)}
    saved = {f"checkpoints/{step:09d}" for step in (2, 4, 5)}
    assert names == {
        "config.json", "metrics.jsonl", "summary.json", "events.out.tfevents", "frames.bin", "flow.svg", "checkpoints", *saved,
        *(f"{folder}/{name}" for folder in saved for name in ("arrays.safetensors", "meta.json")),
    }  # fmt: skip


def test_config_says_where_each_value_came_from(run):
    path, _, _ = run
    config = json.loads((path / "config.json").read_bytes())
    settings = config["settings"]
    chosen = {name: (setting["value"], setting["from"]) for name, setting in settings.items()}
    assert chosen["learning_rate"] == (PRESETS["ppo"]["CartPole-v1"]["learning_rate"], "preset")
    assert chosen["num_envs"] == (2, "command line")
    assert chosen["compile"] == (False, "command line")
    assert chosen["seed"] == (1, "command line")
    assert chosen["env"] == ("CartPole-v1", "command line")
    assert chosen["algorithm_class"] == ("levada.algorithms.ppo:PPO", "command line")
    assert chosen["entropy_coef"] == (0.0, "default")
    assert chosen["log"] == ("tensorboard", "default")
    assert chosen["threads"] == (1, "default")
    assert {field.name for field in dataclasses.fields(levada.PPO)} < chosen.keys()
    assert config["identity"] == {name: summary_of(path)[name] for name in config["identity"]}
    assert config["versions"].keys() - {*OPTIONAL_PACKAGES} == {"python", "levada", "torch", "numpy", "gymnasium"}


def test_summary_has_everything_that_was_promised(run):
    path, _, _ = run
    summary = summary_of(path)
    assert summary.keys() >= KEYS
    assert (summary["algorithm"], summary["env"], summary["seed"], summary["deployment"]) == (
        "ppo",
        "CartPole-v1",
        1,
        "inline",
    )
    assert (summary["updates"], summary["env_steps"], summary["stopped_by"]) == (5, 5 * 32, "updates=5")
    assert 0 < summary["startup_s"] < summary["wall_s"]
    assert re.fullmatch("[0-9a-f]{64}", summary["flow_hash"])
    assert re.fullmatch("[0-9a-f]{64}", summary["params_sha256"])
    for lag in summary["lag"].values():
        assert 0 <= lag["mean"] <= lag["max"] <= lag["bound"]
    for ledger in summary["ledger"].values():
        assert ledger["produced"] == sum(ledger[name] for name in ("consumed", "dropped", "lost", "in_flight"))
        assert ledger["consumed"] == 5


def test_metrics_have_a_line_for_each_update_and_tensorboard_shows_the_same(run):
    path, _, _ = run
    lines = RunDirectory.open(path).metrics()
    assert [line["step"] for line in lines] == [32, 64, 96, 128, 160]
    assert lines[-1].keys() >= {"charts/episodic_return", "charts/SPS", "losses/policy_loss", "lag/gae->batch/max"}
    events = EventAccumulator(str(path))
    events.Reload()
    assert set(events.Tags()["scalars"]) == set(lines[-1]) - {"step"}
    for name in ("losses/value_loss", "charts/episodic_return"):
        shown = [(event.step, event.value) for event in events.Scalars(name)]
        assert shown == [(line["step"], pytest.approx(line[name])) for line in lines if name in line]


def test_checkpoints_hold_the_weights(run):
    path, _, _ = run
    saved = checkpoint.newest(path)
    assert saved.step == 5
    assert saved.arrays["learners/learn/weights/network.policy.0.weight"].shape == (8, 4)
    assert saved.meta["stopped_by"] == "updates=5"


def test_no_loggers_write_no_events(shell):
    assert shell(f"{COMMAND} --until updates=1 --log none --out run").code == 0
    assert not list(Path("run").glob("events*"))


def test_a_directory_is_named_below_runs(shell):
    assert shell(f"{COMMAND} --until updates=1 --quiet").code == 0
    assert shell(f"{COMMAND} --until updates=1 --quiet").code == 0
    first, second = sorted(Path("runs").iterdir())
    assert first.name.startswith("ppo-CartPole-v1-1-")
    assert summary_of(first)["params_sha256"] == summary_of(second)["params_sha256"]


# ---- what is shown


def test_plain_lines_go_to_stderr_where_there_is_no_terminal(run):
    path, out, err = run
    first, *_, stopped, lies, eval_, resume, board, explain, show = err.splitlines()
    assert out == ""
    assert "\x1b" not in err
    assert first == "ppo on CartPole-v1, seed 1, inline, until updates=5"
    assert stopped.startswith("stopped by updates=5 | return ")
    assert stopped.endswith("lag gae->batch 0 <= 0")
    assert lies == f"The run lies in {path}. What next:"
    assert [line.split("  ")[1] for line in (eval_, resume, board, explain, show)] == [
        f"levada eval {path} --episodes 20",
        f"levada resume {path} --until ...",
        f"tensorboard --logdir {path.parent}",
        f"levada explain {path}",
        f"levada show --config {path}",
    ]


def test_what_next_can_be_pasted_into_a_shell(shell):
    done = shell(f"{COMMAND} --until updates=1 --out 'my runs/first one'")
    assert "levada eval 'my runs/first one' --episodes 20" in done.err


def test_json_prints_json_lines_only_and_the_summary_last(shell):
    done = shell(f"{COMMAND} --until updates=2 --json --out run")
    assert (done.code, done.err) == (0, "")
    lines = [json.loads(line) for line in done.out.splitlines()]
    types = [line["type"] for line in lines]
    assert [each for each in types if each != "progress"] == ["start", "summary"]  # it takes a second, or not
    assert types[-1] == "summary"
    assert {"type": "summary", **summary_of("run")} == lines[-1]


def test_quiet_prints_nothing(shell):
    done = shell(f"{COMMAND} --until updates=2 --quiet --out run")
    assert (done.code, done.out, done.err) == (0, "", "")
    assert summary_of("run")["updates"] == 2


def test_the_live_panel_on_a_terminal(shell, monkeypatch):
    """On a pseudo-terminal: return, busy / idle / blocked per node, lag beside its bound."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "40")
    ours, theirs = os.openpty()
    shown = bytearray()

    def read():
        with contextlib.suppress(OSError):  # how Linux says that the other end was closed
            while data := os.read(ours, 65536):
                shown.extend(data)

    reader = threading.Thread(target=read)
    reader.start()
    with open(theirs, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        done = shell(f"{COMMAND} --until updates=3 --out run")
        monkeypatch.undo()
    reader.join(timeout=300)
    os.close(ours)
    assert (done.code, done.out) == (0, "")
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert "ppo on CartPole-v1, seed 1, inline" in text
    assert re.search(r"return +[-0-9.]+ ", text)
    assert re.search(r"node +busy +idle +blocked", text)
    assert re.search(r"rollout +\d+% +\d+% +\d+%", text)
    assert re.search(r"channel +fill +lag mean +max +bound", text)
    assert re.search(r"gae->batch +\d/1 +0.0 +0 +0 ", text)
    assert "until updates=3" in text
    assert "stopped by updates=3" in text


def test_a_deprecated_environment_is_told_in_one_line(shell, monkeypatch):
    monkeypatch.setattr("levada.rl.envs.registry._deprecations_shown", set())
    done = shell(f"train ppo --env CartPole-v0 {cli_harness.TINY} --until updates=1 --out run")
    first, second, *_ = done.err.splitlines()
    assert first == (
        "levada: warning: The environment CartPole-v0 is out of date. You should consider upgrading to version `v1`."
    )
    assert second.startswith("ppo on CartPole-v0")
    monkeypatch.setattr("levada.rl.envs.registry._deprecations_shown", set())
    quiet = shell(f"train ppo --env CartPole-v0 {cli_harness.TINY} --until updates=1 --quiet --out quiet")
    assert (quiet.code, quiet.err) == (0, "")


# ---- how it ends


@pytest.mark.parametrize(
    ("until", "stopped_by"),
    [
        ("--until updates=2 --until steps=1e6", "updates=2"),
        ("--until return=475 steps=90 minutes=5", "steps=90"),
        ("--until return=475,steps=1000000,episodes=2", "episodes=2"),
        ("--until 'minutes=0.00001 return=475'", "minutes=1e-05"),
        ("--until return=1 steps=100_000", "return=1"),
        ("--until=updates=1 --until=return=475", "updates=1"),
    ],
)
def test_the_first_condition_that_holds_ends_the_run(shell, until, stopped_by):
    assert shell(f"{COMMAND} {until} --quiet --out run").code == 0
    summary = summary_of("run")
    assert summary["stopped_by"] == stopped_by
    assert (summary["solved_at_steps"] is not None) == (stopped_by == "return=1")


def test_ctrl_c_saves_and_exits_with_130(tmp_path):
    """One SIGINT: the update is finished, everything is saved, and a script sees that it was not the end."""
    process = cli_harness.begin(f"{COMMAND} --until minutes=60 --json --out run", cwd=tmp_path)
    wait_for_updates(process, tmp_path / "run")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert err.strip() == "stopping after this update; press Ctrl-C again to stop at once"
    summary = summary_of(tmp_path / "run")
    assert json.loads(out.splitlines()[-1]) == {"type": "summary", **summary}
    assert summary["stopped_by"] == "interrupted"
    saved = checkpoint.newest(tmp_path / "run")
    assert saved.step == summary["updates"] > 3
    assert saved.meta["between_updates"]
    assert levada.load(tmp_path / "run").summary.stopped_by == "interrupted"


def wait_for_updates(process, path, num=3):
    deadline = time.monotonic() + 300
    metrics = path / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_bytes().count(b"\n") > num):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_of_the_system_saves_too(tmp_path, name, code):
    process = cli_harness.begin(f"{COMMAND} --until minutes=60 --json --out run", cwd=tmp_path)
    wait_for_updates(process, tmp_path / "run")
    process.send_signal(getattr(signal, name))
    out, err = process.communicate(timeout=300)
    assert (process.returncode, err.strip()) == (code, f"stopping after this update; a second {name} stops at once")
    summary = summary_of(tmp_path / "run")
    assert json.loads(out.splitlines()[-1]) == {"type": "summary", **summary}
    assert summary["stopped_by"] == "interrupted"
    assert not (tmp_path / "run" / "error.txt").exists()
    assert levada.load(tmp_path / "run").policy.version == summary["updates"] > 3


@pytest.mark.parametrize("closed", ["stdout", "stderr", "both"])
@pytest.mark.parametrize("option", ["--json", ""])
def test_a_reader_that_goes_away_does_not_end_the_run(tmp_path, closed, option):
    """`levada train ... --json | head -1`: what is trained is trained to its end."""
    ours, theirs = os.pipe()
    os.close(ours)
    streams = {name: theirs for name in ("stdout", "stderr") if closed in (name, "both")}
    process = cli_harness.begin(f"{COMMAND} {option} --until updates=3 --out run", cwd=tmp_path, **streams)
    os.close(theirs)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0
    assert summary_of(tmp_path / "run")["stopped_by"] == "updates=3"
    assert checkpoint.newest(tmp_path / "run").step == 3
    if closed == "stdout" and option == "--json":
        assert err == ""
    if closed == "stderr" and option == "--json":
        assert json.loads(out.splitlines()[-1])["type"] == "summary"


def test_without_a_stderr_there_is_nothing_to_show(tmp_path):
    command = shlex.join([sys.executable, "-m", "levada.cli", *f"{COMMAND} --until updates=2 --out run".split()])
    subprocess.run(["sh", "-c", f"{command} 2>&-"], cwd=tmp_path, check=True, timeout=300)
    assert summary_of(tmp_path / "run")["updates"] == 2


# ---- the same everywhere


def test_python_and_the_command_line_and_another_process_do_the_same(run, tmp_path):
    path, _, _ = run
    here = summary_of(path)
    called = levada.train(
        "ppo", "CartPole-v1", until="updates=5", seed=1, out=tmp_path / "called", display="quiet", log="none",
        **cli_harness.TINY_FIELDS,
    ).summary  # fmt: skip
    done = cli_harness.in_process(f"{COMMAND} --until updates=5 --json --out other", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    other = json.loads(done.out.splitlines()[-1])
    for name in ("flow_hash", "params_sha256", "env_steps", "episodes", "return_mean_100"):
        assert getattr(called, name) == here[name] == other[name]


def test_another_seed_learns_something_else_from_the_same_flow(shell, run):
    path, _, _ = run
    assert shell(f"{COMMAND.replace('--seed 1', '--seed 2')} --until updates=5 --quiet --out run").code == 0
    assert summary_of("run")["flow_hash"] == summary_of(path)["flow_hash"]
    assert summary_of("run")["params_sha256"] != summary_of(path)["params_sha256"]


def test_help_shows_ranges_of_settings_with_another_default(shell):
    """A subclass that changes a default repeats no range."""
    assert "--shards INT>=1" in shell("train apex_dqn --help").out


OWN = """
from __future__ import annotations
from dataclasses import dataclass
from typing import TYPE_CHECKING
from levada.algorithms.ppo import PPO
if TYPE_CHECKING:
    from collections import OrderedDict
@dataclass(frozen=True, kw_only=True)
class Mine(PPO):
    "PPO."
    where: OrderedDict | None = None
    "Something."
"""


def test_an_annotation_for_type_checkers_alone_hinders_nothing(shell, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_for_checkers.py").write_text(OWN)
    done = shell(f"train own_for_checkers:Mine --env CartPole-v1 {cli_harness.TINY} --until updates=1 --out run")
    assert done.code == 0, done.message
    assert shell("resume run --until updates=2").code == 0


def test_a_display_ends_when_the_files_of_metrics_cannot_be_opened(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("levada.api.run.TensorBoard", full)
    more = cli_harness.TINY_FIELDS
    with pytest.raises(OSError, match="No space left"):
        levada.train("ppo", "CartPole-v1", until="updates=1", out=tmp_path / "run", display="plain", **more)
    assert "levada-display" not in {thread.name for thread in threading.enumerate()}
