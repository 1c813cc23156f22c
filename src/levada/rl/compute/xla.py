"""XLA, the compiler of JAX, for functions of PyTorch tensors: torchax runs each of their operations in JAX.

>>> def double(x: torch.Tensor) -> torch.Tensor:
...     return x + x
>>> import jax
>>> float(jax.jit(as_jax(double))(2.0))
4.0
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from functools import cache, wraps
from itertools import accumulate
from operator import is_not
from pathlib import Path
from typing import Any

import torch

__all__ = ["ImpureError", "JaxPlace", "as_jax", "missing_for_xla", "missing_in_jax", "prepare_jax"]

_PACKAGES = ("jax", "torchax")
_CACHE_BYTES = 1 << 30
_CACHED_S = 0.1
"""Shortest time to compile for which the code is kept."""
_NOTHING = nullcontext()
_IN_ORDER: Mapping[str, str] = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
"""Do not arrange operations for several threads: on one, gradient steps of small networks took 0.85 to 0.96 of the time."""

_WAS_SET_UP_FOR: list[str] = []
"""Kinds of devices that JAX was set up for, in this order."""

_IS_CONVERTED: ContextVar[bool] = ContextVar("_IS_CONVERTED", default=False)
"""Whether a function of `as_jax` is running."""


class ImpureError(TypeError):
    """A function of tensors draws random numbers, or changes its arguments in place."""


def missing_for_xla() -> str | None:
    """Return the name of a package that is not installed, or None."""
    return next((name for name in _PACKAGES if importlib.util.find_spec(name) is None), None)


def prepare_jax(device: str = "cpu", num_threads: int = 1) -> None:
    """Set JAX up to compute on a device, unless that has been done. Call it before JAX computes anything.

    On a processor one thread computes an operation, because the order of a sum must not depend on the number of threads. There
    is one thread for all operations, since workers share the cores among themselves, or as many as the first caller asks for.
    It does not look for GPUs, where it would otherwise compute everything. On a GPU it takes only the memory that it uses,
    beside PyTorch. Compiled code is kept for other workers and later runs.
    """
    import jax

    kind = device.partition(":")[0]
    if kind not in _WAS_SET_UP_FOR:
        _WAS_SET_UP_FOR.append(kind)
    _add_flags({"--xla_cpu_multi_thread_eigen": "false"})
    if kind == "cuda":
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        # XLA's CUDA graphs fail when arrays lie in PyTorch's memory
        _add_flags({"--xla_gpu_enable_command_buffer": ""})
        users = os.environ.get("JAX_PLATFORMS") or None
        jax.config.update("jax_platforms", f"{users},cpu" if users and "cpu" not in users else users)
        jax.config.update("jax_default_device", "cpu")  # GPUs are for those who ask for them
    elif jax.config.jax_default_device is None:  # it is not set up for a GPU
        # the calls of a worker follow each other, so other threads would only be waited for; NPROC is the size of XLA's own pool
        os.environ.setdefault("NPROC", str(num_threads))
        jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # no variable of the environment sets it
    if jax.config.jax_compilation_cache_dir is None and (cache := _cache()) is not None:
        jax.config.update("jax_compilation_cache_max_size", _CACHE_BYTES)  # also has workers write in turn
        jax.config.update("jax_persistent_cache_min_compile_time_secs", _CACHED_S)
        jax.config.update("jax_compilation_cache_dir", str(cache))


def _add_flags(wanted: Mapping[str, str]) -> None:
    """Add the flags of XLA that are not set."""
    flags = os.environ.get("XLA_FLAGS", "").strip()
    if flags and not flags.startswith("-") and os.path.isfile(flags):  # XLA takes a value like this for a file of flags
        flags = Path(flags).read_text()
    missing = [f"{name}={value}" for name, value in wanted.items() if name not in flags]
    # in front: XLA reads only up to a word without dashes, such as the "intra_op_parallelism_threads=1" that many users set
    os.environ["XLA_FLAGS"] = " ".join([*missing, *flags.split()])


def missing_in_jax(device: str) -> str | None:
    """Return why JAX cannot compute on a device of PyTorch, or None.

    >>> missing_in_jax("cpu")
    """
    try:
        _jax_device(device)
    except (RuntimeError, IndexError) as error:
        reason = str(error).strip().partition("\n")[0]
        hint = "pip install 'jax[cuda13]'"
        if _WAS_SET_UP_FOR[:1] == ["cpu"]:  # JAX looks for devices once
            hint += ", and choose the device before this process makes an environment in JAX"
        if os.environ.get("JAX_PLATFORMS") == "cpu":
            hint = "JAX_PLATFORMS=cpu leaves it out"
        return f"JAX finds no device {device} ({reason}); {hint}"
    return None


def _jax_device(device: str) -> Any:
    import jax

    kind, _, number = device.partition(":")
    return jax.devices(kind)[int(number or 0)]


class JaxPlace:
    """Where JAX computes: on the device that PyTorch calls by this name.

    >>> place = JaxPlace("cpu")
    >>> with place.used():
    ...     place.is_gpu
    False
    """

    def __init__(self, device: str) -> None:
        self.is_gpu: bool = device != "cpu"
        self._name = device
        self._device = _jax_device(device) if self.is_gpu else None

    def used(self) -> AbstractContextManager[Any]:
        """Return a context in which JAX computes there."""
        if self._device is None:
            return _NOTHING
        import jax

        context: AbstractContextManager[Any] = jax.default_device(self._device)
        return context

    def compiler_options(self, *, num_threads: int) -> Mapping[str, str] | None:
        """Options of XLA for functions of many small operations, several of which can be computed at a time."""
        return None if self.is_gpu or num_threads > 1 else _options()

    def wait_for_copies(self) -> None:
        """Wait until PyTorch has read the arrays that it was given, since JAX may reuse their memory."""
        if self._device is not None:
            torch.cuda.current_stream(self._name).synchronize()

    def put(self, tree: Any) -> Any:
        """Move arrays there, unless they are there."""
        if self._device is None:
            return tree
        import jax

        return jax.device_put(tree, self._device)


@cache
def _options() -> Mapping[str, str] | None:
    """Return the options, if this version of XLA has them."""
    import jax

    try:
        jax.jit(lambda x: x + 1, compiler_options=dict(_IN_ORDER))(0)
    except jax.errors.JaxRuntimeError:
        return None
    return _IN_ORDER


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

    A tensor that is detached has no gradient there, either. Compiling runs the function once: all calls would get the random
    numbers of that run, and changes of arguments would be lost.

    Raises:
        ImpureError: the function draws random numbers, or changes its arguments in place.
    """
    torchax, interop = _torchax()
    from jax.tree import leaves as tree_leaves

    @wraps(function)
    def run(*args: Any) -> Any:
        with warnings.catch_warnings(), torchax.default_env():
            # an index of int64 is one of int32 there
            warnings.filterwarnings("ignore", "Explicitly requested dtype .*int64", UserWarning)
            tensors, token = interop.torch_view(args), _IS_CONVERTED.set(True)
            try:
                made = interop.jax_view(function(*tensors))
            finally:
                _IS_CONVERTED.reset(token)
        # an operation in place gives a tensor another array
        if any(map(is_not, tree_leaves(interop.jax_view(tensors)), tree_leaves(args))):
            raise ImpureError("it changes its arguments in place")
        return made

    return run


