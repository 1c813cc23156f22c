"""DQN: deep Q-networks (Mnih et al. 2015, Nature 518), with the parts that Rainbow put together, each an option.

Steps are taken with the newest weights and some exploration, turned into transitions where they were taken, and stored. What
is learned from is sampled, so often that each transition is sampled `samples_per_insert` times on average.

    step x shards -> n_step ==> [replay] -> sample -> learn
        ^                           ^                    |
        |                           +--- (priorities) ---+
        +---------------------- [weights] <--------------+

Double Q-learning: van Hasselt et al. 2015, arXiv 1509.06461. Dueling networks: Wang et al. 2015, arXiv 1511.06581.
Prioritised replay: Schaul et al. 2015, arXiv 1511.05952. Categorical returns: Bellemare et al. 2017, arXiv 1707.06887. Quantiles
of returns: Dabney et al. 2017, arXiv 1710.10044. Noisy nets: Fortunato et al. 2017, arXiv 1706.10295. Targets over n steps, and
all together (`levada.algorithms.rainbow`): Hessel et al. 2017, arXiv 1710.02298.
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
    require_numbers,
    require_positive,
)
from levada.algorithms.network import NetworkField, find_network
from levada.algorithms.replayed import Replayed
from levada.algorithms.suited import require_actions
from levada.flow import Flow
from levada.rl.action_values import ActionValues, CategoricalValues, QuantileValues, ValueKind
from levada.rl.explore import EpsilonGreedy
from levada.rl.models import value_network
from levada.rl.net import Net
from levada.rl.off_policy import Outcome, weighed
from levada.rl.policy import Policy
from levada.rl.spaces import Array
from levada.rl.task import Task


@dataclass(frozen=True, kw_only=True)
class DQN(Replayed):
    """Configuration of DQN."""

    num_envs: int = 8
    """Environments of one shard, stepped together. More are quicker per step; newer weights come as often."""
    capacity: int = 100_000
    """Transitions that are kept; the oldest go. More forget later, and take more memory."""
    samples_per_insert: float = 8.0
    """How often a transition is sampled on average. More learn more from a step, and take longer."""
    batch_size: int = 64
    """Transitions of one gradient step."""
    target_every: int = 500
    """Gradient steps from one change of the target network to the next."""
    tau: float = 1.0
    """By how much the target network changes then; 1: it becomes the network. Small with `target_every=1`: it follows."""
    double: bool = True
    """Choose the next action by the network and value it by the target: less optimism."""
    dueling: bool = False
    """A value and advantages in place of values: learns sooner where actions matter little."""
    distribution: Literal["mean", "categorical", "quantile"] = "mean"
    """What is learned of a return: its mean, or its distribution by probabilities of atoms (C51) or by quantiles (QR-DQN)."""
    num_atoms: int = 51
    """Atoms of a distribution. More are finer, and slower."""
    v_min: float = -10.0
    """Return of the first atom, if categorical; smaller returns count as this."""
    v_max: float = 10.0
    """Return of the last atom, if categorical; a wider range is coarser."""
    noisy: bool = False
    """Explore by noise on the weights, whose size is learned, in place of random actions."""
    noisy_std: float = 0.5
    """Deviation of that noise in the beginning, times the root of a layer's inputs. Higher explores more."""
    epsilon_start: float | None = None
    """Share of random actions in the beginning; None: 1, or 0 if noisy."""
    epsilon_end: float | None = None
    """And in the end; None: 0.05, or 0 if noisy."""
    epsilon_steps: int = 10_000
    """Env steps over which it falls."""
    ladder: float | None = None
    """In place of these, each environment keeps a share of its own, from this down to its 8th power: some explore, others
    do what is best (Ape-X, arXiv 1803.00933)."""
    first_priorities: bool = False
    """If prioritised, a new transition's priority is its error by the network that acted; else it is the largest of all."""
    huber: float | None = 1.0
    """From which error on the loss grows linearly; None: never, or for quantiles from 0 on. Not for categorical
    returns, whose loss is a divergence."""
    max_grad_norm: float | None = 10.0
    """Gradients are scaled down to this norm; None: never."""
    network: NetworkField = None
    """A network of your own, as `module:Class`, called with the observation space and the number of actions."""
    activation: Literal["tanh", "relu"] = "relu"
    """Between the layers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_counts(self, "target_every", "epsilon_steps")
        require_fractions(self, "epsilon_start", "epsilon_end", "ladder", or_none=True)
        require_positive(self, "noisy_std")
        require_positive(self, "huber", or_none=True)
        require_bools(self, "double", "dueling", "noisy", "first_priorities")
        require_choice(self, "distribution", "mean", "categorical", "quantile")
        require_counts(self, "num_atoms", least=2)
        require_numbers(self, "v_min", "v_max")
        if self.v_min >= self.v_max:
            msg = f"{type(self).__name__}(v_min={self.v_min!r}, v_max={self.v_max!r}): expected v_min < v_max"
            raise ConfigError(msg)
        require_choice(self, "activation", "tanh", "relu")

    def flow(self, task: Task) -> Flow:
        """Step, look ahead, store; sample, learn, publish."""
        require_actions(self, task, spaces.Discrete)
        network = find_network(self.network)
        if network is None:
            network = partial(value_network, hidden=self.hidden, activation=self.activation)
        policy = Policy(
            observation_space=task.observation_space, action_space=task.action_space, acts_by="value", network=network,
            values=self.values, dueling=self.dueling, weight_noise=self.noisy_std if self.noisy else 0.0,
        )  # fmt: skip
        learner = self.learner(policy, DQNLoss(self), targets=("policy",), target_every=self.target_every)
        start, end = (0.0, 0.0) if self.noisy else (1.0, 0.05)
        explore = EpsilonGreedy(
            start=start if self.epsilon_start is None else self.epsilon_start,
            end=end if self.epsilon_end is None else self.epsilon_end,
            num_steps=self.epsilon_steps,
            ladder=self.ladder,
        )
        first = TDError(policy, self.huber) if self.prioritised and self.first_priorities else None
        return self.replayed(task, learner, explore, first)

    @property
    def values(self) -> ValueKind | None:
        """The distribution that is learned; None: only its mean."""
        if self.distribution == "categorical":
            return CategoricalValues(num_atoms=self.num_atoms, v_min=self.v_min, v_max=self.v_max)
        return QuantileValues(num_atoms=self.num_atoms) if self.distribution == "quantile" else None


@dataclass(frozen=True)
class DQNLoss:
    """The error of a one-step target from n steps of rewards."""

    hp: DQN

    def __call__(
        self,
        nets: Mapping[str, Net],
        targets: Mapping[str, Net],
        batch: Mapping[str, Any],
        coefficients: Mapping[str, Tensor],
    ) -> Outcome:
        """Y = r + discount * Z'(s', argmax_a Q(s', a)), with Z' of the target network, and Q the mean of Z."""
        z_tm1, _ = nets["policy"](batch["obs"])
        z_t, _ = targets["policy"](batch["next_obs"])
        chooser = nets["policy"](batch["next_obs"])[0] if self.hp.double else z_t
        after, taken = z_t.atoms_of(chooser.best()), z_tm1.atoms_of(batch["action"])
        loss, surprise = z_tm1.kind.td_loss(taken, after, batch["reward"], batch["discount"], self.hp.huber)
        loss = weighed(loss, batch)
        stats = {"td_loss": loss.mean(), "q_values": z_tm1.kind.worth(taken).mean()}
        return Outcome(loss.mean(), stats, surprise if self.hp.prioritised else None)


@dataclass(frozen=True)
class TDError:
    """How surprising transitions are, by what they were acted on (arXiv 1803.00933, section 3)."""

    policy: Policy
    huber: float | None

    def __call__(
        self, row_tm1: Array, action: Array, reward: Array, discount: Array, row_t: Array, mask_t: Array | None
    ) -> Array:
        """``[T, B]``, of parameters ``[T, B, row_size]``; see `NStep`."""
        with torch.inference_mode():
            z_tm1, z_t = self._values(row_tm1, None), self._values(row_t, mask_t)
            actions, rewards, discounts = (torch.from_numpy(x.reshape(-1)) for x in (action, reward, discount))
            taken, after = z_tm1.atoms_of(actions), z_t.atoms_of(z_t.best())
            _, surprise = z_tm1.kind.td_loss(taken, after, rewards, discounts, self.huber)
            found: Array = surprise.numpy().reshape(reward.shape)
        return found

    def _values(self, rows: Array, mask: Array | None) -> ActionValues:
        head = self.policy.head
        allowed = None if mask is None else torch.from_numpy(mask.reshape(-1, mask.shape[-1]) != 0)
        return cast("ActionValues", head.distribution(torch.from_numpy(rows.reshape(-1, head.row_size)), allowed))
