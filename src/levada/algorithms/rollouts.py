"""Base of the algorithms that learn from rollouts: their settings, and the policy and sampler made from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any, ClassVar, Final, Literal, Self

from torch import Tensor

from levada.algorithms.checks import ConfigError, require_anneal_steps, require_divides
from levada.algorithms.neural import NeuralAlgorithm
from levada.rl.acting.double_buffered import DoubleBufferedSampler
from levada.rl.acting.sampler import Sampler
from levada.rl.envs.task import Task
from levada.rl.policies.networks import default_network
from levada.rl.policies.policy import Policy
from levada.rl.policies.recurrent import RecurrentNet
from levada.validation import FiniteFloat, NonNegativeFloat, PositiveFloat, PositiveInt

SHORTEST: Final = 16
"""Least number of steps of a rollout that `with_envs` makes, as returns are estimated from them."""


@dataclass(frozen=True, kw_only=True)
class RolloutAlgorithm(NeuralAlgorithm):
    """Base configuration of the algorithms that learn from rollouts."""

    num_groups: PositiveInt = 1
    """Double-buffered sampling: number of groups of a shard's environments; must divide `num_envs`. While one group steps, the
    actions of the next are computed. 2 is faster where environments release the GIL, as those of Atari do, and cores are
    free. 1: no groups."""
    num_steps: PositiveInt = 32
    """Length of one rollout, in steps per environment. With longer rollouts, return estimates are better
    and updates fewer."""
    entropy_coef: NonNegativeFloat = 0.0
    """Coefficient of the entropy bonus. With larger values, the agent explores longer."""
    anneal_entropy_coef: bool = False
    """Anneal the coefficient of the entropy bonus over `anneal_steps`, which it requires: the agent explores less later."""
    value_coef: NonNegativeFloat = 0.5
    """Coefficient of the value loss."""
    max_grad_norm: PositiveFloat | None = 0.5
    adam_eps: PositiveFloat = 1e-5
    """Epsilon of Adam. With a larger epsilon, steps are smaller where gradients are small. 1e-5 is usual for PPO and A2C; Adam's
    paper has 1e-8 (arXiv 1412.6980)."""
    rnn_type: Literal["lstm", "gru"] | None = None
    """Recurrent layer of the policy. None: feedforward."""
    rnn_size: PositiveInt = 64
    """Number of units of the recurrent layer."""
    log_std_init: FiniteFloat = 0.0
    """Initial log standard deviation of Box actions. With larger values, the agent explores more."""
    MUTUALLY_EXCLUSIVE: ClassVar[tuple[tuple[str, str], ...]] = (
        ("rnn_type", "network"),
        *NeuralAlgorithm.MUTUALLY_EXCLUSIVE,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_divides(self, "num_groups", self.num_envs, "num_envs")
        require_anneal_steps(self, "anneal_entropy_coef", False, "the entropy bonus")

    @classmethod
    def alternatives(cls) -> tuple[tuple[str, ...], ...]:
        """Pairs that exclude each other, and `network` with `hidden_sizes`, the widths of the default networks."""
        return (*super().alternatives(), ("network", "hidden_sizes"))

    @classmethod
    def dependents(cls) -> Mapping[str, tuple[str, ...]]:
        """What is annealed over `anneal_steps`."""
        return {"anneal_steps": (*super().dependents()["anneal_steps"], "anneal_entropy_coef")}

    @property
    def annealed_over(self) -> Mapping[str, int]:
        """Env steps over which settings are annealed, by their names."""
        if self.anneal_steps is None or not self.anneal_entropy_coef:
            return super().annealed_over
        return {**super().annealed_over, "entropy_coef": self.anneal_steps}

    def coefficients(self, num_transitions: int) -> dict[str, float]:
        """Scalars of the next update, after training on `num_transitions`: learning rate, and what is annealed."""
        now = super().coefficients(num_transitions)
        if self.anneal_entropy_coef:
            now["entropy_coef"] = self.entropy_coef * self.remaining_fraction(self.num_env_steps(num_transitions))
        return now

    def entropy_bonus(self, entropy: Tensor, coefficients: Mapping[str, Tensor]) -> Tensor:
        """Entropy bonus of a loss that gets these coefficients."""
        return (coefficients["entropy_coef"] if self.anneal_entropy_coef else self.entropy_coef) * entropy

    def policy(self, task: Task, **fields: Any) -> Policy:
        """Make the policy; `fields`: fields of `Policy`."""
        if self.make_network(task) is None:
            fields = {"hidden_sizes": self.hidden_sizes, "activation": self.activation, **fields}
        return super().policy(task, log_std_init=self.log_std_init, **fields)

    def make_network(self, task: Task) -> Callable[..., Any] | None:
        """Factory of the policy's network for a task; None: the default of `Policy`."""
        if self.rnn_type is not None:
            return partial(self.with_network_settings(RecurrentNet), rnn_type=self.rnn_type, rnn_size=self.rnn_size)
        if self.features_extractor is not None:
            return self.with_network_settings(default_network)
        return super().make_network(task)

    def with_envs(self, shards: int, num_envs: int) -> Self:
        """The same with other numbers of shards, and of environments per shard: rollouts become shorter if there are more.

        Raises:
            ConfigError: an update cannot have as many env steps as now, or rollouts would be too short.
        """
        more = Fraction(shards * num_envs, self.shards * self.num_envs)
        return replace(self, shards=shards, num_envs=num_envs, num_steps=self.divided_steps(more))

    def divided_steps(self, divisor: Fraction) -> int:
        """Return `num_steps`, divided.

        Raises:
            ConfigError: it is not whole, or less than SHORTEST.
        """
        num_steps = self.num_steps / divisor
        if num_steps.denominator != 1 or num_steps < min(SHORTEST, self.num_steps):
            msg = (
                f"{type(self).__name__}(num_steps={num_steps}): expected an integer >= {min(SHORTEST, self.num_steps)}"
            )
            raise ConfigError(msg)
        return int(num_steps)

    def num_sequences(self, field: str) -> int:
        """Number of rollouts of single environments in as many transitions as a field says, or ConfigError if it is not whole."""
        num_transitions: int = getattr(self, field)
        if num_transitions % self.num_steps:
            msg = (
                f"{type(self).__name__}({field}={num_transitions}): it learns from whole rollouts, so it must be a "
                f"multiple of num_steps={self.num_steps}"
            )
            raise ConfigError(msg)
        return num_transitions // self.num_steps

    def sampler(self, task: Task, policy: Policy, **more: Any) -> Sampler | DoubleBufferedSampler:
        """Make the sampler; `more`: fields of `Sampler`."""
        sampler = Sampler(
            task=task, policy=policy, num_envs=self.num_envs, num_steps=self.num_steps, discount=self.discount, **more
        )
        return sampler if self.num_groups == 1 else DoubleBufferedSampler(sampler=sampler, num_groups=self.num_groups)
