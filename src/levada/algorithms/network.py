"""Custom network as a field of a configuration: a class in Python, `module:Class` on the command line.

It is called with the observation space and the number of action parameters, and returns an `nn.Module`; see docs/rl.md.

>>> find_network("levada.rl.policies.networks:MLP").__name__
'MLP'
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import tyro

from levada.algorithms.registry import AlgorithmError, load_module

NetworkField = Annotated[Any, tyro.conf.arg(constructor=str, metavar="MODULE:CLASS")]
"""Type of the field: a callable, a string, or None."""


def find_network(network: Callable[..., Any] | str | None) -> Callable[..., Any] | None:
    """Resolve the field to a function that makes the network; None: the default network for the observations.

    Raises:
        AlgorithmError: the module or class does not exist.
    """
    if not isinstance(network, str):
        return network
    where, _, name = network.rpartition(":" if ":" in network else ".")  # config.json has the dotted name
    if not where:
        msg = f"network={network!r}: expected my_module:Class, importable from here, or path/to/file.py:Class"
        raise AlgorithmError(msg)
    found = getattr(load_module(where), name, None)
    if not callable(found):
        msg = f"network={network!r}: {where} has no class or function {name!r} that makes an nn.Module"
        raise AlgorithmError(msg)
    return found  # type: ignore[no-any-return]
