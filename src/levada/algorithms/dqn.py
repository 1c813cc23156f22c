"""DQN: deep Q-networks (Mnih et al. 2015, Nature 518), with the parts that Rainbow put together, each an option.

Steps are taken with the newest weights and some exploration, turned into transitions where they were taken, and stored. What
is learned from is sampled, so often that each transition is sampled `samples_per_insert` times on average.

    step x shards -> n_step ==> [replay] -> sample -> learn
        ^                           ^                    |
        |                           +--- (priorities) ---+
        +---------------------- [weights] <--------------+

Double Q-learning: van Hasselt et al. 2015, arXiv 1509.06461. Dueling networks: Wang et al. 2015, arXiv 1511.06581.
Prioritised replay: Schaul et al. 2015, arXiv 1511.05952. Targets over n steps: Hessel et al. 2017, arXiv 1710.02298.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from levada.algorithms.checks import (
    require_bools,
    require_choice,
    require_counts,
    require_fractions,
    require_not_negative,
    require_positive,
)
from levada.algorithms.network import NetworkField, find_network
from levada.algorithms.replayed import Replayed
from levada.flow import Flow, Prioritised
from levada.rl.explore import EpsilonGreedy
from levada.rl.models import value_network
from levada.rl.off_policy import Net, Outcome
from levada.rl.policy import Policy
from levada.rl.task import Task
from levada.rl.transitions import IMPORTANCE


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
    prioritised: bool = False
    """Sample more often what was more surprising."""
    alpha: float = 0.6
    """Exponent of the priorities, if prioritised. 0 is uniform."""
    beta: float = 0.4
    """Exponent of the weights that correct for priorities; it rises to 1 over `capacity` transitions."""
    epsilon_start: float = 1.0
    """Share of random actions in the beginning."""
    epsilon_end: float = 0.05
    """And in the end."""
    epsilon_steps: int = 10_000
    """Env steps over which it falls."""
    huber: float | None = 1.0
    """From which error on the loss grows linearly; None: never."""
    max_grad_norm: float | None = 10.0
    """Gradients are scaled down to this norm; None: never."""
    network: NetworkField = None
    """A network of your own, as `module:Class`, called with the observation space and the number of actions."""
    activation: Literal["tanh", "relu"] = "relu"
    """Between the layers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_counts(self, "target_every", "epsilon_steps")
        require_fractions(self, "beta", "epsilon_start", "epsilon_end")
        require_positive(self, "huber", or_none=True)
        require_not_negative(self, "alpha")
        require_bools(self, "double", "dueling", "prioritised")
        require_choice(self, "activation", "tanh", "relu")

    def flow(self, task: Task) -> Flow:
        """Step, look ahead, store; sample, learn, publish."""
        network = find_network(self.network)
        if network is None:
            network = partial(value_network, hidden=self.hidden, activation=self.activation, dueling=self.dueling)
        policy = Policy(
            observation_space=task.observation_space, action_space=task.action_space, acts_by="value", network=network
        )
        learner = self.learner(policy, DQNLoss(self), targets=("policy",), target_every=self.target_every)
        explore = EpsilonGreedy(start=self.epsilon_start, end=self.epsilon_end, num_steps=self.epsilon_steps)
        prioritised = Prioritised(alpha=self.alpha, beta=self.beta, anneal_inserts=self.capacity)
        return self.replayed(task, learner, explore, prioritised if self.prioritised else None)


@dataclass(frozen=True)
class DQNLoss:
    """The error of a one-step target from n steps of rewards, by Huber's loss."""

    hp: DQN

    def __call__(
        self,
        nets: Mapping[str, Net],
        targets: Mapping[str, Net],
        batch: Mapping[str, Any],
        coefficients: Mapping[str, Tensor],
    ) -> Outcome:
        """Y = r + discount * Q'(s', argmax_a Q(s', a)), with Q' of the target network."""
        q_tm1, _ = self._values(nets["policy"], batch["obs"])
        q_t, mask = self._values(targets["policy"], batch["next_obs"])
        chooser = self._values(nets["policy"], batch["next_obs"])[0].detach() if self.hp.double else q_t
        if mask is not None:
            chooser = chooser.masked_fill(mask.logical_not(), -torch.inf)
        best = q_t.gather(1, chooser.argmax(dim=1, keepdim=True))[:, 0]
        target = batch["reward"] + batch["discount"] * best
        value = q_tm1.gather(1, batch["action"][:, None])[:, 0]
        error = target - value
        if self.hp.huber is None:
            loss = 0.5 * error.square()
        else:
            loss = functional.huber_loss(value, target, reduction="none", delta=self.hp.huber)
        if IMPORTANCE in batch:
            loss = loss * batch[IMPORTANCE]
        stats = {"td_loss": loss.mean(), "q_values": value.mean()}
        return Outcome(loss.mean(), stats, error.abs() if self.hp.prioritised else None)

    def _values(self, net: Any, obs: Any) -> tuple[Tensor, Tensor | None]:
        """Values ``[N, A]``, and which actions are allowed."""
        actions, value = net(obs)
        if not self.hp.dueling:
            return actions.values, actions.mask
        return value[:, None] + actions.values - actions.values.mean(dim=1, keepdim=True), actions.mask
