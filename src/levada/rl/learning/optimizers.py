"""Optimizers of flat parameter vectors: Adam in one pass, and any optimizer of PyTorch.

>>> params, gradient = torch.tensor([1.0, 1.0]), torch.tensor([3.0, 4.0])
>>> live = Adam(max_grad_norm=0.5).open({"policy": params})
>>> state = live.init()
>>> live.step({"policy": Part(params, gradient, state["policy"])}, learning_rate=0.1).item()
5.0
>>> [round(x, 4) for x in params.tolist()], state["policy"]["step"].item()
([0.9, 0.9], 1.0)
"""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from levada.flow.errors import LevadaError
from levada.flow.mistakes import syntax_text
from levada.rl.compute.torch_private import fused_adam
from levada.rl.envs.user_files import find_file, loaded

_IS_NEW = "is_new"
OptimizerState = dict[str, dict[str, Any]]
"""State by network: tensors, or numbers, by name."""


class OptimizerError(LevadaError, ValueError):
    """There is no such optimizer, or it cannot be used."""


class Part(NamedTuple):
    """One network in a step; the optimizer changes parameters and state in place."""

    params: Tensor
    """``[n]``."""
    grad: Tensor
    """``[n]``."""
    state: dict[str, Any]


class LiveOptimizer(Protocol):
    """An optimizer of some networks, made by `Optimizer.open`. It keeps no state of its own."""

    template: OptimizerState
    """A state with all that there is after the first step."""

    def init(self) -> OptimizerState:
        """Return the state before the first step."""

    def step(self, parts: Mapping[str, Part], learning_rate: float) -> Tensor:
        """Update some networks in place; return the norm of all their gradients before clipping."""


class Optimizer(Protocol):
    """Recipe of an optimizer."""

    def open(self, params: Mapping[str, Tensor]) -> LiveOptimizer:
        """Make the optimizer for networks with these parameters, one vector each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Adam:
    """Adam with clipping by the global gradient norm (Kingma and Ba 2014, arXiv 1412.6980, algorithm 1)."""

    beta1: float = 0.9
    """Decay rate of the mean gradient."""
    beta2: float = 0.999
    """Decay rate of the mean square of the gradient."""
    eps: float = 1e-5
    """Term added to the root of the mean square; PPO's usual 1e-5 is larger than Adam's own 1e-8."""
    max_grad_norm: float | None = None
    """Maximum global norm of the gradient, which is scaled down to it; None: no clipping."""

    def open(self, params: Mapping[str, Tensor]) -> LiveAdam:
        """Make the optimizer for networks with these parameters, one vector each."""
        return LiveAdam(self, params)


class LiveAdam:
    """Adam in one pass over the vector, a third of the time of separate operations."""

    def __init__(self, recipe: Adam, params: Mapping[str, Tensor]) -> None:
        self._recipe = recipe
        self._update = fused_adam()
        self.template: OptimizerState = {
            name: {
                "exp_avg": torch.zeros_like(vector), "exp_avg_sq": torch.zeros_like(vector),
                "step": torch.zeros((), device=vector.device),
            }
            for name, vector in params.items()
        }  # fmt: skip

    def init(self) -> OptimizerState:
        """Return the state before the first step."""
        return copied(self.template)

    def step(self, parts: Mapping[str, Part], learning_rate: float) -> Tensor:
        """Update some networks in place; return the norm of all their gradients before clipping."""
        norm, grads = clipped([part.grad for part in parts.values()], self._recipe.max_grad_norm)
        states = [part.state for part in parts.values()]
        means, squares, counts = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq", "step"))
        self._update(
            [part.params for part in parts.values()], grads, means, squares, [], counts, lr=learning_rate,
            beta1=self._recipe.beta1, beta2=self._recipe.beta2, weight_decay=0.0, eps=self._recipe.eps, amsgrad=False,
            maximize=False,
        )  # fmt: skip
        return norm


@dataclass(frozen=True, kw_only=True)
class TorchOptimizer:
    """Any `torch.optim.Optimizer`, with clipping by the global gradient norm.

    The vector of a network is one parameter, so optimizers that treat matrices differently from vectors are no use.

    >>> TorchOptimizer(optimizer="AdamW", kwargs={"weight_decay": 0.01}).cls.__name__
    'AdamW'
    """

    optimizer: str
    """Name of a class in torch.optim, or ``module:Class``."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Its arguments besides the parameters and `lr`."""
    max_grad_norm: float | None = None
    """Maximum global norm of the gradient, which is scaled down to it; None: no clipping."""

    def __post_init__(self) -> None:
        cls = self.cls
        try:
            live = self.open({"policy": torch.zeros(2)})
            elsewhere = live.kept_elsewhere()
        except Exception as error:  # code of the user's, or of torch
            what = str(error) if isinstance(error, TypeError | ValueError | RuntimeError) else repr(error)
            msg = f"optimizer={self.optimizer!r} cannot be made with {dict(self.kwargs)}: {what}"
            raise OptimizerError(msg) from error
        for name, value in live.template["policy"].items():
            if not isinstance(value, Tensor | int | float):
                msg = (
                    f"optimizer={self.optimizer!r}: {cls.__name__} keeps {name!r}, a {type(value).__name__}, which cannot be "
                    "saved; expected tensors and numbers"
                )
                raise OptimizerError(msg)
        if elsewhere:
            msg = (
                f"optimizer={self.optimizer!r}: a step of {cls.__name__} changes {', '.join(elsewhere)}, which would be lost "
                "when a run is resumed; expected all state of a parameter in self.state[parameter]"
            )
            raise OptimizerError(msg)

    @property
    def cls(self) -> type[torch.optim.Optimizer]:
        """The class."""
        return find_optimizer(self.optimizer)

    def open(self, params: Mapping[str, Tensor]) -> LiveTorchOptimizer:
        """Make the optimizer for networks with these parameters, one vector each."""
        return LiveTorchOptimizer(self, params)


