"""PG: the policy gradient, REINFORCE (Williams 1992, Machine Learning 8; Sutton and Barto 2018, section 13.3).

    rollout x shards -> returns -> [queue: lag <= 0] -> batch -> learn
        ^                                                          |
        +------------------------- [weights] <---------------------+

An action is made more likely by the discounted return after it. Where a rollout ends before its episode, a learned value stands
for the rest; with `baseline` it is also what returns are compared with, which is quicker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from levada.algorithms.a2c import A2CLoss
from levada.algorithms.checks import require_bools
from levada.algorithms.gae import GAE
from levada.algorithms.rollouts import FromRollouts
from levada.flow import Flow, Queue
from levada.rl.step import Apply
from levada.rl.task import Task


@dataclass(frozen=True, kw_only=True)
class PG(FromRollouts):
    """Configuration of PG."""

    num_steps: int = 128
    """Steps of one rollout. More rely less on the learned value where it ends, and come more seldom."""
    baseline: bool = False
    """Subtract the learned value from returns: the same gradient on average, with less noise."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_bools(self, "baseline")

    def flow(self, task: Task) -> Flow:
        """Sample, add up returns, batch, learn, publish."""
        policy = self.policy(task)
        learner = self.learner(policy, PGLoss(self))

        flow = Flow("pg")
        weights = flow.latest("weights", of=learner)
        rollouts = flow.source("rollout", self.sampler(task, policy), reads=weights, shards=self.shards)
        returns = flow.map("returns", GAE(discount=self.discount, lambda_=1.0), rollouts)
        batch = flow.batch("batch", returns.via(Queue(max_lag=0)), size=self.shards)
        update = flow.learn("learn", learner, batch)
        flow.publish(update.weights, to=weights)
        flow.report(update.stats)
        return flow


@dataclass(frozen=True)
class PGLoss:
    """That of A2C, with returns in place of advantages unless there is a baseline."""

    hp: PG

    def __call__(
        self, apply: Apply, batch: Mapping[str, Tensor], coefficients: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss of transitions ``[N, ...]``, and what is reported of it."""
        gain = batch["advantage" if self.hp.baseline else "target"]
        return A2CLoss(self.hp)(apply, {**batch, "advantage": gain}, coefficients)
