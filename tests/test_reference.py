"""The reference of the documentation has every public name, and `levada.errors` every error."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import re
from pathlib import Path
from types import ModuleType

import pytest
from support.documents import ROOT

import levada
import levada.errors
from levada.algorithms.names import ALGORITHMS

OPTIONAL = {"ray"}
"""Packages that some modules need, and that may be missing."""
PACKAGES = ("levada", *(f"levada.{name}" for name in ("errors", "flow", "math", "rl", "runners", "testing")))


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGES: dict[str, str] = load(ROOT / "docs/site.py").reference()


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_has_an_entry(package: str) -> None:
    """Of its own, or a link to the entry of the same name on another page."""
    page = PAGES[package]
    entries = re.findall(rf"^::: {re.escape(package)}\.(\w+)$", page, re.MULTILINE)
    links = dict(re.findall(r"^- \[`(\w+)`\]\((\S+)\)$", page, re.MULTILINE))
    public = set(importlib.import_module(package).__all__) - {"__version__"}
    assert sorted([*entries, *links]) == sorted(public)
    for link in links.values():
        page, _, path = link.partition(".md#")
        assert f"::: {path}\n" in PAGES[page]


def test_every_algorithm_has_an_entry() -> None:
    for home in ALGORITHMS.values():
        assert f"::: {home.replace(':', '.')}\n" in PAGES["levada.algorithms"]


def test_the_site_shows_every_page() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for name in (*(f"api/{package}.md" for package in PAGES), *(path.name for path in (ROOT / "docs").glob("*.md"))):
        assert re.search(rf"(- |: ){re.escape(name)}$", navigation, re.MULTILINE), f"{name} is not in nav of mkdocs.yml"


# ---- levada.errors


def raised() -> set[type]:
    """Public errors of all modules, but for those of the command line."""
    for module in pkgutil.walk_packages(levada.__path__, "levada."):
        if not module.name.startswith("levada.cli"):
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:
                if error.name not in OPTIONAL:
                    raise
    found: set[type] = set()
    new: list[type] = [levada.LevadaError]
    while new:
        cls = new.pop()
        found.add(cls)
        new += cls.__subclasses__()
    return {cls for cls in found if not cls.__name__.startswith("_") and not cls.__module__.startswith("levada.cli")}


def test_errors_has_every_error() -> None:
    own = {cls for cls in raised() if cls.__module__.startswith("levada.")}
    public = {getattr(levada.errors, name) for name in levada.errors.__all__}
    assert {cls.__name__ for cls in own - public} == set()
    assert all(issubclass(cls, Exception) and cls.__doc__ for cls in public)


def test_the_tree_of_errors_is_right() -> None:
    """Each line names a class, its parent by its indentation, and its other bases in parentheses."""
    lines = re.findall(r"^    ([│├└─ ]*)(\w+)(?:\((.+)\))?$", inspect.getdoc(levada.errors) or "", re.MULTILINE)
    path: list[type] = []
    for branch, name, bases in lines:
        cls = getattr(levada.errors, name)
        del path[len(branch) // 4 :]
        assert cls.__bases__[0] is path[-1] if path else True
        others = [base.__name__ for base in cls.__bases__[bool(path) :]]
        assert others == (bases.split(", ") if bases else []) or cls is levada.LevadaError
        path.append(cls)
    assert sorted(name for _, name, _ in lines) == sorted(levada.errors.__all__)
