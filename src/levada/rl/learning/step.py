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
from functools import partial, wraps
from itertools import accumulate
from pathlib import Path
from threading import Lock
from types import FunctionType
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from levada.flow.patience import taking_long
from levada.rl.compute.device import as_graph
from levada.rl.compute.functional import Net
from levada.rl.compute.seeding import SharedGenerators
from levada.rl.compute.torch_private import RECORDING, has
from levada.rl.compute.tracing import record
from levada.rl.data.nest import flatten, leaves, rebuild, rows_of
from levada.rl.learning.loss import POLICY, Loss, Networks
from levada.rl.policies.weight_noise import WeightNoise
from levada.rl.replay.transitions import MASK, WEIGHT

Mode = Literal["eager", "recorded", "graph", "compiled"]
Aside = tuple[Tensor, Tensor, dict[str, Tensor]]
"""Auxiliary outputs of a loss: the scalars to report ``[S]``, the priorities ``[M]`` or none ``[0]``, and changed buffers."""
Objective = Callable[[Tensor], tuple[Tensor, Aside]]


GradientOf = Callable[..., tuple[Tensor, Tensor, Tensor]]
"""(parameters ``[P]``, target parameters ``[Q]``, rows, active networks, weight noise) -> gradient ``[P]``, scalars to report
``[S]``, and priorities ``[M]``. Rows are an index ``[M]``, or a slice if stacks of frames are assembled already."""

LossOf = Callable[[Tensor, Mapping[str, Tensor]], tuple[Tensor, Tensor, Tensor]]
"""(parameters ``[P]``, buffers) -> loss, scalars to report ``[S]``, and priorities ``[M]`` or none ``[0]``."""

log: logging.Logger = logging.getLogger(__name__)


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

    def places(self, prefix: str) -> list[tuple[str, int, int, tuple[int, ...]]]:
        """Return where parameters whose names begin with a prefix are: name without it, begin, end, and shape."""
        ends = [*accumulate(self.sizes)]
        return [
            (name.removeprefix(prefix), end - size, end, tuple(shape))
            for name, size, end, shape in zip(self.names, self.sizes, ends, self.shapes, strict=True)
            if name.startswith(prefix)
        ]


