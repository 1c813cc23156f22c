"""Record the operations of a function of tensors once, gradients included, and replay them without Python.

>>> def slope(x: Tensor) -> tuple[Tensor, ...]:
...     x = x.detach().requires_grad_()
...     return torch.autograd.grad((x * x).sum(), x)
>>> replay = record(slope, (torch.ones(2),))
>>> replay(torch.tensor([3.0, 4.0]))[0].tolist()
[6.0, 8.0]

The recording sees the operations that reach the kernels, below autograd: forward, backward and optimizer as one flat list.
Branches are not recorded, so a function that reads a value from a tensor is rejected. New shapes need a new recording.
(PyTorch's `make_fx` records the same but imports the whole compiler, which takes 1 to 2 s; this takes 15 ms.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from levada.flow import LevadaError
from levada.rl.compute.matmul import Product, as_product, faster_products
from levada.rl.compute.torch_private import DispatchMode, script, trace, tree_leaves, tree_map

Tensors = tuple[Tensor, ...]


class RecordError(LevadaError, TypeError):
    """The function cannot be recorded."""


@dataclass(frozen=True, slots=True)
class _Slot:
    """Represents a tensor in the recording."""

    number: int


@dataclass(frozen=True, slots=True)
class _Operation:
    call: Any
    """A PyTorch operator, or a function that replaces one."""
    args: Any
    kwargs: Any
    outputs: tuple[int | None, ...]
    product: Product | None = None


def record(function: Callable[..., Tensors], args: Tensors) -> Callable[..., Tensors]:
    """Call `function` once, and return an equivalent function for tensors of the same shapes and dtypes.

    The recording runs on copies, so in-place changes (such as the statistics of a BatchNorm) happen only in replays. Nor does it
    advance PyTorch's generator, from which Dropout draws. Raise RecordError if the function reads a value from a tensor.
    """
    with torch.random.fork_rng(devices=[]):
        return _record(function, args)


def _record(function: Callable[..., Tensors], args: Tensors) -> Callable[..., Tensors]:
    args = tuple(arg.clone() for arg in args)
    with _Recorder(args) as recorder:
        results = function(*args)
    replay = recorder.replay(results)
    traced: Callable[..., Tensors] = trace(replay, args)

    def run(*args: Tensor) -> Tensors:
        with torch.no_grad():
            return traced(*args)

    # TorchScript profiles the first run and afterwards sums matrix products in a different order. Recurrent networks have
    # such sums, and a resumed run records again, so this first run is discarded.
    run(*(arg.clone() for arg in args))

    return run


def _traceable(operation: _Operation) -> _Operation:
    """Convert an operation to one that TorchScript accepts.

    It rejects arguments of type bool[], such as the output_mask of backward operations. These operations become a function of
    the tensors; other arguments, and the selected outputs, are literals in its source.

    >>> args = (_Slot(4), _Slot(7), [2], 1e-05, None, [True, False])
    >>> print(_source("aten.norm_backward", args, {}, [0]), end="")
    def call(t4: Tensor, t7: Tensor):
        made = torch.ops.aten.norm_backward(t4, t7, [2], 1e-05, None, [True, False])
        return (made[0],)
    """
    if not any(_is_flags(arg) for arg in (*operation.args, *operation.kwargs.values())):
        return operation
    wanted = [index for index, number in enumerate(operation.outputs) if number is not None]
    source = _source(str(operation.call.overloadpacket), operation.args, operation.kwargs, wanted)
    slots = tuple(_slots(operation.args, operation.kwargs).values())
    outputs = tuple(operation.outputs[index] for index in wanted)
    return _Operation(script(source).call, slots, {}, outputs)


def _source(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], wanted: Sequence[int]) -> str:
    parameters = ", ".join(f"{name}: Tensor" for name in _slots(args, kwargs))
    given = ", ".join([*map(_literal, args), *(f"{key}={_literal(value)}" for key, value in kwargs.items())])
    results = "".join(f"made[{index}]," for index in wanted)
    return f"def call({parameters}):\n    made = torch.ops.{name}({given})\n    return ({results})\n"


def _literal(x: Any) -> str:
    if isinstance(x, _Slot):
        return f"t{x.number}"
    return f"[{', '.join(map(_literal, x))}]" if isinstance(x, list | tuple) else repr(x)


def _slots(args: Any, kwargs: Any) -> dict[str, _Slot]:
    """Return the tensors that an operation takes by their names in the source, without duplicates."""
    return {_literal(leaf): leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, _Slot)}


def _is_flags(x: Any) -> bool:
    return isinstance(x, list | tuple) and len(x) > 0 and all(isinstance(flag, bool) for flag in x)


def _tanh(x: Tensor) -> Tensor:
    """2 sigmoid(2x) - 1: on CPUs PyTorch's tanh takes three times as long. The error is 6e-8 at most."""
    return (2.0 * x).sigmoid_().mul_(2.0).sub_(1.0)


