"""A minibatch step: gather, loss and gradient as a function of tensors, run eagerly, recorded or compiled.

The parameters are one flat vector, so that a step has few inputs and the optimizer is one kernel. The function can run in
several modes (timings: 64-64 network, minibatch of 64, one core):

- eager: 740 us. Ordinary PyTorch; breakpoints in a loss work.
- recorded: 280 us, after 15 ms. The operations of a step, gradients included, are recorded once and replayed.
- compiled: 180 us, after 5 to 18 s. TorchInductor fuses the operations.
- graph: on a GPU, the launches of a step are captured once and replayed (see `levada.rl.compute.device`).
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from levada.flow.patience import taking_long
from levada.rl.compute.device import as_graph
from levada.rl.compute.functional import Net
from levada.rl.compute.tensors import flatten, rebuild, rows_of
from levada.rl.compute.tracing import RecordError, record
from levada.rl.learning.adam import AdamState
from levada.rl.replay.transitions import MASK, WEIGHT

Loss = Callable[["Apply", Mapping[str, Any], Mapping[str, Tensor]], tuple[Tensor, dict[str, Tensor]]]
"""A loss: (apply, batch of tensors ``[N, ...]``, coefficients) -> (scalar, scalars to report by name)."""
Mode = Literal["eager", "recorded", "graph", "compiled"]
Aside = tuple[Tensor, dict[str, Tensor]]
"""Auxiliary outputs of a loss: the scalars to report ``[S]``, and changed buffers."""
Objective = Callable[[Tensor], tuple[Tensor, Aside]]


log = logging.getLogger(__name__)


class StepState(NamedTuple):
    """State that a step changes in place."""

    params: Tensor
    """``[P]``, float32."""
    adam: AdamState

    def copy(self) -> StepState:
        """Return an independent copy."""
        return StepState(self.params.clone(), self.adam.copy())


class Layout(NamedTuple):
    """Position of each named parameter in the flat vector."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """Return the layout of a module's parameters, in their order."""
        named = list(module.named_parameters())
        return cls(
            tuple(name for name, _ in named), tuple(p.shape for _, p in named), tuple(p.numel() for _, p in named)
        )

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Copy all parameters into one vector."""
        return torch.cat([tensors[name].detach().reshape(-1) for name in self.names])

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the parameters as views of the vector."""
        parts = torch.split(flat, list(self.sizes))
        return {name: part.view(shape) for name, part, shape in zip(self.names, parts, self.shapes, strict=True)}


class Apply(Net):
    """The policy with the parameters being differentiated: observations -> (distribution, value ``[N]``).

    Recurrent policies take the arguments of `PolicyModule`: observations ``[T, N, ...]``, state, and where episodes start.
    """

    def __init__(
        self, module: nn.Module, tensors: Mapping[str, Tensor], target: Mapping[str, Tensor] | None = None
    ) -> None:
        super().__init__(module, tensors)
        self._target = None if target is None else Net(module, target, learns=False)

    @property
    def target(self) -> Net:
        """The policy with the target parameters, without gradient."""
        assert self._target is not None, "the learner has no target: Learner(target_update_interval=...)"
        return self._target


