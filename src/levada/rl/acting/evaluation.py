"""Evaluation of a trained policy, in environments separate from training.

policy = run.policy
action = policy.act(observation)
print(evaluate(task, policy, num_episodes=20).mean)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from levada.flow import Episode
from levada.flow.items import mean_unshaped
from levada.rl.acting.actor import Actor
from levada.rl.acting.rollout import EpisodeCounter
from levada.rl.acting.trained_policy import TrainedPolicy
from levada.rl.data.spaces import Array
from levada.rl.envs.task import Task
from levada.rl.policies.policy import Policy, Weights

__all__ = ["Evaluation", "PolicyEvaluation", "TrainedPolicy", "evaluate"]

MAX_ENVS = 8
"""Maximum number of environments evaluated together."""
_ENDLESS = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Result of an evaluation."""

    episodes: tuple[Episode, ...]
    version: int | None
    """Number of updates of the evaluated weights. None: the policy is not trained in the run."""
    deterministic: bool

    @property
    def returns(self) -> Array:
        """Return of each episode, float64 ``[num_episodes]``."""
        return np.array([episode.episode_return for episode in self.episodes])

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """Standard deviation of the returns."""
        return float(self.returns.std())

    @property
    def unshaped_mean(self) -> float | None:
        """Mean return as the environment reports it, in `info["episode"]["r"]`; None unless it does for each episode."""
        return mean_unshaped(self.episodes)


def evaluate(
    task: Task,
    policy: TrainedPolicy,
    *,
    num_episodes: int = 20,
    seed: int = 0,
    deterministic: bool = True,
    on_episode: Callable[[Episode], None] = lambda episode: None,
    max_envs: int = MAX_ENVS,
) -> Evaluation:
    """Run whole episodes, the same number in each environment, so that short ones are not favored.

    `max_envs`: maximum number of environments.
    """
    if num_episodes < 1:
        msg = f"evaluate: num_episodes={num_episodes}; expected an integer >= 1"
        raise ValueError(msg)
    actor = Actor(policy.policy)
    actor.load(policy.weights)
    episodes = play(
        task, actor, num_episodes=num_episodes, seed=seed, deterministic=deterministic, on_episode=on_episode,
        max_envs=max_envs,
    )  # fmt: skip
    return Evaluation(episodes, policy.version, deterministic)


def play(
    task: Task,
    actor: Actor,
    *,
    num_episodes: int,
    seed: int,
    deterministic: bool,
    on_episode: Callable[[Episode], None] = lambda episode: None,
    max_envs: int = MAX_ENVS,
) -> tuple[Episode, ...]:
    """Run whole episodes with an actor, the same number in each environment, and return them."""
    num_envs = min(num_episodes, max_envs)
    quota = np.array([min((num_episodes - b - 1) // num_envs + 1, _ENDLESS) for b in range(num_envs)])
    played = np.zeros(num_envs, np.int64)
    counter, episodes = EpisodeCounter(num_envs), list[Episode]()
    rng = np.random.default_rng(seed)
    with task.make(num_envs) as envs:
        envs.reset_each_episode()
        obs, state = envs.reset(seed), actor.initial_state(num_envs)
        while (played < quota).any():
            step = envs.step(actor.act(obs, state, None if deterministic else rng))
            ended = step.is_over
            state[step.terminated | step.truncated | step.is_reset] = 0.0
            recorded = {} if step.recorded_return is None else {0: step.recorded_return}
            counted = counter.count(step.reward[None], ended[None], ~step.is_reset[None], recorded)
            for b, episode in zip(np.flatnonzero(ended), counted, strict=True):
                if played[b] < quota[b]:
                    episodes.append(episode)
                    on_episode(episode)
                played[b] += 1
            obs = step.obs
    return tuple(episodes)


@dataclass(frozen=True, kw_only=True)
class PolicyEvaluation:
    """Evaluation of a policy during training, for `levada.flow.Flow.evaluate`: whole episodes in environments of its own.

    It acts on the processor with one thread, and makes its environments anew each time, so its numbers depend on the weights and
    the seed alone.
    """

    task: Task
    """Environments to play in. Returns are sums of raw rewards, whatever training makes of them."""
    policy: Policy
    num_episodes: int
    """Number of episodes of an evaluation."""
    deterministic: bool = True
    """Take the most likely actions; otherwise sample them as in training."""

    def __call__(self, weights: Weights, seed: int) -> dict[str, float]:
        """Return mean and standard deviation of the returns, and the mean length in env steps; if the environment reports them,
        also the mean of the unshaped returns.
        """
        actor = Actor(replace(self.policy, device="cpu"), num_threads=1)
        actor.load(weights)
        episodes = play(self.task, actor, num_episodes=self.num_episodes, seed=seed, deterministic=self.deterministic)
        returns = np.array([episode.episode_return for episode in episodes])
        lengths = np.array([episode.length for episode in episodes], np.float64)
        unshaped = mean_unshaped(episodes)
        return {
            "return": float(returns.mean()),
            "return_std": float(returns.std()),
            "length": float(lengths.mean()),
            **({} if unshaped is None else {"unshaped_return": unshaped}),
        }
