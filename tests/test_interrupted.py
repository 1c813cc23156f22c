"""Ctrl-C ends a run with everything saved, and the program that began it; what is shown of a run never changes it."""

import signal

import gymnasium
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from support.runs import cli as cli_harness

import levada
from levada.flow.events import Reported
from levada.run.interrupt import Interrupted

TINY = {**cli_harness.TINY_FIELDS, "log": "none", "display": "quiet"}


class CtrlC:
    """Presses it when an update is reported."""

    def __init__(self, at):
        self.at = at

    def on_event(self, event):
        if isinstance(event, Reported) and event.report.firing == self.at:
            signal.raise_signal(signal.SIGINT)


class PressesCtrlC(CartPoleEnv):
    num_steps = 0

    def step(self, action):
        self.num_steps += 1
        if self.num_steps == 40:
            signal.raise_signal(signal.SIGINT)
        return super().step(action)


if "PressesCtrlC-v0" not in gymnasium.registry:
    gymnasium.register(id="PressesCtrlC-v0", entry_point=PressesCtrlC, max_episode_steps=500)


@pytest.mark.parametrize("at", [2, 3])  # also at the last update, where the run ends anyway
def test_a_loop_over_seeds_ends_and_what_was_learned_is_saved(tmp_path, at):
    def sweep():
        for seed in range(3):
            out = tmp_path / f"seed{seed}"
            levada.train("ppo", "CartPole-v1", until="updates=3", seed=seed, out=out, instruments=[CtrlC(at)], **TINY)

    with pytest.raises(KeyboardInterrupt, match=r"saved in .*seed0; go on with `levada resume .*seed0`") as stop:
        sweep()
    assert [path.name for path in tmp_path.iterdir()] == ["seed0"]
    result = stop.value.result
    assert isinstance(stop.value, Interrupted)
    assert (result.summary.updates, result.policy.version, result.path) == (at, at, tmp_path / "seed0")
    assert levada.load(tmp_path / "seed0").summary == result.summary


def test_resuming_is_interrupted_too_and_goes_on(tmp_path):
    path = levada.train("ppo", "CartPole-v1", until="updates=1", out=tmp_path / "run", **TINY).path
    with pytest.raises(KeyboardInterrupt):
        levada.resume(path, until="updates=5", instruments=[CtrlC(2)], display="quiet")
    assert levada.resume(path, until="updates=3", display="quiet").summary.updates == 3


def test_the_advice_after_ctrl_c_is_to_go_on(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    shell = cli_harness.Shell(capfd)
    command = f"--env PressesCtrlC-v0 {cli_harness.TINY} --until updates=9 --log none --out run"
    done = shell(f"train ppo {command}")
    assert done.code == 130
    _, advice = done.err.split("What next:\n")
    assert [line.split("  ")[1] for line in advice.splitlines()][:2] == [
        "levada resume run",
        "levada eval run --episodes 20",
    ]
    assert "--until ..." not in advice
    assert "tensorboard" not in advice  # for there is nothing to see
    assert levada.load("run").summary.stopped_by == "interrupted"


def test_what_is_shown_changes_nothing(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("FORCE_COLOR", "1")  # so that the panel is drawn, though nobody sees it
    found = set()
    for display in ("quiet", "plain", "live", "json"):
        options = {**TINY, "display": display}
        run = levada.train("ppo", "CartPole-v1", until="updates=4", seed=3, out=tmp_path / display, **options)
        found.add(run.summary.params_sha256)
    assert len(found) == 1
    assert "busy" in capfd.readouterr().err
