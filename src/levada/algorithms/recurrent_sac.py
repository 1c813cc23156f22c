"""Recurrent SAC: soft actor-critic for discrete actions with recurrent networks (Ni et al. 2021, arXiv 2110.05038).

    step x shards -> sequences ==> [replay] -> sample -> learn
        ^                                                  |
        +----------------------- [weights] <---------------+

Actor and critics have separate recurrent layers. The actor's recurrent state is stored with each sequence. The critics never
act, so their state starts at zero at the burn-in. Differences from Ni et al.: networks do not observe the last action and
reward, the replay stores fixed-length sequences instead of whole episodes, and critics learn rescaled values, as in R2D2.
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
from levada.algorithms.sac import Temperature, max_entropy, soft_value, value_of
from levada.algorithms.sequenced import Sequenced
from levada.algorithms.suited import require_actions
from levada.flow import Flow
from levada.math import signed_hyperbolic, signed_parabolic
from levada.rl.acting.exploration import PolicySampling
from levada.rl.acting.sequences import time_major, unroll
from levada.rl.data.spaces import OBS, has_action_mask, map_nest
from levada.rl.envs.task import Task
from levada.rl.learning.loss import LossOutput, Networks, apply_importance_weights
from levada.rl.policies.networks import TensorNest
from levada.rl.policies.recurrent import RecurrentNet


@dataclass(frozen=True, kw_only=True)
class RecurrentSAC(Sequenced):
    """Configuration of recurrent SAC. `buffer_size`, `learning_starts`, `batch_size`, `samples_per_insert` count sequences."""

    tau: float = 0.02
    """Polyak factor of the target critics, applied at each gradient step."""
    log_alpha_init: float = -2.0
    """Initial log temperature. Larger values explore more at first."""
    target_entropy_ratio: float = 0.3
    """Target entropy as a fraction of its maximum, log(number of allowed actions)."""
    num_random_steps: int = 1_000
    """Number of env steps with random actions before the policy acts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_numbers(self, "log_alpha_init")
        require_counts(self, "num_random_steps", least=0)
        require_fractions(self, "target_entropy_ratio")

    def flow(self, task: Task) -> Flow:
        """Step, slice into sequences, store; sample, learn, publish."""
        require_actions(self, task, spaces.Discrete)
        policy = self.policy(task, network=self.memory(policy_gain=0.01))
        networks = {
            "critic": partial(RecurrentCritic, self, policy.observation_space, policy.head.num_params),
            "temperature": partial(Temperature, self.log_alpha_init),
        }
        learner = self.learner(
            policy, RecurrentSACLoss(self, policy.head.num_params), networks=networks, targets=("critic",)
        )
        return self.replayed(task, learner, PolicySampling(num_random_steps=self.num_random_steps))


class RecurrentCritic(nn.Module):
    """Two values of each action, from one recurrent network."""

    def __init__(self, hp: RecurrentSAC, observation_space: Space[Any], num_actions: int) -> None:
        super().__init__()
        self._has_mask = has_action_mask(observation_space)
        space = cast("spaces.Dict", observation_space)[OBS] if self._has_mask else observation_space
        self.network: RecurrentNet = hp.memory(policy_gain=1.0)(space, 2 * num_actions)

    def forward(self, obs: TensorNest, state: Tensor | None, is_first: Tensor) -> tuple[Tensor, Tensor]:
        """Values ``[2, T, N, A]`` of observations ``[T, N, ...]``, and the state after them. A state of None is zeros."""
        seen = cast("dict[str, TensorNest]", obs)[OBS] if self._has_mask else obs
        if state is None:
            state = torch.zeros(is_first.shape[1], self.network.state_size, device=is_first.device)
        params, _, state = self.network.unroll(seen, state, is_first)
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
        policy, _ = unroll(networks.policy, steps, hp.burn_in, steps["state"])
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
