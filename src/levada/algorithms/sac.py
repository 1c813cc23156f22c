"""SAC: soft actor-critic (Haarnoja et al. 2018, arXiv 1801.01290 and 1812.05905), with two critics and its own temperature.

    step x shards -> n_step ==> [replay] -> sample -> learn
        ^                                               |
        +---------------------- [weights] <-------------+

Actor, critics and temperature learn in one gradient step: each from its own loss, in which the others are frozen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

import torch
from gymnasium import spaces
from torch import Tensor, nn

from levada.algorithms.algorithm import Algorithm
from levada.algorithms.checks import (
    require_choice,
    require_counts,
    require_fractions,
    require_not_negative,
    require_numbers,
    require_positive,
    require_widths,
)
from levada.flow import Flow
from levada.rl.critic import Critic
from levada.rl.explore import OwnNoise
from levada.rl.models import value_network
from levada.rl.off_policy import Net, OffPolicyLearner, Outcome
from levada.rl.optimise import Adam
from levada.rl.policy import Policy
from levada.rl.step_sampler import NStep, StepSampler
from levada.rl.task import Task
from levada.rl.transitions import Transitions


@dataclass(frozen=True, kw_only=True)
class SAC(Algorithm):
    """Configuration of SAC."""

    shards: int = 1
    """Logical samplers, each with its own environments. More can use more cores."""
    num_envs: int = 1
    """Environments of one shard, stepped together."""
    num_steps: int = 8
    """Steps between two looks at newer weights. More are quicker; the actions are those of older weights."""
    capacity: int = 1_000_000
    """Transitions that are kept; the oldest go."""
    min_size: int = 1_000
    """Transitions that are stored before the first is learned from; until then actions are random."""
    samples_per_insert: float = 256.0
    """How often a transition is sampled on average; `batch_size` is one gradient step for each env step."""
    tolerance: float = 0.0
    """By how many samples that may be off before one side waits. 0: the result does not depend on timing."""
    batch_size: int = 256
    """Transitions of one gradient step."""
    num_gradient_steps: int = 8
    """Gradient steps of one update, on one draw. More are quicker; weights are renewed less often."""
    learning_rate: float = 1e-3
    """Size of a step of Adam."""
    discount: float = 0.99
    """What a reward loses each step. Nearer to 1 looks further ahead."""
    lookahead: int = 1
    """Steps whose rewards a target adds up before it trusts the critics."""
    tau: float = 0.005
    """By how much the target critics follow in each gradient step."""
    log_alpha_init: float = 0.0
    """Logarithm of the temperature in the beginning. Higher explores more at first."""
    entropy_per_action: float = -1.0
    """Entropy that the temperature aims at, for each number of an action. Higher explores more in the long run."""
    max_grad_norm: float | None = None
    """Gradients are scaled down to this norm; None: never."""
    adam_eps: float = 1e-8
    """Adam's epsilon."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of actor and critics."""
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
        )
        require_fractions(self, "discount", "tau")
        require_positive(self, "samples_per_insert", "learning_rate", "adam_eps", "tau")
        require_positive(self, "max_grad_norm", or_none=True)
        require_not_negative(self, "tolerance")
        require_numbers(self, "log_alpha_init", "entropy_per_action")
        require_widths(self, "hidden")
        require_choice(self, "compile", True, False, "auto")

    def coefficients(self, num_gradient_steps: int) -> dict[str, float]:
        """What changes from update to update."""
        return {"learning_rate": self.learning_rate}

    def flow(self, task: Task) -> Flow:
        """Step, look ahead, store; sample, learn, publish."""
        policy = Policy(
            observation_space=task.observation_space, action_space=task.action_space, squash=True, state_std=True,
            network=partial(value_network, hidden=self.hidden),
        )  # fmt: skip
        num_actions = math.prod(cast("spaces.Box", policy.action_space).shape)
        learner = OffPolicyLearner(
            policy=policy, loss=SACLoss(self, num_actions), coefficients=self.coefficients, batch_size=self.batch_size,
            more={
                "critic": partial(Critic, policy.observation_space, policy.action_space, hidden=self.hidden),
                "temperature": partial(Temperature, self.log_alpha_init),
            },
            targets=("critic",), tau=self.tau, noise={"noise": (num_actions,), "next_noise": (num_actions,)},
            optimizer=Adam(eps=self.adam_eps, max_grad_norm=self.max_grad_norm), compile=self.compile,
        )  # fmt: skip
        sampler = StepSampler(
            task=task, policy=policy, explore=OwnNoise(num_random_steps=self.min_size), num_envs=self.num_envs,
            num_steps=self.num_steps, num_old=self.lookahead - 1,
        )  # fmt: skip
        size = self.num_gradient_steps * self.batch_size
        updates_per_item = self.num_envs * self.num_steps * self.samples_per_insert / size

        flow = Flow("sac")
        weights = flow.latest("weights", of=learner)
        steps = flow.source("step", sampler, reads=weights, shards=self.shards)
        transitions = flow.map("n_step", NStep(discount=self.discount, num_steps=self.lookahead), steps)
        replay = flow.replay(
            "replay", of=Transitions, capacity=self.capacity, min_size=self.min_size, tolerance=self.tolerance,
            samples_per_insert=self.samples_per_insert,
        )  # fmt: skip
        flow.store(transitions, to=replay)
        update = flow.learn("learn", learner, flow.sample("sample", replay, size=size))
        flow.publish(update.weights, to=weights, every=max(1, int(updates_per_item)))
        flow.report(update.stats)
        return flow


