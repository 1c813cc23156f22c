"""Equal commands end equal: parameters, counts and lines of metrics, whatever ends a run and wherever it runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.envs.small import NUM_DEATHS

import levada as lv
from levada.rl.envs.task import Task
from levada.run.metrics import is_measured
from levada.run.storage.directory import RunDirectory

REPLAYED: dict[str, Any] = {
    "shards": 3, "num_envs": 2, "num_steps": 4, "learning_starts": 40, "batch_size": 8, "num_gradient_steps": 2,
    "samples_per_insert": 2.0, "hidden_sizes": (8,), "compile": False,
}  # fmt: skip
SEQUENCES: dict[str, Any] = {
    **REPLAYED, "learning_starts": 10, "sequence_length": 4, "burn_in": 0, "batch_size": 4, "samples_per_insert": 4.0,
}  # fmt: skip
ROLLOUTS: dict[str, Any] = {"shards": 3, "num_envs": 2, "num_steps": 4, "hidden_sizes": (8,), "compile": False}
ALGORITHMS: dict[str, tuple[str, dict[str, Any]]] = {
    "dqn": ("support.envs.small:SmallPlain-v0", REPLAYED),
    "sac": ("support.envs.small:SmallBoxAction-v0", REPLAYED),
    "r2d2": ("support.envs.small:SmallPlain-v0", SEQUENCES),
    "ppo": ("support.envs.small:SmallPlain-v0", {**ROLLOUTS, "max_lag": 2, "minibatch_size": 24, "num_epochs": 1}),
    "impala": ("support.envs.small:SmallPlain-v0", {**ROLLOUTS, "num_rollouts": 2, "order": "admission"}),
}
PLACES = [
    *((algorithm, place) for algorithm in ALGORITHMS for place in ("processes:1", "processes:2", "threads:2")),
    *(("dqn", f"processes:2,{where}=worker") for where in ("learner", "replays", "inference")),
]


def told(run: lv.Result) -> tuple[Any, ...]:
    """What must be equal."""
    lines = RunDirectory.open(run.path).metrics()
    known = [{name: value for name, value in line.items() if not is_measured(name)} for line in lines]
    end = run.summary
    counts = (end.stopped_by, end.env_steps, end.updates, end.episodes, end.return_mean_100, end.solved_at_steps)
    return end.params_sha256, *counts, end.replays, end.lag, known


def train(path: Path, algorithm: str, until: str, on: str, **more: Any) -> lv.Result:
    env, fields = ALGORITHMS[algorithm]
    fields = {"env": env, **fields, **more}
    return lv.train(
        algorithm, until=until, seed=7, on=on, out=path, display="quiet", log="none", **fields
    )  # fmt: skip


@pytest.fixture(scope="module")
def inline(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], tuple[Any, ...]]:
    """What the run in one thread tells."""

    @cache
    def run(algorithm: str, until: str) -> tuple[Any, ...]:
        return told(train(tmp_path_factory.mktemp("inline") / "run", algorithm, until, "inline"))

    return run


@pytest.mark.parametrize(("algorithm", "place"), PLACES)
def test_equal_commands_end_equal(tmp_path: Path, inline: Any, algorithm: str, place: str) -> None:
    """The lines of metrics have what a run is ended by, at each update; so they stand for every condition."""
    expected = inline(algorithm, "steps=200")
    assert len(expected[-1]) > 5
    assert told(train(tmp_path / "run", algorithm, "steps=200", place)) == expected


@pytest.mark.parametrize("until", ["episodes=40", "return=2", "steps=20"])
@pytest.mark.parametrize("place", ["processes:2", "threads:2"])
def test_whatever_ends_them(tmp_path: Path, inline: Any, until: str, place: str) -> None:
    """Also before the first update, while the replay is filled."""
    assert told(train(tmp_path / "run", "dqn", until, place)) == inline("dqn", until)


@pytest.mark.parametrize("algorithm", ["dqn", "r2d2", "ppo"])
def test_a_run_that_goes_on_tells_what_the_whole_one_does(tmp_path: Path, inline: Any, algorithm: str) -> None:
    """Its checkpoint has what was stored and not drawn from; and its lines end at an update, not at an env step."""
    half = train(tmp_path / "run", algorithm, "updates=7", "inline", save_replays=True)
    assert told(lv.resume(half.path, until="steps=200", on="processes:2", display="quiet")) == inline(
        algorithm, "steps=200"
    )


def test_a_killed_worker_changes_no_line(tmp_path: Path) -> None:
    """Two of three shards lose what they were working on."""

    def run(name: str, on: str) -> tuple[Any, ...]:
        env = Task("support.envs.small:SmallFatal-v0", env_kwargs={"folder": str(tmp_path / name)})
        return told(train(tmp_path / f"run {name}", "dqn", "steps=200", on, env=env))

    for number in range(NUM_DEATHS):
        (tmp_path / "whole").mkdir(exist_ok=True)
        (tmp_path / "whole" / str(number)).touch()
    (tmp_path / "killed").mkdir()
    expected = run("whole", "inline")
    assert run("killed", "processes:2") == expected
    assert RunDirectory.open(tmp_path / "run killed").summary().num_started_from_scratch == 0
    assert len(list((tmp_path / "killed").iterdir())) == NUM_DEATHS
