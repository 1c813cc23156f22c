"""Check before workers start: can they import the user's script? Each first imports it, under a name other than ``__main__``.

A script that starts a run outside of `if __name__ == "__main__":` would start it in every worker, and a class that is defined
below that line does not exist there. Both are detected by parsing the script, and rejected before anything starts.
"""

from __future__ import annotations

import ast
import io
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

from levada.flow.errors import DeploymentError
from levada.flow.graph import Flow
from levada.flow.topology import derive
from levada.runners.processes.ipc.forkserver import check_temporary_directory

_GUARD = 'if __name__ == "__main__":'


def check_start(flow: Flow, *, sends_all: bool = False) -> None:
    """Reject what keeps workers from starting: a script they cannot import, work missing from it, a TMPDIR that is too long.

    `sends_all`: the learners are sent to other processes, too.

    Raises:
        DeploymentError: the run starts outside of the guard, a node's work is defined below it or in a notebook, or TMPDIR is
            too long.
    """
    check_temporary_directory()
    if names := typed_in(flow, sends_all=sends_all):
        msg = (
            f"{names[0]} is defined in a notebook or at a prompt, and worker processes cannot import it from there: write it "
            "into a module, for example by a cell that begins with `%%writefile my_module.py`, and import it from that; or give "
            "on='threads' or on='inline'"
        )
        raise DeploymentError(msg)
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    spec = getattr(main, "__spec__", None)
    if str(getattr(spec, "name", "")).endswith("__main__"):  # `python -m package`: not imported again
        return
    if file is not None and not Path(file).exists():
        msg = (
            f"the script is {file}, which is no file that workers could import; put it into one, with what starts the run below "
            f"`{_GUARD}`, or give on='inline' or on='threads'"
        )
        raise DeploymentError(msg)
    if file is None or not Path(file).is_file() or Path(file).suffix != ".py":  # typed in, or an installed command
        return
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):  # not the file that is running
        return
    line = _running_line(vars(main))
    if line is not None and not _is_guarded(tree, line):
        msg = (
            f"{Path(file).name}, line {line}, starts a run with workers outside of `{_GUARD}`: every worker imports the script "
            "and would start a run, too. Put what starts the run below that line, and leave classes and functions above it"
        )
        raise DeploymentError(msg)
    if not any(_is_guard(statement) for statement in tree.body):
        return
    known = set(_defined(tree.body))
    for name in sorted(set().union(*(_from_main(node.work) for node in flow.nodes.values()))):
        if name not in known and name in vars(main):
            msg = (
                f"{name} is defined below `{_GUARD}` of {Path(file).name}, so workers, which import the script, do not have it: "
                "define it above that line"
            )
            raise DeploymentError(msg)


def typed_in(flow: Flow, *, sends_all: bool = False) -> list[str]:
    """Return the names of classes and functions of a flow that exist in this process alone: they were typed in, not in a file.

    `sends_all`: look at all nodes, and not only at those that run at the shards or evaluate.
    """
    main = sys.modules["__main__"]
    if getattr(main, "__file__", None) is not None or getattr(main, "__spec__", None) is not None:
        return []
    sharded = derive(flow).sharded
    sent = [name for name, node in flow.nodes.items() if sends_all or name in sharded or node.kind == "evaluate"]
    found = set().union(*(_from_main(flow.nodes[name].work) for name in sent))
    return sorted(name for name in found if name in vars(main))


def check_can_be_sent(flow: Flow, option: str) -> None:
    """Reject nodes that cannot be pickled, and name them. `option`: the one that sends them to another process."""
    for node in flow.nodes.values():
        try:
            pickle.dumps(node)
        except Exception as error:  # pickling calls methods of every object, which may raise anything
            msg = (
                f"Processes({option}): the work of node {node.name!r} of flow {flow.name!r} cannot be sent to another "
                f"process ({type(error).__name__}: {error}); use functions and classes of a module"
            )
            raise DeploymentError(msg) from error


def _running_line(namespace: dict[str, Any]) -> int | None:
    """Return the line of the script that is being executed. None: another script, such as pytest, is running."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_globals is namespace and frame.f_code.co_name == "<module>":
            return frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _is_guarded(tree: ast.Module, line: int) -> bool:
    """Whether a condition precedes a line; which condition is up to the user."""
    if any(_is_guard(statement) and statement.lineno < line for statement in tree.body):
        return True
    ifs = (node for node in ast.walk(tree) if isinstance(node, ast.If))
    return any(node.lineno <= line <= (node.end_lineno or 0) for node in ifs)


def _is_guard(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and any(
        isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(statement.test)
    )


def _defined(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that a script defines when it is imported: those bound by its statements, except the guarded ones."""
    for statement in body:
        if _is_guard(statement):
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield node.name
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            elif isinstance(node, ast.alias):
                yield (node.asname or node.name).partition(".")[0]


def _from_main(sent: object) -> set[str]:
    """Return the names of `__main__` that are needed to unpickle an object."""
    found: set[str] = set()

    class Looking(pickle.Pickler):
        def reducer_override(self, value: Any) -> Any:
            if getattr(value, "__module__", None) == "__main__" and isinstance(value, type | FunctionType):
                found.add(value.__qualname__.partition(".")[0])
            return NotImplemented

    try:
        Looking(io.BytesIO()).dump(sent)
    except Exception:  # unpicklable work is rejected elsewhere, with a message
        return set()
    return found
