"""PG: the policy gradient, REINFORCE (Williams 1992, Machine Learning 8; Sutton and Barto 2018, section 13.3).

    rollout x shards -> returns -> [queue: lag <= 0] -> batch -> learn
        ^                                                          |
        +------------------------- [weights] <---------------------+

The gradient weights the log-probability of an action by the discounted return after it. If a rollout ends before its episode,
a learned value function bootstraps the rest. With `baseline` this value is also subtracted from returns, which learns faster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from levada.algorithms.a2c import A2CLoss
from levada.algorithms.gae import GAE
from levada.algorithms.neural import Part
from levada.algorithms.rollouts import RolloutAlgorithm
from levada.flow import Flow, Latest, Queue, Stream
from levada.rl.acting.rollout import Rollout
from levada.rl.envs.task import Task
from levada.rl.learning.loss import LossOutput, Networks
from levada.rl.policies.policy import Weights
from levada.validation import PositiveInt


@dataclass(frozen=True, kw_only=True)
class PG(RolloutAlgorithm):
    """Configuration of PG."""

    num_steps: PositiveInt = 128
    baseline: bool = False
    """Subtract the value function from returns: the same expected gradient, with lower variance."""

    def part(self, task: Task, name: str = "policy") -> Part:
        """Make the learner and the sampler."""
        policy = self.policy(task, name=name)
        return Part(self.learner(policy, PGLoss(self)), self.sampler(task, policy))

    def updates(self, flow: Flow, part: Part, weights: Latest[Weights], rollouts: Stream[Rollout]) -> None:
        """Compute returns, batch, learn, publish."""
        returns = flow.map("returns", GAE(discount=self.discount, lambda_=1.0), rollouts)
        batch = flow.batch("batch", returns.via(Queue(max_lag=0)), size=self.shards)
        update = flow.learn("learn", part.learner, batch)
        flow.publish(update.weights, to=weights)
        flow.report(update.stats)


@dataclass(frozen=True)
class PGLoss:
    """The loss of A2C, with returns in place of advantages unless `baseline` is set."""

    hp: PG

    def __call__(
        self, networks: Networks, batch: Mapping[str, Tensor], coefficients: Mapping[str, Tensor]
    ) -> LossOutput:
        """Loss of transitions ``[N, ...]``, and its statistics."""
        gain = batch["advantage" if self.hp.baseline else "target"]
        return A2CLoss(self.hp)(networks, {**batch, "advantage": gain}, coefficients)
