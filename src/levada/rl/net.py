"""A network with the parameters of one gradient step, as losses call it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call


class Net:
    """A network with the parameters of this step."""

    def __init__(self, module: nn.Module, tensors: Mapping[str, Tensor], learns: bool = True) -> None:
        self._module = module
        self._tensors = dict(tensors)
        self.learns = learns
        """Whether this step changes it; where it does not, its loss may be left out."""

    def __call__(self, *args: Any) -> Any:
        """What the network's module gives."""
        return functional_call(self._module, self._tensors, args)

    @property
    def frozen(self) -> Net:
        """The same without gradient of its parameters: the gradient of its inputs passes."""
        return Net(self._module, {name: tensor.detach() for name, tensor in self._tensors.items()}, False)
