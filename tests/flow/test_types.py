"""What a type checker finds before anything runs: mypy --strict on flows with one mistake, and on their correct twins."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mypy import api

SRC = Path(__file__).resolve().parents[2] / "src"

CONFIG = f"""
[mypy]
mypy_path = {SRC}
explicit_package_bases = True
follow_imports = skip

[mypy-levada.flow.*]
follow_imports = normal
ignore_errors = True
"""
"""The rest of the library, and torch with it, are checked elsewhere; left out here, for speed."""

FLOW = """\
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from levada.flow import Flow, Queue, Shard, Update


class Weights: ...
class Rollout: ...


@dataclass(frozen=True)
class Learn:
    policy_name: str = "policy"
    tolerates_staleness: bool = False

    def open(self, seed: int) -> "Learning":
        return Learning()


class Learning:
    def update(self, batch: Sequence[Rollout]) -> Update[Weights]:
        return Update(Weights(), {"loss": 0.0})

    def weights(self) -> Weights:
        return Weights()


def roll(shard: Shard) -> Callable[[Weights], Rollout]:
    return lambda weights: Rollout()


flow = Flow("typed")
weights = flow.latest("weights", of=Learn())
rollouts = flow.source("rollout", roll, reads=weights, shards=4)
replay = flow.replay("replay", of=Rollout, capacity=9, min_size=1, samples_per_insert=1.0)
batch = flow.batch("batch", rollouts.via(Queue(max_lag=0)), size=8)
update = flow.learn("learn", Learn(), batch)
flow.publish(update.weights, to=weights)
flow.report(update.stats)
flow.store(rollouts, to=replay)
flow.report(flow.learn("again", Learn(), flow.sample("sample", replay, size=8)).stats, name="again_report")
"""

MISTAKES = {
    "a forgotten batch": (
        'update = flow.learn("learn", Learn(), batch)',
        'update = flow.learn("learn", Learn(), rollouts)',
        'Cannot infer value of type parameter "In" of "learn" of "Flow"',
    ),
    "a wrong published field": (
        "flow.publish(update.weights, to=weights)",
        "flow.publish(update.stats, to=weights)",
        'Cannot infer value of type parameter "W" of "publish" of "Flow"',
    ),
    "a misspelt field": (
        "flow.publish(update.weights, to=weights)",
        "flow.publish(update.weightz, to=weights)",
        '"Updates[Weights]" has no attribute "weightz"; maybe "weights"?',
    ),
    "an update for a stream": (
        "flow.report(update.stats)",
        "flow.report(update)",
        'Argument 1 to "report" of "Flow" has incompatible type "Updates[Weights]"; expected',
    ),
    "weights of another type": (
        'rollouts = flow.source("rollout", roll, reads=weights, shards=4)',
        'rollouts = flow.source("rollout", roll, shards=4)',
        'Argument 2 to "source" of "Flow" has incompatible type "Callable[[Shard], Callable[[Weights], Rollout]]"; expected',
    ),
    "another table's items": (
        "flow.store(rollouts, to=replay)",
        "flow.store(batch, to=replay)",
        'Cannot infer value of type parameter "T" of "store" of "Flow"',
    ),
    "a queue without a lag": (
        "rollouts.via(Queue(max_lag=0))",
        "rollouts.via(Queue())",
        'Missing named argument "max_lag" for "Queue"',
    ),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What mypy says of every snippet, checked in one go: snippet -> line -> messages."""
    folder = tmp_path_factory.mktemp("typed")
    snippets = {"right": FLOW}
    for index, (right, wrong, _) in enumerate(MISTAKES.values()):
        assert FLOW.count(right) == 1
        snippets[f"wrong_{index}"] = FLOW.replace(right, wrong)
    for name, text in snippets.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    (folder / "mypy.ini").write_text(CONFIG, encoding="utf-8")
    output, errors, _ = api.run([
        "--strict", "--config-file", str(folder / "mypy.ini"), "--cache-dir", str(folder / "cache"), "--no-error-summary",
        *(str(folder / f"{name}.py") for name in snippets),
    ])  # fmt: skip
    assert errors == ""
    lines: dict[str, dict[int, list[str]]] = {name: {} for name in snippets}
    for path, line, message in re.findall(r"^(.*?):(\d+): error: (.*)$", output, re.MULTILINE):
        lines[Path(path).stem].setdefault(int(line), []).append(message)
    return lines


def test_the_correct_twin_has_no_error(found):
    assert found["right"] == {}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found_in_its_line(found, mistake):
    _, wrong, message = MISTAKES[mistake]
    index = list(MISTAKES).index(mistake)
    text = FLOW.replace(MISTAKES[mistake][0], wrong).splitlines()
    line = 1 + next(number for number, words in enumerate(text) if wrong in words)
    errors = found[f"wrong_{index}"]
    assert set(errors) == {line}
    assert any(error.startswith(message) for error in errors[line]), errors
