"""IMPALA: importance-weighted actor-learners (Espeholt et al. 2018, arXiv 1802.01561).

Nobody waits for anybody: rollouts are learned from as they come, once, and V-trace corrects for the policy having gone on
meanwhile.

    rollout x shards -> [queue: lag <= max_lag] -> batch -> sequences -> learn
        ^                                                                 |
        +---------------------------- [weights] <-------------------------+
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from levada.algorithms.checks import require_choice, require_counts, require_positive
from levada.algorithms.rollouts import FromRollouts
from levada.flow import Flow, Queue
from levada.math import VTrace, vtrace
from levada.rl.learner import Learner
from levada.rl.policy import Policy
from levada.rl.rollout import Rollout
from levada.rl.step import Apply
from levada.rl.task import Task
from levada.rl.transitions import Transitions
from levada.rl.unrolled import Unrolled


@dataclass(frozen=True, kw_only=True)
class IMPALA(FromRollouts):
    """Configuration of IMPALA."""

    num_rollouts: int = 1
    """Rollouts of one update. More make it steadier, and weights older."""
    max_lag: int | None = 4
    """Updates that the policy may be ahead of the samples it learns from; None: as many as there are."""
    order: Literal["admission", "arrival"] = "arrival"
    """`admission`: the result does not depend on timing. `arrival`: samples are learned from as they come, which is quicker
    where some take longer than others, and never the same twice."""
    clip_rho: float = 1.0
    """Importance ratios are cut off here. Higher learns more nearly the values of the newest policy, with more noise."""
    clip_c: float = 1.0
    """The same for how far corrections travel back in time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_counts(self, "num_rollouts")
        require_counts(self, "max_lag", least=0, or_none=True)
        require_choice(self, "order", "admission", "arrival")
        require_positive(self, "clip_rho", "clip_c")

    @property
    def queue(self) -> Queue:
        """Between samplers and learner."""
        if self.max_lag is None:
            return Queue(max_lag=None, capacity=2 * max(self.shards, self.num_rollouts))
        return Queue(max_lag=self.max_lag, order=self.order)

    def learning(self, policy: Policy) -> Learner:
        """What learns."""
        return self.learner(policy, VTraceLoss(self), corrects_staleness=True)

    def flow(self, task: Task) -> Flow:
        """Sample, batch, learn, publish."""
        policy = self.policy(task)
        learner = self.learning(policy)

        flow = Flow(type(self).__name__.lower())
        weights = flow.latest("weights", of=learner)
        rollouts = flow.source("rollout", self.sampler(task, policy), reads=weights, shards=self.shards)
        batch = flow.batch("batch", rollouts.via(self.queue), size=self.num_rollouts)
        update = flow.learn("learn", learner, flow.map("sequences", sequences, batch))
        flow.publish(update.weights, to=weights)
        flow.report(update.stats)
        return flow


def sequences(rollouts: Sequence[Rollout]) -> Sequence[Transitions]:
    """Rollouts as rows that each hold one environment."""
    return [rollout.sequences() for rollout in rollouts]


@dataclass(frozen=True)
class VTraceLoss:
    """Policy gradient, value loss and entropy bonus (arXiv 1802.01561, section 4.2)."""

    hp: IMPALA

    def __call__(
        self, apply: Apply, batch: Mapping[str, Any], coefficients: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss of sequences ``[N, T, ...]``, and what is reported of it."""
        weight = batch["weight"].t()
        now = Unrolled.of(apply, batch)
        rho = (now.log_prob - batch["log_prob"].t()).detach().exp()
        trace = corrected(self.hp, batch, now, rho)
        return total(self.hp, batch, now, trace, -(weight * trace.pg_advantages * now.log_prob).sum(), rho)


def corrected(hp: IMPALA, batch: Mapping[str, Any], now: Unrolled, rho: Tensor) -> VTrace:
    """V-trace of sequences, with importance ratios ``[T, N]``. Where episodes end, values ahead are by the weights that acted."""
    terminated, truncated = batch["terminated"].t(), batch["truncated"].t()
    ahead = torch.cat([now.value[1:], now.last_value[None]])
    v_t = torch.where(terminated | truncated, batch["next_value"].t(), ahead)
    return vtrace(
        batch["reward"].t(), now.value, v_t, terminated, truncated, rho,
        discount=hp.discount, clip_rho=hp.clip_rho, clip_c=hp.clip_c, clip_pg_rho=hp.clip_rho,
    )  # fmt: skip


def total(
    hp: IMPALA, batch: Mapping[str, Any], now: Unrolled, trace: VTrace, policy_loss: Tensor, rho: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of policy, values and entropy, and what is reported of it."""
    weight = batch["weight"].t()
    value_loss = 0.5 * (weight * trace.errors.square()).sum()
    entropy = (weight * now.entropy).sum()
    loss = policy_loss + hp.value_coef * value_loss - hp.entropy_coef * entropy
    stats = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy, "rho": (weight * rho).sum()}
    return loss, stats
