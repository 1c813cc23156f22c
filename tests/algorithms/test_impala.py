"""IMPALA and APPO: their losses against numbers that come from elsewhere, what lag does to them, and that they learn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

import levada as lv
from levada.algorithms.appo import APPO, APPOLoss
from levada.algorithms.checks import ConfigError
from levada.algorithms.impala import IMPALA, VTraceLoss
from levada.flow import Flow, Queue, Shard
from levada.rl.acting.actor import Actor
from levada.rl.compute.functional import Net
from levada.rl.learning.loss import LossOutput, Networks
from levada.rl.replay.transitions import Transitions

NUM_STEPS, NUM_ROWS, NUM_ACTIONS = 6, 3, 4


class Table(torch.nn.Module):
    """A policy over a few states, in float64: logits and values are its parameters."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.logits = torch.nn.Parameter(torch.randn(5, NUM_ACTIONS, generator=generator, dtype=torch.float64))
        self.values = torch.nn.Parameter(torch.randn(5, generator=generator, dtype=torch.float64))

    def forward(self, obs: Tensor) -> tuple[Any, Tensor]:
        return lv.math.Categorical(self.logits[obs]), self.values[obs]


def batch_of(seed: int) -> dict[str, Tensor]:
    """Rollouts of any policy, with ends in the middle."""
    rng = np.random.default_rng(seed)
    shape = (NUM_ROWS, NUM_STEPS)
    terminated = rng.random(shape) < 0.2
    mask = (rng.random(shape) < 0.8).astype(np.float64)
    columns: dict[str, Any] = {
        "obs": rng.integers(0, 5, shape),
        "last_obs": rng.integers(0, 5, NUM_ROWS),
        "action": rng.integers(0, NUM_ACTIONS, shape),
        "reward": rng.standard_normal(shape),
        "terminated": terminated,
        "truncated": ~terminated & (rng.random(shape) < 0.2),
        "log_prob": np.log(rng.uniform(0.05, 0.6, shape)),
        "next_value": rng.standard_normal(shape),
        "weight": mask / mask.sum(),
    }
    return {name: torch.from_numpy(column) for name, column in columns.items()}


def log_softmax(logits: Any) -> Any:
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def seen(batch: Mapping[str, Tensor]) -> Any:
    """All observations, the last ones too."""
    return np.concatenate([batch["obs"].numpy(), batch["last_obs"].numpy()[:, None]], axis=1)


def backward_sum(
    values: Any, v_tm1: Any, log_rho: Any, batch: Mapping[str, Any], hp: IMPALA, row: int
) -> tuple[Any, Any]:
    """Targets and weights of the policy gradient of one row, step by step from the end (arXiv 1802.01561, remark 1)."""
    vs, advantage = np.empty(NUM_STEPS), np.empty(NUM_STEPS)
    correction = 0.0
    for t in reversed(range(NUM_STEPS)):
        rho, c = min(hp.clip_rho, np.exp(log_rho[t])), min(hp.clip_c, np.exp(log_rho[t]))
        if batch["terminated"][row, t]:
            ahead, vs_ahead, correction = 0.0, 0.0, 0.0
        elif batch["truncated"][row, t]:
            ahead = vs_ahead = float(batch["next_value"][row, t])
            correction = 0.0
        else:
            ahead = values[t + 1]
            vs_ahead = vs[t + 1] if t + 1 < NUM_STEPS else ahead
        reward = float(batch["reward"][row, t])
        correction = rho * (reward + hp.discount * ahead - v_tm1[t]) + hp.discount * c * correction
        vs[t] = v_tm1[t] + correction
        advantage[t] = rho * (reward + hp.discount * vs_ahead - v_tm1[t])
    return vs, advantage


