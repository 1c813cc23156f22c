"""Self-play: a policy trained against its own past versions.

    def who(agent, episode):
        return "new" if agent == players[episode.number % 2] else "past"

    task = MultiAgentTask(game, policies={"new": players, "past": players}, policy_of=who)
    multi_agent(task, {"new": SelfPlay(PPO(), Keeping(win_rate=0.6)), "past": Past("new")})

    rollout x shards -> by_policy --(new)--> scores -> gae -> [queue] -> batch -> learn
       ^  ^                                                                        |
       |  +-- as new --+                                                           |
       +---- as past --+---- [new/weights]: the newest, and the past versions <----+

Past versions are a part of the learner's state, and of the weights that it publishes. So they have no clock of their own: a
ticket that names a version of the weights names the past versions that were there then. In admission order, a run is the same bit
for bit under every deployment, and when it is resumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from levada.algorithms.checks import ConfigError
from levada.algorithms.neural import NeuralAlgorithm, Part
from levada.algorithms.players import Plays, require_spaces
from levada.algorithms.rollouts import RolloutAlgorithm
from levada.flow import Flow, Latest, Stream
from levada.rl.acting.past import PastOf
from levada.rl.acting.player import MakeMind
from levada.rl.envs.task import Task
from levada.rl.learning.past import Keeping, KeepingLearner, with_scores
from levada.rl.policies.policy import Weights

__all__ = ["Keeping", "Past", "SelfPlay"]


@dataclass(frozen=True)
class SelfPlay:
    """An algorithm in `multi_agent` whose learner keeps past versions of its policy, which `Past` plays.

    Raises:
        ConfigError: an argument is of another type, no version would be kept, or the algorithm cannot keep them so.
    """

    algorithm: NeuralAlgorithm
    keeping: Keeping = field(default_factory=Keeping)
    """Which versions are kept."""

    def __post_init__(self) -> None:
        if not isinstance(self.algorithm, NeuralAlgorithm):
            msg = f"SelfPlay: algorithm is {self.algorithm!r}, expected one with its settings, such as levada.PPO()"
            raise ConfigError(msg)
        if not isinstance(self.keeping, Keeping):
            msg = f"SelfPlay: keeping is {self.keeping!r}, expected such as Keeping(win_rate=0.6)"
            raise ConfigError(msg)
        keeping, who = self.keeping, type(self.algorithm).__name__
        if keeping.win_rate is None and keeping.every is None:
            raise ConfigError("SelfPlay: no version would join; expected win_rate or every in Keeping")
        if keeping.win_rate is not None and not isinstance(self.algorithm, RolloutAlgorithm):
            msg = (
                f"SelfPlay: {who} learns from a replay, whose samples are of no game in particular; expected "
                "Keeping(win_rate=None, every=...)"
            )
            raise ConfigError(msg)
        if (microbatch := getattr(self.algorithm, "microbatch_size", None)) is not None:
            msg = (
                f"SelfPlay: {who}(microbatch_size={microbatch}), expected None, and learners=1: versions are kept by a single "
                "learner"
            )
            raise ConfigError(msg)

    @property
    def shards(self) -> int:
        """Number of samplers."""
        return self.algorithm.shards

    def part(self, task: Task, name: str = "policy") -> Part:
        """Make the learner and the sampler."""
        part = self.algorithm.part(task, name)
        return replace(part, learner=KeepingLearner.of(part.learner, self.keeping))

    def updates(self, flow: Flow, part: Any, weights: Latest[Weights], items: Stream[Any]) -> None:
        """Count who has won, and pass the items to the algorithm."""
        if self.keeping.win_rate is not None:
            items = flow.map("scores", with_scores, items)
        self.algorithm.updates(flow, part, weights, items)


@dataclass(frozen=True)
class Past(Plays):
    """A policy in `multi_agent` that is a past version of another one, drawn uniformly for each seat and episode."""

    of: str
    """Name of the other policy, which is trained by `SelfPlay`."""

    def weights(self, flow: Flow, name: str, learned: Mapping[str, Latest[Weights]]) -> Latest[Weights]:
        """Return the register of the other policy."""
        return learned[self.of]

    def mind(self, task: Task, name: str, parts: Mapping[str, Part]) -> MakeMind:
        """Return what makes its minds.

        Raises:
            ConfigError: the other policy keeps no past versions, or acts in other spaces.
        """
        learner = parts[self.of].learner if self.of in parts else None
        if not isinstance(learner, KeepingLearner):
            msg = f"policy {name!r} is the past of {self.of!r}; expected a policy that is trained by SelfPlay"
            raise ConfigError(msg)
        require_spaces(learner.policy, task, name)
        return PastOf(learner.policy)
