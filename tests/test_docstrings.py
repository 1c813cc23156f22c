"""What the docstrings of public names say: the purpose always; shapes, arguments, errors and a source where there are any."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import levada.math
from levada.algorithms.names import ALGORITHMS

PACKAGES = ("levada", *(f"levada.{name}" for name in ("errors", "flow", "math", "rl", "runners", "testing")))
ITS_OWN = {"LevadaInternalError", "AttributeError", "NotImplementedError"}
"""Errors that say nothing about the caller's arguments."""
NO_PAPER = {"Bernoulli", "Distribution", "Gaussian", "MultiCategorical", "VTrace"}
"""Mathematics of the textbooks, and results of functions that cite their paper."""


def public() -> dict[str, Any]:
    """Classes and functions that are exported, and the algorithms."""
    found: dict[str, Any] = {}
    for package in map(importlib.import_module, PACKAGES):
        for name in package.__all__:
            value = getattr(package, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                found[f"{value.__module__}.{value.__qualname__}"] = value
    for home in ALGORITHMS.values():
        module, _, name = home.partition(":")
        found[f"{module}.{name}"] = getattr(importlib.import_module(module), name)
    return found


PUBLIC = public()


def functions(name: str, value: Any) -> Iterator[tuple[str, Callable[..., Any], str]]:
    """A function, or the public methods of a class, with the docstrings in which each may say what it does."""
    if inspect.isfunction(value):
        yield name, value, inspect.getdoc(value) or ""
        return
    for each, method in vars(value).items():
        if inspect.isfunction(method) and not method.__code__.co_filename.startswith(
            "<"
        ):  # as those that dataclasses make
            of_class = inspect.getdoc(value) or "" if each in ("__init__", "__post_init__") else ""
            if not each.startswith("_") or of_class:
                yield f"{name}.{each}", method, f"{inspect.getdoc(method) or ''}\n{of_class}"


def raised(function: Callable[..., Any]) -> set[str]:
    """Names of the errors in its raise statements."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    causes = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise) and node.exc is not None]
    names = {ast.unparse(cause.func if isinstance(cause, ast.Call) else cause).rpartition(".")[2] for cause in causes}
    return {name for name in names if re.fullmatch(r"[A-Z]\w*(Error|Interrupt)", name)} - ITS_OWN


def said_in(sections: str, error: str, function: Callable[..., Any]) -> bool:
    """Whether an error is named, or one of its bases that say as much to a caller."""
    bases = getattr(function.__globals__.get(error), "__mro__", ())
    names = {error, *(base.__name__ for base in bases)} - {"object", "BaseException", "Exception", "LevadaError"}
    return bool(names & set(re.findall(r"\w+", sections)))


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_says_what_it_is_for(name: str) -> None:
    first = (PUBLIC[name].__doc__ or "").strip().partition("\n")[0]
    assert first, f"{name} has no docstring"
    assert not first.startswith(f"{PUBLIC[name].__name__}("), f"{name} has the docstring that dataclasses make"
    for method, function, said in functions(name, PUBLIC[name]):
        inherited = any(function.__name__ in vars(base) for base in getattr(PUBLIC[name], "__mro__", ())[1:])
        assert said.strip() or inherited or function.__name__.startswith("_"), f"{method} has no docstring"


@pytest.mark.parametrize("name", PUBLIC)
def test_errors_that_are_raised_are_in_a_raises_section(name: str) -> None:
    for each, function, said in functions(name, PUBLIC[name]):
        if not getattr(PUBLIC[name], "_is_protocol", False):
            sections = "\n".join(re.findall(r"^Raises:\n((?: .*\n?|\n)+)", said, re.MULTILINE))
            absent = {error for error in raised(function) if not said_in(sections, error, function)}
            assert not absent, f"{each} raises {', '.join(sorted(absent))}: say when, in a section `Raises:`"


MATH = {
    name: value
    for name in levada.math.__all__
    if not (inspect.isclass(value := getattr(levada.math, name)) and issubclass(value, Exception))
}


@pytest.mark.parametrize("name", MATH)
def test_mathematics_gives_shapes_and_a_source(name: str) -> None:
    said = inspect.getdoc(MATH[name]) or ""
    assert re.search(r"\[(T|B|N|n|A|\*|\.\.\.|batch|num)|shape", said), f"{name} gives no shape such as [T, *batch]"
    module = inspect.getdoc(inspect.getmodule(MATH[name])) or ""
    assert name in NO_PAPER or re.search(r"\b(19|20)\d\d\b", said + module), f"{name} cites no paper or book"


@pytest.mark.parametrize("name", [name for name, value in MATH.items() if inspect.isfunction(value)])
def test_mathematics_describes_every_argument_and_its_errors(name: str) -> None:
    said = inspect.getdoc(MATH[name]) or ""
    described = re.findall(r"^    ([\w, ]+):", said.partition("Args:\n")[2].partition("\nRaises:")[0], re.MULTILINE)
    words = {word for line in described for word in re.split(r", ", line)}
    assert set(inspect.signature(MATH[name]).parameters) <= words
    assert "Raises:" in said
    assert "Returns:" in said or "Return" in said.partition("\n")[0] or ">>>" in said


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithms_cite_their_paper(name: str) -> None:
    module = importlib.import_module(ALGORITHMS[name].partition(":")[0])
    assert re.search(r"\b(19|20)\d\d\b", inspect.getdoc(module) or ""), f"{module.__name__} cites no paper"
