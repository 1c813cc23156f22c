"""Base of the algorithms that learn from rollouts: their settings, and the policy, sampler and learner made from them."""

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
from levada.algorithms.optimizer import make_optimizer
from levada.algorithms.schedules import SCHEDULES, Schedule
from levada.rl.acting.double_buffered import DoubleBufferedSampler
from levada.rl.acting.sampler import Sampler
from levada.rl.compute.device import choose_device
from levada.rl.data.images import has_large_images
from levada.rl.envs.task import Task
from levada.rl.learning.learner import Learner
from levada.rl.policies.policy import Policy
from levada.rl.policies.precision import Precision, choose_precision
from levada.rl.policies.recurrent import RecurrentNet


@dataclass(frozen=True, kw_only=True)
class FromRollouts(Algorithm):
    """Base configuration of the algorithms that learn from rollouts."""

    shards: int = 1
    """Number of logical samplers, each with its own environments. More shards can use more cores."""
    num_envs: int = 8
    """Number of environments per shard, stepped together. More environments cost less per step and make batches larger."""
    num_groups: int = 1
    """Number of groups of a shard's environments; must divide `num_envs`. While one group steps, actions of the next are
    computed. 2 pays off where environments release the GIL, as Atari's do, and cores are free."""
    num_steps: int = 32
    """Length of one rollout, in steps per environment. Longer rollouts give better return estimates and fewer updates."""
    learning_rate: float = 1e-3
    """Learning rate of Adam."""
    anneal_steps: int | None = None
    """Env steps over which the learning rate falls to zero. None: constant."""
    learning_rate_schedule: Schedule = "linear"
    """Schedule of the learning rate over `anneal_steps`."""
    discount: float = 0.99
    """Discount factor gamma per step. Closer to 1 weighs distant rewards more."""
    entropy_coef: float = 0.0
    """Coefficient of the entropy bonus. Larger values explore longer."""
    value_coef: float = 0.5
    """Coefficient of the value loss."""
    max_grad_norm: float | None = 0.5
    """Maximum norm of the gradient; larger gradients are scaled down to it. None: no limit."""
    adam_eps: float = 1e-5
    """Epsilon of Adam."""
    optimizer: str = "adam"
    """Optimizer: `adam`, `adamw`, `rmsprop`, `sgd`, `adagrad`, a class of torch.optim, or a custom one as `module:Class`."""
    optimizer_kwargs: Mapping[str, float] = field(default_factory=dict)
    """Arguments of an optimizer other than `adam`, besides the learning rate."""
    normalize_obs: bool = False
    """Normalize observations by their running mean and standard deviation."""
    normalize_reward: bool = False
    """Scale rewards by the running standard deviation of the discounted return."""
    network: NetworkField = None
    """Custom network as `module:Class`, called with the observation space and the number of action parameters."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers of the default network."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Activation function between the layers."""
    rnn_type: Literal["lstm", "gru"] | None = None
    """Recurrent layer of the policy. None: feedforward."""
    rnn_size: int = 64
    """Number of units of the recurrent layer."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Floating-point format of the layers. `auto`: bfloat16 for images of at least 64 x 64 with the default network, where
    the processor multiplies bfloat16 (AVX512-BF16, AMX); float32 otherwise."""
    device: str = field(default="auto", compare=False)
    """Device of the networks: `cpu`, `cuda`, or one of several GPUs, `cuda:1`. `auto`: a GPU for images of at least 36 x 36,
    if there is one."""
    log_std_init: float = 0.0
    """Initial log standard deviation of Box actions. Larger values explore more."""
    compile: Literal["auto"] | bool = "auto"
    """Compilation of the update. True: at the first update. False: never. `auto`: once the run is long enough to make up for
    it."""

    def __post_init__(self) -> None:
        require_counts(self, "shards", "num_envs", "num_groups", "num_steps")
        require_divides(self, "num_groups", self.num_envs, "num_envs")
        require_counts(self, "anneal_steps", or_none=True)
        require_fractions(self, "discount")
        require_positive(self, "learning_rate", "adam_eps")
        require_positive(self, "max_grad_norm", or_none=True)
        require_not_negative(self, "entropy_coef", "value_coef")
        require_numbers(self, "log_std_init")
        require_bools(self, "normalize_obs", "normalize_reward")
        require_widths(self, "hidden_sizes")
        require_choice(self, "activation", "tanh", "relu")
        require_choice(self, "rnn_type", "lstm", "gru", None)
        require_counts(self, "rnn_size")
        if self.rnn_type is not None and self.network is not None:
            msg = f"{type(self).__name__}(rnn_type={self.rnn_type!r}, network=...): expected one of them"
            raise ConfigError(msg)
        require_choice(self, "precision", "auto", "float32", "bfloat16")
        require_texts(self, "device", "optimizer")
        make_optimizer(self)
        require_choice(self, "learning_rate_schedule", *SCHEDULES)
        require_choice(self, "compile", True, False, "auto")

    @property
    def horizons(self) -> Mapping[str, int]:
        """Horizon of the learning rate, if annealed."""
        return {} if self.anneal_steps is None else {"learning_rate": self.anneal_steps}

    def coefficients(self, num_env_steps: int) -> dict[str, float]:
        """Learning rate of the next update, after `num_env_steps`."""
        return {"learning_rate": self.scheduled_learning_rate(num_env_steps)}

    def scheduled_learning_rate(self, num_env_steps: int) -> float:
        """Learning rate after `num_env_steps`."""
        return self.learning_rate * SCHEDULES[self.learning_rate_schedule](self.remaining_fraction(num_env_steps))

    def remaining_fraction(self, num_env_steps: int) -> float:
        """Fraction of `anneal_steps` that remains."""
        return 1.0 if self.anneal_steps is None else max(0.0, 1.0 - num_env_steps / self.anneal_steps)

    def policy(self, task: Task) -> Policy:
        """Make the policy."""
        shape: Any = {} if self.rnn_type else {"hidden_sizes": self.hidden_sizes, "activation": self.activation}
        return Policy(
            observation_space=task.observation_space, action_space=task.action_space, network=self.make_network(),
            normalize_obs=self.normalize_obs, normalize_reward=self.normalize_reward, log_std_init=self.log_std_init,
            device=self._device(task), precision=self._precision(task)[0], **shape,
        )  # fmt: skip

    def resolved(self, task: Task) -> tuple[Self, Mapping[str, str]]:
        """Choose the precision if it depends on the processor."""
        if self.precision != "auto" or not has_large_images(task.observation_space):
            return self, {}
        chosen, why = self._precision(task)
        return replace(self, precision=chosen), {"precision": why}

    def _device(self, task: Task) -> str:
        return choose_device(task.observation_space) if self.device == "auto" else self.device

    def _precision(self, task: Task) -> tuple[Precision, str]:
        if self.precision != "auto":
            return self.precision, "it was asked for"
        is_default_network = self.network is None and self.rnn_type is None
        return choose_precision(task.observation_space, self._device(task), is_default_network=is_default_network)

    def make_network(self) -> Callable[..., Any] | None:
        """Function that makes the network; None: the default network for the observations."""
        if self.rnn_type is None:
            return find_network(self.network)
        return partial(
            RecurrentNet,
            rnn_type=self.rnn_type,
            rnn_size=self.rnn_size,
            hidden_sizes=self.hidden_sizes,
            activation=self.activation,
        )

    def num_sequences(self, num_transitions: int) -> int:
        """Number of rows that hold this many transitions if each row is a whole rollout of one environment.

        Raises:
            ConfigError: the number is not whole.

        """
        if num_transitions % self.num_steps:
            msg = (
                f"{type(self).__name__}(minibatch_size={num_transitions}): it learns from whole rollouts, so it must be a "
                f"multiple of num_steps={self.num_steps}"
            )
            raise ConfigError(msg)
        return num_transitions // self.num_steps

    def num_rows(self, policy: Policy, num_transitions: int | None) -> int | None:
        """Number of rows that hold this many transitions. For a recurrent policy, a row is a whole rollout of one environment.

        Raises:
            ConfigError: the number is not whole.

        """
        if num_transitions is None or not policy.state_size:
            return num_transitions
        return self.num_sequences(num_transitions)

    def sampler(self, task: Task, policy: Policy, **more: Any) -> Sampler | DoubleBufferedSampler:
        """Make the sampler; `more`: fields of `Sampler`."""
        sampler = Sampler(
            task=task, policy=policy, num_envs=self.num_envs, num_steps=self.num_steps, discount=self.discount, **more
        )
        return sampler if self.num_groups == 1 else DoubleBufferedSampler(sampler=sampler, num_groups=self.num_groups)

    def learner(self, policy: Policy, loss: Any, **more: Any) -> Learner:
        """Make the learner; `more`: fields of `Learner`."""
        return Learner(
            policy=policy, loss=loss, coefficients=self.coefficients, compile=self.compile,
            optimizer=make_optimizer(self), **more,
        )  # fmt: skip
