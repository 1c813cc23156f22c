"""The examples run as scripts, with little to do; they are short, use public names only, and show what they say."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.documents import ROOT, code_blocks, links

import levada as lv
from docs.site import PACKAGES
from examples.curriculum import Curriculum, Lock
from examples.custom_env import Catch
from examples.ppo_loop import CARTPOLE, ppo
from levada.algorithms.names import ALGORITHMS
from levada.algorithms.presets import PRESETS
from levada.run.storage.hashing import params_sha256

MAX_LINES = 100
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PRIVATE_OF_NAMEDTUPLE = {"_replace", "_asdict", "_fields"}
"""Public names in spite of their underscore."""
PUBLIC = {*PACKAGES, "levada.algorithms.gae", *(home.partition(":")[0] for home in ALGORITHMS.values())}

ARGUMENTS = {
    "auxiliary_loss.py": ["updates=3"],
    "behavior_cloning.py": ["--expert", "updates=3", "--updates", "4"],
    "curriculum.py": ["--digits", "4", "--steps", "8000"],
    "custom_algorithm.py": ["--until", "updates=2"],
    "custom_env.py": [],
    "custom_network.py": ["--until", "updates=2"],
    "evaluation.py": ["--updates", "6"],
    "ppo_loop.py": ["--updates", "3"],
}
"""Example -> words of the command that takes a few seconds."""
PRINTED = {
    "behavior_cloning.py": r"the expert: .+\nthe clone: .+\nafter 1 updates of PPO: .+\n",
    "curriculum.py": "level 2\nlevel 3\nlevel 4\nlevel 4 of 4, mean return of the whole lock 1.00\n",
    "custom_algorithm.py": r"flow reinforce: 5 nodes(.|\n)*mean return \d+\.\d after \d+ env steps\n",
    "custom_env.py": r"5 columns: mean return (1\.00|0\.9\d)\n9 columns: mean return (1\.00|0\.\d+)\n",
    "custom_network.py": r"\['network'\]: 4,803 parameters(.*)\n\['features_extractor'\]: 9,283 parameters(.*)\n",
    "evaluation.py": r"after 2 updates: .+\nafter 4 .+\nafter 6 .+\nwith actions sampled .+\n.*version 6: \d+\n",
    "ppo_loop.py": "update 3: 7.. env steps, mean return ..\\..\nthe loop and the flow have equal parameters\n",
}
"""Example -> pattern of all that it prints."""

each = pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)


@each
def test_it_runs_as_a_script(example: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(example), *ARGUMENTS[example.name]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(PRINTED.get(example.name, r"(.|\n)+"), done.stdout), done.stdout


@each
def test_it_is_short_and_says_what_it_shows(example: Path) -> None:
    text = example.read_text(encoding="utf-8")
    assert len(text.splitlines()) < MAX_LINES
    about = ast.get_docstring(ast.parse(text)) or ""
    assert f"python examples/{example.name}" in about
    for file, name in re.findall(r"examples/(\w+)\.py:(\w+)", about):
        assert callable(getattr(importlib.import_module(f"examples.{file}"), name))


@each
def test_it_uses_public_names_only(example: Path) -> None:
    nodes = [*ast.walk(ast.parse(example.read_text(encoding="utf-8")))]
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "levada":
            assert node.module in PUBLIC
            module = importlib.import_module(str(node.module))
            exported = getattr(module, "__all__", dir(module))
            assert {alias.name for alias in node.names} <= {*exported}
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names if alias.name.partition(".")[0] == "levada"]
            assert {*modules} <= PUBLIC
        if isinstance(node, ast.Attribute) and node.attr not in PRIVATE_OF_NAMEDTUPLE:
            assert node.attr.startswith("__") or not node.attr.startswith("_"), f"line {node.lineno}: {node.attr}"


def test_every_example_is_in_the_document() -> None:
    listed = {(ROOT / "docs" / link).resolve() for link in links(ROOT / "docs/examples.md")}
    assert {*EXAMPLES} <= listed


def test_the_loop_has_the_settings_of_the_preset() -> None:
    assert lv.PPO(**PRESETS["ppo"]["CartPole-v1"]) == CARTPOLE


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"shards": 2, "normalize_obs": True, "normalize_reward": True, "target_kl": 0.002},
        {"rnn_type": "gru", "microbatch_size": 128},
    ],
    ids=lambda changes: " ".join(changes) or "preset",
)
def test_the_loop_learns_the_bits_of_a_run(tmp_path: Path, changes: dict[str, object]) -> None:
    run = lv.train("ppo", "CartPole-v1", until="updates=4", seed=3, out=tmp_path / "run", display="quiet", **changes)
    loop = ppo(dataclasses.replace(CARTPOLE, **changes), lv.Task("CartPole-v1"), seed=3)
    for _ in range(4):
        progress = next(loop)
    loop.close()
    named = {f"learn/{name}": array for name, array in progress.weights.items()}  # as in the summary: with the learner
    assert params_sha256(named) == run.summary.params_sha256
    assert progress.num_env_steps == run.summary.env_steps


def climb(directory: Path, name: str, **options: object) -> tuple[lv.Result, Curriculum]:
    """Train on a lock of three digits with the curriculum."""
    level_file = str(directory / f"{name}-level")
    curriculum = Curriculum(level_file, max_level=3)
    task = lv.Task(Lock, env_kwargs={"num_digits": 3, "level_file": level_file})
    run = lv.train(
        "ppo", task, until="steps=6000", seed=1, num_steps=32, learning_rate=3e-3, instruments=[curriculum],
        out=directory / name, display="quiet", **options,
    )  # fmt: skip
    return run, curriculum


def test_a_curriculum_reaches_environments_in_other_processes_at_the_same_update(tmp_path: Path) -> None:
    (inline, curriculum), (run, _) = climb(tmp_path, "inline"), climb(tmp_path, "processes", on="processes:1")
    assert curriculum.level[0] == 3
    assert inline.summary.params_sha256 == run.summary.params_sha256
    assert lv.evaluate(run, num_episodes=20, env_kwargs={"level_file": None}).mean == 1.0


def test_the_whole_lock_is_not_learned_without_the_curriculum(tmp_path: Path) -> None:
    until = "steps=6000"
    run = lv.train(
        "ppo", Lock, until=until, seed=1, num_steps=32, learning_rate=3e-3, out=tmp_path / "run", display="quiet"
    )
    assert run.summary.return_mean_100 == 0.0


def test_catching_is_not_chance() -> None:
    """A policy that never moves catches one ball of five."""
    env = Catch()
    returns = []
    for seed in range(50):
        env.reset(seed=seed)
        rewards = [env.step(1)[1] for _ in range(env.num_rows)]
        returns.append(sum(rewards))
    assert -0.9 < sum(returns) / len(returns) < -0.3


def test_the_algorithm_is_that_of_the_tutorial() -> None:
    first = next(block for block in code_blocks(ROOT / "docs/tutorial-algorithm.md") if block.language == "python")
    assert first.text in (ROOT / "examples/custom_algorithm.py").read_text(encoding="utf-8")


def test_the_auxiliary_loss_takes_less_than_sixty_lines() -> None:
    assert len((ROOT / "examples/auxiliary_loss.py").read_text(encoding="utf-8").splitlines()) < 60


def test_the_auxiliary_loss_is_learned_and_reported(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/auxiliary_loss.py"), "updates=8"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    [run] = (tmp_path / "runs").iterdir()
    losses = [json.loads(line).get("losses/change_loss") for line in (run / "metrics.jsonl").read_text().splitlines()]
    found = [loss for loss in losses if loss is not None]
    assert found and found[-1] < 0.5 * found[0]
