"""Lazy imports of public names, so that `import levada` loads neither torch nor numpy."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy(
    package: str, home: Mapping[str, str], whereabouts: Callable[[str], str] = lambda name: ""
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make `__getattr__` and `__dir__` of a package whose public names are in other modules.

        __getattr__, __dir__ = lazy(__name__, {"Task": "levada.rl.envs.task"})

    An unknown name raises AttributeError, as in any module; `whereabouts` may add a hint at its module.
    """
    namespace = vars(sys.modules[package])

    def getattr_(name: str) -> Any:
        if name not in home:
            msg = f"module {package!r} has no attribute {name!r}{'' if name.startswith('_') else whereabouts(name)}"
            raise AttributeError(msg, name=name, obj=sys.modules[package])
        namespace[name] = value = getattr(importlib.import_module(home[name]), name)
        return value

    return getattr_, lambda: list(namespace["__all__"])
