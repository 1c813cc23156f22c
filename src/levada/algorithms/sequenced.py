"""Base of the algorithms that learn from replayed sequences: recurrent networks, and the sequences they store.

    step x shards -> sequences ==> [replay] -> sample -> learn
        ^                                                  |
        +----------------------- [weights] <---------------+

The replay stores sequences of steps, each within one episode, with the recurrent state of the acting network. A gradient step
first runs the networks over the `burn_in` before a sequence, so that their states are close to those of the current weights,
and then learns from all steps of the sequence (Kapturowski et al. 2019, Recurrent experience replay in distributed
reinforcement learning, section 3).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from torch import Tensor

from levada.algorithms.checks import ConfigError
from levada.algorithms.replayed import ReplayAlgorithm
from levada.rl.acting.sequences import Sequences
from levada.rl.policies.recurrent import RecurrentNet
from levada.validation import NonNegativeInt, PositiveFloat, PositiveInt, UnitFloat


@dataclass(frozen=True, kw_only=True)
class SequenceReplayAlgorithm(ReplayAlgorithm):
    """Base configuration. `buffer_size`, `learning_starts`, `batch_size` and `samples_per_insert` count sequences."""

    num_envs: PositiveInt = 8
    num_steps: PositiveInt = 20
    """Number of steps per environment before a sampler fetches newer weights. With larger values, the burn-in is copied less
    often, but actions are chosen by older weights."""
    sequence_length: PositiveInt = 20
    """Number of steps per sequence, without the burn-in. With longer sequences, the network learns longer dependencies."""
    burn_in: NonNegativeInt = 10
    """Number of steps before the sequence that only warm up the recurrent state. With more steps, learning relies less on
    stale states and takes longer."""
    overlap: NonNegativeInt = 0
    """Number of steps that consecutive sequences share, besides the burn-in."""
    buffer_size: PositiveInt = 10_000
    """Replay buffer size, in sequences. The oldest are overwritten."""
    learning_starts: PositiveInt = 50
    """Number of sequences stored before the first gradient step."""
    samples_per_insert: PositiveFloat = 16.0
    """Average number of times a sequence is sampled. With larger values, the agent makes more gradient steps per env step, which
    takes longer."""
    batch_size: PositiveInt = 32
    """Number of sequences per gradient step."""
    num_gradient_steps: PositiveInt = 4
    n_step: PositiveInt = 3
    max_priority_weight: UnitFloat = 0.9
    """Weight eta of the largest TD error in a sequence's priority; the mean error has weight 1 - eta."""
    value_rescaling: bool = True
    """Value rescaling: learn h(x) = sign(x) (sqrt(|x| + 1) - 1) + 0.001 x of the return, which reduces the scale of large
    returns."""
    max_grad_norm: PositiveFloat | None = 10.0
    hidden_sizes: tuple[PositiveInt, ...] = (64,)
    """Widths of the layers before the recurrent layer."""
    rnn_size: PositiveInt = 64
    """Number of units of the recurrent layer."""
    rnn_type: Literal["lstm", "gru"] = "lstm"
    """Recurrent layer. `gru` is smaller and faster."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.overlap >= self.sequence_length:
            length = f"sequence_length={self.sequence_length}"
            msg = f"{type(self).__name__}(overlap={self.overlap}): expected an integer below {length}"
            raise ConfigError(msg)

    @property
    def stride(self) -> int:
        """Number of env steps of one environment per sequence."""
        return self.sequences.stride

    @property
    def sequences(self) -> Sequences:
        """Stage from steps to sequences, the rows of the replay."""
        return Sequences(
            discount=self.discount, length=self.sequence_length, burn_in=self.burn_in, overlap=self.overlap, num_steps=self.n_step
        )  # fmt: skip

    def sequence_priorities(self, error: Tensor, is_step: Tensor) -> Tensor | None:
        """Priorities of sequences ``[N]`` from their steps' TD errors ``[length, N]``, 0 in the padding; None if uniform."""
        if not self.prioritized:
            return None
        size, eta = error.detach().abs(), self.max_priority_weight
        return eta * size.amax(dim=0) + (1.0 - eta) * size.sum(dim=0) / is_step.sum(dim=0)

    def memory(self, policy_gain: float) -> Callable[..., RecurrentNet]:
        """Make a factory of recurrent networks; `policy_gain`: initial scale of the output layer."""
        make = self.with_network_settings(RecurrentNet)
        return partial(make, rnn_size=self.rnn_size, rnn_type=self.rnn_type, policy_gain=policy_gain)
