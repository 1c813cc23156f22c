"""Groups of runs, and what is estimated of each."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec
import numpy as np

from levada.comparison.estimates import Estimate, interquartile_mean, probability_of_improvement
from levada.comparison.names import distinct, name_of
from levada.comparison.records import ComparisonError, Record, differing, find_runs, paths_of, read_record
from levada.flow.mistakes import plural
from levada.run.display.printable import printable
from levada.run.storage.directory import RunDirectoryError
from levada.run.storage.files import short
from levada.run.until import Until, UntilError

NOT_COMPARED: Final = frozenset(
    {"seed", "out", "config", "quiet", "json", "watch", "trace", "log", "seeds", "num_parallel", "checkpoint_every_updates",
     "save_replays", "on", "env", "portable", "eval_every", "eval_episodes", "eval_env_kwargs", "eval_stochastic", "eval_video"}
)  # fmt: skip
"""Settings in which the runs of a group may differ."""
FEW: Final = 5
"""Number of runs below which an interval is wide, and its coverage known from simulations alone."""


class GroupRow(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a group of runs in one environment, or in all."""

    name: str
    env: str
    """Environment; `all` for the row of several."""
    num_runs: int
    returns: Estimate
    """Interquartile mean over runs of the mean return of their last 100 episodes; of normalized returns in the row of all."""
    better: Estimate | None
    """Probability that a run is better than one of the first group; None in its own row."""
    num_solved: int | None
    """Number of runs that reached the target; None without a target."""
    solved_at_s: float | None
    """Median time to target in seconds, of all runs; None if fewer than half reached it."""
    solved_at_steps: float | None
    """The same in env steps."""
    env_steps: tuple[int, int]
    """Least and most env steps of the runs."""
    steps_per_s: float | None
    """Median speed."""


