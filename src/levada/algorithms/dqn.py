"""DQN: deep Q-networks (Mnih et al. 2015, Nature 518), with the parts that Rainbow put together, each an option.

Steps are taken with the newest weights and some exploration, turned into transitions where they were taken, and stored. What
is learned from is sampled, so often that each transition is sampled `samples_per_insert` times on average.

    step x shards -> n_step ==> [replay] -> sample -> learn
        ^                           ^                    |
        |                           +--- (priorities) ---+
        +---------------------- [weights] <--------------+

Double Q-learning: van Hasselt et al. 2015, arXiv 1509.06461. Dueling networks: Wang et al. 2015, arXiv 1511.06581.
Prioritised replay: Schaul et al. 2015, arXiv 1511.05952. Targets over n steps: Hessel et al. 2017, arXiv 1710.02298.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from levada.algorithms.algorithm import Algorithm
from levada.algorithms.checks import (
    require_bools,
    require_choice,
    require_counts,
    require_fractions,
    require_not_negative,
    require_positive,
    require_widths,
)
from levada.algorithms.network import NetworkField, find_network
from levada.flow import Flow, Prioritised
from levada.rl.explore import EpsilonGreedy
from levada.rl.models import value_network
from levada.rl.off_policy import Net, OffPolicyLearner, Outcome
from levada.rl.optimise import Adam
from levada.rl.policy import Policy
from levada.rl.step_sampler import NStep, StepSampler
from levada.rl.task import Task
from levada.rl.transitions import IMPORTANCE, Transitions


@dataclass(frozen=True, kw_only=True)
class DQN(Algorithm):
    """Configuration of DQN."""

    shards: int = 1
    """Logical samplers, each with its own environments. More can use more cores."""
    num_envs: int = 8
    """Environments of one shard, stepped together. More are quicker per step; newer weights come as often."""
    num_steps: int = 8
    """Steps between two looks at newer weights. More are quicker; the actions are those of older weights."""
    capacity: int = 100_000
    """Transitions that are kept; the oldest go. More forget later, and take more memory."""
    min_size: int = 1_000
    """Transitions that are stored before the first is learned from."""
    samples_per_insert: float = 8.0
    """How often a transition is sampled on average. More learn more from a step, and take longer."""
    tolerance: float = 0.0
    """By how many samples that may be off before one side waits. 0: the result does not depend on timing."""
    batch_size: int = 64
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
    """Steps whose rewards a target adds up before it trusts the network. More learn sooner, from actions of older policies."""
    target_every: int = 500
    """Gradient steps from one change of the target network to the next."""
    tau: float = 1.0
    """By how much the target network changes then; 1: it becomes the network. Small with `target_every=1`: it follows."""
    double: bool = True
    """Choose the next action by the network and value it by the target: less optimism."""
    dueling: bool = False
    """A value and advantages in place of values: learns sooner where actions matter little."""
    prioritised: bool = False
    """Sample more often what was more surprising."""
    alpha: float = 0.6
    """Exponent of the priorities, if prioritised. 0 is uniform."""
    beta: float = 0.4
    """Exponent of the weights that correct for priorities; it rises to 1 over `capacity` transitions."""
    epsilon_start: float = 1.0
    """Share of random actions in the beginning."""
    epsilon_end: float = 0.05
    """And in the end."""
    epsilon_steps: int = 10_000
    """Env steps over which it falls."""
    huber: float | None = 1.0
    """From which error on the loss grows linearly; None: never."""
    max_grad_norm: float | None = 10.0
    """Gradients are scaled down to this norm; None: never."""
    adam_eps: float = 1e-8
    """Adam's epsilon."""
    network: NetworkField = None
    """A network of your own, as `module:Class`, called with the observation space and the number of actions."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers, without a network of your own."""
    activation: Literal["tanh", "relu"] = "relu"
    """Between the layers."""
    compile: Literal["auto"] | bool = "auto"
    """Compile the update: at once, never (then it is ordinary torch), or once the run is long enough to earn it."""

    def __post_init__(self) -> None:
        require_counts(
            self, "shards", "num_envs", "num_steps", "capacity", "min_size", "batch_size", "num_gradient_steps", "lookahead",
            "target_every", "epsilon_steps",
        )  # fmt: skip
        require_fractions(self, "discount", "beta", "epsilon_start", "epsilon_end", "tau")
        require_positive(self, "samples_per_insert", "learning_rate", "adam_eps", "tau")
        require_counts(self, "anneal_steps", or_none=True)
        require_positive(self, "huber", "max_grad_norm", or_none=True)
        require_not_negative(self, "tolerance", "alpha")
        require_bools(self, "double", "dueling", "prioritised")
        require_widths(self, "hidden")
        require_choice(self, "activation", "tanh", "relu")
        require_choice(self, "compile", True, False, "auto")

    def coefficients(self, num_gradient_steps: int) -> dict[str, float]:
        """What changes from update to update."""
        num_inserts = num_gradient_steps * self.batch_size / self.samples_per_insert
        left = 1.0 if self.anneal_steps is None else max(0.0, 1.0 - num_inserts / self.anneal_steps)
        return {"learning_rate": self.learning_rate * left}

    def flow(self, task: Task) -> Flow:
        """Step, look ahead, store; sample, learn, publish."""
        network = find_network(self.network)
        if network is None:
            network = partial(value_network, hidden=self.hidden, activation=self.activation, dueling=self.dueling)
        policy = Policy(
            observation_space=task.observation_space, action_space=task.action_space, acts_by="value", network=network
        )
        learner = OffPolicyLearner(
            policy=policy, loss=DQNLoss(self), coefficients=self.coefficients, batch_size=self.batch_size, targets=("policy",),
            target_every=self.target_every, tau=self.tau, compile=self.compile,
            optimizer=Adam(eps=self.adam_eps, max_grad_norm=self.max_grad_norm),
        )  # fmt: skip
        explore = EpsilonGreedy(start=self.epsilon_start, end=self.epsilon_end, num_steps=self.epsilon_steps)
        sampler = StepSampler(
            task=task,
            policy=policy,
            explore=explore,
            num_envs=self.num_envs,
            num_steps=self.num_steps,
            num_old=self.lookahead - 1,
        )
        prioritised = Prioritised(alpha=self.alpha, beta=self.beta, anneal_inserts=self.capacity)
        size = self.num_gradient_steps * self.batch_size
        updates_per_item = self.num_envs * self.num_steps * self.samples_per_insert / size

        flow = Flow("dqn")
        weights = flow.latest("weights", of=learner)
        steps = flow.source("step", sampler, reads=weights, shards=self.shards)
        transitions = flow.map("n_step", NStep(discount=self.discount, num_steps=self.lookahead), steps)
        replay = flow.replay(
            "replay", of=Transitions, capacity=self.capacity, min_size=self.min_size, tolerance=self.tolerance,
            samples_per_insert=self.samples_per_insert, sampler=prioritised if self.prioritised else "uniform",
        )  # fmt: skip
        flow.store(transitions, to=replay)
        update = flow.learn("learn", learner, flow.sample("sample", replay, size=size))
        flow.publish(update.weights, to=weights, every=max(1, int(updates_per_item)))
        if self.prioritised:
            flow.reprioritise(update.priorities, of=replay)
        flow.report(update.stats)
        return flow


