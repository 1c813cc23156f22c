"""Auxiliary outputs of networks and further columns reach losses by public names, in PPO and in DQN."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

import levada as lv
from levada.algorithms.dqn import DQN, DQNLoss
from levada.algorithms.gae import GAE
from levada.algorithms.ppo import PPO, PPOLoss
from levada.algorithms.r2d2 import R2D2
from levada.rl.acting.step_sampler import NStep, Steps
from levada.rl.compute.functional import Net
from levada.rl.learning.loss import LossOutput
from levada.rl.policies.recurrent import RecurrentNet
from levada.rl.policies.user_networks import ModelError

QUICK: dict[str, Any] = {
    "num_envs": 2, "num_steps": 4, "learning_starts": 20, "batch_size": 8, "num_gradient_steps": 2, "samples_per_insert": 4.0,
}  # fmt: skip
SEEN: list[dict[str, Any]] = []
CALLS: list[int] = []


class TwoHeads(nn.Module):
    """Predicts the reward besides."""

    def __init__(self, space: spaces.Box, num_params: int) -> None:
        super().__init__()
        self.params, self.reward = nn.Linear(space.shape[0], num_params), nn.Linear(space.shape[0], 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        CALLS.append(len(obs))
        params = self.params(obs)
        return params, params[:, 0], {"reward": self.reward(obs)[:, 0]}


class RecurrentHeads(RecurrentNet):
    def __init__(self, space: spaces.Box, num_params: int) -> None:
        super().__init__(space, num_params, rnn_size=8)
        self.model = nn.Linear(8, 4)

    def decode(self, outputs: Tensor) -> tuple[Any, ...]:
        return *super().decode(outputs), {"next_obs": self.model(outputs)}


def added(self: Any, output: LossOutput, networks: Any, batch: Any) -> LossOutput:
    outputs = networks.policy(batch["obs"])[2]
    loss = (outputs["reward"] - batch["reward"]).square().mean()
    SEEN.append({name: column for name, column in batch.items() if isinstance(column, Tensor)})
    return output._replace(loss=output.loss + loss, stats={**output.stats, "reward_loss": loss})


class RewardPPOLoss(PPOLoss):
    def __call__(self, networks: Any, batch: Any, coefficients: Any) -> LossOutput:
        return added(self, super().__call__(networks, batch, coefficients), networks, batch)


class RewardDQNLoss(DQNLoss):
    def __call__(self, networks: Any, batch: Any, coefficients: Any) -> LossOutput:
        return added(self, super().__call__(networks, batch, coefficients), networks, batch)


@dataclass(frozen=True, kw_only=True)
class Staged:
    """A stage of the user's: advantages, and a column of its own."""

    gae: GAE

    def __call__(self, rollout: Any) -> Any:
        made = self.gae(rollout)
        angle = rollout.obs[:-1, :, 2].reshape(-1)
        return replace(made, columns={**made.columns, "angle": angle})


@dataclass(frozen=True, kw_only=True)
class RewardPPO(PPO):
    network: Any = TwoHeads

    def prepare(self) -> Staged:
        return Staged(gae=GAE(discount=self.discount, lambda_=self.gae_lambda, columns=("reward", "next_obs")))

    def make_loss(self) -> RewardPPOLoss:
        return RewardPPOLoss(self)


@dataclass(frozen=True, kw_only=True)
class NStepWithAge(NStep):
    """n-step transitions with a column of the user's."""

    def __call__(self, steps: Steps) -> Any:
        made = super().__call__(steps)
        return replace(made, columns={**made.columns, "position": np.asarray(made.columns["obs"])[:, 0].copy()})


@dataclass(frozen=True, kw_only=True)
class RewardDQN(DQN):
    network: Any = TwoHeads

    @property
    def n_step_returns(self) -> NStepWithAge:
        return NStepWithAge(discount=self.discount, num_steps=self.n_step)

    def make_loss(self) -> RewardDQNLoss:
        return RewardDQNLoss(self)


def run(hp: Any, updates: int = 3) -> Any:
    SEEN.clear()
    CALLS.clear()
    with lv.Inline().open(hp.flow(lv.Task("CartPole-v1")), seed=1) as opened:
        learner = opened.node_state("learn")
        before = dict(learner.weights())
        for report in opened:
            if report.firing == updates:
                return before, dict(learner.weights()), report.values
    raise AssertionError