class MinibatchStep:
    """The gradient function of one learner; it is recorded again for new shapes.

    Args:
        module: the policy's module. Only its structure and buffer names are used, never its parameters.
        loss: see `Loss`.
        coefficients: names of the scalars that change between updates.
        has_target: whether the loss uses a target network.
    """

    def __init__(self, module: nn.Module, loss: Loss, coefficients: Sequence[str], *, has_target: bool = False) -> None:
        self.layout = Layout.of(module)
        self.stats: tuple[str, ...] = ()
        """Names of the reported scalars, known after the first step."""
        self._module = module
        self._loss = loss
        self._coefficients = tuple(coefficients)
        self._has_target = has_target
        self._made: dict[Any, Callable[..., Any]] = {}

    def on(
        self, mode: Mode, values: Mapping[str, float], buffers: Mapping[str, Tensor], columns: Mapping[str, Any],
        target: Tensor | None = None,
    ) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:  # fmt: skip
        """Return the gradient function on columns ``[N, ...]``: from parameters ``[P]`` and rows `index` ``[M]`` to the
        gradient ``[P]`` and the reported scalars ``[S]``.

        `values`: values of the coefficients; `target`: parameters ``[P]`` of the target network. Layers such as BatchNorm
        change the buffers.
        """
        leaves: list[Tensor] = []
        structure = {name: flatten(nest, leaves) for name, nest in columns.items()}
        device = leaves[0].device
        given = [values[name] for name in self._coefficients]
        coefficients = torch.tensor(given, dtype=torch.float32, device=device)
        about = (torch.zeros(0, device=device) if target is None else target, *buffers.values())
        if mode == "graph":
            return self._by_graph(structure, leaves, coefficients, tuple(buffers), about)
        key = (mode, *((tensor.shape, tensor.dtype) for tensor in (*about, *leaves)))

        def run(params: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
            args = (params, coefficients, index, *about, *leaves)
            gradient_of = self._made.get((len(index), key))
            if gradient_of is None:
                made = in_mode(mode, lambda compiled: self._function(tuple(buffers), structure, compiled), args)
                gradient_of = self._made[len(index), key] = made
            gradient, stats = gradient_of(*args)
            return gradient, stats

        return run

    def _by_graph(
        self, structure: Mapping[str, Any], leaves: Sequence[Tensor], coefficients: Tensor, buffers: tuple[str, ...],
        about: tuple[Tensor, ...],
    ) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:  # fmt: skip
        """Return the gradient function as a CUDA graph. Rows are gathered outside of it, because pools of frames vary in
        size.
        """

        def run(params: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
            rows: list[Tensor] = []
            inner = {name: flatten(rows_of(nest, leaves, index), rows) for name, nest in structure.items()}
            args = (params, coefficients, index, *about, *rows)
            key = ("graph", *((tensor.shape, tensor.dtype) for tensor in args))
            gradient_of = self._made.get(key)
            if gradient_of is None:
                function = self._function(buffers, inner, is_compiled=False, selects=False)
                gradient_of = self._made[key] = as_graph(function, args, changed=range(4, 4 + len(buffers)))
            gradient, stats = gradient_of(*args)
            return gradient, stats

        return run

    def _function(
        self, buffers: tuple[str, ...], structure: Mapping[str, Any], is_compiled: bool, selects: bool = True
    ) -> Callable[..., tuple[Tensor, ...]]:
        """Return the gradient as a function of tensors only; layers such as BatchNorm change the buffers among them in place.

        `selects`: whether it selects rows from columns, or gets the selected rows.
        """
        differentiate = by_func if is_compiled else by_autograd

        def step(
            params: Tensor, coefficients: Tensor, index: Tensor, target: Tensor, *rest: Tensor
        ) -> tuple[Tensor, ...]:
            fixed = dict(zip(buffers, rest[: len(buffers)], strict=True))
            leaves = rest[len(buffers) :]
            batch = {
                name: rows_of(nest, leaves, index) if selects else rebuild(nest, leaves)
                for name, nest in structure.items()
            }
            if MASK in batch:
                batch[WEIGHT] = batch[MASK] / batch[MASK].sum().clamp(min=1.0)
            named = dict(zip(self._coefficients, coefficients.unbind(), strict=True))
            slow = {**self.layout.views(target), **fixed} if self._has_target else None

            def objective(flat: Tensor) -> tuple[Tensor, Aside]:
                # torch.func forbids changing captured tensors in place, so layers change copies, which are copied back
                inside = {name: buffer.clone() for name, buffer in fixed.items()} if is_compiled else {}
                tensors = {**self.layout.views(flat), **fixed, **inside}
                loss, stats = self._loss(Apply(self._module, tensors, slow), batch, named)
                self.stats = tuple(stats)
                return loss, (torch.stack([value.detach() for value in stats.values()]), inside)

            gradient, (stats, changed) = differentiate(objective, params)
            for name, buffer in changed.items():
                fixed[name].copy_(buffer)
            return gradient, stats

        return step


def in_mode(
    mode: Mode, function_of: Callable[[bool], Callable[..., tuple[Tensor, ...]]], args: tuple[Tensor, ...]
) -> Callable[..., Any]:
    """Return a function of tensors that runs in this mode; `function_of(is_compiled)` makes the original."""
    function = function_of(mode == "compiled")
    if mode == "eager":
        return function
    return _recorded_if_possible(function, args) if mode == "recorded" else compile_whole(function)


def _recorded_if_possible(
    function: Callable[..., tuple[Tensor, ...]], args: tuple[Tensor, ...]
) -> Callable[..., tuple[Tensor, ...]]:
    """Record the function; if PyTorch cannot record one of its operations, log it and return the function."""
    try:
        return record(function, args)
    except RecordError:
        raise
    except RuntimeError as error:
        function(*(arg.clone() for arg in args))  # raises the loss's or the network's own error, if that is the cause
        reason = str(error).strip().partition("\n")[0]
        log.warning("an operation of the update cannot be recorded (%s): updates run as with compile=False", reason)
        return function


def by_autograd(objective: Objective, params: Tensor) -> tuple[Tensor, Aside]:
    """Compute the gradient with the autograd engine; equal to `torch.func.grad`, which would import the whole compiler."""
    leaf = params.detach().requires_grad_()
    with torch.enable_grad():
        loss, aside = objective(leaf)
    return torch.autograd.grad(loss, leaf)[0], aside


def by_func(objective: Objective, params: Tensor) -> tuple[Tensor, Aside]:
    """Compute the gradient with torch.func, which TorchInductor can fuse."""
    gradient, aside = torch.func.grad(objective, has_aux=True)(params)
    return gradient, aside


def num_weights(module: nn.Module) -> int:
    """Return the number of parameters of a module."""
    return sum(parameter.numel() for parameter in module.parameters())


def compile_whole(function: Callable[..., Any]) -> Callable[..., Any]:
    """Fuse the whole function with TorchInductor. The compiled code is cached on disk and reused by later runs."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "levada" / "inductor"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache))
    compiled: Callable[..., Any] = torch.compile(function, fullgraph=True, dynamic=False)

    known = set[tuple[torch.Size, ...]]()  # TorchInductor compiles once per shape

    def run(*args: Tensor) -> Any:
        shapes = tuple(arg.shape for arg in args)
        with torch.no_grad():
            if shapes in known:
                return compiled(*args)
            with taking_long("compiling the update"):
                made = compiled(*args)
        known.add(shapes)
        return made

    return run


def has_compiler() -> bool:
    """Return whether there is a C++ compiler, which TorchInductor needs."""
    named = os.environ.get("CXX")
    return any(shutil.which(name) for name in ([named] if named else ["c++", "g++", "clang++"]))