@dataclass(frozen=True)
class DQNLoss:
    """The error of a one-step target from n steps of rewards, by Huber's loss."""

    hp: DQN

    def __call__(
        self,
        nets: Mapping[str, Net],
        targets: Mapping[str, Net],
        batch: Mapping[str, Any],
        coefficients: Mapping[str, Tensor],
    ) -> Outcome:
        """Y = r + discount * Q'(s', argmax_a Q(s', a)), with Q' of the target network."""
        q_tm1, _ = self._values(nets["policy"], batch["obs"])
        q_t, mask = self._values(targets["policy"], batch["next_obs"])
        chooser = self._values(nets["policy"], batch["next_obs"])[0].detach() if self.hp.double else q_t
        if mask is not None:
            chooser = chooser.masked_fill(mask.logical_not(), -torch.inf)
        best = q_t.gather(1, chooser.argmax(dim=1, keepdim=True))[:, 0]
        target = batch["reward"] + batch["discount"] * best
        value = q_tm1.gather(1, batch["action"][:, None])[:, 0]
        error = target - value
        if self.hp.huber is None:
            loss = 0.5 * error.square()
        else:
            loss = functional.huber_loss(value, target, reduction="none", delta=self.hp.huber)
        if IMPORTANCE in batch:
            loss = loss * batch[IMPORTANCE]
        stats = {"td_loss": loss.mean(), "q_values": value.mean()}
        return Outcome(loss.mean(), stats, error.abs() if self.hp.prioritised else None)

    def _values(self, net: Any, obs: Any) -> tuple[Tensor, Tensor | None]:
        """Values ``[N, A]``, and which actions are allowed."""
        actions, value = net(obs)
        if not self.hp.dueling:
            return actions.values, actions.mask
        return value[:, None] + actions.values - actions.values.mean(dim=1, keepdim=True), actions.mask
