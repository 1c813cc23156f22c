"""The structure of the package, computed from its imports."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import grimp
import pytest

import levada

ROOT = Path(levada.__file__).parent
MAX_ROOMS_OF_RL = 9
MAX_FILES_OF_PPO = 95
MAX_CIRCLE = 2


@cache
def imports() -> grimp.ImportGraph:
    """Imports at run time, those inside functions included."""
    return grimp.build_graph("levada", exclude_type_checking_imports=True, cache_dir=None)


def file_of(module: str) -> Path:
    path = ROOT.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def at_import(module: str) -> set[str]:
    """Modules of levada that a module imports when it is imported itself."""
    graph, tree = imports(), ast.parse(file_of(module).read_text("utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    later = {line for node in functions for line in range(node.lineno, (node.end_lineno or 0) + 1)}
    found = graph.find_modules_directly_imported_by(module)
    details = {name: graph.get_import_details(importer=module, imported=name) for name in found}
    return {name for name, some in details.items() if any(one["line_number"] not in later for one in some)}


def closure(module: str) -> set[str]:
    """All modules that are imported with one, and itself; packages whose `__init__` is a docstring do not count."""
    found, todo = set(), [module]
    while todo:
        if (one := todo.pop()) not in found:
            found.add(one)
            todo += at_import(one)
    return {one for one in found if len(ast.parse(file_of(one).read_text("utf-8")).body) > 1}


def circles() -> list[set[str]]:
    """Modules that import one another, directly or not."""
    graph = imports()
    above = {module: graph.find_downstream_modules(module) for module in graph.modules}
    return [
        {module, *(other for other in above[module] if module in above[other])}
        for module in graph.modules
        if module in above[module] or any(module in above[other] for other in above[module])
    ]


def test_rl_has_rooms_and_no_file_beside_them() -> None:
    rl = ROOT / "rl"
    assert [path.name for path in rl.glob("*.py")] == ["__init__.py"]
    rooms = [path.name for path in rl.iterdir() if (path / "__init__.py").exists()]
    assert 1 < len(rooms) <= MAX_ROOMS_OF_RL


def test_no_circle_has_more_than_two_files() -> None:
    assert [sorted(circle) for circle in circles() if len(circle) > MAX_CIRCLE] == []


def test_circles_stay_inside_one_room() -> None:
    """An import inside a function that goes back to the module it came from, never across rooms."""
    for circle in circles():
        assert len({module.rpartition(".")[0] for module in circle}) == 1, circle


def test_rl_and_runners_do_not_import_one_another() -> None:
    graph = imports()
    assert graph.find_shortest_chains("levada.algorithms", "levada.rl")  # such a chain is found where there is one
    assert not graph.find_shortest_chains("levada.rl", "levada.runners")
    assert not graph.find_shortest_chains("levada.runners", "levada.rl")


def test_few_files_are_imported_with_ppo() -> None:
    files = closure("levada.algorithms.ppo")
    assert "levada.rl.learning.learner" in files and "levada.algorithms.dqn" not in files
    assert len(files) <= MAX_FILES_OF_PPO, sorted(files)


def test_few_files_explain_dqn_and_ppo() -> None:
    text = (ROOT.parent.parent / "docs" / "architecture.md").read_text("utf-8").partition("## Which files to read")[2]
    lists = [re.findall(r"^\d+\. `([\w/.]+)`", part, re.MULTILINE) for part in text.partition("\n## ")[0].split("\n\n")]
    dqn, ppo = [files for files in lists if files]
    assert dqn[0] == "algorithms/dqn.py" and len(dqn) <= 3
    assert ppo[0] == "algorithms/ppo.py" and len(ppo) <= 10
    assert all((ROOT / file).is_file() for file in (*dqn, *ppo))


@pytest.mark.parametrize(("file", "most"), [("runners/inline.py", 200), ("schedule/hub.py", 330)])
def test_a_front_door_is_short(file: str, most: int) -> None:
    assert len((ROOT / file).read_text("utf-8").splitlines()) < most


def test_nobody_asks_whether_a_channel_is_a_replay() -> None:
    assert [
        path for path in ROOT.rglob("*.py") if re.search(r"isinstance\([^)]*ReplayMachine", path.read_text("utf-8"))
    ] == []
