"""A3C: asynchronous advantage actor-critic (Mnih et al. 2016, arXiv 1602.01783).

    gradient x shards -> [queue: lag <= max_lag] -> batch -> learn
        ^                                                      |
        +----------------------- [weights] <-------------------+

Each shard acts, and differentiates the loss of what it saw; the learner applies gradients as they come. How old each is, is the
lag of the queue. (The paper applies them to shared memory without a learner; the optimiser there is RMSProp.)
"""

from __future__ import annotations

from dataclasses import dataclass

from levada.algorithms.a2c import A2CLoss
from levada.algorithms.checks import require_counts, require_fractions
from levada.algorithms.gae import GAE
from levada.algorithms.rollouts import FromRollouts
from levada.flow import Flow, Queue
from levada.rl.gradients import GradientLearner, GradientSampler
from levada.rl.task import Task


@dataclass(frozen=True, kw_only=True)
class A3C(FromRollouts):
    """Configuration of A3C."""

    shards: int = 4
    """Logical samplers, each with its own environments. More can use more cores, and their gradients are older."""
    max_lag: int = 8
    """Updates that the policy may be ahead of a gradient that is applied to it."""
    gae_lambda: float = 1.0
    """0 trusts the value function, 1 only what was seen: less bias, more noise."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_counts(self, "max_lag", least=0)
        require_fractions(self, "gae_lambda")

    def flow(self, task: Task) -> Flow:
        """Differentiate at the shards, apply, publish."""
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
