r"""NFSP: neural fictitious self-play, for games of zero sum (Heinrich and Silver 2016, arXiv 1603.01121).

Each player has two policies: a best response to what the others play, learned by DQN, and the average of its best responses so
far, learned by imitation. When an episode begins, it chooses the best response with probability eta, the anticipatory parameter,
and the average policy otherwise. What is learned in the end is the average policy, which approaches a Nash equilibrium.

    step x shards -> n_step ==> [replay: the last rows] -> sample -> learn best response
       ^  ^    \                                                            |
       |  +-----\------------ [best_response/weights] <---------------------+
       |         \-> choices ==> [reservoir: a sample of all] -> sample -> learn average
       |                                                                    |
       +-------------------- [average/weights] <----------------------------+

The replay gets the transitions of both policies. The reservoir gets the choices of best responses only, and remains a uniform
sample of all that were ever made, so that imitation learns their average over time.

All players share the two networks, so the observations must say which player observes, as those of OpenSpiel do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from levada.algorithms.all_agents import OfAllAgents
from levada.algorithms.checks import ConfigError
from levada.algorithms.dqn import DQN
from levada.algorithms.replayed import ReplayPart
from levada.flow import Flow, Latest, Stream
from levada.rl.acting.exploration import PolicySampling
from levada.rl.acting.multi_agent import MultiAgentSampler
from levada.rl.acting.sizes import Sizes
from levada.rl.acting.step_sampler import NStep, Steps
from levada.rl.data.spaces import ACTION_MASK
from levada.rl.envs.agents.agents_task import AgentsTask
from levada.rl.envs.agents.joint import EpisodeStart
from levada.rl.envs.task import Task
from levada.rl.learning.learner import Learner
from levada.rl.learning.loss import LossOutput, Networks
from levada.rl.policies.layers import Activation
from levada.rl.policies.policy import Policy, Weights
from levada.rl.replay.transitions import MASK, Transitions, concatenate
from levada.validation import PositiveFloat, PositiveInt, PositiveUnitFloat, UnitFloat

BEST_RESPONSE, AVERAGE = "best_response", "average"


@dataclass(frozen=True, kw_only=True)
class NFSP(DQN, OfAllAgents):
    """Configuration of NFSP. The settings of DQN are those of the best response.

    Raises:
        ConfigError: a field has an invalid value.
    """

    anticipatory: PositiveUnitFloat = 0.2
    """Anticipatory parameter eta: probability that a player plays its best response in an episode, which the average imitates.
    With a larger one, there is more to imitate, but the others play less like their averages."""
    num_envs: PositiveInt = 64
    """Number of copies of the environment per shard, each with all players."""
    learning_rate: PositiveFloat = 2e-3
    """Learning rate of the best response."""
    average_learning_rate: PositiveFloat = 1e-3
    """Learning rate of the average policy."""
    buffer_size: PositiveInt = 30_000
    """Size of the replay, in transitions. The oldest are overwritten: in a smaller replay the others play more as they do now."""
    reservoir_size: PositiveInt = 2_000_000
    """Size of the reservoir, in choices of best responses."""
    batch_size: PositiveInt = 128
    """Number of transitions, or choices, per gradient step."""
    samples_per_insert: PositiveFloat = 4.0
    average_samples_per_insert: PositiveFloat = 8.0
    """Average number of times a choice is sampled from the reservoir, per choice that is stored there."""
    target_update_interval: PositiveInt = 100
    tau: PositiveUnitFloat = 1.0
    """Polyak factor of the target network. 1: copy the online network."""
    huber_delta: PositiveFloat | None = None
    """Threshold of the Huber loss. None: squared error, for a best response needs the mean of what is won and lost."""
    epsilon_start: UnitFloat = 0.2
    """Initial epsilon of the best response's exploration. Explored actions are not imitated."""
    epsilon_end: UnitFloat = 0.1
    """Final epsilon."""
    epsilon_steps: PositiveInt = 500_000
    """Env steps over which epsilon is annealed."""
    hidden_sizes: tuple[PositiveInt, ...] = (64,)
    activation: Activation = "tanh"
    max_grad_norm: PositiveFloat | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("normalize_obs", "normalize_reward", "prioritized"):
            if getattr(self, name):
                msg = f"NFSP({name}=True): expected False, for the reservoir has no rewards and no priorities"
                raise ConfigError(msg)

    def flow(self, task: Task) -> Flow:
        """Build the flow for all players of a game."""
        agents = AgentsTask.of(task)
        [players] = agents.shared().policies.values()
        seats = agents.played_by({BEST_RESPONSE: players, AVERAGE: players}, Anticipatory(self.anticipatory))
        # the sampler counts a step of each player, and the learner a turn of each
        turns_per_step = 1 if seats.acts_in_turns else len(players)
        seated = replace(
            self, num_envs=self.num_envs * len(players), epsilon_steps=self.epsilon_steps * len(players),
            anneal_steps=None if self.anneal_steps is None else self.anneal_steps * turns_per_step,
        )  # fmt: skip
        best = super(NFSP, seated).part(seats[BEST_RESPONSE], BEST_RESPONSE)
        average = seated.average_part(seats[AVERAGE])
        flow, weights = Flow("nfsp"), {}
        for name, part in ((BEST_RESPONSE, best), (AVERAGE, average)):
            with flow.scope(name):
                weights[name] = flow.latest("weights", of=part.learner)
        choosing = replace(best.sampler, keeps_network_outputs=True)
        sampler = MultiAgentSampler(task=seats, samplers={BEST_RESPONSE: choosing, AVERAGE: average.sampler})
        items: Stream[Any] = flow.source(self.SOURCE, sampler, reads=weights, shards=self.shards)
        of_both: Any = OfBoth(self.n_step_returns)
        with flow.scope(BEST_RESPONSE):
            self.updates(flow, replace(best, stage=of_both), weights[BEST_RESPONSE], items)
        with flow.scope(AVERAGE):
            self.imitation(flow, best.learner.policy, average.learner, weights[AVERAGE], items)
        return flow

    def part(self, task: Task, name: str = "policy") -> ReplayPart:
        """It has two policies, so it cannot be the algorithm of one among several.

        Raises:
            ConfigError: always.
        """
        expected = "`levada train nfsp`, or NFSP(...).flow(task)"
        msg = f"policy {name!r}: NFSP trains two policies, which act for all players; expected {expected}"
        raise ConfigError(msg)

    def average_part(self, task: Task) -> ReplayPart:
        """Make the learner of the average policy, and its sampler."""
        policy = self.policy(task, name=AVERAGE)
        learner = replace(self.learner(policy, imitation_loss), coefficients=self.average_coefficients)
        stage = self.n_step_returns
        return ReplayPart(learner, self.sampler(task, policy, PolicySampling(), stage), stage)

    def average_coefficients(self, num_transitions: int) -> dict[str, float]:
        """Scalars of the next update of the average policy: the learning rate."""
        return {"learning_rate": self.average_learning_rate}

    def imitation(
        self, flow: Flow, best: Policy, learner: Learner, weights: Latest[Weights], items: Stream[Any]
    ) -> None:
        """Store the choices of best responses in the reservoir; sample, learn, publish."""
        reservoir = flow.replay(
            "reservoir", of=Transitions, capacity=self.reservoir_size, min_size=self.learning_starts, removal="reservoir",
            samples_per_insert=self.average_samples_per_insert, tolerance=self.tolerance, order=self.order, tables=self.tables,
        )  # fmt: skip
        flow.store(flow.map("choices", Choices(self.n_step_returns, best), items), to=reservoir)
        update = flow.learn("learn", learner, self.sample(flow, reservoir))
        flow.publish(update.weights, to=weights)
        flow.report(update.stats)


