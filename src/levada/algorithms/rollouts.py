"""What all algorithms that learn from rollouts have in common: their settings; policy, sampler and learner made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, Self

from levada.algorithms.algorithm import Algorithm
from levada.algorithms.checks import (
    ConfigError,
    require_bools,
    require_choice,
    require_counts,
    require_divides,
    require_fractions,
    require_not_negative,
    require_numbers,
    require_positive,
    require_texts,
    require_widths,
)
from levada.algorithms.network import NetworkField, find_network
from levada.rl._layers import has_large_images
from levada.rl.device import choose_device
from levada.rl.learner import Learner
from levada.rl.optimise import Adam
from levada.rl.policy import Policy
from levada.rl.precision import Precision, choose_precision
from levada.rl.recurrent import RecurrentNet
from levada.rl.ring import Ring
from levada.rl.sampler import Sampler
from levada.rl.task import Task


@dataclass(frozen=True, kw_only=True)
class FromRollouts(Algorithm):
    """Base of their configurations."""

    shards: int = 1
    """Logical samplers, each with its own environments. More can use more cores."""
    num_envs: int = 8
    """Environments of one shard, stepped together. More are quicker per step, and make rollouts larger."""
    num_groups: int = 1
    """Groups of a shard's environments, which must divide num_envs: while one steps, actions of another are chosen. 2 pays where
    environments let go of Python's lock, as Atari's, and there are cores to spare."""
    num_steps: int = 32
    """Steps of one rollout. More look further ahead, and come more seldom."""
    learning_rate: float = 1e-3
    """Size of a step of Adam."""
    anneal_steps: int | None = None
    """Env steps over which the learning rate falls linearly to zero; None: never."""
    discount: float = 0.99
    """What a reward loses each step. Nearer to 1 looks further ahead."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus. More explores longer."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float | None = 0.5
    """Gradients are scaled down to this norm; None: never."""
    adam_eps: float = 1e-5
    """Adam's epsilon."""
    normalise_obs: bool = False
    """Shift and scale observations by their running mean and deviation."""
    normalise_reward: bool = False
    """Scale rewards by the running deviation of their discounted sum."""
    network: NetworkField = None
    """A network of your own, as `module:Class`, called with the observation space and the number of action parameters."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers, without a network of your own."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Between the layers."""
    cell: Literal["lstm", "gru"] | None = None
    """Kind of the memory of a recurrent policy; None: it has none."""
    num_units: int = 64
    """Units of the memory. More remember more, and are slower."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Numbers that layers compute in. "auto": bfloat16 for images of 64 x 64 and more with the default network, where the
    processor multiplies bfloat16 (AVX512-BF16, AMX); else float32."""
    device: str = field(default="auto", compare=False)
    """Where networks compute: "cpu", "cuda", or one of several GPUs, "cuda:1". "auto": on a GPU for images of 36 x 36 and more,
    where there is one."""
    log_std_init: float = 0.0
    """Logarithm of the deviation of continuous actions in the beginning. More explores wider."""
    compile: Literal["auto"] | bool = "auto"
    """Compile the update: at once, never (then it is ordinary torch), or once the run is long enough to earn it."""

    def __post_init__(self) -> None:
        require_counts(self, "shards", "num_envs", "num_groups", "num_steps")
        require_divides(self, "num_groups", self.num_envs, "num_envs")
        require_counts(self, "anneal_steps", or_none=True)
        require_fractions(self, "discount")
        require_positive(self, "learning_rate", "adam_eps")
        require_positive(self, "max_grad_norm", or_none=True)
        require_not_negative(self, "entropy_coef", "value_coef")
        require_numbers(self, "log_std_init")
        require_bools(self, "normalise_obs", "normalise_reward")
        require_widths(self, "hidden")
        require_choice(self, "activation", "tanh", "relu")
        require_choice(self, "cell", "lstm", "gru", None)
        require_counts(self, "num_units")
        if self.cell is not None and self.network is not None:
            msg = f"{type(self).__name__}(cell={self.cell!r}, network=...): expected one of them"
            raise ConfigError(msg)
        require_choice(self, "precision", "auto", "float32", "bfloat16")
        require_texts(self, "device")
        require_choice(self, "compile", True, False, "auto")

    @property
    def horizons(self) -> Mapping[str, int]:
        """The learning rate's."""
        return {} if self.anneal_steps is None else {"learning_rate": self.anneal_steps}

    def coefficients(self, num_env_steps: int) -> dict[str, float]:
        """What changes from update to update."""
        return {"learning_rate": self.learning_rate * self.share_left(num_env_steps)}

    def share_left(self, num_env_steps: int) -> float:
        """Which share of `anneal_steps` is left."""
        return 1.0 if self.anneal_steps is None else max(0.0, 1.0 - num_env_steps / self.anneal_steps)

    def policy(self, task: Task) -> Policy:
        """The policy of these settings."""
        shape: Any = {} if self.cell else {"hidden": self.hidden, "activation": self.activation}
        return Policy(
            observation_space=task.observation_space, action_space=task.action_space, network=self.make_network(),
            normalise_obs=self.normalise_obs, normalise_reward=self.normalise_reward, log_std_init=self.log_std_init,
            device=self._device(task), precision=self._precision(task)[0], **shape,
        )  # fmt: skip

    def settled(self, task: Task) -> tuple[Self, Mapping[str, str]]:
        """With a precision, if that depends on the processor."""
        if self.precision != "auto" or not has_large_images(task.observation_space):
            return self, {}
        chosen, why = self._precision(task)
        return replace(self, precision=chosen), {"precision": why}

    def _device(self, task: Task) -> str:
        return choose_device(task.observation_space) if self.device == "auto" else self.device

    def _precision(self, task: Task) -> tuple[Precision, str]:
        if self.precision != "auto":
            return self.precision, "it was asked for"
        is_default_network = self.network is None and self.cell is None
        return choose_precision(task.observation_space, self._device(task), is_default_network=is_default_network)

    def make_network(self) -> Callable[..., Any] | None:
        """What makes the network; None: the one that suits the observations."""
        if self.cell is None:
            return find_network(self.network)
        return partial(
            RecurrentNet, cell=self.cell, num_units=self.num_units, hidden=self.hidden, activation=self.activation
        )

    def num_sequences(self, num_transitions: int) -> int:
        """How many rows hold so many transitions, if each is a whole rollout of one environment.

        Raises:
            ConfigError: that is no whole number.

        """
        if num_transitions % self.num_steps:
            msg = (
                f"{type(self).__name__}(minibatch_size={num_transitions}): it learns from whole rollouts, so it must be a "
                f"multiple of num_steps={self.num_steps}"
            )
            raise ConfigError(msg)
        return num_transitions // self.num_steps

    def num_rows(self, policy: Policy, num_transitions: int | None) -> int | None:
        """How many rows hold so many transitions: of a recurrent policy each is a whole rollout of one environment.

        Raises:
            ConfigError: that is no whole number.

        """
        if num_transitions is None or not policy.state_size:
            return num_transitions
        return self.num_sequences(num_transitions)

    def sampler(self, task: Task, policy: Policy, **more: Any) -> Sampler | Ring:
        """What acts; `more`: fields of `Sampler`."""
        sampler = Sampler(
            task=task, policy=policy, num_envs=self.num_envs, num_steps=self.num_steps, discount=self.discount, **more
        )
        return sampler if self.num_groups == 1 else Ring(sampler=sampler, num_groups=self.num_groups)

    def learner(self, policy: Policy, loss: Any, **more: Any) -> Learner:
        """What learns; `more`: fields of `Learner`."""
        return Learner(
            policy=policy, loss=loss, coefficients=self.coefficients, compile=self.compile,
            optimizer=Adam(eps=self.adam_eps, max_grad_norm=self.max_grad_norm), **more,
        )  # fmt: skip
