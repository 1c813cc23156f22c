"""R2D2: recurrent Q-networks that learn from replayed sequences (Kapturowski et al. 2019).

    step x shards -> sequences ==> [replay] -> sample -> learn
        ^                             ^                    |
        |                             +--- (priorities) ---+
        +----------------------- [weights] <---------------+

As in the paper, "Recurrent experience replay in distributed reinforcement learning": double Q-learning over n steps, rescaled
values (Pohlen et al. 2018, arXiv 1805.11593), priorities that mix the largest and the mean error of a sequence. What differs: by
default epsilon falls, as for DQN; the network does not see the last action and reward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from levada.algorithms.checks import require_bools, require_counts, require_fractions
from levada.algorithms.network import NetworkField, find_network
from levada.algorithms.sequenced import Sequenced
from levada.algorithms.suited import require_actions
from levada.flow import Flow
from levada.math import signed_hyperbolic, signed_parabolic
from levada.rl.explore import EpsilonGreedy
from levada.rl.net import Net
from levada.rl.off_policy import Outcome, weighed
from levada.rl.policy import Policy
from levada.rl.sequences import time_major, unroll
from levada.rl.task import Task


@dataclass(frozen=True, kw_only=True)
class R2D2(Sequenced):
    """Configuration of R2D2. `capacity`, `min_size`, `batch_size` and `samples_per_insert` count sequences."""

    target_every: int = 100
    """Gradient steps from one change of the target network to the next."""
    tau: float = 1.0
    """By how much the target network changes then; 1: it becomes the network. Small with `target_every=1`: it follows."""
    double: bool = True
    """Choose the next action by the network and value it by the target: less optimism."""
    dueling: bool = False
    """A value and advantages in place of values: learns sooner where actions matter little."""
    prioritised: bool = True
    """Sample more often what was more surprising."""
    epsilon_start: float = 1.0
    """Share of random actions in the beginning."""
    epsilon_end: float = 0.05
    """And in the end."""
    epsilon_steps: int = 10_000
    """Env steps over which it falls."""
    ladder: float | None = None
    """An epsilon for each environment instead, from this number down, as in the paper (0.4); None: one that falls."""
    network: NetworkField = None
    """A network of your own, as `module:Class`, called with the observation space and the number of actions; it derives from
    `levada.rl.Recurrent`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_counts(self, "target_every", "epsilon_steps")
        require_fractions(self, "epsilon_start", "epsilon_end")
        require_fractions(self, "ladder", or_none=True)
        require_bools(self, "double", "dueling")

    def flow(self, task: Task) -> Flow:
        """Step, cut, store; sample, learn, publish."""
        require_actions(self, task, spaces.Discrete)
        network = find_network(self.network) or self.memory(policy_gain=1.0)
        policy = Policy(
            observation_space=task.observation_space, action_space=task.action_space, acts_by="value", network=network,
            dueling=self.dueling,
        )  # fmt: skip
        learner = self.learner(policy, R2D2Loss(self), targets=("policy",), target_every=self.target_every)
        explore = EpsilonGreedy(
            start=self.epsilon_start, end=self.epsilon_end, num_steps=self.epsilon_steps, ladder=self.ladder
        )
        return self.replayed(task, learner, explore)


@dataclass(frozen=True)
class R2D2Loss:
    """The squared error of each step of a sequence."""

    hp: R2D2

    def __call__(
        self,
        nets: Mapping[str, Net],
        targets: Mapping[str, Net],
        batch: Mapping[str, Any],
        coefficients: Mapping[str, Tensor],
    ) -> Outcome:
        """Y = h(r + discount * h^-1(Q'(s', argmax_a Q(s', a)))), equation 1 of the paper; time-major from here on."""
        hp, steps = self.hp, time_major(batch)
        q_t, _ = unroll(nets["policy"], steps, hp.burn_in, steps["state"])  # of the steps, and of what follows them
        slow_t, _ = unroll(targets["policy"], steps, hp.burn_in, steps["state"])
        best = slow_t.of((q_t if hp.double else slow_t).best())
        after = best.gather(0, steps["ahead"] + torch.arange(hp.length)[:, None])
        target = steps["reward"] + steps["discount"] * (signed_parabolic(after) if hp.rescale else after)
        if hp.rescale:
            target = signed_hyperbolic(target)
        value = q_t.values[: hp.length].gather(2, steps["action"][..., None])[..., 0]

        is_step = steps["is_step"]
        error = (target - value).masked_fill(is_step.logical_not(), 0.0)
        weight = is_step / is_step.sum()
        loss = weighed(0.5 * error.square() * weight, batch)
        stats = {"td_loss": (0.5 * error.square() * weight).sum(), "q_values": (value * weight).sum()}
        return Outcome(loss.sum(), stats, hp.sequence_priorities(error, is_step))
