"""Runs of several agents: who plays in their environments, and how all of them do."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from levada.api.load import load, task_of_several
from levada.api.options import check_integers
from levada.api.run import Result
from levada.flow import Episode
from levada.flow.channels import Fixed
from levada.rl.acting.evaluation import Evaluation
from levada.rl.acting.match import Seated, play
from levada.rl.acting.multi_agent import MultiAgentSampler


def evaluate_policies(
    run: Result | str | os.PathLike[str],
    *,
    num_episodes: int = 20,
    seed: int = 0,
    deterministic: bool = True,
    checkpoint: int | None = None,
    at: str | os.PathLike[str] | None = None,
    trust: bool = False,
    on_episode: Callable[[Episode], None] = lambda episode: None,
) -> dict[str, Evaluation]:
    """Play whole episodes with all policies of a run in one environment, and return the statistics of each one's agents.

    Policies that are not trained play as in training. A policy that had no episode is left out.

    Args:
        run: result of training, or directory of a run, or its URL.
        num_episodes: number of episodes of the environment, in which each agent has an episode of its own.
        seed: random seed of the environments and of the sampled actions.
        deterministic: take the most likely actions; otherwise sample them as in training.
        checkpoint: number of updates of the checkpoint to evaluate, for a directory; None: the newest valid one.
        at: directory with the run's own modules and files, if they have moved since it was trained.
        trust: execute code that the run names, wherever it comes from; see docs/security.md.
        on_episode: called after each agent's episode, to show progress.

    Raises:
        ConfigError: fewer than one episode, or a negative seed.
        LoadError: the run has a single agent; or see `load`.
    """
    check_integers({"num_episodes": (num_episodes, 1), "seed": (seed, 0)})
    result = run if isinstance(run, Result) else load(run, checkpoint=checkpoint, at=at, trust=trust)
    task = task_of_several("evaluate_policies", result)
    return play(
        task, {**result.policies, **players_of(result)}, num_episodes=num_episodes, seed=seed, deterministic=deterministic,
        on_episode=on_episode,
    )  # fmt: skip


def players_of(result: Result) -> dict[str, Seated]:
    """Return the policies of a run that are not trained in it."""
    found: dict[str, Seated] = {}
    for node in result.flow.nodes.values():
        if isinstance(node.work, MultiAgentSampler):
            registers = {key: result.flow.registers[register] for key, register in node.reads}
            for name, make in node.work.players.items():
                register: Any = registers.get(name)
                of_run = register is not None and not isinstance(register, Fixed)
                weights = result.policies[register.policy].weights if of_run else getattr(register, "weights", None)
                found[name] = Seated(make, weights)
    return found
