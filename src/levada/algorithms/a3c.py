"""A3C: asynchronous advantage actor-critic (Mnih et al. 2016, arXiv 1602.01783).

    gradient x shards -> [queue: lag <= max_lag] -> batch -> learn
        ^                                                      |
        +----------------------- [weights] <-------------------+

Each shard samples a rollout and computes the gradient of its loss; the learner applies gradients in arrival order. The lag of
the queue bounds the age of a gradient. (In the paper there is no learner: samplers apply gradients to shared memory. Its
optimizer is RMSProp.)
"""

from __future__ import annotations

from dataclasses import dataclass

from levada.algorithms.a2c import A2CLoss
from levada.algorithms.gae import GAE
from levada.algorithms.rollouts import RolloutAlgorithm
from levada.flow import Flow, Queue
from levada.rl.envs.task import Task
from levada.rl.learning.gradients import GradientLearner, GradientSampler
from levada.validation import NonNegativeInt, PositiveInt, UnitFloat


@dataclass(frozen=True, kw_only=True)
class A3C(RolloutAlgorithm):
    """Configuration of A3C."""

    shards: PositiveInt = 4
    """Number of samplers, called shards. Each has its own environments. With more shards, more cores can be used and gradients
    are older."""
    max_lag: NonNegativeInt = 8
    """Maximum number of updates between the weights a gradient was computed with and the weights it is applied to."""
    gae_lambda: UnitFloat = 1.0
    """Lambda of generalized advantage estimation. 0: one-step advantages, biased by the value function. 1: full returns, with
    high variance."""

    def flow(self, task: Task) -> Flow:
        """Compute gradients at the shards, apply, publish."""
        policy = self.policy(task)
        learner = GradientLearner.of(self.learner(policy, A2CLoss(self)))
        gae = GAE(discount=self.discount, lambda_=self.gae_lambda)
        sampler = GradientSampler(sampler=self.sampler(task, policy), prepare=gae, learner=learner)

        flow = Flow("a3c")
        weights = flow.latest("weights", of=learner)
        gradients = flow.source("gradient", sampler, reads=weights, shards=self.shards)
        batch = flow.batch("batch", gradients.via(Queue(max_lag=self.max_lag, order="arrival")), size=1)
        update = flow.learn("learn", learner, batch)
        flow.publish(update.weights, to=weights)
        flow.report(update.stats)
        return flow