@dataclass(frozen=True)
class Group:
    """Runs that are repetitions of each other, in one or several environments."""

    name: str
    records: tuple[Record, ...]

    def in_env(self, env: str) -> tuple[Record, ...]:
        """Return the runs in an environment."""
        return tuple(record for record in self.records if record.directory.config.identity.env == env)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A comparison of groups of runs."""

    groups: list[GroupRow]
    notes: list[str]
    """Which runs were left out, and what limits the comparison."""
    target: float | None
    """Return that counts as solved."""
    at_steps: int | None
    """Env steps at which returns are compared; None: at the end of each run."""
    _runs: Sequence[Group] = field(default=(), repr=False, compare=False)  # for the curves; not a part of the JSON

    def to_json(self) -> bytes:
        """Encode it as JSON."""
        return msgspec.json.encode({f.name: getattr(self, f.name) for f in fields(self) if not f.name.startswith("_")})

    def _repr_html_(self) -> str:
        """What a notebook shows: the table, the learning curves, and the notes."""
        from levada.comparison.html import html_of

        return html_of(self, self._runs)


def compare(
    runs: Sequence[str | os.PathLike[str]],
    *,
    target: float | None = None,
    at_steps: int | None = None,
    normalize: Mapping[str, tuple[float, float]] | None = None,
) -> Comparison:
    """Compare runs by the return that they reach, and by the time that they take.

    Args:
        runs: directories of runs, directories that contain runs, or patterns. Runs whose settings differ in nothing but the seed
            and the environment form a group, whose name has what differs between those of its algorithm. `name=pattern` puts
            its runs into a group of that name.
        target: mean return of 100 episodes that counts as solved. None: that of the stopping conditions, if all runs have the
            same.
        at_steps: env steps at which returns are compared. None: at the end of each run.
        normalize: by environment, the returns that count as 0 and as 1 in the row of all environments. None: the lowest
            and the highest return of a run that is compared.

    Raises:
        ComparisonError: there is no run, none that can be compared, or an argument is invalid.
    """
    if at_steps is not None and (not isinstance(at_steps, Integral) or at_steps < 1):
        msg = f"compare: at_steps={at_steps!r}, expected an integer of at least 1"
        raise ComparisonError(msg)
    if target is not None and not (isinstance(target, Real) and math.isfinite(target)):
        msg = f"compare: target={target!r}, expected a finite number"
        raise ComparisonError(msg)
    groups, notes = grouped(runs)
    if at_steps is not None:
        groups = _reaching(groups, at_steps, notes)
    envs = list(dict.fromkeys(record.directory.config.identity.env for group in groups for record in group.records))
    given = _checked_scales({} if normalize is None else normalize, envs)
    if target is None:
        target = _common_target(groups)
    rows = [_row(group, groups[0], env, target, at_steps) for env in envs for group in groups if group.in_env(env)]
    if len(envs) > 1:
        scales = _scales(groups, envs, at_steps, given)
        rows += _rows_of_all(groups, envs, target, at_steps, scales, notes)
    notes += _limits(groups, envs, at_steps)
    return Comparison(groups=rows, notes=notes, target=target, at_steps=at_steps, _runs=groups)


def grouped(
    runs: Sequence[str | os.PathLike[str]], *, verb: str = "compare", only_finished: bool = True
) -> tuple[list[Group], list[str]]:
    """Find runs, and put those together that are repetitions; also return notes about those left out.

    Args:
        runs: see `compare`.
        verb: what is done with them, for messages.
        only_finished: leave out runs that have not finished, or have finished no episode.

    Raises:
        ComparisonError: there is no run, or none is left.
    """
    notes: list[str] = []
    named: dict[str, list[Record]] = {"": []}
    names: dict[Path, str] = {}
    for argument in _arguments(runs, verb):
        name, pattern = _named(argument)
        for path in find_runs(pattern):
            if path not in names:
                names[path] = name
                named.setdefault(name, []).extend(_usable(path, notes, only_finished=only_finished))
            elif names[path] != name:
                notes.append(
                    f"{printable(short(path))} is given for several groups, and counts in the first of them alone"
                )
    free = named.pop("")
    groups = [Group(printable(name), tuple(records)) for name, records in named.items() if records]
    groups += _by_settings(free)
    shown = distinct(group.name for group in groups)
    groups = [replace(group, name=name) for name, group in zip(shown, groups, strict=True)]
    if not groups:
        msg = f"{verb}: no run is left: {'; '.join(notes)}"
        raise ComparisonError(msg)
    return groups, notes


def _arguments(runs: Sequence[str | os.PathLike[str]], verb: str) -> list[str]:
    """Check the arguments, and leave out logs of runs."""
    if isinstance(runs, str | os.PathLike):
        msg = f"{verb}: runs is {runs!r}, expected a list of directories or patterns; did you mean [{runs!r}]?"
        raise ComparisonError(msg)
    runs = list(runs) if isinstance(runs, Iterable) else [runs]
    if wrong := [run for run in runs if not isinstance(run, str | os.PathLike)]:
        msg = f"{verb}: runs has {wrong[0]!r}, expected directories or patterns"
        raise ComparisonError(msg)
    if not runs:
        msg = f"{verb}: no runs are given; expected directories of runs"
        raise ComparisonError(msg)
    arguments = [os.fspath(run) for run in runs]
    return [argument for argument in arguments if not _is_log(argument)] or arguments


def _named(argument: str) -> tuple[str, str]:
    """Divide `NAME=PATTERN`; the name is empty if there is none, or if paths fit the whole argument."""
    name, equals, pattern = argument.partition("=")
    return (name, pattern) if name and equals and not paths_of(argument) else ("", argument)


def _is_log(argument: str) -> bool:
    """Whether it is a log that `--seeds` has written beside the runs, which a shell puts in place of `seed-*` like them."""
    return argument.endswith(".log") and os.path.isfile(argument)


def _usable(path: Path, notes: list[str], *, only_finished: bool) -> list[Record]:
    try:
        record = read_record(path)
        num = len(record.curve)
        if not only_finished:
            return [record]
        is_pruned, missing = record.is_pruned, record.missing
    except (RunDirectoryError, ComparisonError) as error:
        notes.append(f"left out: {printable(str(error))}")
        return []
    if record.status != "finished":
        what = {"running": "is still running", "failed": "has failed", "cut off": "was cut off"}[record.status]
        notes.append(f"left out: {record.name} {what}")
        return []
    if is_pruned:
        notes.append(f"left out: {record.name} was pruned by a sweep")
        return []
    if not num:
        notes.append(f"left out: {record.name} has finished no episode")
        return []
    if missing:
        notes.append(f"left out: {record.name} {missing}")
        return []
    return [record]


def _by_settings(records: Sequence[Record]) -> list[Group]:
    """Put the runs of each algorithm together whose settings are the same."""
    groups = []
    for algorithm in dict.fromkeys(record.algorithm for record in records):
        runs = [record for record in records if record.algorithm == algorithm]
        settings = differing(runs, NOT_COMPARED)
        for number, own in enumerate(settings):
            if own not in settings[:number]:
                same = (record for record, other in zip(runs, settings, strict=True) if other == own)
                groups.append(Group(name_of(algorithm, own), tuple(same)))
    return groups


def _common_target(groups: Sequence[Group]) -> float | None:
    """Return the return at which all runs were to stop, if it is the same."""
    targets = set()
    for group in groups:
        for record in group.records:
            try:
                targets.add(Until.parse(str(record.settings.get("until"))).return_mean)
            except UntilError:
                targets.add(None)
    return targets.pop() if len(targets) == 1 else None


def _reaching(groups: Sequence[Group], at_steps: int, notes: list[str]) -> list[Group]:
    """Leave out runs that have no return yet after this number of env steps.

    Raises:
        ComparisonError: none is left.
    """
    late = [record for group in groups for record in group.records if record.curve.env_steps[0] > at_steps]
    notes += [f"left out: {record.name} has no return at {at_steps:,} env steps" for record in late]
    left = [replace(group, records=tuple(each for each in group.records if each not in late)) for group in groups]
    if not any(group.records for group in left):
        first = min(int(record.curve.env_steps[0]) for record in late)
        msg = f"compare: no run has a return at {at_steps:,} env steps; the first one is at {first:,}"
        raise ComparisonError(msg)
    return [group for group in left if group.records]


def _returns(records: Sequence[Record], at_steps: int | None) -> np.ndarray:
    return np.array([record.curve.values[-1] if at_steps is None else record.curve.at(at_steps) for record in records])


def _row(group: Group, first: Group, env: str, target: float | None, at_steps: int | None) -> GroupRow:
    records, others = group.in_env(env), first.in_env(env)
    returns, theirs = _returns(records, at_steps), _returns(others, at_steps)
    better = None
    if group is not first and len(theirs):
        better = probability_of_improvement([returns], [theirs])
    return GroupRow(
        name=group.name, env=printable(env), num_runs=len(returns), returns=interquartile_mean([returns]), better=better,
        **_times(records, target),
    )  # fmt: skip


def _times(records: Sequence[Record], target: float | None) -> dict[str, Any]:
    solved = [] if target is None else [record.solved_at(target) for record in records]
    at = [(math.inf, math.inf) if found is None else found for found in solved]
    seconds, steps = (median(values) if values else math.inf for values in ([s for s, _ in at], [n for _, n in at]))
    speeds = [summary.steps_per_s for record in records if (summary := record.directory.summary()) is not None]
    known = [speed for speed in speeds if speed is not None]
    ends = [int(record.curve.env_steps[-1]) for record in records]
    return {
        "num_solved": None if target is None else sum(found is not None for found in solved),
        "solved_at_s": seconds if math.isfinite(seconds) else None,
        "solved_at_steps": steps if math.isfinite(steps) else None,
        "env_steps": (min(ends), max(ends)),
        "steps_per_s": median(known) if known else None,
    }


def _checked_scales(given: Any, envs: Sequence[str]) -> Mapping[str, tuple[float, float]]:
    if not isinstance(given, Mapping):
        msg = f"compare: normalize is {given!r}, expected a mapping such as {{{envs[0]!r}: (0, 500)}}"
        raise ComparisonError(msg)
    if unknown := [env for env in given if env not in envs]:
        msg = f"compare: normalize has {unknown[0]!r}; the runs are on {', '.join(envs)}"
        raise ComparisonError(msg)
    for env, limits in given.items():
        if not _is_scale(limits):
            msg = f"compare: normalize has {limits!r} for {env}, expected a lower and a higher number, such as (0, 500)"
            raise ComparisonError(msg)
    if given and len(envs) == 1:
        msg = f"compare: normalize is for rows of several environments, and all runs are on {envs[0]}; leave it out"
        raise ComparisonError(msg)
    return given


def _is_scale(limits: Any) -> bool:
    is_pair = isinstance(limits, Sequence) and len(limits) == 2 and all(isinstance(limit, Real) for limit in limits)
    return is_pair and math.isfinite(limits[0]) and math.isfinite(limits[1]) and limits[0] < limits[1]


def _scales(
    groups: Sequence[Group], envs: Sequence[str], at_steps: int | None, given: Mapping[str, tuple[float, float]]
) -> dict[str, tuple[float, float]]:
    """Return what counts as 0 and as 1 in each environment."""
    scales = {}
    for env in envs:
        everything = np.concatenate([_returns(group.in_env(env), at_steps) for group in groups])
        scales[env] = given.get(env, (float(everything.min()), float(everything.max())))
    return scales


def _rows_of_all(
    groups: Sequence[Group], envs: Sequence[str], target: float | None, at_steps: int | None,
    scales: Mapping[str, tuple[float, float]], notes: list[str],
) -> list[GroupRow]:  # fmt: skip
    """Return a row for each group that has runs in all environments, with normalized returns."""
    whole = [group for group in groups if all(group.in_env(env) for env in envs)]
    missing = [group.name for group in groups if group not in whole]
    notes += [f"{name} has no run in some of the environments, so it is not in the rows of all" for name in missing]

    def scores(group: Group) -> list[np.ndarray]:
        found = []
        for env in envs:
            low, high = scales[env]
            found.append((_returns(group.in_env(env), at_steps) - low) / (high - low if high > low else 1.0))
        return found

    if whole:
        limits = "; ".join(f"{printable(env)} {low:,.4g} and {high:,.4g}" for env, (low, high) in scales.items())
        notes.append(f"in the rows of all environments, returns are normalized: 0 and 1 are {limits}")
    return [
        GroupRow(
            name=group.name, env="all", num_runs=sum(map(len, scores(group))), returns=interquartile_mean(scores(group)),
            better=None if group is whole[0] else probability_of_improvement(scores(group), scores(whole[0])),
            **_times(group.records, target),
        )
        for group in whole
    ]  # fmt: skip


def _limits(groups: Sequence[Group], envs: Sequence[str], at_steps: int | None) -> list[str]:
    notes = []
    sizes = [len(group.in_env(env)) for group in groups for env in envs if group.in_env(env)]
    if min(sizes) == 1:
        notes.append("a group with one run has no interval: how much runs differ by their seeds is unknown")
    elif min(sizes) < FEW:
        notes.append(f"intervals from fewer than {FEW} runs are wide: more seeds narrow them")
    for env in envs:
        ends = [int(record.curve.env_steps[-1]) for group in groups for record in group.in_env(env)]
        if at_steps is not None and min(ends) < at_steps:
            num = sum(end < at_steps for end in ends)
            notes.append(
                f"{plural(num, 'run')} on {printable(env)} ended before {at_steps:,} env steps, from {min(ends):,} on: "
                "the last return counts"
            )
        if at_steps is None and max(ends) > 1.05 * min(ends):
            notes.append(
                f"runs on {printable(env)} ended after {min(ends):,} to {max(ends):,} env steps; "
                "--at-steps compares them at equal numbers"
            )
        for group in groups:
            seeds = [record.directory.config.identity.seed for record in group.in_env(env)]
            if len(set(seeds)) < len(seeds):
                num = len(seeds) - len(set(seeds))
                notes.append(
                    f"{group.name}: {plural(num, 'run')} on {printable(env)} repeat{'s' if num == 1 else ''} a seed, "
                    "and may not be independent"
                )
    return notes
