"""Recurrent SAC: soft actor-critic for choices, with a memory (Ni et al. 2021, arXiv 2110.05038).

    step x shards -> sequences ==> [replay] -> sample -> learn
        ^                                                  |
        +----------------------- [weights] <---------------+

Actor and critics have memories of their own. The actor's state is stored with each sequence; that of the critics, who never act,
begins with zeros at the burn-in. What differs from Ni et al.: networks do not see the last action and reward, sequences are cut,
not whole episodes, and critics learn rescaled values, as in R2D2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from levada.algorithms.checks import require_counts, require_fractions, require_numbers
from levada.algorithms.sac import Temperature, most_entropy, soft_value, value_of
from levada.algorithms.sequenced import Sequenced
from levada.algorithms.suited import require_actions
from levada.flow import Flow
from levada.math import signed_hyperbolic, signed_parabolic
from levada.rl.explore import OwnNoise
from levada.rl.models import TensorNest
from levada.rl.net import Net
from levada.rl.off_policy import Outcome, weighed
from levada.rl.policy import Policy
from levada.rl.recurrent import RecurrentNet
from levada.rl.sequences import time_major, unroll
from levada.rl.spaces import OBS, has_action_mask, map_nest
from levada.rl.task import Task


@dataclass(frozen=True, kw_only=True)
class RecurrentSAC(Sequenced):
    """Configuration of recurrent SAC. `capacity`, `min_size`, `batch_size` and `samples_per_insert` count sequences."""

    tau: float = 0.02
    """By how much the targets of the critics change in each gradient step."""
    log_alpha_init: float = -2.0
    """Logarithm of the temperature in the beginning. Higher explores more at first."""
    entropy_share: float = 0.3
    """Entropy that the temperature aims at, as a share of that of random choices. Higher explores more in the long run."""
    num_random_steps: int = 1_000
    """Env steps in which actions are random, before the policy is asked."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_numbers(self, "log_alpha_init")
        require_counts(self, "num_random_steps", least=0)
        require_fractions(self, "entropy_share")

    def flow(self, task: Task) -> Flow:
        """Step, cut, store; sample, learn, publish."""
        require_actions(self, task, spaces.Discrete)
        policy = Policy(
            observation_space=task.observation_space, action_space=task.action_space, network=self.memory(policy_gain=0.01)
        )  # fmt: skip
        more = {
            "critic": partial(RecurrentCritic, self, policy.observation_space, policy.head.num_params),
            "temperature": partial(Temperature, self.log_alpha_init),
        }
        learner = self.learner(policy, RecurrentSACLoss(self, policy.head.num_params), more=more, targets=("critic",))
        return self.replayed(task, learner, OwnNoise(num_random_steps=self.num_random_steps))


class RecurrentCritic(nn.Module):
    """Two values of each choice, by one memory."""

    def __init__(self, hp: RecurrentSAC, observation_space: Space[Any], num_actions: int) -> None:
        super().__init__()
        self._has_mask = has_action_mask(observation_space)
        space = cast("spaces.Dict", observation_space)[OBS] if self._has_mask else observation_space
        self.network: RecurrentNet = hp.memory(policy_gain=1.0)(space, 2 * num_actions)

    def forward(self, obs: TensorNest, state: Tensor | None, is_first: Tensor) -> tuple[Tensor, Tensor]:
        """Values ``[2, T, N, A]`` of observations ``[T, N, ...]``, and the state after them; None: it begins with zeros."""
        seen = cast("dict[str, TensorNest]", obs)[OBS] if self._has_mask else obs
        if state is None:
            state = torch.zeros(is_first.shape[1], self.network.state_size)
        params, _, state = self.network.unroll(seen, state, is_first)
        return params.unflatten(-1, (2, -1)).movedim(-2, 0), state


@dataclass(frozen=True)
class RecurrentSACLoss:
    """The losses of `ChoiceSACLoss`, for each step of a sequence."""

    hp: RecurrentSAC
    num_actions: int

    def __call__(
        self,
        nets: Mapping[str, Net],
        targets: Mapping[str, Net],
        batch: Mapping[str, Any],
        coefficients: Mapping[str, Tensor],
    ) -> Outcome:
        """ArXiv 1910.07207, equations 4, 5, 10, 11 and 12; time-major, and with what follows the steps behind them."""
        hp, steps = self.hp, time_major(batch)
        log_alpha = nets["temperature"]()
        alpha = log_alpha.detach().exp()
        policy, _ = unroll(nets["policy"], steps, hp.burn_in, steps["state"])
        [values] = unroll(nets["critic"], steps, hp.burn_in, None)
        [slow] = unroll(targets["critic"], steps, hp.burn_in, None)
        seen_as = signed_parabolic if hp.rescale else _same  # what the critics' numbers are worth
        told_as = signed_hyperbolic if hp.rescale else _same
        is_step = steps["is_step"]
        weight = is_step / is_step.sum()

        soft = soft_value(policy, seen_as(slow), alpha).detach()
        after = soft.gather(0, steps["ahead"] + torch.arange(hp.length)[:, None])
        target = told_as(steps["reward"] + steps["discount"] * after)
        chosen = value_of(values[:, : hp.length], steps["action"])
        errors = (chosen - target).masked_fill(is_step.logical_not(), 0.0)
        critic_loss = weighed(0.5 * errors.square() * weight, batch).sum()

        actor_loss = -(soft_value(policy, seen_as(values.detach()), alpha)[: hp.length] * weight).sum()
        entropy = policy.entropy().detach()[: hp.length]
        seen = map_nest(lambda leaf: leaf[hp.burn_in : hp.burn_in + hp.length], steps["obs"])
        goal = hp.entropy_share * most_entropy(seen, self.num_actions)
        alpha_loss = (log_alpha * ((entropy - goal) * weight).sum()).sum()
        stats = {
            "critic_loss": critic_loss, "actor_loss": actor_loss, "q_values": (chosen[0] * weight).sum(),
            "entropy": (entropy * weight).sum(), "alpha": alpha.sum(),
        }  # fmt: skip
        priorities = hp.sequence_priorities(errors.abs().mean(dim=0), is_step)
        return Outcome(critic_loss + actor_loss + alpha_loss, stats, priorities)


def _same(values: Tensor) -> Tensor:
    return values
