"""Device of the networks: the CPU, or a GPU that is fed through pinned memory and replays its updates as CUDA graphs.

Weights and checkpoints are arrays in main memory on every device, so a run may resume on a different one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor

from levada.flow.errors import LevadaError
from levada.rl.data.images import has_large_images
from levada.rl.data.nest import flatten, rebuild

log: logging.Logger = logging.getLogger(__name__)
_capturing = threading.Lock()

Tensors: TypeAlias = tuple[Tensor, ...]

_CAPTURED = ("cuda", "meta")
"""Devices whose computations are captured; `meta` stands for one in tests."""
_NUM_WARMUPS = 3
"""Number of runs before a graph is captured: in the first ones, libraries choose their kernels and allocate memory."""


class DeviceError(LevadaError, ValueError):
    """The device does not exist, or its name is invalid."""


def find_device(name: str) -> torch.device:
    """Return the device with this name, or raise DeviceError.

    >>> find_device("cpu")
    device(type='cpu')
    """
    expected = "expected 'cpu', 'cuda', or one of several GPUs by its number, such as 'cuda:1'"
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        msg = f"device is {name!r}, {expected}"
        raise DeviceError(msg) from None
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        msg = f"device is {name!r}, {expected}"
        raise DeviceError(msg)
    if not torch.cuda.is_available():
        why = "torch finds no GPU here" if torch.version.cuda else "torch was installed without CUDA"
        msg = f"device is {name!r}, but {why}; use device='cpu', or 'auto', which takes what there is"
        raise DeviceError(msg)
    if (device.index or 0) >= torch.cuda.device_count():
        msg = f"device is {name!r}, but there are {torch.cuda.device_count()} GPUs; the first is 'cuda:0'"
        raise DeviceError(msg)
    return device


def choose_device(observation_space: Space[Any]) -> tuple[str, str]:
    """Return the device that `auto` selects, and the reason as text. Depends on sizes alone; nothing is timed."""
    if not has_large_images(observation_space):
        return "cpu", "it sees no large images"
    return ("cuda", "it sees large images") if torch.cuda.is_available() else ("cpu", "torch finds no GPU")


class Sender:
    """Moves tensors to a device.

    Tensors for a GPU go through pinned memory, on a separate stream: while one is in transfer, the next is copied to pinned
    memory, and the device continues computing. On the CPU nothing is moved.

    >>> batch = Sender(torch.device("cpu")).send([torch.ones(3)])
    >>> batch[0].tolist()
    [1.0, 1.0, 1.0]
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def send(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return the tensors on the device; later computations wait for their arrival."""
        if self._stream is None:
            return tensors
        there: list[Tensor] = []
        pins = _is_accelerator(self._device)  # PyTorch pins no memory for it once torchax has registered another device
        for tensor in tensors:
            if tensor.device.type != "cpu":  # it has been computed there
                there.append(tensor)
                continue
            pinned = tensor.pin_memory() if pins else tensor  # PyTorch does not reuse it before it has been read
            with torch.cuda.stream(self._stream):
                there.append(pinned.to(self._device, non_blocking=True))
        computing = torch.cuda.current_stream(self._device)
        computing.wait_stream(self._stream)
        for tensor in there:
            tensor.record_stream(computing)
        return there

    def send_all(self, nest: Any) -> Any:
        """Return a nest of tensors on the device."""
        if self._stream is None:
            return nest
        leaves: list[Tensor] = []
        structure = flatten(nest, leaves)
        return rebuild(structure, self.send(leaves))


def _is_accelerator(device: torch.device) -> bool:
    found = torch.accelerator.current_accelerator()
    return found is not None and found.type == device.type


def constant(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a tensor in main memory with the device and dtype of another. It is copied to each GPU once: a CUDA graph, whose
    warm-up makes the first copy, cannot contain copies from main memory.

    >>> constant(torch.tensor([1, 2]), like=torch.zeros(3))
    tensor([1., 2.])
    """
    if like.device.type not in _CAPTURED or torch.compiler.is_compiling():
        return tensor.to(like)
    array = tensor.numpy()
    return _sent(array.tobytes(), array.dtype.str, array.shape, like.dtype, like.device)


@cache  # without a limit: graphs read the memory
def _sent(data: bytes, kind: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.from_numpy(np.frombuffer(bytearray(data), kind).reshape(shape)).to(device, dtype)


def as_graph(function: Callable[..., Tensors], args: Tensors, changed: Sequence[int] = ()) -> Callable[..., Tensors]:
    """Make an equivalent function for tensors of the same shapes as `args`, which takes one launch in place of hundreds.

    A CUDA graph has its own memory: arguments are copied into it, those at the indices `changed` also back from it, and
    results are valid until it runs again. On the CPU the function itself is called between the same copies.

    >>> double = as_graph(lambda x: (2.0 * x,), (torch.zeros(2),))
    >>> double(torch.tensor([1.0, 3.0]))[0].tolist()
    [2.0, 6.0]
    """
    memory = tuple(arg.clone() for arg in args)
    replay = _captured_if_possible(function, memory) if memory[0].is_cuda else _standing_in(function, memory)

    def run(*given: Tensor) -> Tensors:
        for place, arg in zip(memory, given, strict=True):
            place.copy_(arg)
        results = replay()
        for number in changed:
            given[number].copy_(memory[number])
        return results

    return run


def _standing_in(function: Callable[..., Tensors], memory: Tensors) -> Callable[[], Tensors]:
    """Call the function in place of a graph, writing to the same memory each time."""
    results: list[Tensor] = []

    def replay() -> Tensors:
        made = function(*memory)
        if not results:
            results.extend(torch.empty_like(tensor) for tensor in made)
        for place, tensor in zip(results, made, strict=True):
            place.copy_(tensor)
        return tuple(results)

    return replay


def _captured_if_possible(function: Callable[..., Tensors], memory: Tensors) -> Callable[[], Tensors]:
    """Capture the graph; if the function reads values from the device during capture, log it and return the function."""
    try:
        return _capture(function, memory)
    except RuntimeError as error:
        function(*memory)  # raises the loss's or the network's own error, if that is the cause
        reason = str(error).strip().partition("\n")[0]
        log.warning("the update cannot be captured as a CUDA graph (%s): it runs as with compile=False", reason)
        return partial(function, *memory)


def _capture(function: Callable[..., Tensors], memory: Tensors) -> Callable[[], Tensors]:
    """Capture a function, gradients included, as a graph that reads and writes the same memory each time."""
    device = memory[0].device
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(_NUM_WARMUPS):
            function(*memory)
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # PyTorch captures one graph at a time; other threads may act meanwhile
    with _capturing, torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        results = function(*memory)

    def replay() -> Tensors:
        graph.replay()
        return results

    return replay
