"""XLA, the compiler of JAX, for functions of PyTorch tensors: torchax runs each of their operations in JAX.

>>> def double(x: torch.Tensor) -> torch.Tensor:
...     return x + x
>>> import jax
>>> float(jax.jit(as_jax(double))(2.0))
4.0
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from typing import Any

import torch

__all__ = ["as_jax", "missing_for_xla", "prepare_jax"]

_PACKAGES = ("jax", "torchax")
_CACHE_BYTES = 1 << 30
_CACHED_S = 0.1
"""Shortest time to compile for which the code is kept."""


def missing_for_xla() -> str | None:
    """Return the name of a package that is not installed, or None."""
    return next((name for name in _PACKAGES if importlib.util.find_spec(name) is None), None)


def prepare_jax() -> None:
    """Have JAX compute with one thread, unless it is set up already: workers share the cores among themselves, and the order of
    a sum must not depend on the number of threads. Compiled code is kept for other workers and later runs. Call it before JAX
    computes anything.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    wanted = {"--xla_cpu_multi_thread_eigen": "false", "intra_op_parallelism_threads": "1"}
    missing = [f"{name}={value}" for name, value in wanted.items() if name not in flags]
    os.environ["XLA_FLAGS"] = " ".join([*flags.split(), *missing])
    # the calls of a worker follow each other, so other threads would only be waited for; NPROC is the size of XLA's own pool
    os.environ.setdefault("NPROC", "1")
    import jax

    jax.config.update("jax_cpu_enable_async_dispatch", False)  # no variable of the environment sets it
    if jax.config.jax_compilation_cache_dir is None and (cache := _cache()) is not None:
        jax.config.update("jax_compilation_cache_max_size", _CACHE_BYTES)  # also has workers write in turn
        jax.config.update("jax_persistent_cache_min_compile_time_secs", _CACHED_S)
        jax.config.update("jax_compilation_cache_dir", str(cache))


def _cache() -> Path | None:
    """Return the directory for compiled code, made if necessary; None: it cannot be made."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "levada", "xla")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # a home that is missing or cannot be written; compiling works without
        return None
    return folder


def as_jax(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of arrays of JAX that computes the same as a function of tensors; JAX can compile and differentiate it.

    A tensor that is detached has no gradient there, either.
    """
    torchax, interop = _torchax()

    @wraps(function)
    def run(*args: Any) -> Any:
        with warnings.catch_warnings(), torchax.default_env():
            # an index of int64 is one of int32 there
            warnings.filterwarnings("ignore", "Explicitly requested dtype .*int64", UserWarning)
            return interop.jax_view(function(*interop.torch_view(args)))

    return run


@cache
def _torchax() -> tuple[Any, Any]:
    prepare_jax()
    import jax
    import torchax
    from torchax import interop

    def detach(tensor: Any) -> Any:
        return interop.torch_view(jax.lax.stop_gradient(interop.jax_view(tensor)))

    # torch.compile would ask for the streams of torchax's device, which has none
    torchax.device_module.is_available, torchax.device_module.device_count = lambda: False, lambda: 0
    # torchax returns the tensor itself, through which a gradient would flow
    for operation in (torch.ops.aten.detach, torch.Tensor.detach):
        torchax.default_env().override_op_definition(operation, detach)
    return torchax, interop
