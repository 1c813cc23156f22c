"""Cross-play: policies of several runs against each other, on every side.

for row in levada.cross_play(["runs/a", "runs/b"], num_episodes=100):
print(row.run, row.side, row.against, row.win_rate)
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean
from typing import TypeAlias

from levada.algorithms.checks import ConfigError
from levada.algorithms.named_policies import SavedPolicies
from levada.algorithms.players import showing_as_trained
from levada.api.load import LoadError, load, task_of_several
from levada.api.options import check_integers
from levada.api.run import Result
from levada.flow import Episode
from levada.rl.acting.match import games
from levada.rl.acting.trained_policy import TrainedPolicy
from levada.rl.envs.agents.task import MultiAgentTask
from levada.run.storage.files import short

Side: TypeAlias = tuple[str, ...]
"""Agents that play for one run."""


@dataclass(frozen=True, kw_only=True)
class Encounter:
    """How a run has played on a side, while another run, or the same, played on all others."""

    run: str
    side: Side
    against: str
    episodes: int
    """Number of episodes of the environment."""
    return_mean: float
    """Mean return of an agent of the side."""
    win_rate: float
    """Fraction of the episodes in which that was more than the mean return of each other side."""
    draw_rate: float
    """Fraction in which it was equal to the best of the others."""


def cross_play(
    runs: Sequence[Result | str | os.PathLike[str]],
    *,
    num_episodes: int = 20,
    seed: int = 0,
    deterministic: bool = True,
    at: str | os.PathLike[str] | None = None,
    trust: bool = False,
    on_match: Callable[[], None] = lambda: None,
) -> list[Encounter]:
    """Let the policies of several runs play against each other and themselves, on every side.

    A side consists of the agents of a policy, if the runs agree on who plays with whom; otherwise of one agent. A run plays on
    the sides for which it has trained a policy. That is shown what it was trained with, the index of the agent or the state; of a
    run of NFSP it is the average policy.

    Args:
        runs: results of training, directories of runs, or their URLs; with the same environment.
        num_episodes: number of episodes of the environment in each pairing.
        seed: random seed of the environments and of the sampled actions.
        deterministic: take the most likely actions; otherwise sample them as in training.
        at: directory with the runs' own modules and files, if they have moved since training.
        trust: execute code that the runs name, wherever they come from; see docs/security.md.
        on_match: called after each pairing, to show progress.

    Returns:
        For each run and each side that it plays on, a row for each run that plays on all others.

    Raises:
        ConfigError: no run, one that is given twice, fewer than one episode, or a negative seed.
        LoadError: a run has a single agent, or another environment than the first, or no two of them fill all sides; see also
            `load`.
    """
    check_integers({"num_episodes": (num_episodes, 1), "seed": (seed, 0)})
    if not runs:
        msg = "cross_play: runs is empty; expected at least one run"
        raise ConfigError(msg)
    results = [run if isinstance(run, Result) else load(run, at=at, trust=trust) for run in runs]
    tasks = [task_of_several("cross_play", result) for result in results]
    for result, task in zip(results, tasks, strict=True):
        _check_same(results[0], tasks[0], result, task)
    names = [short(result.path) for result in results]
    if twice := [name for name in names if names.count(name) > 1]:
        msg = f"cross_play: {twice[0]} is given twice; expected different runs, each of which also plays against itself"
        raise ConfigError(msg)
    sides = _sides(tasks)
    players = [_players(result, task, sides) for result, task in zip(results, tasks, strict=True)]
    bare = replace(
        tasks[0], policies={"+".join(side): side for side in sides}, policy_of=None, agent_id=False, with_state=False
    )
    played: dict[tuple[int, ...], list[list[float]]] = {}
    rows = []
    for (run, against), number in product(product(range(len(runs)), repeat=2), range(len(sides))):
        seated = tuple(run if each == number else against for each in range(len(sides)))
        if any(side not in players[who] for side, who in zip(sides, seated, strict=True)):
            continue
        if seated not in played:
            there = {"+".join(side): players[who][side] for side, who in zip(sides, seated, strict=True)}
            task = showing_as_trained(bare, there)
            played[seated] = _scores(task, there, num_episodes, seed, deterministic=deterministic)
            on_match()
        scores = played[seated]
        gaps = [game[number] - max(game[:number] + game[number + 1 :], default=game[number]) for game in scores]
        rows.append(
            Encounter(
                run=names[run],
                side=sides[number],
                against=names[against],
                episodes=len(scores),
                return_mean=fmean(game[number] for game in scores),
                win_rate=fmean(gap > 0 for gap in gaps),
                draw_rate=fmean(gap == 0 for gap in gaps),
            )
        )
    if not rows:
        sides_of = "; ".join(
            f"{name} plays for {', '.join('+'.join(side) for side in own)}"
            for name, own in zip(names, players, strict=True)
        )
        msg = f"cross_play: no two runs fill all sides, {', '.join('+'.join(side) for side in sides)}: {sides_of}"
        raise LoadError(msg)
    return rows


def _scores(
    task: MultiAgentTask, policies: Mapping[str, TrainedPolicy], num_episodes: int, seed: int, *, deterministic: bool
) -> list[list[float]]:
    """Return the mean return of an agent of each side, for each game."""
    found: defaultdict[tuple[int, int], defaultdict[str, list[Episode]]] = defaultdict(lambda: defaultdict(list))
    for game, episode in games(task, policies, num_episodes=num_episodes, seed=seed, deterministic=deterministic):
        found[game][episode.policy].append(episode)
    return [
        [fmean(episode.episode_return for episode in game[name]) if game[name] else 0.0 for name in policies]
        for game in found.values()
    ]


def _sides(tasks: Sequence[MultiAgentTask]) -> list[Side]:
    """Return the sides: the agents of each policy, if all runs have the same and there are several; otherwise each agent."""
    groups = {tuple(sorted(map(tuple, task.policies.values()))) for task in tasks}
    [first, *others] = groups
    agents = [agent for side in first for agent in side]
    has_sides = not others and len(first) > 1 and len(set(agents)) == len(agents)
    return list(first) if has_sides else [(agent,) for agent in sorted(set(agents))]


def _players(result: Result, task: MultiAgentTask, sides: Sequence[Side]) -> dict[Side, TrainedPolicy]:
    """Return the policies that a run has trained, for each side that they can play on."""
    saved = SavedPolicies(result.policies, task)
    players: dict[Side, TrainedPolicy] = {}
    for side in sides:
        found = saved.acting_for(side)
        if len(found) > 1:
            which = f"{', '.join(side)}: {', '.join(found)}"
            msg = f"cross_play: {result.path} has several policies trained for {which}; expected one"
            raise LoadError(msg)
        if found:
            players[side] = saved.policies[found[0]]
    if not players:
        msg = f"cross_play: {result.path} has no policy trained for {' or '.join('+'.join(side) for side in sides)}; expected one"
        raise LoadError(msg)
    return players


def _check_same(first: Result, one: MultiAgentTask, result: Result, other: MultiAgentTask) -> None:
    for name in ("env", "env_kwargs"):
        if getattr(one, name) != getattr(other, name):
            msg = (
                f"cross_play: {result.path} has {name} {getattr(other, name)!r}, and {first.path} {getattr(one, name)!r}; "
                "expected runs with the same environment"
            )
            raise LoadError(msg)