def test_ppo_learns_a_reward_from_columns_that_it_does_not_use() -> None:
    before, after, values = run(RewardPPO(num_envs=2, num_steps=8, minibatch_size=8, num_epochs=1, compile=False))
    assert values["losses/reward_loss"] > 0
    assert not np.array_equal(before["network.reward.weight"], after["network.reward.weight"])
    batch = SEEN[-1]
    assert (batch["reward"] == 1).all() and batch["next_obs"].shape == batch["obs"].shape
    assert torch.equal(batch["angle"], batch["obs"][:, 2])
    # the velocity moves the cart, but where an episode ended
    moved = batch["obs"][:, 0] + 0.02 * batch["obs"][:, 1]
    assert ((batch["next_obs"][:, 0] - moved).abs() < 1e-5).float().mean() > 0.7


def test_dqn_reaches_columns_and_outputs_too() -> None:
    before, after, values = run(RewardDQN(**QUICK, compile=False))
    assert values["losses/reward_loss"] >= 0
    assert not np.array_equal(before["network.reward.weight"], after["network.reward.weight"])
    assert torch.equal(SEEN[-1]["position"], SEEN[-1]["obs"][:, 0])


@pytest.mark.parametrize("compile_", [False, "auto"])
def test_a_loss_on_top_of_another_costs_no_further_pass(compile_: Any) -> None:
    hp = RewardPPO(num_envs=2, num_steps=8, minibatch_size=16, num_epochs=1, compile=compile_)
    learner = hp.flow(lv.Task("CartPole-v1")).learners()["learn"].open(1)
    columns = {
        "obs": np.zeros((16, 4), np.float32), "action": np.zeros(16, np.int64), "log_prob": np.zeros(16, np.float32),
        "value": np.zeros(16, np.float32), "mask": np.ones(16, bool), "advantage": np.ones(16, np.float32),
        "target": np.ones(16, np.float32), "reward": np.ones(16, np.float32),
    }  # fmt: skip
    CALLS.clear()
    learner.update([lv.Transitions(columns)])
    assert CALLS == [16]


def test_the_same_tensors_are_computed_once_and_others_again() -> None:
    layer, calls = nn.Linear(2, 1), []
    layer.register_forward_hook(lambda *_: calls.append(1))
    net = Net(layer, dict(layer.named_parameters()))
    x = torch.zeros(3, 2)
    assert net(x) is net(x)
    net(x.clone())
    net.frozen(x)
    assert len(calls) == 3


def test_recurrent_networks_have_auxiliary_outputs_too() -> None:
    fields = QUICK | {"learning_starts": 6, "sequence_length": 4, "burn_in": 2, "batch_size": 4}
    for hp in (
        R2D2(**fields, network=RecurrentHeads),
        PPO(num_envs=2, num_steps=8, minibatch_size=16, network=RecurrentHeads),
    ):
        module = hp.flow(lv.Task("CartPole-v1")).learners()["learn"].policy.module(1)
        _, value, outputs, state = module(torch.zeros(5, 3, 4), torch.zeros(3, 16), torch.zeros(5, 3, dtype=torch.bool))
        assert value.shape == (5, 3) and outputs["next_obs"].shape == (5, 3, 4) and state.shape == (3, 16)
        run(hp)


class Flat(TwoHeads):
    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        params, value, _ = super().forward(obs)
        return params, value, {"reward": value.sum()}


def test_an_output_without_rows_is_refused() -> None:
    with pytest.raises(
        ModelError, match=r"gives a tensor \[\] as auxiliary output 'reward', expected a tensor \[2, ...\]"
    ):
        PPO(network=Flat).flow(lv.Task("CartPole-v1")).check()


@dataclass(frozen=True, kw_only=True)
class RecurrentColumns(PPO):
    def prepare(self) -> GAE:
        return GAE(discount=self.discount, lambda_=self.gae_lambda, columns=("next_obs",))

    def make_loss(self) -> Any:
        return SeenLoss(self)


class SeenLoss(PPOLoss):
    def __call__(self, networks: Any, batch: Any, coefficients: Any) -> LossOutput:
        SEEN.append(batch)
        return super().__call__(networks, batch, coefficients)


def test_a_recurrent_policy_has_columns_by_sequence() -> None:
    run(
        RecurrentColumns(
            num_envs=2, num_steps=8, minibatch_size=8, num_epochs=1, rnn_type="gru", rnn_size=8, compile=False
        )
    )
    batch = SEEN[0]
    assert batch["next_obs"].shape == batch["obs"].shape == (1, 8, 4)
    goes_on = ~(batch["terminated"] | batch["truncated"])[:, :-1]
    assert torch.equal(batch["next_obs"][:, :-1][goes_on], batch["obs"][:, 1:][goes_on])