@dataclass(frozen=True)
class Anticipatory:
    """Chooses the policy of a player for an episode: the best response with probability eta, the average policy otherwise."""

    eta: float
    final: ClassVar[str] = AVERAGE
    """The policy that is learned in the end, which plays against others."""

    def __call__(self, agent: str, episode: EpisodeStart) -> str:
        """Draw the policy."""
        return BEST_RESPONSE if episode.rng.random() < self.eta else AVERAGE


@dataclass(frozen=True)
class OfBoth:
    """Turns the steps of both policies into transitions: learning the best response is off-policy."""

    NODE: ClassVar[str] = NStep.NODE
    transitions: NStep

    def entry_nbytes(self, sizes: Sizes) -> int:
        """Bytes of a row."""
        return self.transitions.entry_nbytes(sizes)

    def __call__(self, steps: Mapping[str, Steps]) -> Transitions:
        """Return the rows of both."""
        return concatenate([self.transitions(each) for each in steps.values()])


@dataclass(frozen=True)
class Choices:
    """Keeps what was observed in episodes of the best response, and its choices there, without exploration."""

    transitions: NStep
    policy: Policy

    def entry_nbytes(self, sizes: Sizes) -> int:
        """Bytes of a row."""
        return sizes.observation + sizes.action

    def __call__(self, steps: Mapping[str, Steps]) -> Transitions:
        """Return the rows."""
        of_best, head = steps[BEST_RESPONSE], self.policy.head
        columns = self.transitions(of_best).columns
        assert of_best.rows is not None, "choices need StepSampler(keeps_network_outputs=True)"
        outputs = of_best.rows.reshape(-1, head.row_size)[: len(columns[MASK])]
        obs = columns["obs"]
        mask: Any = obs[ACTION_MASK] if isinstance(obs, dict) and ACTION_MASK in obs else None
        return Transitions({"obs": obs, "action": head.mode(outputs, mask), MASK: columns[MASK]})


def imitation_loss(networks: Networks, batch: Mapping[str, Any], coefficients: Mapping[str, Tensor]) -> LossOutput:
    """L = mean(-log pi(a|s)) over choices ``[N]`` of best responses (arXiv 1603.01121, algorithm 1), and its statistics."""
    distribution, *_ = networks.policy(batch["obs"])
    loss = -distribution.log_prob(batch["action"]).mean()
    return LossOutput(loss, {"imitation_loss": loss, "entropy": distribution.entropy().mean()})
