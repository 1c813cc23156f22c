"""IMPALA: importance-weighted actor-learners (Espeholt et al. 2018, arXiv 1802.01561).

Sampling and learning are asynchronous: by default the learner uses each rollout once, in arrival order. V-trace corrects for
the lag between the policy that collected it and the policy that learns.

    rollout x shards -> [queue: lag <= max_lag] -> batch -> sequences -> learn
        ^                                                                 |
        +---------------------------- [weights] <-------------------------+

With `replay_ratio`, the learner also replays recent rollouts between new ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal, Self

import torch
from torch import Tensor

from levada.algorithms.checks import ConfigError, require_divides
from levada.algorithms.neural import Part
from levada.algorithms.rollouts import RolloutAlgorithm
from levada.flow import Flow, Latest, Queue, Stream
from levada.math import VTrace, normalized_advantage, vtrace
from levada.rl.acting.rollout import Rollout
from levada.rl.acting.sampler import OnNewWeights
from levada.rl.envs.task import Task
from levada.rl.learning.learner import Learner
from levada.rl.learning.loss import LossOutput, Networks
from levada.rl.learning.unroll import Unrolled
from levada.rl.policies.policy import Policy, Weights
from levada.rl.replay.transitions import Transitions
from levada.validation import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

_SLACK = 2
"""Number of updates by which replay may exceed its ratio."""


@dataclass(frozen=True, kw_only=True)
class IMPALA(RolloutAlgorithm):
    """Configuration of IMPALA.

    Raises:
        ConfigError: a field has an invalid value, or contradicts another one.
    """

    num_rollouts: PositiveInt = 1
    """Number of rollouts per update. With more rollouts, updates are less noisy, and there are fewer."""
    microbatch_size: PositiveInt | None = None
    """Gradient accumulation: number of transitions whose gradient is computed at a time; must be a multiple of num_steps and
    divide num_rollouts * num_envs * num_steps. Smaller values give the same gradient up to rounding, unless advantages are
    normalized; for images a few hundred are fastest, since they fit into the cache. None: the whole batch."""
    max_lag: NonNegativeInt | None = 4
    """Maximum number of updates between the policy that collected a sample and the policy that learns from it. None: no
    limit. With smaller values fewer shards work at a time: `levada show` prints how many are idle. With `replay_ratio`, only
    updates on new rollouts count. The bound over all updates is then (1 + replay_ratio) * (max_lag + 1), rounded up, + 2; new
    rollouts beyond it are dropped, and replayed ones may be of any age."""
    order: Literal["admission", "arrival"] = "arrival"
    """Order in which rollouts are used. `admission`: the order in which they were started, so the result does not depend on
    timing. `arrival`: the order in which they finish, which is faster where rollouts differ in duration; the result then
    depends on timing, except with `--on inline`."""
    on_new_weights: OnNewWeights = "continue"
    """Treatment of a rollout in progress when new weights arrive. `continue`: finish it with the old weights. `cut`: end it
    early, which reduces lag; needs order=arrival, since lengths then depend on timing."""
    replay_ratio: NonNegativeFloat = 0.0
    """Number of replayed rollouts per new rollout. 0: no replay."""
    replay_buffer_size: PositiveInt = 64
    """Replay buffer size, in rollouts. The oldest are overwritten."""
    clip_rho: PositiveFloat = 1.0
    """Upper limit rho-bar of the importance ratios of V-trace. With larger values, the bias towards the behavior policy
    is smaller and the variance is higher."""
    clip_c: PositiveFloat = 1.0
    """Upper limit c-bar of the trace coefficients of V-trace. Larger values propagate corrections further back in time;
    with values below 1, traces decay as with the lambda of GAE."""
    normalize_advantage: bool = False
    """Normalize advantages to mean 0 and standard deviation 1 in each batch, or microbatch. Then `entropy_coef` does not depend
    on the scale of the rewards."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.microbatch_size is not None:
            self.num_sequences("microbatch_size")
            is_whole = self.transitions_per_step == self.transitions_per_update
            what = self._product if is_whole else "the minibatch"
            require_divides(self, "microbatch_size", self.transitions_per_step, what)
        if self.replay_ratio and self.replay_buffer_size < self.num_rollouts:
            rollouts = f"num_rollouts={self.num_rollouts}"
            msg = f"{type(self).__name__}(replay_buffer_size={self.replay_buffer_size}): expected at least {rollouts}"
            raise ConfigError(msg)
        in_any_order = {
            "on_new_weights='cut'": self.on_new_weights == "cut", "max_lag=None": self.max_lag is None,
            f"replay_ratio={self.replay_ratio}": self.replay_ratio > 0.0,
        }  # fmt: skip
        if self.order != "arrival" and any(in_any_order.values()):
            setting = next(setting for setting, holds in in_any_order.items() if holds)
            msg = f"{type(self).__name__}({setting}, order={self.order!r}): expected order='arrival', for timing decides here"
            raise ConfigError(msg)

    @property
    def transitions_per_update(self) -> int:
        """Number of transitions per update."""
        return self.num_rollouts * self.num_envs * self.num_steps

    @property
    def transitions_per_step(self) -> int:
        """Number of transitions per gradient step."""
        return self.transitions_per_update

    @property
    def _product(self) -> str:
        return f"num_rollouts * num_envs * num_steps = {self.num_rollouts} * {self.num_envs} * {self.num_steps}"

    def with_envs(self, shards: int, num_envs: int) -> Self:
        """The same with other numbers of shards, and of environments per shard: with more, updates have fewer, then shorter ones.

        Raises:
            ConfigError: an update cannot have as many env steps as now, or rollouts would be too short.
        """
        num_rollouts = max(1, self.num_rollouts * self.num_envs // num_envs)
        num_steps = self.divided_steps(Fraction(num_rollouts * num_envs, self.num_rollouts * self.num_envs))
        return replace(self, shards=shards, num_envs=num_envs, num_rollouts=num_rollouts, num_steps=num_steps)

    @property
    def num_microbatches(self) -> int:
        """Number of microbatches per gradient step."""
        return self.transitions_per_step // (self.microbatch_size or self.transitions_per_step)

    def num_env_steps(self, num_transitions: int) -> float:
        """Number of new env steps after training on `num_transitions`, some of them replayed."""
        return round(num_transitions / (1.0 + self.replay_ratio))

    @property
    def queue(self) -> Queue:
        """Queue between samplers and learner."""
        if self.max_lag is None:
            return Queue(max_lag=None, capacity=2 * max(self.shards, self.num_rollouts))
        if self.replay_ratio:
            # the number of updates between two new batches varies; only its mean is fixed (see the docstring of max_lag)
            capacity = (self.max_lag + 1) * self.num_rollouts
            most = math.ceil((1.0 + self.replay_ratio) * (self.max_lag + 1)) + _SLACK
            return Queue(max_lag=most, on_stale="drop", capacity=capacity)
        return Queue(max_lag=self.max_lag, order=self.order)

    def make_learner(self, policy: Policy) -> Learner:
        """Make the learner."""
        return self.sequence_learner(policy, VTraceLoss(self))

    def sequence_learner(self, policy: Policy, loss: Any, **more: Any) -> Learner:
        """Make a learner from whole rollouts of single environments."""
        return self.learner(policy, loss, num_microbatches=self.num_microbatches, tolerates_staleness=True, **more)

    def part(self, task: Task, name: str = "policy") -> Part:
        """Make the learner and the sampler."""
        policy = self.policy(task, name=name)
        return Part(self.make_learner(policy), self.sampler(task, policy, on_new_weights=self.on_new_weights))

    def updates(self, flow: Flow, part: Part, weights: Latest[Weights], rollouts: Stream[Rollout]) -> None:
        """Batch, learn, publish."""
        batch = flow.batch("batch", rollouts.via(self.queue), size=self.num_rollouts)
        rows = flow.map("sequences", sequences, batch)
        rows = self.mixed(flow, rows, rollouts) if self.replay_ratio else rows
        update = flow.learn("learn", part.learner, rows)
        flow.publish(update.weights, to=weights)
        flow.report(update.stats)

    def mixed(
        self, flow: Flow, new: Stream[Sequence[Transitions]], rollouts: Stream[Rollout]
    ) -> Stream[Sequence[Transitions]]:
        """Mix replayed rollouts into the stream of new ones (RLlib's mix-in replay)."""
        num_rows = self.num_rollouts * self.num_envs
        replay = flow.replay(
            "replay", of=Transitions, capacity=self.replay_buffer_size * self.num_envs, min_size=num_rows,
            samples_per_insert=self.replay_ratio, tolerance=float(num_rows), order="arrival",
        )  # fmt: skip
        flow.store(flow.map("rows", Rollout.sequences, rollouts), to=replay)
        return flow.union("mix", new, flow.sample("again", replay, size=num_rows))


def sequences(rollouts: Sequence[Rollout]) -> Sequence[Transitions]:
    """Reshape rollouts into rows of one environment each."""
    return [rollout.sequences() for rollout in rollouts]


@dataclass(frozen=True)
class VTraceLoss:
    """Policy-gradient loss, value loss and entropy bonus with V-trace (arXiv 1802.01561, section 4.2).

    L = mean(-min(rho_s, clip_rho) (r_s + discount v_{s+1} - V(x_s)) log pi(a_s|x_s) + value_coef / 2 (v_s - V(x_s))^2
    - entropy_coef H(pi(x_s))), with the V-trace targets v_s of equation 1.
    """

    hp: IMPALA

    def __call__(self, networks: Networks, batch: Mapping[str, Any], coefficients: Mapping[str, Tensor]) -> LossOutput:
        """Loss of sequences ``[N, T, ...]``, and its statistics."""
        weight = batch["weight"].t()
        new = Unrolled.of(networks.policy, batch)
        rho = (new.log_prob - batch["log_prob"].t()).detach().exp()
        trace = vtrace_of(self.hp, batch, new, rho)
        policy_loss = -(weight * advantages_of(self.hp, trace, weight) * new.log_prob).sum()
        return actor_critic_loss(self.hp, batch, coefficients, new, trace, policy_loss, rho)


def vtrace_of(hp: IMPALA, batch: Mapping[str, Any], new: Unrolled, rho: Tensor) -> VTrace:
    """V-trace of sequences with importance ratios ``[T, N]``. Next values at episode ends are those of the acting weights."""
    terminated, truncated = batch["terminated"].t(), batch["truncated"].t()
    next_value = torch.cat([new.value[1:], new.last_value[None]])
    v_t = torch.where(terminated | truncated, batch["next_value"].t(), next_value)
    return vtrace(
        batch["reward"].t(), new.value, v_t, terminated, truncated, rho,
        discount=hp.discount, clip_rho=hp.clip_rho, clip_c=hp.clip_c, clip_pg_rho=hp.clip_rho,
    )  # fmt: skip


def advantages_of(hp: IMPALA, trace: VTrace, weight: Tensor) -> Tensor:
    """Advantages of V-trace, normalized if they are to be."""
    return normalized_advantage(trace.pg_advantages, weight) if hp.normalize_advantage else trace.pg_advantages


def actor_critic_loss(
    hp: IMPALA,
    batch: Mapping[str, Any],
    coefficients: Mapping[str, Tensor],
    new: Unrolled,
    trace: VTrace,
    policy_loss: Tensor,
    rho: Tensor,
) -> LossOutput:
    """Sum of policy loss, value loss and entropy bonus, and its statistics."""
    weight = batch["weight"].t()
    value_loss = 0.5 * (weight * trace.errors.square()).sum()
    entropy = (weight * new.entropy).sum()
    loss = policy_loss + hp.value_coef * value_loss - hp.entropy_bonus(entropy, coefficients)
    stats = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy, "rho": (weight * rho).sum()}
    return LossOutput(loss, stats)
