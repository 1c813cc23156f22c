"""Networks that remember: what a recurrent network is, two cells, and the networks that are used by default.

The state of N environments is one array ``[N, state_size]``, and zeros where an episode begins. So it can be kept, sent, stored
and cut like any other column. A network does one step with it when it acts, and T steps when it learns:

    >>> network = RecurrentNet(spaces.Box(-1.0, 1.0, (3,)), 2, cell="gru", num_units=8)
    >>> params, value, state = network(torch.zeros(5, 3), torch.zeros(5, network.state_size))
    >>> params.shape, value.shape, state.shape
    (torch.Size([5, 2]), torch.Size([5]), torch.Size([5, 8]))
    >>> params, value, state = network.unroll(torch.zeros(10, 5, 3), torch.zeros(5, 8), is_first=None)
    >>> params.shape, value.shape, state.shape
    (torch.Size([10, 5, 2]), torch.Size([10, 5]), torch.Size([5, 8]))
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from levada.rl._size import check_memory_cell
from levada.rl.models import Activation, TensorNest, encoders_of, linear
from levada.rl.spaces import leaves, map_nest, named_leaves

__all__ = ["GRU", "LSTM", "Recurrent", "RecurrentNet", "spaces"]

CellName: TypeAlias = Literal["lstm", "gru"]


class Recurrent(nn.Module, ABC):
    """Base of all recurrent networks: `encode` what is seen, `recur` with the state, `decode` to parameters and values.

    Only `recur` is called step by step, so it should do no more than it must. What is linear in the observation belongs into
    `encode`.

    >>> class Sum(Recurrent):
    ...     '''Adds up what it has seen.'''
    ...     state_size = 2
    ...     def encode(self, obs: Tensor) -> Tensor:
    ...         return obs
    ...     def recur(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    ...         return features + state, features + state
    ...     def decode(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
    ...         return outputs, outputs.sum(dim=-1)
    >>> is_first = torch.tensor([[False], [True], [False]])
    >>> Sum().unroll(torch.ones(3, 1, 2), torch.full((1, 2), 5.0), is_first)[1].ravel().tolist()
    [12.0, 2.0, 4.0]

    """

    state_size: int
    """Numbers that are remembered of each environment, float32."""

    @abstractmethod
    def encode(self, obs: Any) -> Tensor:
        """Features ``[N, F]`` of observations ``[N, ...]``, nested as the observation space is."""

    @abstractmethod
    def recur(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs ``[N, H]`` and the state ``[N, state_size]`` after one step."""

    @abstractmethod
    def decode(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Parameters ``[N, num_params]`` and values ``[N]``."""

    def forward(self, obs: TensorNest, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One step: parameters ``[N, num_params]``, values ``[N]``, and the state after it."""
        outputs, state = self.recur(self.encode(obs), state)
        return *self.decode(outputs), state

    def unroll(self, obs: TensorNest, state: Tensor, is_first: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """T steps: parameters ``[T, N, num_params]``, values ``[T, N]``, and the state after the last.

        Args:
            obs: ``[T, N, ...]``.
            state: ``[N, state_size]``, before the first step.
            is_first: bool ``[T, N]``, where an episode begins: there the state begins anew; None: nowhere.

        """
        shape = leaves(cast("Any", obs))[0].shape[:2]
        features = self.encode(map_nest(lambda leaf: leaf.flatten(0, 1), obs)).unflatten(0, shape)
        outputs = []
        for t, features_t in enumerate(features.unbind(0)):
            if is_first is not None:
                state = state.masked_fill(is_first[t][:, None], 0.0)
            output, state = self.recur(features_t, state)
            outputs.append(output)
        params, value = self.decode(torch.stack(outputs).flatten(0, 1))
        return params.unflatten(0, shape), value.unflatten(0, shape), state


class LSTM(nn.Module):
    """Long short-term memory (Hochreiter and Schmidhuber 1997) with forget gates (Gers et al. 2000), which begin open.

    Its state is the output and the cell, one behind the other. `inputs` is linear and makes gates of features, for all steps at
    once; forward does one step.

    >>> cell = LSTM(3, num_units=8)
    >>> output, state = cell(cell.inputs(torch.zeros(5, 3)), torch.zeros(5, cell.state_size))
    >>> output.shape, state.shape
    (torch.Size([5, 8]), torch.Size([5, 16]))

    """

    def __init__(self, size: int, num_units: int) -> None:
        super().__init__()
        self.state_size = 2 * num_units
        self.inputs, self.weight = _gates(size, num_units, 4)
        with torch.no_grad():
            assert self.inputs.bias is not None
            self.inputs.bias[num_units : 2 * num_units] = 1.0

    def forward(self, gates: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Output ``[N, num_units]`` and state of gates ``[N, 4 * num_units]``."""
        h_tm1, c_tm1 = state.chunk(2, dim=-1)
        write, keep, new, read = torch.addmm(gates, h_tm1, self.weight).chunk(4, dim=-1)
        c_t = keep.sigmoid() * c_tm1 + write.sigmoid() * new.tanh()
        h_t = read.sigmoid() * c_t.tanh()
        return h_t, torch.cat([h_t, c_t], dim=-1)


class GRU(nn.Module):
    """Gated recurrent units (Cho et al. 2014, arXiv 1406.1078), with the reset behind the matrix, as in cuDNN.

    Its state is its output: half the size of an `LSTM`'s, and quicker.

    >>> cell = GRU(3, num_units=8)
    >>> output, state = cell(cell.inputs(torch.zeros(5, 3)), torch.zeros(5, cell.state_size))
    >>> output.shape, state.shape
    (torch.Size([5, 8]), torch.Size([5, 8]))

    """

    def __init__(self, size: int, num_units: int) -> None:
        super().__init__()
        self.state_size = num_units
        self.inputs, self.weight = _gates(size, num_units, 3)

    def forward(self, gates: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Output ``[N, num_units]`` and state of gates ``[N, 3 * num_units]``."""
        num_gates = 2 * self.state_size
        past = state @ self.weight
        reset, keep = (gates[:, :num_gates] + past[:, :num_gates]).sigmoid().chunk(2, dim=-1)
        new = torch.addcmul(gates[:, num_gates:], reset, past[:, num_gates:]).tanh()
        h_t = torch.lerp(new, state, keep)
        return h_t, h_t


_CELLS: Mapping[CellName, type[LSTM | GRU]] = {"lstm": LSTM, "gru": GRU}


class RecurrentNet(Recurrent):
    """Encoders for what is seen, one layer of memory, and linear heads for parameters and value.

    Vectors go through the layers of `hidden`, images through convolutions, and the leaves of a Dict or Tuple each through its
    own; the cell takes all of it together.

    Args:
        observation_space: any that is supported, without the action mask.
        num_params: size of the row of parameters.
        hidden: widths of the layers before the cell; may be empty.
        num_units: of the cell.
        cell: "lstm", or "gru".
        activation: behind each layer of `hidden`.
        policy_gain: scale of the parameters in the beginning: small for probabilities, 1 for values.

    >>> network = RecurrentNet(spaces.Dict({"speed": spaces.Box(-1.0, 1.0, (2,)), "gear": spaces.Discrete(5)}), 3)
    >>> obs = {"speed": torch.zeros(7, 2), "gear": torch.zeros(7, dtype=torch.int64)}
    >>> [tensor.shape[-1] for tensor in network(obs, torch.zeros(7, network.state_size))]
    [3, 7, 128]

    """

    def __init__(
        self,
        observation_space: Space[Any],
        num_params: int,
        *,
        hidden: Sequence[int] = (64,),
        num_units: int = 64,
        cell: CellName = "lstm",
        activation: Activation = "tanh",
        policy_gain: float = 0.01,
    ) -> None:
        super().__init__()
        self._paths, self.encoders, size = encoders_of(observation_space, hidden, activation)
        self.cell = _CELLS[cell](size, num_units)
        self.state_size = self.cell.state_size
        self.policy = linear(num_units, num_params, gain=policy_gain)
        self.value = linear(num_units, 1, gain=1.0)

    def encode(self, obs: TensorNest) -> Tensor:
        """The cell's gates, as far as the observation decides them."""
        seen = cast("dict[str, Tensor]", named_leaves(cast("Any", obs)))
        pairs = zip(self.encoders, self._paths, strict=True)
        features: Tensor = self.cell.inputs(torch.cat([encode(seen[path]) for encode, path in pairs], dim=-1))
        return features

    def recur(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The cell."""
        return cast("tuple[Tensor, Tensor]", self.cell(features, state))

    def decode(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Both heads."""
        return self.policy(outputs), self.value(outputs).squeeze(-1)


def _gates(size: int, num_units: int, num_gates: int) -> tuple[nn.Linear, nn.Parameter]:
    """What makes gates of features, and the matrix ``[num_units, num_gates * num_units]`` that makes them of the last output."""
    check_memory_cell(size, num_units, num_gates)  # orthogonal matrices take minutes where they are as large as that
    inputs = linear(size, num_gates * num_units, gain=1.0)
    weight = torch.empty(num_units, num_gates * num_units)
    # without torch.cat, which takes a second to import what it needs where weights are only counted
    for gate in range(num_gates):
        weight[:, gate * num_units : (gate + 1) * num_units] = nn.init.orthogonal_(torch.empty(num_units, num_units))
    return inputs, nn.Parameter(weight)
