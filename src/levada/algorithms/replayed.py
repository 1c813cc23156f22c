"""What all algorithms that learn from a replay have in common: their settings, and the flow.

step x shards -> n_step ==> [replay] -> sample -> learn
^                           ^                    |
|                           +--- (priorities) ---+
+---------------------- [weights] <--------------+
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
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
    require_widths,
)
from levada.flow import Flow, Prioritised
from levada.rl.explore import Exploration
from levada.rl.off_policy import OffPolicyLearner
from levada.rl.optimise import Adam
from levada.rl.policy import Policy
from levada.rl.sequences import Sequences
from levada.rl.step_sampler import FirstPriority, NStep, StepSampler
from levada.rl.task import Task
from levada.rl.transitions import Transitions


@dataclass(frozen=True, kw_only=True)
class Replayed(Algorithm):
    """Base of their configurations."""

    shards: int = 1
    """Logical samplers, each with its own environments. More can use more cores."""
    num_envs: int = 1
    """Environments of one shard, stepped together. More are quicker per step; newer weights come as often."""
    num_steps: int = 8
    """Steps between two looks at newer weights. More are quicker; the actions are those of older weights."""
    capacity: int = 1_000_000
    """Transitions that are kept; the oldest go. More forget later, and take more memory."""
    min_size: int = 1_000
    """Transitions that are stored before the first is learned from. Where actions are drawn, they are random until then."""
    samples_per_insert: float = 256.0
    """How often a transition is sampled on average; `batch_size` is one gradient step for each env step. More learn more from a
    step, and take longer."""
    tolerance: float = 0.0
    """By how many samples that may be off before one side waits. 0: the result does not depend on timing."""
    order: Literal["admission", "arrival"] = "admission"
    """Transitions are stored in the order of their tickets, or as they come: then nobody waits for a slow shard, and the result
    depends on timing."""
    tables: int = 1
    """Tables that the replay consists of; each may have a process of its own. More are filled and drawn from in turn."""
    prioritised: bool = False
    """Sample more often what was more surprising."""
    alpha: float = 0.6
    """Exponent of the priorities, if prioritised. 0 is uniform, 1 in proportion to them."""
    beta: float = 0.4
    """Exponent of the weights that correct for priorities; it rises to 1 over `capacity` transitions."""
    batch_size: int = 256
    """Transitions of one gradient step."""
    num_gradient_steps: int = 8
    """Gradient steps of one update, on one draw. More are quicker; priorities and weights are renewed less often."""
    learning_rate: float = 1e-3
    """Size of a step of Adam."""
    anneal_steps: int | None = None
    """Env steps over which the learning rate falls linearly to zero; None: never."""
    discount: float = 0.99
    """What a reward loses each step. Nearer to 1 looks further ahead."""
    lookahead: int = 1
    """Steps whose rewards a target adds up before it trusts a network. More learn sooner, from actions of older policies."""
    tau: float = 0.005
    """By how much target networks change at a time; 1: they become the networks."""
    max_grad_norm: float | None = None
    """Gradients are scaled down to this norm; None: never."""
    adam_eps: float = 1e-8
    """Adam's epsilon."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers."""
    compile: Literal["auto"] | bool = "auto"
    """Compile the update: at once, never (then it is ordinary torch), or once the run is long enough to earn it."""

    def __post_init__(self) -> None:
        require_counts(
            self,
            "shards",
            "num_envs",
            "num_steps",
            "capacity",
            "min_size",
            "batch_size",
            "num_gradient_steps",
            "lookahead",
            "tables",
        )
        require_counts(self, "anneal_steps", or_none=True)
        require_fractions(self, "discount", "tau", "alpha", "beta")
        require_bools(self, "prioritised")
        require_positive(self, "samples_per_insert", "learning_rate", "adam_eps", "tau")
        require_positive(self, "max_grad_norm", or_none=True)
        require_not_negative(self, "tolerance")
        require_choice(self, "order", "admission", "arrival")
        require_widths(self, "hidden")
        require_choice(self, "compile", True, False, "auto")

    @property
    def cut(self) -> NStep | Sequences:
        """What makes rows of a replay of steps."""
        return NStep(discount=self.discount, num_steps=self.lookahead)

    @property
    def horizons(self) -> Mapping[str, int]:
        """The learning rate's."""
        return {} if self.anneal_steps is None else {"learning_rate": self.anneal_steps}

    def coefficients(self, num_gradient_steps: int) -> dict[str, float]:
        """What changes from update to update."""
        num_steps = num_gradient_steps * self.batch_size / self.samples_per_insert * self.cut.stride
        left = 1.0 if self.anneal_steps is None else max(0.0, 1.0 - num_steps / self.anneal_steps)
        return {"learning_rate": self.learning_rate * left}

    def priorities(self, errors: Tensor) -> Tensor | None:
        """Those of rows, by the errors ``[num, N]`` of critics; None if the replay has none."""
        return errors.detach().abs().mean(dim=0) if self.prioritised else None

    def learner(self, policy: Policy, loss: Any, **more: Any) -> OffPolicyLearner:
        """The learner of these settings; `more`: fields of `OffPolicyLearner`."""
        return OffPolicyLearner(
            policy=policy, loss=loss, coefficients=self.coefficients, batch_size=self.batch_size, tau=self.tau,
            optimizer=Adam(eps=self.adam_eps, max_grad_norm=self.max_grad_norm), compile=self.compile, **more,
        )  # fmt: skip

    def replayed(
        self,
        task: Task,
        learner: OffPolicyLearner,
        explore: Exploration,
        first_priority: FirstPriority | None = None,
    ) -> Flow:
        """The flow; with priorities, they go back to the replay after each update, and transitions may bring their first ones.

        A shard looks at new weights once per item, so they are published about once in the time of an item, not more often.
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
            num_old=cut.num_old, keeps_rows=first_priority is not None,
        )  # fmt: skip
        # rows that only the end of an episode completes
        pending = -(-cut.num_old // cut.stride) if isinstance(cut, Sequences) else 0
        most, share = self.num_envs * (self.num_steps + pending), -(-self.capacity // self.tables)
        if most > share:
            msg = (
                f"{type(self).__name__}(capacity={self.capacity}, tables={self.tables}): an item of num_envs={self.num_envs} and "
                f"num_steps={self.num_steps} may be {most} entries, and a table holds {share}; raise the capacity"
            )
            raise ConfigError(msg)
        size = self.num_gradient_steps * self.batch_size
        updates_per_item = self.num_envs * self.num_steps / cut.stride * self.samples_per_insert / size

        prioritised = Prioritised(alpha=self.alpha, beta=self.beta, anneal_inserts=self.capacity)
        flow = Flow(type(self).__name__.lower())
        weights = flow.latest("weights", of=learner)
        steps = flow.source("step", sampler, reads=weights, shards=self.shards)
        rows = flow.map("sequences" if isinstance(cut, Sequences) else "n_step", cut, steps)
        replay = flow.replay(
            "replay", of=Transitions, capacity=self.capacity, min_size=self.min_size, tolerance=self.tolerance,
            samples_per_insert=self.samples_per_insert, order=self.order, tables=self.tables,
            sampler=prioritised if self.prioritised else "uniform",
        )  # fmt: skip
        flow.store(rows, to=replay)
        update = flow.learn("learn", learner, flow.sample("sample", replay, size=size, minibatch_size=self.batch_size))
        flow.publish(update.weights, to=weights, every=max(1, int(updates_per_item)))
        if self.prioritised:
            flow.reprioritise(update.priorities, of=replay)
        flow.report(update.stats)
        return flow
