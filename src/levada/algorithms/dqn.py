"""DQN: deep Q-networks (Mnih et al. 2015, Nature 518), with the components of Rainbow as options.

Samplers explore with the newest weights, turn steps into n-step transitions and store them in the replay. The learner samples
from it at a rate such that each transition is sampled `samples_per_insert` times on average.

    step x shards -> n_step ==> [replay] -> sample -> learn
        ^                           ^                    |
        |                           +--- (priorities) ---+
        +---------------------- [weights] <--------------+

Double Q-learning: van Hasselt et al. 2015, arXiv 1509.06461. Dueling networks: Wang et al. 2015, arXiv 1511.06581.
Prioritized replay: Schaul et al. 2015, arXiv 1511.05952. Categorical returns (C51): Bellemare et al. 2017, arXiv 1707.06887.
Quantiles of returns (QR-DQN): Dabney et al. 2017, arXiv 1710.10044. Noisy nets: Fortunato et al. 2017, arXiv 1706.10295.
n-step returns, and all of them combined (`levada.algorithms.rainbow`): Hessel et al. 2017, arXiv 1710.02298.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, cast

import torch
from annotated_types import Ge
from gymnasium import spaces
from torch import Tensor

from levada.algorithms.action_spaces import require_action_space
from levada.algorithms.checks import ConfigError
from levada.algorithms.replayed import ReplayAlgorithm, ReplayPart
from levada.algorithms.user_classes import NetworkField
from levada.math import categorical_td_loss, quantile_td_loss, td_loss, td_target
from levada.rl.acting.exploration import EpsilonGreedy
from levada.rl.data.spaces import Array
from levada.rl.envs.task import Task
from levada.rl.learning.loss import Loss, LossOutput, Networks, apply_importance_weights
from levada.rl.policies.networks import value_network
from levada.rl.policies.policy import Policy
from levada.rl.policies.q_distributions import ActionValues, CategoricalValues, QuantileValues, ValueKind
from levada.validation import FiniteFloat, NonNegativeFloat, PositiveFloat, PositiveInt, PositiveUnitFloat, UnitFloat


@dataclass(frozen=True, kw_only=True)
class DQN(ReplayAlgorithm):
    """Configuration of DQN.

    Raises:
        ConfigError: a field has an invalid value, or contradicts another one.
    """

    num_envs: PositiveInt = 8
    buffer_size: PositiveInt = 100_000
    samples_per_insert: PositiveFloat = 8.0
    batch_size: PositiveInt = 64
    target_update_interval: PositiveInt = 500
    tau: PositiveUnitFloat = 1.0
    """Polyak factor of the target network. 1: copy the online network. Use a small value with target_update_interval=1."""
    double: bool = True
    """Double Q-learning: the online network chooses the next action, the target network evaluates it. Reduces
    overestimation."""
    dueling: bool = False
    """Dueling network: separate state value and advantages."""
    distribution: Literal["mean", "categorical", "quantile"] = "mean"
    """Representation of the return. `mean`: its expectation. `categorical`: probabilities of fixed atoms (C51). `quantile`:
    quantiles (QR-DQN)."""
    num_atoms: Annotated[int, Ge(2)] = 51
    """Number of atoms or quantiles of the return distribution."""
    v_min: FiniteFloat = -10.0
    """Smallest atom of the categorical distribution; smaller returns are clipped to it. The wider the range from `v_min` to
    `v_max`, the further apart the atoms are."""
    v_max: FiniteFloat = 10.0
    """Largest atom of the categorical distribution; larger returns are clipped to it."""
    noisy: bool = False
    """Noisy nets: explore by learned parameter noise in place of epsilon-greedy."""
    noisy_std: PositiveFloat = 0.5
    """Initial noise sigma_0 of noisy nets. The initial standard deviation of a layer is sigma_0 / sqrt(number of its inputs)."""
    epsilon_start: UnitFloat | None = None
    """Initial epsilon of epsilon-greedy exploration. None: 1, or 0 with noisy nets."""
    epsilon_end: UnitFloat | None = None
    """Final epsilon. None: 0.05, or 0 with noisy nets."""
    epsilon_steps: PositiveInt = 10_000
    """Env steps over which epsilon is annealed."""
    epsilon_base: UnitFloat | None = None
    """Ape-X: constant epsilon of each environment, in place of `epsilon_start`, `epsilon_end` and `epsilon_steps`. Environment
    i of N, counted from 0, has epsilon_base ** (1 + epsilon_alpha * i / (N - 1)). None: epsilon is annealed."""
    epsilon_alpha: NonNegativeFloat = 7.0
    """Ape-X: spread of epsilon over the environments. 0: the same epsilon for all."""
    initial_priorities: bool = False
    """Priority of a new transition in prioritized replay. True: its TD error, which the sampler computes with the network that
    acted (Ape-X). False: the largest priority so far."""
    huber_delta: PositiveFloat | None = 1.0
    """Threshold delta of the Huber loss, which is quadratic below delta and linear above. None: squared error, or plain quantile
    regression. Has no effect with `categorical`."""
    max_grad_norm: PositiveFloat | None = 10.0
    network: NetworkField = None
    """Custom network as `module:Class`, called with the observation space and the number of outputs: one value per action, and
    more with `distribution` or `dueling`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.v_min >= self.v_max:
            msg = f"{type(self).__name__}(v_min={self.v_min!r}, v_max={self.v_max!r}): expected v_min < v_max"
            raise ConfigError(msg)

    def make_network(self, task: Task) -> Callable[..., Any] | None:
        """Factory of the network of action values."""
        return super().make_network(task) or self.with_network_settings(value_network)

    def make_loss(self) -> Loss:
        """Make the loss."""
        return DQNLoss(self)

    def part(self, task: Task, name: str = "policy") -> ReplayPart:
        """Make the learner, the sampler, and the stage from steps to rows of the replay."""
        require_action_space(self, task, spaces.Discrete)
        policy = self.policy(
            task, name=name, output="q_values", values=self.value_kind, dueling=self.dueling,
            weight_noise=self.noisy_std if self.noisy else 0.0,
        )  # fmt: skip
        learner = self.learner(policy, self.make_loss(), targets=("policy",))
        start, end = (0.0, 0.0) if self.noisy else (1.0, 0.05)
        explore = EpsilonGreedy(
            start=start if self.epsilon_start is None else self.epsilon_start,
            end=end if self.epsilon_end is None else self.epsilon_end,
            num_steps=self.epsilon_steps,
            base=self.epsilon_base,
            alpha=self.epsilon_alpha,
        )
        transitions = self.n_step_returns
        if self.prioritized and self.initial_priorities:
            transitions = replace(transitions, priority=TDError(policy, self.huber_delta))
        return ReplayPart(learner, self.sampler(task, policy, explore, transitions), transitions)

    @property
    def value_kind(self) -> ValueKind | None:
        """Representation of the return distribution; None: only its mean."""
        if self.distribution == "categorical":
            return CategoricalValues(num_atoms=self.num_atoms, v_min=self.v_min, v_max=self.v_max)
        return QuantileValues(num_atoms=self.num_atoms) if self.distribution == "quantile" else None


