"""R2D2: recurrent Q-networks that learn from replayed sequences (Kapturowski et al. 2019).

    step x shards -> sequences ==> [replay] -> sample -> learn
        ^                             ^                    |
        |                             +--- (priorities) ---+
        +----------------------- [weights] <---------------+

As in the paper, "Recurrent experience replay in distributed reinforcement learning": double Q-learning with n-step returns,
value rescaling (Pohlen et al. 2018, arXiv 1805.11593), and priorities that mix the largest and the mean TD error of a
sequence. Differences: epsilon is annealed by default, as for DQN, and the network does not observe the last action and
reward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from levada.algorithms.action_spaces import require_action_space
from levada.algorithms.replayed import ReplayPart
from levada.algorithms.sequenced import SequenceReplayAlgorithm
from levada.algorithms.user_classes import NetworkField
from levada.math import signed_hyperbolic, signed_parabolic
from levada.rl.acting.exploration import EpsilonGreedy
from levada.rl.acting.sequences import time_major, unroll
from levada.rl.envs.task import Task
from levada.rl.learning.loss import LossOutput, Networks, apply_importance_weights
from levada.validation import NonNegativeFloat, PositiveInt, PositiveUnitFloat, UnitFloat


@dataclass(frozen=True, kw_only=True)
class R2D2(SequenceReplayAlgorithm):
    """Configuration of R2D2. `buffer_size`, `learning_starts`, `batch_size` and `samples_per_insert` count sequences."""

    target_update_interval: PositiveInt = 100
    tau: PositiveUnitFloat = 1.0
    """Polyak factor of the target network. 1: copy the online network. Use a small value with target_update_interval=1."""
    double: bool = True
    """Double Q-learning: the online network chooses the next action, the target network evaluates it. Reduces
    overestimation."""
    dueling: bool = False
    """Dueling network: separate state value and advantages."""
    prioritized: bool = True
    """Prioritized replay: sample sequences with larger TD errors more often."""
    epsilon_start: UnitFloat = 1.0
    """Initial epsilon of epsilon-greedy exploration."""
    epsilon_end: UnitFloat = 0.05
    """Final epsilon."""
    epsilon_steps: PositiveInt = 10_000
    """Env steps over which epsilon is annealed."""
    epsilon_base: UnitFloat | None = None
    """Ape-X: constant epsilon of each environment, in place of `epsilon_start`, `epsilon_end` and `epsilon_steps`. Environment
    i of N, counted from 0, has epsilon_base ** (1 + epsilon_alpha * i / (N - 1)); the paper of Ape-X has 0.4. None: epsilon is
    annealed."""
    epsilon_alpha: NonNegativeFloat = 7.0
    """Ape-X: spread of epsilon over the environments. 0: the same epsilon for all."""
    network: NetworkField = None
    """Custom network as `module:Class`, called with the observation space and the number of action parameters; a subclass of
    `levada.rl.Recurrent`."""

    def make_network(self, task: Task) -> Callable[..., Any] | None:
        """Factory of the network of action values."""
        return super().make_network(task) or self.memory(policy_gain=1.0)

    def part(self, task: Task, name: str = "policy") -> ReplayPart:
        """Make the learner, the sampler, and the stage from steps to rows of the replay."""
        require_action_space(self, task, spaces.Discrete)
        policy = self.policy(task, name=name, output="q_values", dueling=self.dueling)
        learner = self.learner(policy, R2D2Loss(self), targets=("policy",), burn_in=self.burn_in)
        explore = EpsilonGreedy(
            start=self.epsilon_start,
            end=self.epsilon_end,
            num_steps=self.epsilon_steps,
            base=self.epsilon_base,
            alpha=self.epsilon_alpha,
        )
        sequences = self.sequences
        return ReplayPart(learner, self.sampler(task, policy, explore, sequences), sequences)


@dataclass(frozen=True)
class R2D2Loss:
    """Half the mean squared TD error over the steps of a sequence (section 2.3 of the paper).

    y = h(r + discount * h^-1(Q'(s', argmax_a Q(s', a)))), with the network Q (`networks.policy`), the target network Q' and the
    value rescaling h. Without double Q-learning, the argmax is that of Q'.
    """

    hp: R2D2

    def __call__(self, networks: Networks, batch: Mapping[str, Any], coefficients: Mapping[str, Tensor]) -> LossOutput:
        """Loss of sequences, its statistics, and priorities. Tensors are time-major after the first line."""
        hp, steps = self.hp, time_major(batch)
        # values of the steps and of the observations after them
        q_t, *_ = unroll(networks.policy, steps, hp.burn_in, steps["state"])
        target_q_t, *_ = unroll(networks.target.policy, steps, hp.burn_in, steps["state"])
        best = target_q_t.of((q_t if hp.double else target_q_t).greedy())
        next_q = best.gather(
            0, steps["ahead"] + torch.arange(hp.sequence_length, device=steps["ahead"].device)[:, None]
        )
        target = steps["reward"] + steps["discount"] * (signed_parabolic(next_q) if hp.value_rescaling else next_q)
        if hp.value_rescaling:
            target = signed_hyperbolic(target)
        value = q_t.values[: hp.sequence_length].gather(2, steps["action"][..., None])[..., 0]

        is_step = steps["is_step"]
        error = (target - value).masked_fill(is_step.logical_not(), 0.0)
        weight = is_step / is_step.sum()
        loss = apply_importance_weights(0.5 * error.square() * weight, batch)
        stats = {"td_loss": (0.5 * error.square() * weight).sum(), "q_values": (value * weight).sum()}
        return LossOutput(loss.sum(), stats, hp.sequence_priorities(error, is_step))
