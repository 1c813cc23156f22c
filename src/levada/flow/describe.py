"""The JSON form of a flow and its hash: the same in every process, for it holds names and numbers, never addresses."""

from __future__ import annotations

import enum
import functools
import json
import types
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from levada.flow.graph import Flow


def flow_to_json(flow: Flow) -> dict[str, Any]:
    """The graph as JSON-able data."""
    return {
        "flow": flow.name,
        "nodes": [describe(node) for node in flow.nodes.values()],
        "registers": [describe(register) for register in flow.registers.values()],
        "replays": [describe(replay) for replay in flow.replays.values()],
        "edges": [describe(edge) for edge in flow.edges],
    }


def flow_hash(flow: Flow) -> str:
    """SHA-256 of the canonical JSON form, in hexadecimal."""
    return sha256(json.dumps(flow_to_json(flow), sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def describe(thing: Any) -> Any:
    """Plain data that says what `thing` is: values for data, qualified names for code.

    Fields of dataclasses that are not part of their comparison (caches) are left out. A nested function is described
    with its code and what it closes over, since its name does not tell it from its siblings.

    >>> describe({"b": (1, 2.5), "a": None})
    {'a': None, 'b': [1, 2.5]}
    >>> describe(describe)
    'levada.flow.describe.describe'
    """
    if thing is None or isinstance(thing, bool | int | str):
        return thing
    if isinstance(thing, float):
        return thing if thing == thing and abs(thing) != float("inf") else repr(thing)
    if isinstance(thing, enum.Enum):
        return f"{_name(type(thing))}.{thing.name}"
    if isinstance(thing, np.ndarray | np.generic):
        array = np.asarray(thing)
        return {
            "array": str(array.dtype),
            "shape": list(array.shape),
            "sha256": sha256(array.tobytes()).hexdigest(),
        }
    if is_dataclass(thing) and not isinstance(thing, type):
        described = {field.name: describe(getattr(thing, field.name)) for field in fields(thing) if field.compare}
        return {"type": _name(type(thing)), **described}
    if isinstance(thing, Mapping):
        return {str(key): describe(value) for key, value in sorted(thing.items(), key=lambda pair: str(pair[0]))}
    if isinstance(thing, AbstractSet):
        return sorted((describe(value) for value in thing), key=repr)
    if isinstance(thing, tuple | list):
        return [describe(value) for value in thing]
    return _describe_code(thing)


def _describe_code(thing: Any) -> Any:
    if isinstance(thing, type):
        return _name(thing)
    if isinstance(thing, functools.partial):
        return {
            "partial": describe(thing.func),
            "args": describe(thing.args),
            "kwargs": describe(thing.keywords),
        }
    if isinstance(thing, types.MethodType):
        return {"method": thing.__func__.__qualname__, "of": describe(thing.__self__)}
    if isinstance(thing, types.FunctionType):
        if "<" not in thing.__qualname__:
            return _name(thing)
        closed = [describe(cell.cell_contents) for cell in thing.__closure__ or ()]
        code = sha256(thing.__code__.co_code).hexdigest()[:16]
        return {"function": _name(thing), "code": code, "closure": closed}
    if hasattr(type(thing), "__array__") or type(thing).__module__.startswith("gymnasium.spaces"):
        return {"type": _name(type(thing)), "repr": repr(thing)}
    return {"type": _name(type(thing)) if hasattr(type(thing), "__qualname__") else str(type(thing))}


def _name(code: Any) -> str:
    return f"{code.__module__}.{code.__qualname__}"
