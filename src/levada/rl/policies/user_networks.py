"""Networks and feature extractors of the user's: made, and checked before anything starts.

>>> _, size = make_features(lambda space: nn.Linear(*space.shape, 16), spaces.Box(-1.0, 1.0, (3,)))
>>> size
16
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from levada.flow.errors import LevadaError
from levada.flow.mistakes import raised_text
from levada.rl.data.spaces import allocate, map_nest

__all__ = ["ModelError", "make_features", "make_network", "spaces"]

_NUMBERS = {1: "one argument", 2: "two arguments"}


class ModelError(LevadaError, ValueError):
    """A network violates the interface that `levada.rl.policies.networks` describes."""


def make_network(make: Any, space: Space[Any], num_params: int) -> nn.Module:
    """Make a custom network, or raise ModelError."""
    taken = "the observation space and the number of action parameters"
    return _made("network", make, (space, num_params), taken, f"{space} and {num_params} action parameters")


def make_features(make: Any, space: Space[Any]) -> tuple[nn.Module, int]:
    """Make a custom feature extractor, or raise ModelError; return it, and the number of its features."""
    module = _made("features_extractor", make, (space,), "the observation space", str(space))
    num_rows = 2
    where, expected = f"features_extractor={_named(make)}", f"expected a float tensor [{num_rows}, F]"
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            features = module(map_nest(torch.from_numpy, allocate(space, num_rows)))
    except Exception as error:
        msg = f"{where} cannot take {num_rows} observations of {space}: {raised_text(error)}; {expected}"
        raise ModelError(msg) from error
    module.train(was_training)
    if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != num_rows:
        got = f"a tensor {list(features.shape)}" if isinstance(features, Tensor) else _a(features)
        msg = f"{where} gives {got} for {num_rows} observations, {expected}; did you forget nn.Flatten()?"
        raise ModelError(msg)
    return module, features.shape[1]


def _made(field: str, make: Any, args: tuple[Any, ...], taken: str, given: str) -> nn.Module:
    """Call a factory; `taken`: what it takes, `given`: what it is called with, as text."""
    expected = f"expected a class or function that makes an nn.Module when it is called with {taken}"
    if isinstance(make, nn.Module):
        msg = f"{field}={_named(make)} is a module already, {expected}; did you mean its class?"
        raise ModelError(msg)
    if not callable(make):
        msg = f"{field}={make!r} ({type(make).__name__}) cannot be called, {expected}"
        raise ModelError(msg)
    try:
        inspect.signature(make).bind(*args)
    except TypeError as error:
        number = _NUMBERS[len(args)]
        msg = f"{field}={_named(make)} does not take {number} ({error}), {expected}; is it another function?"
        raise ModelError(msg) from None
    except ValueError:  # some built-in callables have no signature; the call below reports errors
        pass
    try:
        module = make(*args)
    except LevadaError:
        raise
    except Exception as error:
        msg = f"{field}={_named(make)} cannot be made for {given}: {raised_text(error)}"
        raise ModelError(msg) from error
    if not isinstance(module, nn.Module):
        hint = "did you forget `return`?" if module is None else "does it derive from nn.Module?"
        msg = f"{field}={_named(make)} made {_a(module)}, {expected}; {hint}"
        raise ModelError(msg)
    frozen = next((name for name, param in module.named_parameters() if not param.requires_grad), None)
    if frozen is not None:
        msg = (
            f"{field}={_named(make)}: parameter {frozen!r} requires no gradient, but all parameters are trained; keep what is "
            "constant in buffers (register_buffer)"
        )
        raise ModelError(msg)
    return module


def _named(make: Any) -> str:
    return getattr(make, "__qualname__", None) or type(make).__qualname__


def _a(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
