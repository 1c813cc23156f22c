"""Evaluation of the policy of a run."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from levada.algorithms.checks import ConfigError
from levada.api.evaluator import otherwise
from levada.api.load import LoadError, load
from levada.api.options import check_integers
from levada.api.run import Result
from levada.flow import Episode
from levada.rl.acting.evaluation import MAX_ENVS, Evaluation
from levada.rl.acting.evaluation import evaluate as evaluate_policy
from levada.rl.envs.rendering import Recording, check_display, rendered
from levada.rl.envs.task import Task


def evaluate(
    run: Result | str | os.PathLike[str],
    *,
    num_episodes: int = 20,
    seed: int = 0,
    deterministic: bool = True,
    checkpoint: int | Literal["best"] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    video: str | os.PathLike[str] | None = None,
    render: bool = False,
    at: str | os.PathLike[str] | None = None,
    trust: bool = False,
    on_episode: Callable[[Episode], None] = lambda episode: None,
) -> Evaluation:
    """Play whole episodes with the policy of a run (or of its directory), and return their statistics.

    Args:
        run: result of training, or directory of a run, or its URL.
        num_episodes: number of episodes, the same in each environment.
        seed: random seed of the environments and of the sampled actions.
        deterministic: take the most likely actions; otherwise sample them as in training.
        checkpoint: number of updates of the checkpoint to evaluate, for a directory, or "best"; None: the newest valid one.
        env_kwargs: keyword arguments of the environment, which extend or override those of training.
        video: new or empty directory, into which each episode is recorded as a video, played in one environment.
        render: show the episodes in a window, played in one environment.
        at: directory with the run's own modules and files, if they have moved since it was trained.
        trust: execute code that the run names, wherever it comes from; see docs/security.md.
        on_episode: called after each episode, to show progress.

    Raises:
        ConfigError: fewer than one episode, or a negative seed.
        LoadError: `env_kwargs` change the observation or action space; or see `load`.
        TaskError: the environment cannot be recorded or shown.
    """
    check_integers({"num_episodes": (num_episodes, 1), "seed": (seed, 0)})
    if isinstance(run, Result) and (checkpoint is not None or at is not None):
        msg = "evaluate: checkpoint and at are for the directory of a run, as in levada.evaluate(run.path, ...), got a Result"
        raise LoadError(msg)
    result = run if isinstance(run, Result) else load(run, checkpoint=checkpoint, at=at, trust=trust)
    if result.policies:
        msg = f"evaluate: {result.path} has the policies {', '.join(result.policies)}; use levada.evaluate_policies"
        raise LoadError(msg)
    task = _otherwise(result, {} if env_kwargs is None else env_kwargs)
    is_rendered = video is not None or render
    if is_rendered:
        task = _rendered(task, result, video, num_episodes)
    return evaluate_policy(
        task,
        result.policy,
        num_episodes=num_episodes,
        seed=seed,
        deterministic=deterministic,
        on_episode=on_episode,
        max_envs=1 if is_rendered else MAX_ENVS,
    )


def _rendered(task: Task, result: Result, video: str | os.PathLike[str] | None, num_episodes: int) -> Task:
    """Return the task whose environments are recorded, or shown in a window without `video`."""
    if video is None:
        check_display()
        return rendered(task)
    prefix = f"{result.summary.algorithm}-{re.sub('[^A-Za-z0-9._-]+', '-', result.summary.env)}-{result.policy.version}"
    return rendered(task, Recording(folder=video, prefix=prefix, num_episodes=num_episodes))


def _otherwise(result: Result, env_kwargs: Mapping[str, Any]) -> Task:
    """The task of a run with other keyword arguments, which must not change its spaces."""
    if not isinstance(env_kwargs, Mapping):
        msg = f"evaluate: env_kwargs={env_kwargs!r}, expected a mapping from names to values, such as {{'mode': 1}}, or None"
        raise LoadError(msg)
    try:
        return otherwise(result.task, result.policy.policy, env_kwargs, "env_kwargs")
    except ConfigError as error:
        raise LoadError(str(error)) from None
