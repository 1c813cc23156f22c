"""Base of the algorithms that learn from a replay: their settings, and the parts of their flows.

step x shards -> n_step ==> [replay] -> sample -> learn
    ^                           ^                    |
    |                           +--- (priorities) ---+
    +---------------------- [weights] <--------------+
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Literal, Self, TypeAlias

from torch import Tensor

from levada.algorithms.checks import ConfigError, require_divides
from levada.algorithms.neural import NeuralAlgorithm, Part
from levada.flow import Flow, Latest, Prioritized, Replay, Stream
from levada.rl.acting.exploration import Exploration
from levada.rl.acting.game_sampler import Targets
from levada.rl.acting.joint_transitions import AgentTransitions, JointTransitions
from levada.rl.acting.sequences import Sequences
from levada.rl.acting.step_sampler import NStep, StepSampler
from levada.rl.envs.task import Task
from levada.rl.learning.learner import Learner
from levada.rl.learning.moments import SampledMoments
from levada.rl.policies.layers import Activation
from levada.rl.policies.policy import Policy, Weights
from levada.rl.replay.transitions import Transitions
from levada.validation import NonNegativeFloat, PositiveFloat, PositiveInt, PositiveUnitFloat, UnitFloat

Stage: TypeAlias = NStep | Sequences | JointTransitions | AgentTransitions
"""From steps to rows of a replay; its `NODE` names its node."""
_FEW_BATCHES: Final = 4
"""Batches in a replay before a probe begins to learn."""


@dataclass(frozen=True)
class ReplayPart(Part):
    """The recipes of an algorithm that learns from a replay, for one policy."""

    stage: Stage | Targets
    """Stage from steps, or games, to rows of the replay."""


@dataclass(frozen=True, kw_only=True)
class ReplayAlgorithm(NeuralAlgorithm):
    """Base configuration of the algorithms that learn from a replay."""

    SOURCE: ClassVar[str] = "step"
    num_envs: PositiveInt = 1
    """Number of environments per shard, stepped together. With more environments, a step costs less; samplers still
    fetch new weights every `num_steps` steps per environment."""
    num_steps: PositiveInt = 8
    """Number of steps per environment before a sampler fetches newer weights. Larger values are faster, but actions
    are chosen by older weights."""
    buffer_size: PositiveInt = 1_000_000
    """Replay buffer size, in transitions. The oldest are overwritten."""
    learning_starts: PositiveInt = 1_000
    """Number of transitions stored before the first gradient step."""
    samples_per_insert: PositiveFloat = 256.0
    """Average number of times a transition is sampled = `batch_size` x gradient steps per env step. With larger values, the
    agent makes more gradient steps per env step, which takes longer."""
    tolerance: NonNegativeFloat = 0.0
    """Allowed deviation from `samples_per_insert`, in samples. Beyond it, sampling or inserting waits (`error_buffer` in
    Reverb). 0: the result does not depend on timing."""
    order: Literal["admission", "arrival"] = "admission"
    """Order in which transitions are stored. `admission`: first started, first stored; timing does not change this order.
    `arrival`: first finished, first stored; no shard waits for a slower one, but the result depends on timing."""
    tables: PositiveInt = 1
    """Number of tables that the replay is split into; they are filled and sampled in turn. The deployment can place each in
    its own process (`replays=worker`)."""
    prioritized: bool = False
    """Prioritized replay: sample transitions with larger priorities more often. A priority is the absolute TD error, or
    the loss of a return distribution."""
    priority_exponent: UnitFloat = 0.6
    """Priority exponent alpha of prioritized replay. 0: uniform. 1: proportional to the priority."""
    importance_sampling_exponent: UnitFloat = 0.4
    """Importance-sampling exponent beta of prioritized replay, which rises to 1 over `buffer_size` transitions."""
    batch_size: PositiveInt = 256
    """Number of transitions per gradient step."""
    microbatch_size: PositiveInt | None = None
    """Gradient accumulation: number of transitions whose gradient is computed at a time; must divide `batch_size`. Smaller
    values need less memory for activations. None: the whole batch."""
    num_gradient_steps: PositiveInt = 8
    """Number of gradient steps per update; their minibatches are drawn from the replay at once. Larger values are faster, but
    priorities and the samplers' weights are updated less often."""
    n_step: PositiveInt = 1
    """Number of steps n of n-step returns. A larger n propagates rewards faster and makes targets more off-policy."""
    tau: PositiveUnitFloat = 0.005
    """Polyak factor of the target networks. 1: copy the online network."""
    target_update_interval: PositiveInt = 1
    """Number of gradient steps between updates of the target networks."""
    hidden_sizes: tuple[PositiveInt, ...] = (256, 256)
    activation: Activation = "relu"
    precision: Literal["auto", "float32", "bfloat16"] = field(default="float32", compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.microbatch_size is not None:
            require_divides(self, "microbatch_size", self.batch_size, "batch_size")

    def with_envs(self, shards: int, num_envs: int) -> Self:
        """The same with other numbers of shards, and of environments per shard; `samples_per_insert` is not changed by them."""
        return replace(self, shards=shards, num_envs=num_envs)

    def for_probe(self) -> Self:
        """The same with a replay that is soon full enough to learn from."""
        return replace(self, learning_starts=min(self.learning_starts, _FEW_BATCHES * self.batch_size))

    @property
    def num_microbatches(self) -> int:
        """Number of microbatches per gradient step."""
        return self.batch_size // (self.microbatch_size or self.batch_size)

    @property
    def n_step_returns(self) -> NStep:
        """Stage from steps to n-step transitions, the rows of the replay."""
        return NStep(discount=self.discount, num_steps=self.n_step)

    @property
    def stride(self) -> int:
        """Number of env steps of one environment per row of the replay."""
        return 1

    def num_env_steps(self, num_transitions: int) -> float:
        """Number of env steps after training on `num_transitions`."""
        return num_transitions / self.samples_per_insert * self.stride

    def priorities(self, errors: Tensor) -> Tensor | None:
        """Priorities of rows from the critics' errors ``[num, N]``; None unless replay is prioritized."""
        return errors.detach().abs().mean(dim=0) if self.prioritized else None

    def learner(self, policy: Policy, loss: Any, burn_in: int = 0, **more: Any) -> Learner:
        """Make the learner.

        Args:
            policy: the policy.
            loss: its loss.
            burn_in: number of first steps of a sequence, which normalization statistics leave out.
            more: fields of `Learner`.
        """
        moments = None
        if policy.normalize_obs or policy.normalize_reward or policy.standardize_reward:
            moments = SampledMoments(policy=policy, burn_in=burn_in)
        return super().learner(
            policy, loss, minibatch_size=self.batch_size, num_microbatches=self.num_microbatches, shuffle=False,
            tolerates_staleness=True, tau=self.tau,
            sampled_moments=moments, **{"target_update_interval": self.target_update_interval, **more},
        )  # fmt: skip

    def sampler(self, task: Task, policy: Policy, explore: Exploration, stage: Stage) -> StepSampler:
        """Make the sampler; `stage`: node that its steps go through.

        Raises:
            ConfigError: an item may hold more rows than a table of the replay.
        """
        is_recurrent = isinstance(stage, Sequences)
        # rows that are complete only when their episode ends
        pending = -(-stage.num_overlap_steps // stage.stride) if isinstance(stage, Sequences) else 0
        max_rows, table_capacity = self.num_envs * (self.num_steps + pending), -(-self.buffer_size // self.tables)
        if max_rows > table_capacity:
            msg = (
                f"{type(self).__name__}(buffer_size={self.buffer_size}, tables={self.tables}): an item of num_envs="
                f"{self.num_envs} and num_steps={self.num_steps} may be {max_rows} entries, and a table holds "
                f"{table_capacity}; raise buffer_size"
            )
            raise ConfigError(msg)
        return StepSampler(
            task=task, policy=policy, explore=explore, num_envs=self.num_envs, num_steps=self.num_steps,
            num_overlap_steps=stage.num_overlap_steps, is_recurrent=is_recurrent,
            keeps_network_outputs=isinstance(stage, NStep) and stage.priority is not None, discount=self.discount,
        )  # fmt: skip

    def updates(self, flow: Flow, part: ReplayPart, weights: Latest[Weights], steps: Stream[Any]) -> None:
        """Turn steps into rows of the replay, store; sample, learn, publish."""
        replay = self.make_replay(flow)
        stage: Any = part.stage
        flow.store(flow.map(stage.NODE, stage, steps), to=replay)
        update = flow.learn("learn", part.learner, self.sample(flow, replay))
        flow.publish(update.weights, to=weights, every=self.publish_interval)
        if self.prioritized:
            flow.reprioritize(update.priorities, of=replay)
        flow.report(update.stats)

    def make_replay(self, flow: Flow) -> Replay[Transitions]:
        """Add the replay to a flow."""
        prioritized = Prioritized(
            alpha=self.priority_exponent, beta=self.importance_sampling_exponent, anneal_inserts=self.buffer_size
        )
        return flow.replay(
            "replay", of=Transitions, capacity=self.buffer_size, min_size=self.learning_starts, tolerance=self.tolerance,
            samples_per_insert=self.samples_per_insert, order=self.order, tables=self.tables,
            sampler=prioritized if self.prioritized else "uniform",
        )  # fmt: skip

    def sample(self, flow: Flow, replay: Replay[Transitions]) -> Stream[Any]:
        """Add the node that draws the batches of an update."""
        size = self.num_gradient_steps * self.batch_size
        return flow.sample("sample", replay, size=size, minibatch_size=self.batch_size)

    @property
    def publish_interval(self) -> int:
        """Number of updates between publications of weights: about one publication per item, as shards read them that often."""
        rows_per_item = self.num_envs * self.num_steps / self.stride
        return max(1, int(rows_per_item * self.samples_per_insert / (self.num_gradient_steps * self.batch_size)))