class LiveTorchOptimizer:
    """An optimizer of PyTorch; parameters and state are bound for each step."""

    def __init__(self, recipe: TorchOptimizer, params: Mapping[str, Tensor]) -> None:
        self._recipe = recipe
        self._params = {name: nn.Parameter(vector.clone()) for name, vector in params.items()}
        groups = [{"params": [param]} for param in self._params.values()]
        self._optimizer = recipe.cls(groups, lr=1e-3, **recipe.kwargs)  # type: ignore[call-arg]
        self._first = copied({name: self._optimizer.state[param] for name, param in self._params.items()})
        self._is_complete = False
        self.template: OptimizerState = self.init()
        zeros = {name: torch.zeros_like(vector) for name, vector in params.items()}
        self.step({name: Part(zeros[name].clone(), zeros[name], own) for name, own in self.template.items()}, 0.0)
        for own in self.template.values():
            for name in [name for name, value in own.items() if value is None]:
                del own[name]
        self._is_complete = True

    def init(self) -> OptimizerState:
        """Return the state before the first step."""
        return copied(self._first)

    def step(self, parts: Mapping[str, Part], learning_rate: float) -> Tensor:
        """Update some networks in place; return the norm of all their gradients before clipping."""
        norm, grads = clipped([part.grad for part in parts.values()], self._recipe.max_grad_norm)
        for param in self._params.values():
            param.grad = None  # which leaves it out
        for (name, part), grad in zip(parts.items(), grads, strict=True):
            param = self._params[name]
            param.data, param.grad = part.params, grad
            self._optimizer.state[param] = part.state
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        for name, part in parts.items():
            self._keep(name, part)
        return norm

    def _keep(self, name: str, part: Part) -> None:
        """Keep what a step has replaced rather than changed in place; refuse state that a checkpoint would not have."""
        param = self._params[name]
        if param.data_ptr() != part.params.data_ptr():
            part.params.copy_(param.data)
        state = self._optimizer.state[param]
        if state is not part.state:
            part.state.clear()
            part.state.update(state)
        if self._is_complete:
            names = {entry for entry, value in part.state.items() if value is not None}
            if names != self.template[name].keys():
                other = ", ".join(map(repr, sorted(names ^ self.template[name].keys())))
                msg = (
                    f"optimizer={self._recipe.optimizer!r}: {other} in self.state[parameter] came or went after the first step; "
                    "expected the same entries after every step, because only these are saved"
                )
                raise OptimizerError(msg)

    def kept_elsewhere(self) -> list[str]:
        """Return what two steps change outside the state of parameters, where it is not saved."""
        groups = self._optimizer.param_groups
        of_all = vars(torch.optim.SGD([nn.Parameter(torch.zeros(1))])).keys()

        def seen() -> dict[str, str]:
            """Attributes and settings, with the exact values of tensors."""
            own = {f"self.{name}": value for name, value in vars(self._optimizer).items() if name not in of_all}
            own |= {
                f"param_groups[...][{name!r}]": value
                for name, value in groups[0].items()
                if name not in ("params", "lr")
            }
            others = {key: value for key, value in self._optimizer.state.items() if not isinstance(key, Tensor)}
            own |= {f"self.state[{key!r}]": value for key, value in others.items()}
            return {name: _exactly(value) for name, value in own.items()}

        before, state = seen(), self.init()
        for _ in range(2):
            params = {name: param.detach().clone() for name, param in self._params.items()}
            parts = {name: Part(vector, torch.ones_like(vector), state[name]) for name, vector in params.items()}
            self.step(parts, learning_rate=1e-3)
        after = seen()
        return [name for name in after if after[name] != before.get(name)]