class Temperature(nn.Module):
    """The weight of the entropy, by its logarithm."""

    def __init__(self, log_alpha: float) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor([log_alpha]))

    def forward(self) -> Tensor:
        """Its logarithm, ``[1]``."""
        return self.log_alpha


@dataclass(frozen=True)
class SACLoss:
    """Soft Bellman errors, the soft value of the actor's actions, and the gap to the entropy that is aimed at."""

    hp: SAC
    num_actions: int

    def __call__(
        self,
        nets: Mapping[str, Net],
        targets: Mapping[str, Net],
        batch: Mapping[str, Any],
        coefficients: Mapping[str, Tensor],
    ) -> Outcome:
        """ArXiv 1812.05905, equations 5, 7, 9 and 18."""
        log_alpha = nets["temperature"]()
        alpha = log_alpha.detach().exp()
        after, log_prob_after = _act(nets["policy"].frozen, batch["next_obs"], batch["next_noise"])
        soft = targets["critic"](batch["next_obs"], after).amin(dim=0) - alpha * log_prob_after
        target = (batch["reward"] + batch["discount"] * soft).detach()
        values = nets["critic"](batch["obs"], batch["action"])
        critic_loss = 0.5 * (values - target).square().mean(dim=1).sum()

        action, log_prob = _act(nets["policy"], batch["obs"], batch["noise"])
        actor_loss = (alpha * log_prob - nets["critic"].frozen(batch["obs"], action).amin(dim=0)).mean()
        goal = self.hp.entropy_per_action * self.num_actions
        alpha_loss = -(log_alpha * (log_prob.detach() + goal).mean()).sum()
        stats = {
            "critic_loss": critic_loss, "actor_loss": actor_loss, "q_values": values.mean(), "entropy": -log_prob.mean(),
            "alpha": alpha.sum(),
        }  # fmt: skip
        return Outcome(critic_loss + actor_loss + alpha_loss, stats)


def _act(policy: Net, obs: Any, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions ``[N, A]`` that the noise makes, with gradient, and their log-densities ``[N]``."""
    distribution, _ = policy(obs)
    x = distribution.base.mean + distribution.base.log_std.exp() * noise
    return distribution.squash(x), distribution.log_prob_pre_tanh(x)
