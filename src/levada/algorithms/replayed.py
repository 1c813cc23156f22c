"""Base of the algorithms that learn from a replay: their settings, and the flow.

step x shards -> n_step ==> [replay] -> sample -> learn
    ^                           ^                    |
    |                           +--- (priorities) ---+
    +---------------------- [weights] <--------------+
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor

from levada.algorithms.algorithm import Algorithm
from levada.algorithms.checks import (
    ConfigError,
    require_bools,
    require_choice,
    require_counts,
    require_fractions,
    require_not_negative,
    require_positive,
    require_texts,
    require_widths,
)
from levada.algorithms.optimizer import make_optimizer
from levada.algorithms.schedules import SCHEDULES, Schedule
from levada.flow import Flow, Prioritized
from levada.rl.acting.exploration import Exploration
from levada.rl.acting.sequences import Sequences
from levada.rl.acting.step_sampler import FirstPriority, NStep, StepSampler
from levada.rl.compute.device import choose_device
from levada.rl.envs.task import Task
from levada.rl.learning.learner import Learner
from levada.rl.policies.policy import Policy
from levada.rl.replay.transitions import Transitions


@dataclass(frozen=True, kw_only=True)
class Replayed(Algorithm):
    """Base configuration of the algorithms that learn from a replay."""

    shards: int = 1
    """Number of logical samplers, each with its own environments. More shards can use more cores."""
    num_envs: int = 1
    """Number of environments per shard, stepped together. More environments cost less per step; weights are renewed equally
    often."""
    num_steps: int = 8
    """Number of steps per environment between two looks at newer weights. More steps are faster and act with older
    weights."""
    buffer_size: int = 1_000_000
    """Replay buffer size, in transitions. The oldest are overwritten."""
    learning_starts: int = 1_000
    """Number of transitions stored before the first gradient step. With Box actions they are random until then."""
    samples_per_insert: float = 256.0
    """Average number of times a transition is sampled. `batch_size` here means one gradient step per env step. Larger values
    learn more from a step and take longer."""
    tolerance: float = 0.0
    """Number of samples by which sampling and inserting may drift apart before one of them waits. 0: the result does not
    depend on timing."""
    order: Literal["admission", "arrival"] = "admission"
    """Order in which transitions are stored. `admission`: a fixed order. `arrival`: the order in which they come, so no shard
    waits for a slower one, and the result depends on timing."""
    tables: int = 1
    """Number of tables that the replay is split into, each with its own process if the deployment says so. They are filled
    and sampled in turn."""
    prioritized: bool = False
    """Prioritized replay: sample transitions with larger TD errors more often."""
    priority_exponent: float = 0.6
    """Priority exponent alpha of prioritized replay. 0: uniform. 1: proportional to the TD error."""
    importance_sampling_exponent: float = 0.4
    """Importance-sampling exponent beta of prioritized replay, which rises to 1 over `buffer_size` transitions."""
    batch_size: int = 256
    """Number of transitions per gradient step."""
    num_gradient_steps: int = 8
    """Number of gradient steps per update, all on one draw from the replay. More are faster; priorities and weights are
    updated less often."""
    learning_rate: float = 1e-3
    """Learning rate of Adam."""
    anneal_steps: int | None = None
    """Env steps over which the learning rate falls to zero. None: constant."""
    learning_rate_schedule: Schedule = "linear"
    """Schedule of the learning rate over `anneal_steps`."""
    discount: float = 0.99
    """Discount factor gamma per step. Closer to 1 weighs distant rewards more."""
    n_step: int = 1
    """n of n-step returns. Larger n propagates rewards faster and makes targets more off-policy."""
    tau: float = 0.005
    """Polyak factor of the target networks. 1: copy the online network."""
    max_grad_norm: float | None = None
    """Maximum norm of the gradient; larger gradients are scaled down to it. None: no limit."""
    adam_eps: float = 1e-8
    """Epsilon of Adam."""
    optimizer: str = "adam"
    """Optimizer: `adam`, `adamw`, `rmsprop`, `sgd`, `adagrad`, a class of torch.optim, or a custom one as `module:Class`."""
    optimizer_kwargs: Mapping[str, float] = field(default_factory=dict)
    """Arguments of an optimizer other than `adam`, besides the learning rate."""
    device: str = field(default="auto", compare=False)
    """Device of the networks: `cpu`, `cuda`, or one of several GPUs, `cuda:1`. `auto`: a GPU for images of at least 36 x 36,
    where there is one."""
    hidden_sizes: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers."""
    compile: Literal["auto"] | bool = "auto"
    """Compilation of the update. True: at the first update. False: never. `auto`: once the run is long enough to make up for
    it."""

    def __post_init__(self) -> None:
        require_counts(
            self,
            "shards",
            "num_envs",
            "num_steps",
            "buffer_size",
            "learning_starts",
            "batch_size",
            "num_gradient_steps",
            "n_step",
            "tables",
        )
        require_counts(self, "anneal_steps", or_none=True)
        require_fractions(self, "discount", "tau", "priority_exponent", "importance_sampling_exponent")
        require_bools(self, "prioritized")
        require_positive(self, "samples_per_insert", "learning_rate", "adam_eps", "tau")
        require_positive(self, "max_grad_norm", or_none=True)
        require_not_negative(self, "tolerance")
        require_choice(self, "order", "admission", "arrival")
        require_texts(self, "device", "optimizer")
        make_optimizer(self)
        require_widths(self, "hidden_sizes")
        require_choice(self, "learning_rate_schedule", *SCHEDULES)
        require_choice(self, "compile", True, False, "auto")

    @property
    def cut(self) -> NStep | Sequences:
        """Converter from steps to rows of the replay."""
        return NStep(discount=self.discount, num_steps=self.n_step)

    def policy(self, task: Task, **fields: Any) -> Policy:
        """Make a policy for the spaces of a task, on the device of these settings."""
        device = self.device if self.device != "auto" else choose_device(task.observation_space)
        return Policy(observation_space=task.observation_space, action_space=task.action_space, device=device, **fields)

    @property
    def horizons(self) -> Mapping[str, int]:
        """Horizon of the learning rate, if annealed."""
        return {} if self.anneal_steps is None else {"learning_rate": self.anneal_steps}

    def coefficients(self, num_transitions: int) -> dict[str, float]:
        """Learning rate of the next update, after training on `num_transitions`."""
        num_steps = num_transitions / self.samples_per_insert * self.cut.stride
        left = 1.0 if self.anneal_steps is None else max(0.0, 1.0 - num_steps / self.anneal_steps)
        return {"learning_rate": self.learning_rate * SCHEDULES[self.learning_rate_schedule](left)}

    def priorities(self, errors: Tensor) -> Tensor | None:
        """Priorities of rows from the critics' errors ``[num, N]``; None unless replay is prioritized."""
        return errors.detach().abs().mean(dim=0) if self.prioritized else None

    def learner(self, policy: Policy, loss: Any, **more: Any) -> Learner:
        """Make the learner; `more`: fields of `Learner`."""
        return Learner(
            policy=policy, loss=loss, coefficients=self.coefficients, minibatch_size=self.batch_size, shuffle=False,
            corrects_staleness=True, tau=self.tau,
            optimizer=make_optimizer(self), compile=self.compile, **more,
        )  # fmt: skip

    def replayed(
        self,
        task: Task,
        learner: Learner,
        explore: Exploration,
        first_priority: FirstPriority | None = None,
    ) -> Flow:
        """Build the flow. With prioritized replay, each update sends priorities back; `first_priority` computes initial ones.

        A shard reads weights once per item, so they are published about once per item and no more often.
        """
        policy, cut = learner.policy, self.cut
        if bool(policy.state_size) is not isinstance(cut, Sequences):
            kind = "a network that is not recurrent" if policy.state_size else "a recurrent one (levada.rl.Recurrent)"
            msg = f"{type(self).__name__}: network={policy.network!r}, expected {kind}"
            raise ConfigError(msg)
        if first_priority is not None:
            assert isinstance(cut, NStep), "sequences have no first priorities"
            cut = replace(cut, priority=first_priority)
        sampler = StepSampler(
            task=task, policy=policy, explore=explore, num_envs=self.num_envs, num_steps=self.num_steps,
            num_overlap_steps=cut.num_overlap_steps, keeps_head_params=first_priority is not None,
        )  # fmt: skip
        # rows that are complete only when their episode ends
        pending = -(-cut.num_overlap_steps // cut.stride) if isinstance(cut, Sequences) else 0
        most, share = self.num_envs * (self.num_steps + pending), -(-self.buffer_size // self.tables)
        if most > share:
            msg = (
                f"{type(self).__name__}(buffer_size={self.buffer_size}, tables={self.tables}): an item of num_envs="
                f"{self.num_envs} and num_steps={self.num_steps} may be {most} entries, and a table holds {share}; "
                "raise buffer_size"
            )
            raise ConfigError(msg)
        size = self.num_gradient_steps * self.batch_size
        updates_per_item = self.num_envs * self.num_steps / cut.stride * self.samples_per_insert / size

        prioritized = Prioritized(
            alpha=self.priority_exponent, beta=self.importance_sampling_exponent, anneal_inserts=self.buffer_size
        )
        flow = Flow(type(self).__name__.lower())
        weights = flow.latest("weights", of=learner)
        steps = flow.source("step", sampler, reads=weights, shards=self.shards)
        rows = flow.map("sequences" if isinstance(cut, Sequences) else "n_step", cut, steps)
        replay = flow.replay(
            "replay", of=Transitions, capacity=self.buffer_size, min_size=self.learning_starts, tolerance=self.tolerance,
            samples_per_insert=self.samples_per_insert, order=self.order, tables=self.tables,
            sampler=prioritized if self.prioritized else "uniform",
        )  # fmt: skip
        flow.store(rows, to=replay)
        update = flow.learn("learn", learner, flow.sample("sample", replay, size=size, minibatch_size=self.batch_size))
        flow.publish(update.weights, to=weights, every=max(1, int(updates_per_item)))
        if self.prioritized:
            flow.reprioritize(update.priorities, of=replay)
        flow.report(update.stats)
        return flow