@dataclass(frozen=True)
class DQNLoss:
    """TD loss of n-step transitions.

    y = r + discount * Z'(s', a*), where a* maximizes the mean of Z(s', a) with double Q-learning, and of Z'(s', a) without. Z and
    Z' are the online and target networks (`networks.policy` and `networks.target.policy`); r and discount span n steps. See
    `td_loss_of` for the error between Z(s, a) and y.
    """

    hp: DQN

    def __call__(self, networks: Networks, batch: Mapping[str, Any], coefficients: Mapping[str, Tensor]) -> LossOutput:
        """Loss of transitions ``[N, ...]``, its statistics, and priorities."""
        z_tm1, *_ = networks.policy(batch["obs"])
        z_t, *_ = networks.target.policy(batch["next_obs"])
        selector = networks.policy(batch["next_obs"])[0] if self.hp.double else z_t
        z_next, z_taken = z_t.outputs_of(selector.greedy()), z_tm1.outputs_of(batch["action"])
        loss, priority = td_loss_of(
            z_tm1.kind, z_taken, z_next, batch["reward"], batch["discount"], huber_delta=self.hp.huber_delta
        )
        loss = apply_importance_weights(loss, batch)
        stats = {"td_loss": loss.mean(), "q_values": z_tm1.kind.expectation(z_taken).mean()}
        return LossOutput(loss.mean(), stats, priority if self.hp.prioritized else None)


def td_loss_of(
    kind: ValueKind,
    outputs_tm1: Tensor,
    outputs_t: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    *,
    huber_delta: float | None,
) -> tuple[Tensor, Tensor]:
    """Losses and priorities ``[N]``, from the network outputs ``[N, K]`` of the actions taken and of the next actions.

    `distribution="mean"`: half the squared TD error, or the Huber loss. `categorical`: the Kullback-Leibler divergence from the
    projected target (C51). `quantile`: the quantile Huber loss.
    """
    match kind:
        case CategoricalValues(v_min=v_min, v_max=v_max):
            return categorical_td_loss(outputs_tm1, outputs_t, r_t, discount_t, v_min=v_min, v_max=v_max)
        case QuantileValues():
            return quantile_td_loss(outputs_tm1, outputs_t, r_t, discount_t, huber_delta=huber_delta)
        case _:
            target = td_target(r_t, discount_t, kind.expectation(outputs_t))
            return td_loss(kind.expectation(outputs_tm1), target, huber_delta=huber_delta)


@dataclass(frozen=True)
class TDError:
    """Initial priorities: TD errors of transitions under the network that acted (arXiv 1803.00933, section 3)."""

    policy: Policy
    huber_delta: float | None

    def __call__(
        self, outputs_tm1: Array, action: Array, reward: Array, discount: Array, outputs_t: Array, mask_t: Array | None
    ) -> Array:
        """TD errors ``[T, B]`` from network outputs ``[T, B, row_size]``; see `NStep`."""
        with torch.inference_mode():
            z_tm1, z_t = self._values(outputs_tm1, None), self._values(outputs_t, mask_t)
            actions, rewards, discounts = (torch.from_numpy(x.reshape(-1)) for x in (action, reward, discount))
            z_taken, z_next = z_tm1.outputs_of(actions), z_t.outputs_of(z_t.greedy())
            _, priority = td_loss_of(z_tm1.kind, z_taken, z_next, rewards, discounts, huber_delta=self.huber_delta)
            found: Array = priority.numpy().reshape(reward.shape)
        return found

    def _values(self, rows: Array, mask: Array | None) -> ActionValues:
        head = self.policy.head
        allowed = None if mask is None else torch.from_numpy(mask.reshape(-1, mask.shape[-1]) != 0)
        return cast("ActionValues", head.distribution(torch.from_numpy(rows.reshape(-1, head.row_size)), allowed))
