"""Recurrent networks: their interface, the LSTM and GRU cells, and the default recurrent network.

The recurrent state of N environments is one array ``[N, state_size]``, zero where an episode starts. It can be stored, sent
and sliced like any other column. A network computes one step at a time to act, and T steps to learn:

    >>> network = RecurrentNet(spaces.Box(-1.0, 1.0, (3,)), 2, rnn_type="gru", rnn_size=8)
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

from levada.rl.data.spaces import leaves, map_nest
from levada.rl.policies.layers import Activation, linear
from levada.rl.policies.networks import FeaturesExtractor, TensorNest, make_encoder
from levada.rl.policies.size import check_memory_cell

__all__ = ["GRU", "LSTM", "Recurrent", "RecurrentNet", "spaces"]

CellName: TypeAlias = Literal["lstm", "gru"]


class Recurrent(nn.Module, ABC):
    """Base class of recurrent networks: `encode` the observations, `recur` with the state, `decode` to parameters and values.

    Only `recur` is called step by step, so keep it small. Operations that are linear in the observation belong in `encode`.

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
    """Size of the recurrent state per environment, float32."""

    @abstractmethod
    def encode(self, obs: Any) -> Tensor:
        """Return features ``[N, F]`` of observations ``[N, ...]``, nested like the observation space."""

    @abstractmethod
    def recur(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs ``[N, H]`` and the state ``[N, state_size]`` after one step."""

    @abstractmethod
    def decode(self, outputs: Tensor) -> tuple[Any, ...]:
        """Return parameters ``[N, num_params]``, values ``[N]``, and possibly a dict of auxiliary outputs ``[N, ...]``."""

    def forward(self, obs: TensorNest, state: Tensor) -> tuple[Any, ...]:
        """Compute one step: parameters ``[N, num_params]``, values ``[N]``, auxiliary outputs, and the state after it."""
        outputs, state = self.recur(self.encode(obs), state)
        return *self.decode(outputs), state

    def unroll(self, obs: TensorNest, state: Tensor, is_first: Tensor | None = None) -> tuple[Any, ...]:
        """Compute T steps: parameters ``[T, N, num_params]``, values ``[T, N]``, auxiliary outputs, and the state after the last.

        Args:
            obs: ``[T, N, ...]``.
            state: ``[N, state_size]``, before the first step.
            is_first: bool ``[T, N]``, True where an episode starts and the state is reset; None: nowhere.
        """
        shape = leaves(cast("Any", obs))[0].shape[:2]
        features = self.encode(map_nest(lambda leaf: leaf.flatten(0, 1), obs)).unflatten(0, shape)
        outputs = []
        for t, features_t in enumerate(features.unbind(0)):
            if is_first is not None:
                state = state.masked_fill(is_first[t][:, None], 0.0)
            output, state = self.recur(features_t, state)
            outputs.append(output)
        decoded = self.decode(torch.stack(outputs).flatten(0, 1))
        return *(map_nest(lambda leaf: leaf.unflatten(0, shape), output) for output in decoded), state


class LSTM(nn.Module):
    """Long short-term memory (Hochreiter and Schmidhuber 1997) with forget gates (Gers et al. 2000), initially open.

    Its state is the output concatenated with the cell. `inputs` is linear and computes gates from features, for all steps at
    once; forward computes one step.

    >>> cell = LSTM(3, rnn_size=8)
    >>> output, state = cell(cell.inputs(torch.zeros(5, 3)), torch.zeros(5, cell.state_size))
    >>> output.shape, state.shape
    (torch.Size([5, 8]), torch.Size([5, 16]))
    """

    inputs: nn.Linear
    weight: nn.Parameter

    def __init__(self, size: int, rnn_size: int) -> None:
        super().__init__()
        self.state_size: int = 2 * rnn_size
        self.inputs, self.weight = _gates(size, rnn_size, 4)
        with torch.no_grad():
            assert self.inputs.bias is not None
            self.inputs.bias[rnn_size : 2 * rnn_size] = 1.0

    def forward(self, gates: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return output ``[N, rnn_size]`` and state from gates ``[N, 4 * rnn_size]``."""
        h_tm1, c_tm1 = state.chunk(2, dim=-1)
        write, keep, new, read = torch.addmm(gates, h_tm1, self.weight).chunk(4, dim=-1)
        c_t = keep.sigmoid() * c_tm1 + write.sigmoid() * new.tanh()
        h_t = read.sigmoid() * c_t.tanh()
        return h_t, torch.cat([h_t, c_t], dim=-1)


class GRU(nn.Module):
    """Gated recurrent units (Cho et al. 2014, arXiv 1406.1078), with the reset after the matrix product, as in cuDNN.

    Its state is its output. It is half the size of an `LSTM`'s, and the GRU is faster.

    >>> cell = GRU(3, rnn_size=8)
    >>> output, state = cell(cell.inputs(torch.zeros(5, 3)), torch.zeros(5, cell.state_size))
    >>> output.shape, state.shape
    (torch.Size([5, 8]), torch.Size([5, 8]))
    """

    inputs: nn.Linear
    weight: nn.Parameter

    def __init__(self, size: int, rnn_size: int) -> None:
        super().__init__()
        self.state_size = rnn_size
        self.inputs, self.weight = _gates(size, rnn_size, 3)

    def forward(self, gates: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return output ``[N, rnn_size]`` and state from gates ``[N, 3 * rnn_size]``."""
        num_gates = 2 * self.state_size
        past = state @ self.weight
        reset, keep = (gates[:, :num_gates] + past[:, :num_gates]).sigmoid().chunk(2, dim=-1)
        new = torch.addcmul(gates[:, num_gates:], reset, past[:, num_gates:]).tanh()
        h_t = torch.lerp(new, state, keep)
        return h_t, h_t


_CELLS: Mapping[CellName, type[LSTM | GRU]] = {"lstm": LSTM, "gru": GRU}


class RecurrentNet(Recurrent):
    """Encoders of the observation, one recurrent layer, and linear heads for parameters and value.

    Vectors go through the layers of `hidden_sizes`, images through convolutions, and each leaf of a Dict or Tuple through its
    own encoder. The cell takes the concatenation.

    Args:
        observation_space: any supported space, without the action mask.
        num_params: number of parameters of an action.
        hidden_sizes: widths of the layers before the cell; may be empty.
        rnn_size: number of units of the cell.
        rnn_type: "lstm" or "gru".
        activation: activation function after each layer of `hidden_sizes`.
        policy_gain: initial scale of the parameters: small for distributions, 1 for action values.
        features_extractor: custom encoder, in place of the layers before the cell.

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
        hidden_sizes: Sequence[int] = (64,),
        rnn_size: int = 64,
        rnn_type: CellName = "lstm",
        activation: Activation = "tanh",
        policy_gain: float = 0.01,
        features_extractor: FeaturesExtractor | None = None,
    ) -> None:
        super().__init__()
        self.encoders: nn.Module
        self.encoders, size = make_encoder(observation_space, features_extractor, hidden_sizes, activation)
        self.cell: GRU | LSTM = _CELLS[rnn_type](size, rnn_size)
        self.state_size: int = self.cell.state_size
        self.policy: nn.Linear = linear(rnn_size, num_params, gain=policy_gain)
        self.value: nn.Linear = linear(rnn_size, 1, gain=1.0)

    def encode(self, obs: TensorNest) -> Tensor:
        """Compute the part of the cell's gates that depends on the observation."""
        features: Tensor = self.cell.inputs(self.encoders(obs))
        return features

    def recur(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the cell."""
        return cast("tuple[Tensor, Tensor]", self.cell(features, state))

    def decode(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Apply both heads."""
        return self.policy(outputs), self.value(outputs).squeeze(-1)


def _gates(size: int, rnn_size: int, num_gates: int) -> tuple[nn.Linear, nn.Parameter]:
    """Make the layer from features to gates, and the matrix ``[rnn_size, num_gates * rnn_size]`` from outputs to gates."""
    check_memory_cell(size, rnn_size, num_gates)  # orthogonal matrices beyond this size take minutes
    inputs = linear(size, num_gates * rnn_size, gain=1.0)
    weight = torch.empty(rnn_size, num_gates * rnn_size)
    # No torch.cat: on the meta device, where weights are only counted, its imports take a second.
    for gate in range(num_gates):
        weight[:, gate * rnn_size : (gate + 1) * rnn_size] = nn.init.orthogonal_(torch.empty(rnn_size, rnn_size))
    return inputs, nn.Parameter(weight)