NAMES = {"adamw": "AdamW", "rmsprop": "RMSprop", "sgd": "SGD", "adagrad": "Adagrad", "radam": "RAdam", "nadam": "NAdam"}
"""Short names of optimizers, as the command line lists them; `adam` is `Adam`."""


def _exactly(value: Any) -> str:
    """A text that differs if anything in a value does."""
    if isinstance(value, Tensor):
        return repr(value.tolist())
    try:
        return pickle.dumps(value).hex()
    except Exception:  # pickling calls methods of every object, which may raise anything
        return repr(value)


def find_optimizer(name: str) -> type[torch.optim.Optimizer]:
    """Return the class of a short name, of a name in torch.optim, of ``module:Class`` or ``path/to/file.py:Class``, or raise
    OptimizerError.

    >>> find_optimizer("sgd").__name__
    'SGD'
    """
    module, colon, cls = name.rpartition(":")
    found: Any = None
    why = ""
    try:
        if not colon:
            found = getattr(torch.optim, NAMES.get(name, name), None)
        elif not module.endswith(".py"):
            found = getattr(importlib.import_module(module), cls)
        elif (file := find_file(Path(module))) is not None:
            found = getattr(loaded(file), cls)
        else:
            why = f" (no file {module!r})"
    except SyntaxError as error:
        why = f" ({syntax_text(error)})"
    except (ImportError, AttributeError, ValueError, TypeError) as error:  # the last one for "./module"
        why = f" ({error})"
    if not (isinstance(found, type) and issubclass(found, torch.optim.Optimizer)) or found is torch.optim.Optimizer:
        names = ", ".join(map(repr, ["adam", *NAMES]))
        msg = f"optimizer={name!r}: expected {names}, a class of torch.optim, 'module:Class' or 'path/to/file.py:Class'{why}"
        raise OptimizerError(msg)
    if found is torch.optim.LBFGS:
        msg = f"optimizer={name!r} evaluates the loss several times per step, which a learner does not do"
        raise OptimizerError(msg)
    return found


def clipped(grads: Sequence[Tensor], max_norm: float | None) -> tuple[Tensor, list[Tensor]]:
    """Return the norm of all gradients, and the gradients scaled down to at most `max_norm`."""
    norm: Tensor = torch.linalg.vector_norm(grads[0] if len(grads) == 1 else torch.cat(list(grads)))
    if max_norm is None:
        return norm, list(grads)
    if norm.is_cpu and norm.item() + 1e-6 < 0.99 * max_norm:  # the factor is 1; to find that out takes less time
        return norm, list(grads)
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    return norm, [grad * scale for grad in grads]


def packed(state: OptimizerState, template: OptimizerState) -> dict[str, npt.NDArray[Any]]:
    """Return a state as arrays ``network/name``, whose names and shapes do not depend on it."""
    arrays = {}
    for network, usual in template.items():
        own = state[network]
        arrays[f"{network}/{_IS_NEW}"] = np.asarray(not usual.keys() <= own.keys())
        for name, value in usual.items():
            found = own.get(name, value)
            arrays[f"{network}/{name}"] = (
                found.to("cpu", copy=True).numpy() if isinstance(found, Tensor) else np.asarray(found)
            )
    return arrays


def unpacked(arrays: Mapping[str, npt.NDArray[Any]], template: OptimizerState, first: OptimizerState) -> OptimizerState:
    """Return the state that was `packed`; `first`: that before the first step."""
    state: OptimizerState = {}
    for network, usual in template.items():
        if arrays[f"{network}/{_IS_NEW}"]:
            state[network] = first[network]
            continue
        given = {name: arrays[f"{network}/{name}"] for name in usual}
        state[network] = {
            name: torch.tensor(array, device=usual[name].device) if isinstance(usual[name], Tensor) else array.item()
            for name, array in given.items()
        }
    return state


def copied(state: Mapping[str, Mapping[str, Any]]) -> OptimizerState:
    """Return an independent copy of a state."""
    return {
        network: {name: value.clone() if isinstance(value, Tensor) else value for name, value in own.items()}
        for network, own in state.items()
    }
