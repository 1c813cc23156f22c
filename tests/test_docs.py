"""The documents say what is true now: links, commands, drawings and tables are compared with the code."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from docs_harness import DOCUMENTS, ROOT, code_blocks, headings, links

import levada as lv
from levada.algorithms.names import ALGORITHMS
from levada.algorithms.registry import find_algorithm
from levada.cli import VERBS
from levada.cli.evaluate import EvalOptions
from levada.cli.resume import ResumeOptions
from levada.cli.show import CheckOptions, ShowOptions
from levada.cli.train import TrainOptions
from levada.run.storage.directory import RunDirectory
from levada.run.summary import Summary

by_name = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


def commands(document: Path, program: str) -> list[list[str]]:
    """The commands of a program in the shell blocks of a document, as words."""
    lines = [line for block in code_blocks(document) if block.language == "sh" for line in block.text.splitlines()]
    parts = [part for line in lines for part in re.split(r"; (?:do )?", line)]
    words = [shlex.split(part, comments=True) for part in parts]
    return [found for found in words if found[:1] == [program]]


def names(cls: type[Any]) -> set[str]:
    return {field.name for field in dataclasses.fields(cls)}


OPTIONS = {
    "train": names(TrainOptions),
    "show": names(ShowOptions),
    "check": names(CheckOptions),
    "resume": names(ResumeOptions),
    "eval": names(EvalOptions),
    "algorithms": set(),
}


def settings_of(verb: str, *words: str) -> set[str]:
    """The settings of the algorithm that a command names; PPO's where it names a variable, a file or a config.json."""
    if verb not in {"train", "show", "check"}:
        return set()
    return names(find_algorithm(words[0]) if words[0] in ALGORITHMS else lv.PPO)


@by_name
def test_links_lead_somewhere(document: Path) -> None:
    for link in links(document):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), f"{document.name} links to {link}"
        assert not anchor or anchor in headings(target), f"{document.name} links to {link}"


@by_name
def test_levada_commands_exist(document: Path) -> None:
    for _, *words in commands(document, "levada"):
        if words == ["--help"]:
            continue
        assert words[0] in VERBS
        options = {word[2:].partition("=")[0].replace("-", "_") for word in words if word.startswith("--")}
        known = OPTIONS[words[0]] | settings_of(*words)
        known |= {f"no_{name}" for name in known} | {"help", "lag"}
        assert options <= known, f"{document.name}: {shlex.join(words)}"


@by_name
def test_other_commands_exist(document: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for _, *words in commands(document, "make"):
        assert set(words) <= targets
    for _, script, *_ in commands(document, "python"):
        assert (ROOT / script).is_file()


def test_every_document_is_in_the_index() -> None:
    listed = {(ROOT / "docs" / link).resolve() for link in links(ROOT / "docs/index.md")}
    assert set(DOCUMENTS) - {ROOT / "docs/index.md"} <= listed


def test_the_drawing_is_the_present_one() -> None:
    flow = lv.PPO().flow(lv.Task("CartPole-v1"))
    drawn = (ROOT / "docs/ppo.svg").read_text(encoding="utf-8").strip()
    assert drawn == flow.svg().strip(), "run: levada show ppo --env CartPole-v1 --svg docs/ppo.svg"


def first_column(document: Path, heading: str) -> list[str]:
    """The code words in the first column of the tables under a heading."""
    text = document.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    return [word for cell in cells for word in re.findall(r"`([^`]+)`", cell)]


RUNNING = ROOT / "docs/running.md"


def test_every_algorithm_is_documented() -> None:
    text = (ROOT / "docs/algorithms.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| \[`(\w+)`\]", text, re.MULTILINE)) == {*ALGORITHMS}


def test_every_field_of_the_summary_is_documented() -> None:
    assert first_column(RUNNING, "summary.json") == list(Summary.__struct_fields__)


def test_every_option_of_a_run_is_documented() -> None:
    documented = {
        word.split()[0].removeprefix("--").removeprefix("no-").replace("-", "_")
        for word in first_column(RUNNING, "Commands")
    }
    assert documented == names(TrainOptions)


@pytest.mark.parametrize("algorithm", ["ppo", "dqn", "rainbow"])
def test_every_metric_is_documented(tmp_path: Path, algorithm: str) -> None:
    run = lv.train(
        algorithm, "CartPole-v1", until="updates=2", out=tmp_path / "run", display="quiet", tensorboard=False
    )
    patterns = [
        re.sub("<[a-z]+>", ".+", name)
        for name in first_column(RUNNING, "Metrics")
        if name not in ("losses/<name>", "<channel>:<policy>")  # which would match all
    ]
    last = RunDirectory.open(run.path).metrics()[-1]
    unknown = [name for name in last if name != "step" and not any(re.fullmatch(p, name) for p in patterns)]
    assert unknown == []