def expected(hp: IMPALA, now: Table, slow: Table | None, batch: Mapping[str, Tensor]) -> dict[str, float]:
    """What the losses are to be, in numpy, from the papers' formulas."""
    log_pi = log_softmax(now.logits.detach().numpy())
    all_values = now.values.detach().numpy()
    log_target = log_pi if slow is None else log_softmax(slow.logits.detach().numpy())
    policy_loss = value_loss = entropy = 0.0
    weights, advantages, ratios, takens = batch["weight"].numpy(), [], [], []
    for row in range(NUM_ROWS):
        obs, action = seen(batch)[row], batch["action"][row].numpy()
        log_mu, weight = batch["log_prob"][row].numpy(), weights[row]
        taken, target = log_pi[obs[:-1], action], log_target[obs[:-1], action]
        values = all_values[obs]
        vs, advantage = backward_sum(values, values[:-1], target - log_mu, batch, hp, row)
        value_loss += 0.5 * (weight * (vs - values[:-1]) ** 2).sum()
        entropy += (weight * -(np.exp(log_pi) * log_pi).sum(-1)[obs[:-1]]).sum()
        advantages.append(advantage)
        takens.append(taken)
        ratios.append(np.minimum(np.exp(log_mu - target), getattr(hp, "clip_importance", 1.0)) * np.exp(taken - log_mu))
    advantage, ratio = np.array(advantages), np.array(ratios)
    if hp.normalize_advantage:
        mean = (weights * advantage).sum()
        advantage = (advantage - mean) / np.sqrt((weights * (advantage - mean) ** 2).sum())
    if isinstance(hp, APPO):
        clipped = np.clip(ratio, 1 - hp.clip_range, 1 + hp.clip_range)
        policy_loss -= (weights * np.minimum(ratio * advantage, clipped * advantage)).sum()
    else:
        policy_loss -= (weights * advantage * np.array(takens)).sum()
    return {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("kind", [IMPALA, APPO])
def test_the_losses_are_those_of_the_papers(kind: type[IMPALA], normalize: bool, seed: int) -> None:
    hp = kind(discount=0.9, clip_rho=1.5, clip_c=0.8, entropy_coef=0.01, value_coef=0.3, normalize_advantage=normalize)
    now, slow, batch = Table(seed), Table(seed + 100), batch_of(seed)
    networks = Networks(
        {"policy": Net(now, dict(now.named_parameters()))}, {"policy": Net(slow, dict(slow.named_parameters()))}
    )
    loss, stats, _ = (APPOLoss(hp) if isinstance(hp, APPO) else VTraceLoss(hp))(networks, batch, {})
    found = expected(hp, now, slow if isinstance(hp, APPO) else None, batch)
    for name, value in found.items():
        assert stats[name].item() == pytest.approx(value, rel=1e-7), name
    whole = found["policy_loss"] + 0.3 * found["value_loss"] - 0.01 * found["entropy"]
    assert loss.item() == pytest.approx(whole, rel=1e-7)


def test_the_gradient_of_the_policy_loss_is_that_of_finite_differences() -> None:
    """Importance ratios, targets and advantages are constants of it."""
    hp = IMPALA(discount=0.9, value_coef=0.0)
    now, batch = Table(1), batch_of(1)
    loss, *_ = VTraceLoss(hp)(Networks({"policy": Net(now, dict(now.named_parameters()))}), batch, {})
    [found] = torch.autograd.grad(loss, [now.logits])
    log_pi, values = log_softmax(now.logits.detach().numpy()), now.values.detach().numpy()
    advantages = []
    for row in range(NUM_ROWS):
        obs, action = seen(batch)[row], batch["action"][row].numpy()
        log_rho = log_pi[obs[:-1], action] - batch["log_prob"][row].numpy()
        advantages.append(backward_sum(values[obs], values[obs[:-1]], log_rho, batch, hp, row)[1])

    def policy_loss(logits: Any) -> float:
        taken = log_softmax(logits)[batch["obs"].numpy(), batch["action"].numpy()]
        return -float((batch["weight"].numpy() * np.array(advantages) * taken).sum())

    logits, step = now.logits.detach().numpy(), 1e-6
    for place in np.ndindex(logits.shape):
        change = np.zeros_like(logits)
        change[place] = step
        slope = (policy_loss(logits + change) - policy_loss(logits - change)) / (2 * step)
        assert found[place].item() == pytest.approx(slope, abs=1e-8)


# ---- minibatches of APPO


@pytest.mark.parametrize("rnn_type", [None, "lstm"])
def test_a_minibatch_of_appo_is_of_whole_rollouts(rnn_type: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = list[tuple[int, ...]]()
    loss_of = APPOLoss.__call__

    def noted(loss: APPOLoss, networks: Networks, batch: Mapping[str, Any], coefficients: Any) -> LossOutput:
        sizes.append(tuple(batch["reward"].shape))
        return loss_of(loss, networks, batch, coefficients)

    monkeypatch.setattr(APPOLoss, "__call__", noted)
    hp = APPO(num_envs=4, num_steps=8, minibatch_size=16, num_epochs=3, rnn_type=rnn_type, rnn_size=8, compile=False)
    with lv.Inline().open(hp.flow(lv.Task("CartPole-v1")), seed=1) as run:
        next(iter(run))
        assert run.node_state("learn").num_minibatches == 3 * 2
    assert sizes == [(2, 8)] * 6


def test_minibatches_of_appo_divide_the_batch() -> None:
    with pytest.raises(ConfigError, match=r"APPO\(minibatch_size=12\): .* must be a multiple of num_steps=8"):
        APPO(num_envs=4, num_steps=8, minibatch_size=12)
    with pytest.raises(
        ConfigError, match=r"APPO\(minibatch_size=24\) does not divide num_rollouts \* num_envs \* num_steps"
    ):
        APPO(num_envs=4, num_steps=8, minibatch_size=24)
    with pytest.raises(ConfigError, match=r"APPO\(microbatch_size=32\) does not divide the minibatch = 16"):
        APPO(num_envs=4, num_steps=8, minibatch_size=16, microbatch_size=32)


# ---- staleness: one state, all of whose actions are seen, each as often as the policy that acted took it

REWARDS = np.array([1.0, 0.6, 0.0, -0.5], np.float32)
TEMPERATURE = 0.4
LAG = 100


@dataclass(frozen=True)
class EachAction:
    """A source of all actions at once: the mask says how often each is taken."""

    policy: lv.Policy

    def __call__(self, shard: Shard) -> Any:
        actor = Actor(self.policy)

        def act(weights: Any) -> Transitions:
            actor.load(weights)
            obs, action = np.zeros((len(REWARDS), 1), np.float32), np.arange(len(REWARDS))
            log_mu = actor.evaluate(obs, action)
            column = (len(REWARDS), 1)
            return Transitions({
                "obs": obs[:, None], "last_obs": obs, "action": action.reshape(column),
                "reward": REWARDS.reshape(column), "terminated": np.ones(column, np.bool_),
                "truncated": np.zeros(column, np.bool_), "next_value": np.zeros(column, np.float32),
                "log_prob": log_mu.reshape(column), "mask": np.exp(log_mu).reshape(column),
            })  # fmt: skip

        return act


@dataclass(frozen=True)
class Uncorrected(VTraceLoss):
    """As if the present policy had acted."""

    def __call__(self, networks: Networks, batch: Mapping[str, Any], coefficients: Mapping[str, Tensor]) -> LossOutput:
        distribution, _ = networks.policy(batch["obs"][:, 0])
        present = distribution.log_prob(batch["action"][:, 0])[:, None].detach()
        return super().__call__(networks, {**batch, "log_prob": present}, coefficients)


def policy_after(loss: type[VTraceLoss], max_lag: int, num_updates: int) -> Any:
    hp = IMPALA(learning_rate=0.01, entropy_coef=TEMPERATURE, clip_rho=1e6, clip_c=1e6, max_grad_norm=None)
    policy = lv.Policy(observation_space=spaces.Box(-1.0, 1.0, (1,)), action_space=spaces.Discrete(len(REWARDS)))
    learner = hp.learner(policy, loss(hp), tolerates_staleness=True)
    flow = Flow("stale")
    weights = flow.latest("weights", of=learner)
    items = flow.source("act", EachAction(policy), reads=weights)
    update = flow.learn("learn", learner, flow.batch("batch", items.via(Queue(max_lag=max_lag)), size=1))
    flow.publish(update.weights, to=weights)
    flow.report(update.stats)
    with lv.Inline().open(flow, seed=1) as run:
        for report in run:
            if report.firing == num_updates:
                assert run.statistics().channels["act->batch"].lag["policy"].max == max_lag
                break
        actor = Actor(policy)
        actor.load(run.node_state("learn").weights())
        action = np.arange(len(REWARDS))
        return np.exp(actor.evaluate(np.zeros((len(REWARDS), 1), np.float32), action))


def test_v_trace_corrects_what_staleness_does() -> None:
    target = np.exp(REWARDS / TEMPERATURE) / np.exp(REWARDS / TEMPERATURE).sum()

    def distance(loss: type[VTraceLoss], max_lag: int) -> float:
        """When the policy has long stopped changing."""
        return float(0.5 * np.abs(policy_after(loss, max_lag, 300 + 5 * max_lag) - target).sum())

    assert distance(Uncorrected, 0) < 0.02  # without lag there is nothing to correct
    assert distance(VTraceLoss, LAG) < 0.02
    assert distance(Uncorrected, LAG) > 0.3
