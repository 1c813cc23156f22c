"""On what networks compute: the processor, or a GPU that is fed through pinned memory and replays its updates as graphs.

Weights, rollouts and checkpoints are arrays in main memory whatever the device, so a run may go on with another one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from gymnasium import Space
from torch import Tensor

from levada.flow.errors import LevadaError
from levada.rl._layers import has_large_images
from levada.rl.tensors import flatten, rebuild

log = logging.getLogger(__name__)
_capturing = threading.Lock()

Tensors: TypeAlias = tuple[Tensor, ...]

_NUM_WARMUPS = 3
"""Runs before a graph is captured: libraries choose their kernels and take their memory in the first ones."""


class DeviceError(LevadaError, ValueError):
    """A device that is not there, or none at all."""


def find_device(name: str) -> torch.device:
    """The device of a name.

    Raises:
        DeviceError: there is none.

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


def has_gpu() -> bool:
    """Whether torch finds one."""
    return torch.cuda.is_available()


def synchronise(device: torch.device) -> None:
    """Wait until a device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def choose_device(observation_space: Space[Any]) -> str:
    """The device of `auto`: a GPU for large images, where there is one. It follows from sizes; nothing is timed."""
    return "cuda" if has_gpu() and has_large_images(observation_space) else "cpu"


class Sender:
    """Takes tensors to a device.

    To a GPU they go through pinned memory, on a stream of their own: while one is under way, the next is copied into pinned
    memory, and the device goes on with what it has to do. On the processor they stay where they are.

    >>> batch = Sender(torch.device("cpu")).send([torch.ones(3)])
    >>> batch[0].tolist()
    [1.0, 1.0, 1.0]
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def send(self, tensors: list[Tensor]) -> list[Tensor]:
        """The tensors on the device; what is computed with them next waits until they are there."""
        if self._stream is None:
            return tensors
        there: list[Tensor] = []
        for tensor in tensors:
            pinned = tensor.pin_memory()  # torch gives it to nobody else before it has been read
            with torch.cuda.stream(self._stream):
                there.append(pinned.to(self._device, non_blocking=True))
        computing = torch.cuda.current_stream(self._device)
        computing.wait_stream(self._stream)
        for tensor in there:
            tensor.record_stream(computing)
        return there

    def send_all(self, nest: Any) -> Any:
        """The same for a nest of tensors."""
        if self._stream is None:
            return nest
        leaves: list[Tensor] = []
        structure = flatten(nest, leaves)
        return rebuild(structure, self.send(leaves))


def as_graph(function: Callable[..., Tensors], args: Tensors, changed: Sequence[int] = ()) -> Callable[..., Tensors]:
    """What does the same as a function of tensors, for others of the same shapes, by one launch in place of hundreds.

    A CUDA graph has its own memory: what comes is copied into it, and what it gives is valid until it runs again. On the
    processor the function itself stands where the graph would, between the same copies.

    Args:
        function: of tensors, which does the same whatever their values are.
        args: an example.
        changed: places of those that the function changes.

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
    """What a graph does, without one: it writes to the same memory each time."""
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
    """The graph; or the function itself, said in the log, where it asks the device for numbers while it is captured."""
    try:
        return _capture(function, memory)
    except RuntimeError as error:
        function(*memory)  # if the loss or the network is at fault, its own error comes here
        reason = str(error).strip().partition("\n")[0]
        log.warning("the update cannot be captured as a CUDA graph (%s): it runs as with compile=False", reason)
        return partial(function, *memory)


def _capture(function: Callable[..., Tensors], memory: Tensors) -> Callable[[], Tensors]:
    """The launches of a function, gradients included, as a graph that reads and writes the same memory each time."""
    device = memory[0].device
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(_NUM_WARMUPS):
            function(*memory)
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # one at a time, as torch wants it; other threads may act meanwhile
    with _capturing, torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        results = function(*memory)

    def replay() -> Tensors:
        graph.replay()
        return results

    return replay
