"""Recurrent SAC: soft actor-critic for discrete actions with recurrent networks (Ni et al. 2021, arXiv 2110.05038).

    step x shards -> sequences ==> [replay] -> sample -> learn
        ^                                                  |
        +----------------------- [weights] <---------------+

Actor and critics have separate recurrent layers. The actor's recurrent state is stored with each sequence. The critics never
act, so their state starts at zero at the burn-in. Differences from Ni et al.: networks do not observe the last action and
reward, the replay stores fixed-length sequences instead of whole episodes, and critics learn rescaled values, as in R2D2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from gymnasium import spaces
from torch import Tensor

from levada.algorithms.action_spaces import require_action_space
from levada.algorithms.replayed import ReplayPart
from levada.algorithms.sac import Temperature, max_entropy, soft_value, value_of
from levada.algorithms.sequenced import SequenceReplayAlgorithm
from levada.algorithms.user_classes import NetworkField
from levada.math import signed_hyperbolic, signed_parabolic
from levada.rl.acting.exploration import PolicySampling
from levada.rl.acting.sequences import time_major, unroll
from levada.rl.data.spaces import map_nest
from levada.rl.envs.task import Task
from levada.rl.learning.loss import LossOutput, Networks, apply_importance_weights
from levada.rl.policies.module import ObservationModule
from levada.rl.policies.networks import TensorNest
from levada.rl.policies.policy import Policy
from levada.rl.policies.recurrent import RecurrentNet
from levada.validation import FiniteFloat, NonNegativeInt, PositiveUnitFloat, UnitFloat


@dataclass(frozen=True, kw_only=True)
class RecurrentSAC(SequenceReplayAlgorithm):
    """Configuration of recurrent SAC. `buffer_size`, `learning_starts`, `batch_size`, `samples_per_insert` count sequences."""

    tau: PositiveUnitFloat = 0.02
    """Polyak factor of the target critics, applied at each gradient step."""
    log_alpha_init: FiniteFloat = -2.0
    """Initial log temperature. With larger values, the agent explores more at first."""
    target_entropy_ratio: UnitFloat = 0.3
    """Target entropy as a fraction of its maximum, log(number of allowed actions)."""
    num_random_steps: NonNegativeInt = 1_000
    """Number of env steps with random actions before the policy acts."""
    network: NetworkField = None
    """Custom network of the actor as `module:Class`, called with the observation space and the number of action parameters; a
    subclass of `levada.rl.Recurrent`."""
    MUTUALLY_EXCLUSIVE: ClassVar[tuple[tuple[str, str], ...]] = ()

    def make_network(self, task: Task) -> Callable[..., Any] | None:
        """Factory of the actor's network."""
        return super().make_network(task) or self.memory(policy_gain=0.01)

    def part(self, task: Task, name: str = "policy") -> ReplayPart:
        """Make the learner, the sampler, and the stage from steps to rows of the replay."""
        require_action_space(self, task, spaces.Discrete)
        policy = self.policy(task, name=name)
        networks = {
            "critic": partial(RecurrentCritic, policy, self.memory(policy_gain=1.0)),
            "temperature": partial(Temperature, self.log_alpha_init),
        }
        learner = self.learner(
            policy,
            RecurrentSACLoss(self, policy.head.num_params),
            networks=networks,
            targets=("critic",),
            burn_in=self.burn_in,
        )
        explore, sequences = PolicySampling(num_random_steps=self.num_random_steps), self.sequences
        return ReplayPart(learner, self.sampler(task, policy, explore, sequences), sequences)


class RecurrentCritic(ObservationModule):
    """Two values of each action, from one recurrent network that `make_network` makes."""

    def __init__(self, policy: Policy, make_network: Callable[..., RecurrentNet]) -> None:
        super().__init__(policy)
        self.network: RecurrentNet = make_network(policy.inner_space, 2 * policy.head.num_params)
        self.set_precision(policy.precision)

    def forward(self, obs: TensorNest, state: Tensor | None, is_first: Tensor) -> tuple[Tensor, Tensor]:
        """Values ``[2, T, N, A]`` of observations ``[T, N, ...]``, and the state after them. A state of None is zeros."""
        if state is None:
            state = torch.zeros(is_first.shape[1], self.network.state_size, device=is_first.device)
        params, _, state = self.computed(self.network.unroll, self.split(obs)[0], state, is_first)
        return params.unflatten(-1, (2, -1)).movedim(-2, 0), state


@dataclass(frozen=True)
class RecurrentSACLoss:
    """Losses of `DiscreteSACLoss`, averaged over the steps of sequences (arXiv 1910.07207, equations 4, 5, 10, 11 and 12)."""

    hp: RecurrentSAC
    num_actions: int

    def __call__(self, networks: Networks, batch: Mapping[str, Any], coefficients: Mapping[str, Tensor]) -> LossOutput:
        """Loss of sequences, its statistics, and priorities. Tensors are time-major, and include what follows the steps."""
        hp, steps = self.hp, time_major(batch)
        log_alpha = networks.temperature()
        alpha = log_alpha.detach().exp()
        policy, *_ = unroll(networks.policy, steps, hp.burn_in, steps["state"])
        [values] = unroll(networks.critic, steps, hp.burn_in, None)
        [target_values] = unroll(networks.target.critic, steps, hp.burn_in, None)
        # from rescaled values to returns, and back
        unscaled = signed_parabolic if hp.value_rescaling else _same
        scaled = signed_hyperbolic if hp.value_rescaling else _same
        is_step = steps["is_step"]
        weight = is_step / is_step.sum()

        soft_values = soft_value(policy, unscaled(target_values), alpha).detach()
        next_value = soft_values.gather(
            0, steps["ahead"] + torch.arange(hp.sequence_length, device=steps["ahead"].device)[:, None]
        )
        target = scaled(steps["reward"] + steps["discount"] * next_value)
        chosen = value_of(values[:, : hp.sequence_length], steps["action"])
        errors = (chosen - target).masked_fill(is_step.logical_not(), 0.0)
        critic_loss = apply_importance_weights(0.5 * errors.square() * weight, batch).sum()

        actor_loss = -(soft_value(policy, unscaled(values.detach()), alpha)[: hp.sequence_length] * weight).sum()
        entropy = policy.entropy().detach()[: hp.sequence_length]
        seen = map_nest(lambda leaf: leaf[hp.burn_in : hp.burn_in + hp.sequence_length], steps["obs"])
        target_entropy = hp.target_entropy_ratio * max_entropy(seen, self.num_actions)
        alpha_loss = (log_alpha * ((entropy - target_entropy) * weight).sum()).sum()
        stats = {
            "critic_loss": critic_loss, "actor_loss": actor_loss, "q_values": (chosen[0] * weight).sum(),
            "entropy": (entropy * weight).sum(), "alpha": alpha.sum(),
        }  # fmt: skip
        priorities = hp.sequence_priorities(errors.abs().mean(dim=0), is_step)
        return LossOutput(critic_loss + actor_loss + alpha_loss, stats, priorities)


def _same(values: Tensor) -> Tensor:
    return values