@cache
def _torchax() -> tuple[Any, Any]:
    prepare_jax()
    import jax
    import jax.numpy as jnp
    import torchax
    from torchax import interop

    from levada.rl.compute.linear import linear

    def detach(tensor: Any) -> Any:
        return interop.torch_view(jax.lax.stop_gradient(interop.jax_view(tensor)))

    def split(tensor: Any, sizes: Sequence[int], dim: int = 0) -> Any:
        # torchax cuts out each part; JAX pads and adds up the gradients of these, and concatenates those of a split
        array, ends = interop.jax_view(tensor), list(accumulate(sizes))
        if sum(sizes) != array.shape[dim]:
            msg = f"split_with_sizes: expected sizes that add up to {array.shape[dim]}, got {list(sizes)}"
            raise RuntimeError(msg)
        return interop.torch_view(tuple(jnp.split(array, ends[:-1], axis=dim)) if ends else ())

    # Within a trace, its random key would be a tracer.
    with jax.ensure_compile_time_eval():
        env = torchax.default_env()
    own_key = env.get_and_rotate_prng_key

    def key(generator: torch.Generator | None = None) -> Any:
        if _IS_CONVERTED.get():
            raise ImpureError("it draws random numbers")
        return own_key(generator)

    env.get_and_rotate_prng_key = key
    # PyTorch has wrapped it in a function whose first call imports torch.compile, which takes over a second
    if (mode := getattr(torchax.tensor, "XLADispatchMode", None)) is not None:
        mode.__torch_dispatch__ = inspect.unwrap(mode.__torch_dispatch__)
    # torch.compile would ask for the streams of torchax's device, which has none
    torchax.device_module.is_available, torchax.device_module.device_count = lambda: False, lambda: 0
    # torchax returns the tensor itself, through which a gradient would flow
    for operation in (torch.ops.aten.detach, torch.Tensor.detach):
        env.override_op_definition(operation, detach)
    env.override_op_definition(torch.ops.aten.split_with_sizes, split)
    for product in (torch.ops.aten.linear, torch.nn.functional.linear):
        env.override_op_definition(product, interop.torch_view(linear))
    return torchax, interop
