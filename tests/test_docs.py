"""The documents say what is true now: links, commands, drawings and tables are compared with the code."""

from __future__ import annotations

import dataclasses
import re
import runpy
import shlex
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from support.documents import DOCUMENTS, ROOT, code_blocks, headings, links, prose

import levada as lv
from levada.algorithms.foreign import FOREIGN
from levada.algorithms.names import ALGORITHMS
from levada.algorithms.registry import find_algorithm
from levada.api import Options
from levada.cli import VERBS
from levada.cli.compare import CompareOptions, PlotOptions
from levada.cli.evaluate import EvalOptions
from levada.cli.explain import ExplainOptions
from levada.cli.export import ExportOptions
from levada.cli.parse import EnvOption
from levada.cli.push import PushOptions
from levada.cli.report import ReportOptions
from levada.cli.resume import ResumeOptions
from levada.cli.runs import RunsOptions
from levada.cli.show import CheckOptions, ShowOptions
from levada.cli.sweep import SweepOptions
from levada.cli.trace import TraceOptions
from levada.cli.train import TrainOptions
from levada.cli.watch import WatchOptions
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
    "watch": names(WatchOptions),
    "report": names(ReportOptions),
    "runs": names(RunsOptions),
    "compare": names(CompareOptions),
    "plot": names(PlotOptions),
    "trace": names(TraceOptions),
    "export": names(ExportOptions),
    "push": names(PushOptions),
    "explain": names(ExplainOptions),
    "sweep": names(SweepOptions),
    "algorithms": set(),
}


def settings_of(verb: str, *words: str) -> set[str]:
    """The settings of the algorithm that a command names; PPO's where it names a variable, a file or a config.json."""
    if verb not in {"train", "sweep", "show", "check"}:
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


def test_hooks_before_a_commit_are_the_parts_of_make_lint() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    hooks = re.findall(r"entry: make (\w+),", (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert re.findall(r"^lint: (.*) ##", makefile, re.MULTILINE) == [" ".join(hooks)]


def test_every_document_is_in_the_index() -> None:
    indices = ROOT / "docs/index.md", ROOT / "docs/algorithms.md"
    listed = {(ROOT / "docs" / link).resolve() for index in indices for link in links(index)}
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


PAGES = ROOT / "docs/algorithms"
SECTIONS = ["Flow", "Equation", "Code", "Learning curve", "Differences from the paper", "Settings"]
by_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)


def test_every_algorithm_is_documented() -> None:
    text = (ROOT / "docs/algorithms.md").read_text(encoding="utf-8")
    assert dict(re.findall(r"^\| \[`(\w+)`\]\((.*?)\)", text, re.MULTILINE)) == {
        name: f"algorithms/{name}.md" for name in ALGORITHMS
    }
    assert {page.stem for page in PAGES.glob("*.md")} == {*ALGORITHMS}


@by_algorithm
def test_a_page_has_all_sections(algorithm: str) -> None:
    page = PAGES / f"{algorithm}.md"
    assert re.findall("^## (.*)$", prose(page), re.MULTILINE) == SECTIONS
    languages = [block.language for block in code_blocks(page)]
    assert {"math", "py", "output"} <= {*languages}
    trained = [words for words in commands(page, "levada") if words[1] == "train"]
    assert [words[2] for words in trained] == [algorithm]


@by_algorithm
def test_a_page_has_a_curve(algorithm: str) -> None:
    assert f"{algorithm}.svg" in links(PAGES / f"{algorithm}.md")
    drawing = (PAGES / f"{algorithm}.svg").read_text(encoding="utf-8")
    assert len(drawing) < 15_000
    svg = "{http://www.w3.org/2000/svg}"
    assert ElementTree.fromstring(drawing).findtext(f"{svg}title") == (
        f"{algorithm}: mean return of 3 seeds, with their range"
    )


def test_a_curve_shows_mean_and_range() -> None:
    """Of two constant returns the line is half way, and the band goes from one to the other."""
    tool = runpy.run_path(str(ROOT / "benchmarks/curves.py"))
    curves = [
        tool["Curve"]("mine, seed", [0.0, 1.0], [0, steps], [level] * 2) for steps, level in ((9, 0.0), (8, 40.0))
    ]
    drawing = ElementTree.fromstring(tool["drawn_mean"](curves, "env steps"))
    heights = {
        shape.get("class"): {float(point.partition(",")[2]) for point in str(shape.get("points")).split()}
        for shape in drawing.iter()
        if shape.get("points")
    }
    assert heights["line"] == {sum(heights["band"]) / 2}
    assert len(heights["band"]) == 2


@by_algorithm
def test_a_page_has_the_present_defaults(algorithm: str) -> None:
    text = (PAGES / f"{algorithm}.md").read_text(encoding="utf-8").partition("\n## Settings\n")[2]
    stated = dict(re.findall(r"^\| `(\w+)` \| `(.*?)` \|", text, re.MULTILINE))
    fields = {field.name: field for field in dataclasses.fields(find_algorithm(algorithm))}
    assert 4 <= len(stated) <= 8
    assert stated == {name: repr(fields[name].default) for name in stated}


@by_name
def test_excerpts_are_the_present_source(document: Path) -> None:
    tool, text = runpy.run_path(str(ROOT / "docs/excerpts.py")), document.read_text(encoding="utf-8")
    assert text == tool["rewritten"](document), "run: python docs/excerpts.py"
    num_excerpts = len(tool["EXCERPT"].findall(text))
    assert num_excerpts == sum(block.language == "py" for block in code_blocks(document)), "an excerpt names no source"


def test_every_field_of_the_summary_is_documented() -> None:
    assert first_column(RUNNING, "summary.json") == list(Summary.__struct_fields__)


def test_every_option_of_a_sweep_is_documented() -> None:
    documented = {word.split()[0].removeprefix("--").replace("-", "_") for word in first_column(RUNNING, "Sweeps")}
    inherited = {field.name for kind in (Options, EnvOption) for field in dataclasses.fields(kind)} - {"out"}
    assert documented == names(SweepOptions) - inherited


def test_every_option_of_a_run_is_documented() -> None:
    documented = {
        word.split()[0].removeprefix("--").removeprefix("no-").replace("-", "_")
        for word in first_column(RUNNING, "Commands")
    }
    assert documented == names(TrainOptions)


@pytest.mark.parametrize("algorithm", ["ppo", "dqn", "rainbow"])
def test_every_metric_is_documented(tmp_path: Path, algorithm: str) -> None:
    run = lv.train(algorithm, "CartPole-v1", until="updates=2", out=tmp_path / "run", display="quiet", log="none")
    patterns = [
        re.sub("<[a-z]+>", ".+", name)
        for name in first_column(RUNNING, "Metrics")
        if name not in ("losses/<name>", "<channel>:<policy>")  # which would match all
    ]
    last = RunDirectory.open(run.path).metrics()[-1]
    unknown = [name for name in last if name != "step" and not any(re.fullmatch(p, name) for p in patterns)]
    assert unknown == []


def test_names_of_other_libraries_lead_to_those_of_the_table() -> None:
    rows = re.findall(r"^\| (`\w+`.*?) \|(.*)\|$", (ROOT / "docs/coming-from.md").read_text(), re.MULTILINE)
    names = [(ours, re.findall(r"`(\w+)`", theirs)) for ours, theirs in rows]
    assert len(names) >= 25
    for ours, theirs in names:
        [first, *_] = targets = re.findall(r"`(\w+)", ours)
        for name in theirs:
            assert name == first or any(set(targets) & set(re.findall(r"\w+", hint)) for hint in FOREIGN[name]), name
