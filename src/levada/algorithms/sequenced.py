"""What algorithms that learn from replayed sequences have in common: recurrent networks, and what is stored for them.

    step x shards -> sequences ==> [replay] -> sample -> learn
        ^                                                  |
        +----------------------- [weights] <---------------+

Stored are sequences of steps, none of which leaves its episode, with the state of the network as it was when they were taken. A
gradient step first runs the networks over the `burn_in` before a sequence, so that their states are nearly those of the present
weights, and then learns from all steps of the sequence (Kapturowski et al. 2019, Recurrent experience replay in distributed
reinforcement learning, section 3).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from torch import Tensor

from levada.algorithms.checks import ConfigError, require_bools, require_choice, require_counts, require_fractions
from levada.algorithms.replayed import Replayed
from levada.rl.recurrent import RecurrentNet
from levada.rl.sequences import Sequences


@dataclass(frozen=True, kw_only=True)
class Sequenced(Replayed):
    """Base of their configurations. `capacity`, `min_size`, `batch_size` and `samples_per_insert` count sequences."""

    num_envs: int = 8
    """Environments of one shard, stepped together. More are quicker per step; newer weights come as often."""
    num_steps: int = 20
    """Steps between two looks at newer weights. Fewer copy the burn-in more often; more act by older weights."""
    length: int = 20
    """Steps of a sequence that are learned from. Longer ones remember further back, and are fewer."""
    burn_in: int = 10
    """Steps before them, over which the state is brought up to date. More trust less in old states, and take longer."""
    overlap: int = 0
    """Steps that a sequence shares with the next, beside the burn-in. More learn from each step in several sequences."""
    capacity: int = 10_000
    """Sequences that are kept; the oldest go. More forget later, and take more memory."""
    min_size: int = 50
    """Sequences that are stored before the first is learned from."""
    samples_per_insert: float = 16.0
    """How often a sequence is sampled on average. More learn more from a step, and take longer."""
    batch_size: int = 32
    """Sequences of one gradient step."""
    num_gradient_steps: int = 4
    """Gradient steps of one update, on one draw. More are quicker; priorities and weights are renewed less often."""
    lookahead: int = 3
    """Steps whose rewards a target adds up before it trusts a network. More learn sooner, from actions of older policies."""
    eta: float = 0.9
    """If prioritised: share of the largest error in a sequence's priority; the rest is the mean. 1 seeks single surprises."""
    rescale: bool = True
    """Learn the values' signed hyperbolic function: returns of any size are made small."""
    max_grad_norm: float | None = 10.0
    """Gradients are scaled down to this norm; None: never."""
    hidden: tuple[int, ...] = (64,)
    """Widths of the layers before the memory."""
    num_units: int = 64
    """Units of the memory. More remember more, and are slower."""
    cell: Literal["lstm", "gru"] = "lstm"
    """Kind of the memory; "gru" is smaller and quicker."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_counts(self, "length", "num_units")
        require_counts(self, "burn_in", "overlap", least=0)
        require_bools(self, "rescale")
        require_fractions(self, "eta")
        require_choice(self, "cell", "lstm", "gru")
        if self.overlap >= self.length:
            msg = f"{type(self).__name__}(overlap={self.overlap}): expected an integer below length={self.length}"
            raise ConfigError(msg)

    @property
    def cut(self) -> Sequences:
        """Sequences."""
        return Sequences(
            discount=self.discount, length=self.length, burn_in=self.burn_in, overlap=self.overlap, num_steps=self.lookahead
        )  # fmt: skip

    def sequence_priorities(self, error: Tensor, is_step: Tensor) -> Tensor | None:
        """Those of sequences ``[N]`` by the errors ``[length, N]`` of their steps, 0 where there is none; None if nobody asks."""
        if not self.prioritised:
            return None
        size = error.detach().abs()
        return self.eta * size.amax(dim=0) + (1.0 - self.eta) * size.sum(dim=0) / is_step.sum(dim=0)

    def memory(self, policy_gain: float) -> Callable[..., RecurrentNet]:
        """What makes a network of these settings; `policy_gain`: scale of its parameters in the beginning."""
        return partial(
            RecurrentNet, hidden=self.hidden, num_units=self.num_units, cell=self.cell, activation="relu",
            policy_gain=policy_gain,
        )  # fmt: skip