class GradientStep:
    """The gradient function of one learner; it is recorded again for new shapes.

    Of the `modules`, those with a target network first, only the structure and the names of buffers are used, never their
    parameters. `coefficients` are the names of the scalars that change between updates.
    """

    def __init__(
        self, modules: nn.ModuleDict, loss: Loss, coefficients: Sequence[str], *, targets: Sequence[str] = (),
        weight_noise: WeightNoise | None = None,
    ) -> None:  # fmt: skip
        self.layout: Layout = Layout.of(modules)
        self.stats: tuple[str, ...] = ()
        """Names of the reported scalars, known after the first step."""
        self.modules: nn.ModuleDict = modules
        """Networks by name; their parameters are not used."""
        self._loss = loss
        self._coefficients = tuple(coefficients)
        self._targets = tuple(targets)
        num = sum(name.partition(".")[0] in self._targets for name in self.layout.names)
        self._target_layout = Layout(self.layout.names[:num], self.layout.shapes[:num], self.layout.sizes[:num])
        self._weight_noise = weight_noise
        self._made: dict[Any, Callable[..., Any]] = {}
        self._none: dict[torch.device, Tensor] = {}  # an index where none is needed
        self._has_told = False
        self._making = Lock()  # microbatches may be computed in several threads

    def on(
        self, mode: Mode, values: Mapping[str, float], buffers: Mapping[str, Tensor], columns: Mapping[str, Any]
    ) -> GradientOf:
        """Return the gradient function on columns ``[N, ...]``, see `GradientOf`, for these `values` of the coefficients."""
        leaves: list[Tensor] = []
        structure = {name: flatten(nest, leaves) for name, nest in columns.items()}
        device = leaves[0].device
        given = torch.from_numpy(np.array([values[name] for name in self._coefficients], np.float32)).to(device)
        none = self._none.get(device)
        if none is None:
            none = self._none[device] = torch.zeros(0, dtype=torch.int64, device=device)
        shapes = tuple((tensor.shape, tensor.dtype) for tensor in (*buffers.values(), *leaves))
        known: dict[Any, Callable[..., Any]] = {}  # so that a step need not hash all shapes

        def made(
            key: Any, structure: Mapping[str, Any], args: tuple[Tensor, ...], active: tuple[str, ...], *,
            selects: bool, has_noise: bool,
        ) -> Callable[..., Any]:  # fmt: skip
            which = (mode, active, selects, has_noise, key)
            gradient_of = self._made.get(which)
            if gradient_of is None:
                function = partial(
                    self._function, active, tuple(buffers), structure, selects=selects, has_noise=has_noise
                )
                generators = SharedGenerators()
                if mode == "graph":
                    gradient_of = as_graph(function(False), args, changed=range(4, 4 + len(buffers)))
                else:
                    gradient_of = in_mode(mode, function, args)
                self.tell_of_draws(generators)
                self._made[which] = gradient_of
            return gradient_of

        def run(
            params: Tensor, target: Tensor, rows: Tensor | slice, active: tuple[str, ...] = (POLICY,),
            noise: Tensor | None = None,
        ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
            about = [*buffers.values()] if noise is None else [*buffers.values(), noise]
            inner, index = structure, none
            if isinstance(rows, slice):
                is_whole = rows.start == 0 and rows.stop == len(leaves[0])
                chosen = leaves if is_whole else [leaf[rows] for leaf in leaves]
                key = (rows.stop - rows.start, shapes)
            elif mode != "graph":  # the function itself selects the rows
                chosen, key, index = leaves, (len(rows), shapes), rows
            else:  # pools of frames vary in size
                chosen = []
                inner = {name: flatten(rows_of(nest, leaves, rows), chosen) for name, nest in structure.items()}
                key = (len(rows), tuple((tensor.shape, tensor.dtype) for tensor in (*buffers.values(), *chosen)))
            args = (params, target, given, index, *about, *chosen)
            short = (key[0], active, noise is None)
            gradient_of = known.get(short)
            if gradient_of is None:
                with self._making:
                    gradient_of = known[short] = made(
                        key, inner, args, active, selects=index is rows, has_noise=noise is not None
                    )
            gradient, stats, priorities = gradient_of(*args)
            return gradient, stats, priorities

        return run

    def tell_of_draws(self, generators: SharedGenerators) -> None:
        """Warn once if these generators have moved while an update was recorded or compiled, perhaps in another thread."""
        if not self._has_told and generators.have_moved:
            self._has_told = True
            log.warning(
                "numbers were drawn from NumPy's global generator or `random` while the update was recorded or compiled: if a "
                "network or the loss drew them, every gradient step gets the same ones; draw with PyTorch, or use compile=False"
            )

    def _function(
        self, active: tuple[str, ...], buffers: tuple[str, ...], structure: Mapping[str, Any], is_compiled: bool, *,
        selects: bool, has_noise: bool,
    ) -> Callable[..., tuple[Tensor, ...]]:  # fmt: skip
        """Return the gradient as a function of tensors only; layers such as BatchNorm change the buffers among them in place.

        `selects`: whether it selects rows from columns, or gets the selected rows.
        """
        differentiate = by_func if is_compiled else by_autograd

        def step(
            params: Tensor, target: Tensor, coefficients: Tensor, index: Tensor, *rest: Tensor
        ) -> tuple[Tensor, ...]:
            fixed = dict(zip(buffers, rest[: len(buffers)], strict=True))
            leaves = rest[len(buffers) + has_noise :]
            noise, target_noise = rest[len(buffers)] if has_noise else (None, None)
            batch = batch_of(structure, leaves, index if selects else None)
            loss_of = self.loss_of(target, coefficients, fixed, batch, active, noise, target_noise)

            def objective(flat: Tensor) -> tuple[Tensor, Aside]:
                # torch.func forbids changing captured tensors in place, so layers change copies, which are copied back
                inside = {name: buffer.clone() for name, buffer in fixed.items()} if is_compiled else {}
                loss, stats, priorities = loss_of(flat, {**fixed, **inside})
                return loss, (stats, priorities, inside)

            gradient, (stats, priorities, changed) = differentiate(objective, params)
            for name, buffer in changed.items():
                fixed[name].copy_(buffer)
            return gradient, stats, priorities

        return step

    def loss_of(
        self, target: Tensor, coefficients: Tensor, buffers: Mapping[str, Tensor], batch: dict[str, Any],
        active: tuple[str, ...], noise: Tensor | None = None, target_noise: Tensor | None = None,
    ) -> LossOf:  # fmt: skip
        """Return the loss of a minibatch as a function of the parameters."""
        if MASK in batch:
            batch[WEIGHT] = batch[MASK] / batch[MASK].sum().clamp(min=1.0)
        named = dict(zip(self._coefficients, coefficients.unbind(), strict=True))
        targets = self._nets({**self._target_layout.views(target), **buffers}, self._targets, (), target_noise)

        def loss(flat: Tensor, buffers: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
            tensors = {**self.layout.views(flat), **buffers}
            networks = Networks(self._nets(tensors, tuple(self.modules), active, noise), targets)
            output = self._loss(networks, batch, named)
            self.stats = tuple(output.stats)
            priorities = flat.new_zeros(0) if output.priorities is None else output.priorities.detach()
            return output.loss, torch.stack([value.detach() for value in output.stats.values()]), priorities

        return loss

    def _nets(
        self, tensors: Mapping[str, Tensor], names: Sequence[str], active: Sequence[str], noise: Tensor | None
    ) -> dict[str, Net]:
        """Return networks by name, with noise on the policy's weights if there is any."""
        own = {name: below(tensors, f"{name}.") for name in names}
        if noise is not None and POLICY in own and self._weight_noise is not None:
            own[POLICY] = self._weight_noise.apply(own[POLICY], noise)
        return {name: Net(self.modules[name], some, name in active) for name, some in own.items()}


def batch_of(structure: Mapping[str, Any], leaves: Sequence[Tensor], index: Tensor | None) -> dict[str, Any]:
    """Return the columns of a minibatch: some rows of all, or all rows."""
    return _Batch(
        (name, rebuild(nest, leaves) if index is None else rows_of(nest, leaves, index))
        for name, nest in structure.items()
    )


def below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def in_mode(
    mode: Mode, function_of: Callable[[bool], Callable[..., tuple[Tensor, ...]]], args: tuple[Tensor, ...]
) -> Callable[..., Any]:
    """Return a function of tensors that runs in this mode; `function_of(is_compiled)` makes the original."""
    function = function_of(mode == "compiled")
    if mode == "eager" or (mode == "recorded" and not has(*RECORDING)):
        return _one_at_a_time(function)
    return _recorded_if_possible(function, args) if mode == "recorded" else compile_whole(function)


def _recorded_if_possible(
    function: Callable[..., tuple[Tensor, ...]], args: tuple[Tensor, ...]
) -> Callable[..., tuple[Tensor, ...]]:
    """Record the function; if PyTorch cannot record one of its operations, log it and return the function."""
    try:
        return record(function, args)
    except RuntimeError as error:
        function(*(arg.clone() for arg in args))  # raises the loss's or the network's own error, if that is the cause
        reason = str(error).strip().partition("\n")[0]
        log.warning("an operation of the update cannot be recorded (%s): updates run as with compile=False", reason)
        return _one_at_a_time(function)


def _one_at_a_time(function: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
    """Return a function that other threads wait for: in ordinary Python, a loss may have state of its own."""
    lock = Lock()

    @wraps(function)
    def run(*args: Tensor) -> tuple[Tensor, ...]:
        with lock:
            return function(*args)

    return run


class _Batch(dict[str, Any]):
    """Columns of a minibatch. Without a mask, all rows have the same weight, which is computed if a loss asks for it."""

    def __missing__(self, name: str) -> Tensor:
        if name != WEIGHT:
            raise KeyError(name)
        some: Any = leaves(next(iter(self.values())))[0]
        weight: Tensor = some.new_full(some.shape[:1], 1.0 / some.shape[0], dtype=torch.float32)
        self[WEIGHT] = weight
        return weight


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
    # torch limits how often a code object is compiled: each function has its own, and its compiled code is freed with it
    own = FunctionType(function.__code__.replace(), function.__globals__, closure=function.__closure__)
    compiled: Callable[..., Any] = torch.compile(own, fullgraph=True, dynamic=False)

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
