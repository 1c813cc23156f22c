"""A network with the parameters of one gradient step, as losses call it."""

from __future__ import annotations

from collections.abc import Mapping
from operator import is_
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call


class Net:
    """A network with the parameters of this step."""

    def __init__(self, module: nn.Module, tensors: Mapping[str, Tensor], learns: bool = True) -> None:
        self._module = module
        self._tensors = dict(tensors)
        self.learns = learns
        """Whether this step trains it; otherwise its loss may be omitted."""
        self._last: tuple[tuple[Any, ...], Any] | None = None

    def __call__(self, *args: Any) -> Any:
        """Return the outputs of the module; with the same tensors as before, without computing them again."""
        if self._last is None or len(args) != len(self._last[0]) or not all(map(is_, args, self._last[0])):
            self._last = args, functional_call(self._module, self._tensors, args)
        return self._last[1]

    def tensor(self, name: str) -> Tensor:
        """Return a parameter or buffer by its dotted name."""
        return self._tensors[name]

    @property
    def frozen(self) -> Net:
        """The network without gradients of its parameters; gradients of its inputs still pass through."""
        return Net(self._module, {name: tensor.detach() for name, tensor in self._tensors.items()}, False)
