"""Evaluation of several trained policies in one environment, separate from training.

found = play(task, {"ppo": one, "dqn": other}, num_episodes=20)
found["ppo"].mean
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from levada.flow import Episode, Shard
from levada.flow.items import derive_seed
from levada.rl.acting.actor import Actor
from levada.rl.acting.evaluation import MAX_ENVS, Evaluation
from levada.rl.acting.player import ByHand, LivePlayer, MakeMind
from levada.rl.acting.trained_policy import TrainedPolicy
from levada.rl.data.spaces import Array
from levada.rl.envs.agents.joint import Joint
from levada.rl.envs.agents.task import MultiAgentTask


@dataclass(frozen=True)
class Seated:
    """A policy that plays, and is perhaps not trained: what makes its mind at its seats, and its weights, if it has any."""

    make: MakeMind
    weights: Mapping[str, Array] | None = None
    version: int | None = None
    """Number of updates of the weights. None: of no policy that is trained with the others."""

    @classmethod
    def of(cls, policy: TrainedPolicy) -> Seated:
        """Seat a trained policy."""
        return cls(lambda envs, joint, shard: Actor(policy.policy), policy.weights, policy.version)


def play(
    task: MultiAgentTask,
    policies: Mapping[str, TrainedPolicy | Seated],
    *,
    num_episodes: int = 20,
    seed: int = 0,
    deterministic: bool = True,
    on_episode: Callable[[Episode], None] = lambda episode: None,
) -> dict[str, Evaluation]:
    """Play whole episodes, the same number in each copy of the environment, so that short ones are not favored.

    Args:
        task: the environments, and who acts for whom.
        policies: the policy of each name, or what plays in its place.
        num_episodes: number of episodes of the environment; each agent in them has one of its own.
        seed: of the environments and of sampled actions.
        deterministic: take the most probable actions.
        on_episode: called after each agent's episode.

    Returns:
        By policy, the episodes of its agents. A policy without an episode is left out.

    Raises:
        ValueError: fewer than one episode, or a policy is missing.
    """
    episodes: dict[str, list[Episode]] = {name: [] for name in task.policies}
    for _, episode in games(task, policies, num_episodes=num_episodes, seed=seed, deterministic=deterministic):
        episodes[episode.policy].append(episode)
        on_episode(episode)
    return {
        name: Evaluation(tuple(found), policies[name].version, deterministic)
        for name, found in episodes.items()
        if found
    }


def games(
    task: MultiAgentTask,
    policies: Mapping[str, TrainedPolicy | Seated],
    *,
    num_episodes: int = 20,
    seed: int = 0,
    deterministic: bool = True,
) -> Iterator[tuple[tuple[int, int], Episode]]:
    """Play as `play` does, and yield the episode of each agent when it ends.

    With it comes the game that it belongs to: the number of the copy of the environment, and that of the game in the copy.
    """
    if num_episodes < 1:
        msg = f"play: num_episodes={num_episodes}; expected an integer >= 1"
        raise ValueError(msg)
    if missing := sorted(task.policies.keys() - policies.keys()):
        msg = f"play: no policy {missing[0]!r}; expected {', '.join(task.policies)}"
        raise ValueError(msg)
    num_envs, rng = min(num_episodes, MAX_ENVS), np.random.default_rng(seed)
    quota = [(num_episodes - b - 1) // num_envs + 1 for b in range(num_envs)]
    joint = task.make(num_envs, derive_seed(seed, "envs"))
    try:
        players = {name: _sit_down(task, joint, name, policies[name], seed) for name in task.policies}
        while any(begun <= most for begun, most in zip(joint.num_episodes, quota, strict=True)):
            numbers = [int(begun) for begun in joint.num_episodes]
            chosen = {
                name: each.act(rng if not deterministic or isinstance(each.mind, ByHand) else None)
                for name, each in players.items()
            }
            for name, actions in chosen.items():
                joint.seats[name].act(players[name].envs.encode(actions))
            joint.step()
            for name, each in players.items():
                for row, ended in each.see(each.envs.step(chosen[name])):
                    copy = row // len(task.policies[name])
                    if numbers[copy] <= quota[copy]:
                        yield (copy, numbers[copy] - 1), replace(ended, policy=name)
    finally:
        joint.close()


def _sit_down(task: MultiAgentTask, joint: Joint, name: str, policy: TrainedPolicy | Seated, seed: int) -> LivePlayer:
    """Begin to act for the agents of a policy."""
    seated = policy if isinstance(policy, Seated) else Seated.of(policy)
    envs = task[name].within(joint).make(joint.seats[name].num_envs)
    mind = seated.make(envs, joint, Shard("play", 0, 1, derive_seed(seed, name)))
    if seated.weights is not None:
        mind.load(seated.weights)
    return LivePlayer(mind, envs, seed)
