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

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

import torch
from gymnasium import spaces
from torch import Tensor

from levada.algorithms.checks import (
    ConfigError,
    require_bools,
    require_choice,
    require_counts,
    require_fractions,
    require_not_negative,
    require_numbers,
    require_positive,
)
from levada.algorithms.network import NetworkField, find_network
from levada.algorithms.replayed import Replayed
from levada.algorithms.suited import require_actions
from levada.flow import Flow
from levada.rl.acting.exploration import EpsilonGreedy
from levada.rl.data.spaces import Array
from levada.rl.envs.task import Task
from levada.rl.learning.loss import LossOutput, Networks, apply_importance_weights
from levada.rl.policies.networks import value_network
from levada.rl.policies.policy import Policy
from levada.rl.policies.q_distributions import ActionValues, CategoricalValues, QuantileValues, ValueKind


@dataclass(frozen=True, kw_only=True)
class DQN(Replayed):
    """Configuration of DQN."""

    num_envs: int = 8
    buffer_size: int = 100_000
    samples_per_insert: float = 8.0
    """Average number of times a transition is sampled. Larger values learn more from a step and take longer."""
    batch_size: int = 64
    target_update_interval: int = 500
    """Number of gradient steps between updates of the target network."""
    tau: float = 1.0
    """Polyak factor of these updates. 1: copy the online network. Use a small value with target_update_interval=1."""
    double: bool = True
    """Double Q-learning: the online network chooses the next action, the target network evaluates it. Reduces
    overestimation."""
    dueling: bool = False
    """Dueling network: separate state value and advantages."""
    distribution: Literal["mean", "categorical", "quantile"] = "mean"
    """Representation of the return. `mean`: its expectation. `categorical`: probabilities of fixed atoms (C51). `quantile`:
    quantiles (QR-DQN)."""
    num_atoms: int = 51
    """Number of atoms or quantiles of the return distribution."""
    v_min: float = -10.0
    """Smallest atom of the categorical distribution; smaller returns are projected onto it."""
    v_max: float = 10.0
    """Largest atom of the categorical distribution. A wider range is coarser."""
    noisy: bool = False
    """Noisy nets: explore by learned parameter noise in place of epsilon-greedy."""
    noisy_std: float = 0.5
    """Initial standard deviation sigma_0 of noisy nets, divided by the square root of a layer's inputs."""
    epsilon_start: float | None = None
    """Initial epsilon of epsilon-greedy exploration. None: 1, or 0 with noisy nets."""
    epsilon_end: float | None = None
    """Final epsilon. None: 0.05, or 0 with noisy nets."""
    epsilon_steps: int = 10_000
    """Env steps over which epsilon is annealed."""
    epsilon_base: float | None = None
    """Ape-X: epsilon of the first environment, in place of the three above. Environment i of N keeps
    epsilon_base ** (1 + epsilon_alpha * i / (N - 1)). None: epsilon is annealed."""
    epsilon_alpha: float = 7.0
    """Ape-X: spread of epsilon over the environments. 0: the same epsilon for all."""
    initial_priorities: bool = False
    """Initial priority of a transition. True: its TD error under the network that acted. False: the largest priority so
    far."""
    huber_delta: float | None = 1.0
    """Huber threshold delta: the loss is quadratic below it and linear above. None: squared error, or plain quantile
    regression. Has no effect with `categorical`."""
    max_grad_norm: float | None = 10.0
    network: NetworkField = None
    """Custom network as `module:Class`, called with the observation space and the number of actions."""
    activation: Literal["tanh", "relu"] = "relu"
    """Activation function between the layers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_counts(self, "target_update_interval", "epsilon_steps")
        require_fractions(self, "epsilon_start", "epsilon_end", "epsilon_base", or_none=True)
        require_positive(self, "noisy_std")
        require_not_negative(self, "epsilon_alpha")
        require_positive(self, "huber_delta", or_none=True)
        require_bools(self, "double", "dueling", "noisy", "initial_priorities")
        require_choice(self, "distribution", "mean", "categorical", "quantile")
        require_counts(self, "num_atoms", least=2)
        require_numbers(self, "v_min", "v_max")
        if self.v_min >= self.v_max:
            msg = f"{type(self).__name__}(v_min={self.v_min!r}, v_max={self.v_max!r}): expected v_min < v_max"
            raise ConfigError(msg)
        require_choice(self, "activation", "tanh", "relu")

    def flow(self, task: Task) -> Flow:
        """Step, compute n-step returns, store; sample, learn, publish."""
        require_actions(self, task, spaces.Discrete)
        network = find_network(self.network)
        if network is None:
            network = partial(value_network, hidden_sizes=self.hidden_sizes, activation=self.activation)
        policy = self.policy(
            task, output="q_values", network=network, values=self.values, dueling=self.dueling,
            weight_noise=self.noisy_std if self.noisy else 0.0,
        )  # fmt: skip
        learner = self.learner(
            policy, DQNLoss(self), targets=("policy",), target_update_interval=self.target_update_interval
        )
        start, end = (0.0, 0.0) if self.noisy else (1.0, 0.05)
        explore = EpsilonGreedy(
            start=start if self.epsilon_start is None else self.epsilon_start,
            end=end if self.epsilon_end is None else self.epsilon_end,
            num_steps=self.epsilon_steps,
            base=self.epsilon_base,
            alpha=self.epsilon_alpha,
        )
        first = TDError(policy, self.huber_delta) if self.prioritized and self.initial_priorities else None
        return self.replayed(task, learner, explore, first)

    @property
    def values(self) -> ValueKind | None:
        """Representation of the return distribution; None: only its mean."""
        if self.distribution == "categorical":
            return CategoricalValues(num_atoms=self.num_atoms, v_min=self.v_min, v_max=self.v_max)
        return QuantileValues(num_atoms=self.num_atoms) if self.distribution == "quantile" else None


@dataclass(frozen=True)
class DQNLoss:
    """TD loss of n-step transitions.

    y = r + discount * Z'(s', argmax_a Q(s', a)), where r and discount span n steps, Z' is the target network, and Q is the
    mean of Z with double Q-learning and of Z' without. The error is squared, Huber, cross-entropy or quantile loss, as
    configured.
    """

    hp: DQN

    def __call__(self, networks: Networks, batch: Mapping[str, Any], coefficients: Mapping[str, Tensor]) -> LossOutput:
        """Loss of transitions ``[N, ...]``, its statistics, and priorities."""
        z_tm1, _ = networks.policy(batch["obs"])
        z_t, _ = networks.target.policy(batch["next_obs"])
        chooser = networks.policy(batch["next_obs"])[0] if self.hp.double else z_t
        z_next, z_chosen = z_t.atoms_of(chooser.best()), z_tm1.atoms_of(batch["action"])
        loss, td_error = z_tm1.kind.td_loss(z_chosen, z_next, batch["reward"], batch["discount"], self.hp.huber_delta)
        loss = apply_importance_weights(loss, batch)
        stats = {"td_loss": loss.mean(), "q_values": z_tm1.kind.expectation(z_chosen).mean()}
        return LossOutput(loss.mean(), stats, td_error if self.hp.prioritized else None)


@dataclass(frozen=True)
class TDError:
    """Initial priorities: TD errors of transitions under the network that acted (arXiv 1803.00933, section 3)."""

    policy: Policy
    huber_delta: float | None

    def __call__(
        self, row_tm1: Array, action: Array, reward: Array, discount: Array, row_t: Array, mask_t: Array | None
    ) -> Array:
        """TD errors ``[T, B]`` from network outputs ``[T, B, row_size]``; see `NStep`."""
        with torch.inference_mode():
            z_tm1, z_t = self._values(row_tm1, None), self._values(row_t, mask_t)
            actions, rewards, discounts = (torch.from_numpy(x.reshape(-1)) for x in (action, reward, discount))
            z_chosen, z_next = z_tm1.atoms_of(actions), z_t.atoms_of(z_t.best())
            _, td_error = z_tm1.kind.td_loss(z_chosen, z_next, rewards, discounts, self.huber_delta)
            found: Array = td_error.numpy().reshape(reward.shape)
        return found

    def _values(self, rows: Array, mask: Array | None) -> ActionValues:
        head = self.policy.head
        allowed = None if mask is None else torch.from_numpy(mask.reshape(-1, mask.shape[-1]) != 0)
        return cast("ActionValues", head.distribution(torch.from_numpy(rows.reshape(-1, head.row_size)), allowed))
