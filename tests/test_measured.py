"""What depends on the machine is written down, and a resumed run has the same."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import levada as lv
from levada.algorithms.algorithm import Algorithm
from levada.algorithms.ppo import PPO
from levada.algorithms.presets import PRESETS
from levada.api import plan
from levada.flow import Flow
from levada.rl.envs.task import Task
from levada.rl.policies import precision
from levada.run.planner.candidates import Candidate, Variant
from levada.run.planner.costs import Measured
from levada.run.storage.checkpoint import CheckpointWarning

SMALL: dict[str, Any] = {"num_envs": 2, "num_steps": 8, "minibatch_size": 16, "num_epochs": 1}


def settings(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "config.json").read_text())["settings"]
    return found


def train(tmp_path: Path, env: str, **options: Any) -> lv.Result:
    return lv.train("ppo", env, until="updates=2", out=tmp_path / "run", display="quiet", log="none", **options)


@pytest.mark.parametrize(("has_bfloat16", "chosen"), [(False, "float32"), (True, "bfloat16")])
def test_the_precision_of_this_processor_is_written_down_and_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_bfloat16: bool, chosen: str
) -> None:
    monkeypatch.setattr(precision, "SIDE", 36)
    monkeypatch.setattr(precision, "prefers_bfloat16", lambda device="cpu": has_bfloat16)
    run = train(tmp_path, "support.envs.small:SmallDictImage-v0", **SMALL)
    assert settings(run.path)["precision"] == {"value": chosen, "from": "machine"}
    assert run.summary.precision == chosen
    for name in ("has_bfloat16", "prefers_bfloat16"):
        monkeypatch.setattr(precision, name, lambda device="cpu": not has_bfloat16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)
        again = lv.resume(run.path, until="updates=3", display="quiet")
    assert (again.summary.updates, again.summary.precision) == (3, chosen)


def test_a_resumed_run_says_that_this_processor_lacks_its_precision(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = train(tmp_path, "support.envs.small:SmallDictImage-v0", precision="bfloat16", **SMALL)
    monkeypatch.setattr(precision, "has_bfloat16", lambda device="cpu": False)
    with pytest.warns(CheckpointWarning, match="computes in bfloat16, which this processor does not multiply"):
        lv.resume(run.path, until="updates=3", display="quiet")


def test_small_networks_leave_nothing_to_the_machine(tmp_path: Path) -> None:
    run = train(tmp_path, "CartPole-v1", **SMALL)
    assert settings(run.path)["precision"] == {"value": "auto", "from": "default"}
    assert run.summary.precision == "float32"


def test_a_resumed_run_stays_where_a_measurement_had_put_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`auto` would measure again, and may come out otherwise."""
    measured: list[str] = []

    def measure(flows: Mapping[Variant, Flow], candidate: Candidate, seed: int) -> Measured:
        measured.append(str(candidate))
        is_best = str(candidate) == "threads:2, shards=2, num_envs=1, max_lag=1, threads=2"
        return Measured(
            steps_per_s=1e4 if is_best else 1e3, sampling_s=5e-4, sampling_cpu_s=1e-5, fixed=0.5, learning_s=5e-4,
            learning_cpu_s=5e-4, item_steps=16.0,
        )  # fmt: skip

    monkeypatch.setattr(plan, "probe", measure)
    fields = {name: value for name, value in SMALL.items() if name != "num_envs"}
    monkeypatch.setitem(PRESETS["ppo"], "CartPole-v1", {"num_envs": 2})  # type: ignore[index]
    run = train(tmp_path, "CartPole-v1", on="auto,max_envs=2,max_lag=1,max_threads=2,max_probes=50", **fields)
    assert len(measured) <= 50
    assert run.summary.deployment == "threads:2"
    assert run.summary.threads == 2
    chosen = settings(run.path)
    assert chosen["on"]["value"] == "auto,max_envs=2,max_lag=1,max_threads=2,max_probes=50"
    assert [chosen[name] for name in ("shards", "num_envs", "max_lag")] == [
        {"value": 2, "from": "machine"}, {"value": 1, "from": "machine"}, {"value": 1, "from": "machine"}
    ]  # fmt: skip
    assert chosen["num_steps"] == {"value": 8, "from": "argument"}
    monkeypatch.setattr(plan, "probe", lambda *args: pytest.fail("it was measured once"))
    again = lv.resume(run.path, until="updates=3", display="quiet").summary
    assert (again.deployment, again.threads) == ("threads:2", 2)


@dataclass(frozen=True, kw_only=True)
class Digits(Algorithm):
    """An algorithm of a user, who means something else by precision."""

    precision: int = 3
    """Digits."""

    def flow(self, task: Task) -> Flow:
        return PPO(**SMALL).flow(task)


def test_a_field_of_that_name_may_mean_something_else(tmp_path: Path) -> None:
    run = lv.train(Digits(), "CartPole-v1", until="updates=1", out=tmp_path / "run", display="quiet", log="none")
    assert run.summary.precision == "float32"
    assert settings(run.path)["precision"]["value"] == 3
