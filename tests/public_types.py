"""Whether type checkers know the type of every public name and of its members: `pyright --verifytypes`, on what is public.

    python tests/public_types.py        # what lacks a type is listed, and the exit status is 1

pyright takes every module without an underscore for public. Here a name is public if a package of the documentation exports it
(`__all__`), or if it is an algorithm. A type counts as known if it is written down; that a class behind it, such as the live
learner that `Learner.open` returns, has attributes whose types are inferred does not count.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from levada.algorithms.names import ALGORITHMS

PACKAGES = ("levada", *(f"levada.{name}" for name in ("errors", "flow", "math", "rl", "runners", "testing")))
INDIRECT = ("is partially unknown", "Type of base class")
"""Parts of messages about a type that is written down, and whose own members are checked where they belong to."""


def public_names() -> tuple[str, ...]:
    """Full names under which public objects are exported, and under which they are defined."""
    names = {home.replace(":", ".") for home in ALGORITHMS.values()}
    for package in map(importlib.import_module, PACKAGES):
        for name in package.__all__:
            value = getattr(package, name)
            names.add(f"{package.__name__}.{name}")
            names.add(f"{getattr(value, '__module__', package.__name__)}.{getattr(value, '__qualname__', name)}")
    return tuple(sorted(names))


def missing(symbol: dict[str, Any]) -> list[str]:
    """What pyright says about the type of a symbol itself, with the place."""
    if symbol["isTypeKnown"] and not symbol["isTypeAmbiguous"]:
        return []
    found = [each for each in symbol["diagnostics"] if not any(part in each["message"] for part in INDIRECT)]
    return [
        f"{each['file']}:{each['range']['start']['line'] + 1}: {symbol['name']}: {' '.join(each['message'].split())}"
        for each in found
    ]


def main() -> int:
    command = [sys.executable, "-m", "pyright", "--verifytypes", "levada", "--ignoreexternal", "--outputjson"]
    # pyright looks for the package beside the python that comes first in PATH; --verifytypes ignores --pythonpath.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"PATH": path})
    symbols = json.loads(done.stdout)["typeCompleteness"]["symbols"]
    names = public_names()
    public = [s for s in symbols if s["name"] in names or s["name"].startswith(tuple(f"{name}." for name in names))]
    if len(public) < len(names):
        print(f"pyright found {len(public)} public symbols of levada, expected at least {len(names)}", file=sys.stderr)
        return 1
    wrong = {line for symbol in public for line in missing(symbol)}
    print("\n".join(sorted(wrong)) or f"types of {len(public)} public symbols are complete")
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
