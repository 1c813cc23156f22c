"""What a run measures when it begins: precision and threads, each written down, so that a resumed run has the same."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import levada as lv
from levada.algorithms.algorithm import Algorithm
from levada.algorithms.checks import ConfigError
from levada.algorithms.impala import IMPALA
from levada.algorithms.ppo import PPO
from levada.flow import Flow
from levada.rl import precision, threads
from levada.rl.task import Task
from levada.runners import auto
from levada.runners.inline import Inline
from levada.runners.processes import Processes

SMALL: dict[str, Any] = {"num_envs": 2, "num_steps": 8, "minibatch_size": 16, "num_epochs": 1}


def settings(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "config.json").read_text())["settings"]
    return found


def train(tmp_path: Path, env: str, **options: Any) -> lv.Result:
    return lv.train("ppo", env, until="updates=2", out=tmp_path / "run", display="quiet", tensorboard=False, **options)


@pytest.mark.parametrize(("gain", "chosen"), [(1.0, "float32"), (3.0, "bfloat16")])
def test_the_precision_that_was_measured_is_written_down(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gain: float, chosen: str
) -> None:
    monkeypatch.setattr(precision, "_chosen", {})
    monkeypatch.setattr(precision, "has_bfloat16", lambda device="cpu": True)
    monkeypatch.setattr(
        precision,
        "gradients_s",
        lambda *some: [1.0 if policy.precision == "float32" else 1.0 / gain for policy in some],
    )
    run = train(tmp_path, "small_envs:SmallDictImage-v0", **SMALL)
    assert settings(run.path)["precision"] == {"value": chosen, "from": "measured"}
    assert run.summary.precision == chosen
    monkeypatch.setattr(precision, "_chosen", {})
    monkeypatch.setattr(precision, "gradients_s", lambda *some: pytest.fail("it was measured once"))
    again = lv.resume(run.path, until="updates=3", display="quiet")
    assert again.summary.updates == 3


def test_nothing_is_measured_where_there_is_nothing_to_gain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(precision, "gradients_s", lambda *some: pytest.fail("vectors gain nothing"))
    run = train(tmp_path, "CartPole-v1", **SMALL)
    assert settings(run.path)["precision"] == {"value": "auto", "from": "default"}
    assert run.summary.precision == "float32"


def test_threads_are_measured_when_they_are_asked_to_be(tmp_path: Path) -> None:
    run = train(tmp_path, "CartPole-v1", threads="auto", **SMALL)
    written = settings(run.path)["threads"]
    assert written["from"] == "measured"
    assert written["value"] == run.summary.threads >= 1


def test_where_samplers_share_the_threads_of_the_learner_there_is_no_split(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="threads='auto' on threads:2: expected on='inline' or 'processes'"):
        train(tmp_path, "CartPole-v1", threads="auto", on="threads:2", **SMALL)


@pytest.mark.parametrize(
    ("hp", "place", "one", "two", "split"),
    [
        # one thread, two threads: sampling and learning in seconds
        (PPO(shards=2, max_lag=1, num_envs=1), Processes(workers=2), (0.5, 1.2), (0.3, 0.8), (1, 2)),
        (PPO(shards=2, num_envs=1), Processes(workers=2), (0.5, 1.2), (0.3, 0.8), (1, 2)),
        (IMPALA(shards=2), Processes(workers=2), (0.5, 0.33), (0.3, 0.27), (1, 1)),
        (IMPALA(), Inline(), (0.5, 0.33), (0.3, 0.27), (2, 2)),
        (IMPALA(), Inline(), (0.5, 0.33), (0.49, 0.33), (1, 1)),
    ],
)
def test_the_split_is_the_one_that_promises_most(
    monkeypatch: pytest.MonkeyPatch, hp: Any, place: Any, one: Any, two: Any, split: Any
) -> None:
    for module in (threads, auto):
        monkeypatch.setattr(module, "num_cores", lambda: 2)
    monkeypatch.setattr(threads, "set_threads", lambda num: None)
    trials = {1: auto.Trial(*one), 2: auto.Trial(*two)}

    def of(cls: type, flow: Flow, seed: int, num_threads: int = 1) -> auto.Trial:
        return trials[num_threads]

    monkeypatch.setattr(auto.Trial, "of", classmethod(of))
    found = threads.measure_threads(hp.flow(Task("CartPole-v1")), place, seed=0)
    assert (found.sampling, found.learning) == split
    assert found.gain >= 1.0


@dataclass(frozen=True, kw_only=True)
class Digits(Algorithm):
    """An algorithm of a user, who means something else by precision."""

    precision: int = 3
    """Digits."""

    def flow(self, task: Task) -> Flow:
        return PPO(**SMALL).flow(task)


def test_a_field_of_that_name_may_mean_something_else(tmp_path: Path) -> None:
    run = lv.train(Digits(), "CartPole-v1", until="updates=1", out=tmp_path / "run", display="quiet", tensorboard=False)
    assert run.summary.precision == "float32"
    assert settings(run.path)["precision"]["value"] == 3
