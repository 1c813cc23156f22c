"""Checks of code named by a foreign run: only code installed as part of levada or of known libraries is allowed.

config.json names an algorithm, environments and perhaps a network by module or file, and loading the run executes that code.
Names that the user passes in the call are not checked. Names in a run made by this user on this machine are checked only if
they refer to the run's own directory.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from levada.rl.envs.functional.names import is_functional
from levada.run.display.printable import printable
from levada.run.storage.directory import RunDirectory
from levada.run.storage.trust import UntrustedError, why_no_key

KNOWN: dict[str, tuple[str, ...]] = {
    "algorithm_class": ("levada",),
    "env": ("gymnasium", "ale_py", "openspiel"),  # the last begins the ids of games, and imports nothing
    "network": ("levada",),  # and a feature extractor
    "optimizer": ("torch",),
    "policy": ("levada",),  # an algorithm; also a run, which needs trust wherever it is
}
"""Setting -> packages that a foreign run may name in it."""
LOOKED_UP = ("brax", "craftax", "gymnax", "pgx")
"""Libraries of environments in JAX. Of an id such as `gymnax:CartPole-v1` levada imports the library alone; the name is looked up
in the library's list, and refused if it is not there. Names below a library (`gymnax.x:Y`) would be imported. MuJoCo Playground
is left out: its environments download models, and what its `env_kwargs` can name has not been reviewed."""


def check_code(directory: RunDirectory, setting: str, name: object) -> None:
    """Reject untrusted code that a run names; `name`: `module:Name`, `path/to/file.py:Name` or `module.Name`.

    Raises:
        UntrustedError: the code is not trusted.
    """
    if directory.trust or not isinstance(name, str):
        return
    where = name.rpartition(":" if ":" in name or setting == "env" else ".")[0]
    if not where:  # a registered id
        return
    inside = any(_is_inside(where, place) for place in directory.places)
    if inside or not (directory.is_ours or _is_known(setting, where, name)):
        what = (
            "which stands in the run itself"
            if inside
            else f"which is not a part of {' or '.join(KNOWN.get(setting, ()))}"
        )
        why = "" if directory.is_ours else f"; the run was not made by you on this machine{_because()}"
        msg = (
            f"{directory.shown} names code of its own: {setting} is {printable(name)!r}, {what}{why}.\n"
            "Loading it executes that code. If you trust its author: --trust (trust=True)."
        )
        raise UntrustedError(msg)


def check_env_kwargs(directory: RunDirectory, kwargs: object) -> None:
    """Reject paths and module names in the env_kwargs of a foreign run, because an environment may open them.

    Raises:
        UntrustedError: there is a path or module name.
    """
    if directory.trust or directory.is_ours:
        return
    for text in _texts(kwargs):
        if any(mark in text for mark in "/\\:~") or text.startswith(".") or text.endswith(".py"):
            msg = (
                f"{directory.shown} was not made by you on this machine{_because()}, and env_kwargs name a file or a module: "
                f"{printable(text)!r}.\nIf you trust its author: --trust (trust=True)."
            )
            raise UntrustedError(msg)


def forget_modules_beside(path: str) -> None:
    """Remove from sys.path the directories that contain the run or are in it, so that a `mujoco.py` beside a foreign run is
    not imported as MuJoCo. Meant for the command line, whose process does nothing else.
    """
    run = Path(path.partition("://")[2] or path).resolve()
    sys.path[:] = [entry for entry in sys.path if not _touches(Path(entry).resolve(), run)]


def _touches(entry: Path, run: Path) -> bool:
    return entry.is_relative_to(run) or (run.is_relative_to(entry) and entry != Path(entry.anchor))


def _is_known(setting: str, where: str, name: str) -> bool:
    """Whether a foreign run may name this. `where`: `name` without its last part."""
    if setting == "env" and where in LOOKED_UP:
        return is_functional(name)
    parts = where.split(".")
    is_private = any(part.startswith("_") for part in parts)
    return parts[0] in KNOWN.get(setting, ()) and not is_private and not where.endswith(".py")


def _is_inside(where: str, run: Path) -> bool:
    """Whether code is in the run's directory."""
    run = run.resolve()
    if where.endswith(".py"):
        return Path(where).resolve().is_relative_to(run)
    try:
        found = importlib.util.find_spec(where.partition(".")[0])
    except (ValueError, ImportError):
        return False
    places = [] if found is None else [found.origin or "", *(found.submodule_search_locations or ())]
    return any(place and Path(place).resolve().is_relative_to(run) for place in places)


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for pair in value.items() for part in pair for text in _texts(part)]
    return [text for entry in value for text in _texts(entry)] if isinstance(value, list | tuple) else []


def _because() -> str:
    why = why_no_key()
    return f" ({why})" if why else ""