_TANH = torch.ops.aten.tanh.default
_VIEW = torch.ops.aten.view.default


def _faster(operations: Sequence[_Operation], results: Sequence[int]) -> list[_Operation]:
    """Replace operations by faster implementations: large products, with their tanh where nothing else needs them, and tanh."""
    uses = Counter(results)
    uses.update(slot.number for one in operations for slot in _slots(one.args, one.kwargs).values())
    large = faster_products(one.product for one in operations)
    products = {one.outputs[0]: number for number, one in enumerate(operations) if one.product in large}
    found: dict[int, _Operation | None] = {}
    for number in products.values():
        product = operations[number].product
        assert product is not None
        found[number] = replace(operations[number], call=product.call)
    for number, one in enumerate(operations):
        if one.call is not _TANH:
            continue
        before = products.get(one.args[0].number)
        product = None if before is None else operations[before].product
        if (
            before is not None
            and product is not None
            and product.with_tanh is not None
            and uses[one.args[0].number] == 1
        ):
            found[before] = replace(operations[before], call=product.with_tanh, outputs=one.outputs)
            found[number] = None
        elif torch.backends.cpu.get_cpu_capability() != "AVX512":
            found[number] = replace(one, call=_tanh)
    replaced = (found.get(number, one) for number, one in enumerate(operations))
    return [one for one in replaced if one is not None]


class _Recorder(DispatchMode):
    """Observes each operation and records which tensors it takes and returns."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        DispatchMode.__init__(self)
        self._operations: list[_Operation] = []
        self._tensors: list[Tensor] = []  # kept alive, so that no id is reused
        self._slots: dict[int, int] = {}
        self._num_inputs = len(inputs)
        for tensor in inputs:
            self._add(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, bool | int | float | complex):
            msg = (
                "a loss that reads numbers out of tensors (if, bool(), float(), .item()) cannot be recorded; use torch.where and "
                "the like, or compile=False, which runs it as ordinary Python"
            )
            raise RecordError(msg)
        # a view of the same shape is the same memory: leaving it out saves a replay a microsecond or two
        if func is torch.ops.aten.detach.default or (func is _VIEW and made.shape == args[0].shape):
            self._add(made, self._slot_of(args[0]).number)
            return made
        taken = tree_map(self._stand_in, args), tree_map(self._stand_in, kwargs or {})
        outputs = made if isinstance(made, tuple | list) else (made,)
        numbers = tuple(self._add(output) if isinstance(output, Tensor) else None for output in outputs)
        self._operations.append(_Operation(func, *taken, numbers, as_product(func, args, kwargs or {})))
        return made

    def replay(self, results: Tensors) -> Callable[..., Tensors]:
        """Return the recording as a function."""
        wanted = [self._slot_of(result).number for result in results]
        operations = [_traceable(operation) for operation in _faster(self._operations, wanted)]
        made = {number for operation in operations for number in operation.outputs}
        fixed: dict[int | None, Tensor] = {
            n: tensor for n, tensor in enumerate(self._tensors) if n >= self._num_inputs and n not in made
        }

        def run(*args: Tensor) -> Tensors:
            memory = fixed | dict(enumerate(args))

            def value(x: Any) -> Any:
                return memory[x.number] if isinstance(x, _Slot) else x

            for operation in operations:
                made = operation.call(*tree_map(value, operation.args), **tree_map(value, operation.kwargs))
                outputs = made if isinstance(made, tuple | list) else (made,)
                memory.update(zip(operation.outputs, outputs, strict=True))
            return tuple(memory[number] for number in wanted)

        return run

    def _add(self, tensor: Tensor, number: int | None = None) -> int:
        self._tensors.append(tensor)
        self._slots[id(tensor)] = len(self._tensors) - 1 if number is None else number
        return self._slots[id(tensor)]

    def _slot_of(self, tensor: Tensor) -> _Slot:
        number = self._slots.get(id(tensor))
        return _Slot(self._add(tensor) if number is None else number)

    def _stand_in(self, x: Any) -> Any:
        return self._slot_of(x) if isinstance(x, Tensor) else x
