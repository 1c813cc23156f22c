"""A3C: asynchronous advantage actor-critic (Mnih et al. 2016, arXiv 1602.01783).

    gradient x shards -> [queue: lag <= max_lag] -> batch -> learn
        ^                                                      |
        +----------------------- [weights] <-------------------+

Each shard samples a rollout and computes the gradient of its loss; the learner applies gradients in arrival order. The lag of
the queue bounds the age of a gradient. (In the paper there is no learner: samplers apply gradients to shared memory. Its
optimizer is RMSProp.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar, Self

from levada.algorithms.a2c import A2CLoss
from levada.algorithms.checks import ConfigError
from levada.algorithms.gae import GAE
from levada.algorithms.neural import Part
from levada.algorithms.rollouts import RolloutAlgorithm
from levada.flow import Flow, Latest, Queue, Stream
from levada.rl.envs.task import Task
from levada.rl.learning.gradients import GradientLearner, GradientSampler
from levada.rl.policies.policy import Weights
from levada.validation import NonNegativeInt, PositiveInt, UnitFloat


@dataclass(frozen=True, kw_only=True)
class A3C(RolloutAlgorithm):
    """Configuration of A3C."""

    shards: PositiveInt = 4
    """Number of samplers, called shards. Each has its own environments. With more shards, more cores can be used and gradients
    are older."""
    SOURCE: ClassVar[str] = "gradient"
    max_lag: NonNegativeInt = 8
    """Maximum number of updates between the weights a gradient was computed with and the weights it is applied to."""
    gae_lambda: UnitFloat = 1.0
    """Lambda of generalized advantage estimation. 0: one-step advantages, biased by the value function. 1: full returns, with
    high variance."""

    IS_FOR_XLA: ClassVar[bool] = False

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.anneal_entropy_coef is True:  # before the base asks for anneal_steps
            reason = "the shards compute the gradients, and do not know how many env steps were trained on"
            msg = f"{name}(anneal_entropy_coef=True): expected False; {reason}. With A2C it can be annealed"
            raise ConfigError(msg)
        super().__post_init__()
        if self.compile == "xla":
            reason = "XLA compiles all gradient steps of an update, and the shards compute single gradients"
            msg = f"{name}(compile='xla'): expected 'auto', True or False; {reason}"
            raise ConfigError(msg)

    def with_envs(self, shards: int, num_envs: int) -> Self:
        """The same with other numbers of shards, and of environments per shard. An update has the gradient of one shard."""
        return replace(
            self, shards=shards, num_envs=num_envs, num_steps=self.divided_steps(Fraction(num_envs, self.num_envs))
        )

    def part(self, task: Task, name: str = "policy") -> Part:
        """Make the learner, and the sampler with the gradient of its rollouts."""
        policy = self.policy(task, name=name)
        learner = GradientLearner.of(self.learner(policy, A2CLoss(self)))
        gae = GAE(discount=self.discount, lambda_=self.gae_lambda)
        return Part(learner, GradientSampler(sampler=self.sampler(task, policy), prepare=gae, learner=learner))

    def updates(self, flow: Flow, part: Part, weights: Latest[Weights], gradients: Stream[Any]) -> None:
        """Apply gradients in arrival order, publish."""
        batch = flow.batch("batch", gradients.via(Queue(max_lag=self.max_lag, order="arrival")), size=1)
        update = flow.learn("learn", part.learner, batch)
        flow.publish(update.weights, to=weights)
        flow.report(update.stats)
