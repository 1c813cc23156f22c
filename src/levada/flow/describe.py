"""The JSON form of a flow and its hash. Both are identical in every process and contain no addresses."""

from __future__ import annotations

import enum
import functools
import json
import re
import types
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from hashlib import sha256
from typing import Any

import numpy as np

from levada.flow.nodes import Graph, Node

_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+")


def flow_to_json(flow: Graph) -> dict[str, Any]:
    """Return the graph as JSON-able data."""
    return {
        "flow": flow.name,
        "nodes": [_describe_node(node) for node in flow.nodes.values()],
        "registers": [describe(register) for register in flow.registers.values()],
        "replays": [describe(replay) for replay in flow.replays.values()],
        "edges": [describe(edge) for edge in flow.edges],
    }


def flow_hash(flow: Graph) -> str:
    """Return the SHA-256 of the canonical JSON form, in hexadecimal."""
    return sha256(json.dumps(flow_to_json(flow), sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def describe(thing: Any) -> Any:
    """Describe `thing` as plain data: data by its values, code by qualified names.

    Dataclass fields that are excluded from comparison (caches) are skipped. A nested function is described with its code and
    closure, since its name does not distinguish it from its siblings. Objects other than dataclasses are described by their
    own repr, or otherwise by what would be pickled.

    >>> describe({"b": (1, 2.5), "a": None})
    {'a': None, 'b': [1, 2.5]}
    >>> describe(describe)
    'levada.flow.describe.describe'
    """
    return _describe(thing, ())


def _describe_node(node: Node) -> dict[str, Any]:
    """Describe a node, without what only evaluators have."""
    described: dict[str, Any] = describe(node)
    return described if node.kind == "evaluate" else {name: own for name, own in described.items() if name != "every"}


def _describe(thing: Any, inside: tuple[int, ...]) -> Any:
    """`inside`: identities of the objects being described, to stop at cycles."""
    if thing is None or isinstance(thing, bool | int | str):
        return thing
    if isinstance(thing, float):
        return thing if thing == thing and abs(thing) != float("inf") else repr(thing)
    if id(thing) in inside:
        return {"same as": f"{len(inside) - inside.index(id(thing))} levels up"}
    inside = (*inside, id(thing))
    if isinstance(thing, enum.Enum):
        return f"{_name(type(thing))}.{thing.name}"
    if isinstance(thing, np.ndarray | np.generic):
        array = np.asarray(thing)
        content = json.dumps(_describe(array.tolist(), inside)).encode() if array.dtype.hasobject else array.tobytes()
        return {"array": str(array.dtype), "shape": list(array.shape), "sha256": sha256(content).hexdigest()}
    if is_dataclass(thing) and not isinstance(thing, type):
        values = {f.name: _describe(getattr(thing, f.name), inside) for f in fields(thing) if f.compare}
        return {"type": _name(type(thing)), **values}
    if isinstance(thing, Mapping):
        pairs = sorted(thing.items(), key=lambda pair: str(pair[0]))
        return {str(key): _describe(value, inside) for key, value in pairs}
    if isinstance(thing, AbstractSet):
        return sorted((_describe(value, inside) for value in thing), key=repr)
    if isinstance(thing, tuple | list):
        return [_describe(value, inside) for value in thing]
    return _describe_code(thing, inside)


def _describe_code(thing: Any, inside: tuple[int, ...]) -> Any:
    if isinstance(thing, type):
        return _name(thing)
    if isinstance(thing, functools.partial):
        return {
            "partial": _describe(thing.func, inside),
            "args": _describe(thing.args, inside),
            "kwargs": _describe(thing.keywords, inside),
        }
    if isinstance(thing, types.MethodType):
        return {"method": thing.__func__.__qualname__, "of": _describe(thing.__self__, inside)}
    if isinstance(thing, types.CodeType):
        used = [thing.co_consts, thing.co_names, thing.co_varnames]
        return [sha256(thing.co_code).hexdigest()[:16], _describe(used, inside)]
    if isinstance(thing, types.FunctionType):
        if "<" not in thing.__qualname__:
            return _name(thing)
        return {
            "function": _name(thing),
            "code": _describe(thing.__code__, inside),
            "defaults": _describe([thing.__defaults__, thing.__kwdefaults__], inside),
            "closure": [_describe(_content(cell), inside) for cell in thing.__closure__ or ()],
        }
    return {"type": _name(type(thing)), **_describe_state(thing, inside)}


def _describe_state(thing: Any, inside: tuple[int, ...]) -> dict[str, Any]:
    """Describe what distinguishes an object from others of its type: its own repr, or otherwise what would be pickled."""
    if hasattr(type(thing), "__array__"):
        try:
            return {"array": _describe(np.asarray(thing), inside)}
        except (TypeError, RuntimeError):  # a tensor on a device, or with a gradient
            return {"repr": repr(thing)}
    own_repr: Any = type(thing).__repr__
    if own_repr is not object.__repr__:
        return {"repr": _ADDRESS.sub("", repr(thing))}
    try:
        state = thing.__getstate__()
    except TypeError:  # holds something that cannot be pickled
        return {}
    return {} if state is None else {"state": _describe(state, inside)}


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that is not bound yet
        return None


def _name(code: Any) -> str:
    return f"{code.__module__}.{code.__qualname__}"
