"""`levada sweep`."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

import tyro

from levada.algorithms.algorithm import Algorithm
from levada.algorithms.registry import algorithm_name, find_algorithm
from levada.api import Options, build, configure, deployment
from levada.api.notes import default_until
from levada.cli.errors import UsageError, silence_warnings
from levada.cli.folder import check_place, folder_of, num_parallel_of, seeds_of, without
from levada.cli.parse import EnvOption, Parsed, check_names, in_full, parse, with_config
from levada.cli.train import TrainOptions
from levada.cli.trial import options_of
from levada.cli.trials import Trials
from levada.comparison.records import RETURN
from levada.flow.errors import LevadaError
from levada.run.loggers import parse_log
from levada.run.remote_loggers import require_installed
from levada.run.until import Until
from levada.run.user_exit import sys_exit_is_an_error
from levada.sweeps.metric import IN_SUMMARY, RETURN_IN_SUMMARY, Metric
from levada.sweeps.samplers import Listed, Median, Sampler, Tpe, shown
from levada.sweeps.space import MAX_TRIALS, Choices, Parameter, Range, Space, as_integers, check_space, parse_parameter
from levada.validation import PositiveInt, types_of, without_ranges

_OWN = {
    "--over": None, "--search": True, "--trials": True, "--metric": True, "--minimize": False, "--prune": False, "--seeds": True,
    "--seed": True, "--out": True, "--num-parallel": True, "--quiet": False, "--json": False,
}  # fmt: skip
"""Options that are not of the runs, and whether they have a value."""
_EVAL_RETURN = "eval/return"


@dataclass(frozen=True, kw_only=True)
class SweepOptions(Options, EnvOption):
    """Train with several settings, a run for each, and compare the returns that they reach."""

    over: tuple[str, ...] = ()
    """Settings to vary, each a field of the algorithm: values, such as `learning_rate=1e-4,3e-4`, or a range for `random` and
    `tpe`: `log:1e-5:1e-2` (uniform logarithm), `uniform:0.9:1`, `int:1:20`."""
    search: Literal["grid", "random", "tpe"] = "grid"
    """How settings are chosen. `grid`: all combinations. `random`: independent draws. `tpe`: draws where good trials were, by
    Optuna's tree-structured Parzen estimator."""
    trials: Annotated[PositiveInt | None, tyro.conf.arg(metavar="INT>=1")] = None
    """Number of trials of `random` and `tpe`."""
    metric: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Objective: a number in summary.json, or a metric, whose last value counts. By default the mean return of the last 100
    episodes; with `eval_every`, that of the last evaluation."""
    minimize: tyro.conf.FlagCreatePairsOff[bool] = False
    """The lowest objective is the best one."""
    prune: tyro.conf.FlagCreatePairsOff[bool] = False
    """End trials early that are worse than the median of the finished ones, by Optuna's median rule."""
    seeds: Annotated[str | None, tyro.conf.arg(metavar="SEEDS")] = None
    """Seeds of each trial, such as `1-3` or `1,2,7`, in place of `seed`. The objective is the interquartile mean."""
    num_parallel: Annotated[PositiveInt | None, tyro.conf.arg(metavar="INT>=1")] = None
    """Number of runs at a time. By default as many as the cores have room for."""
    out: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    """Directory of the sweep. By default one in runs/ that is named after the command, so that the same command continues it."""
    quiet: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print only errors."""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print one JSON object per trial."""


def sweep(args: list[str]) -> int:
    """Make all runs, and print the table of trials."""
    space, first = _space(args)
    parsed = parse("sweep", SweepOptions, [*args, *first])
    options = parsed.options
    if options.quiet and options.json:
        raise UsageError("--quiet and --json contradict each other: leave one out")
    if options.quiet:
        silence_warnings()
    check_space(space)
    seeds = seeds_of(options.seeds, options.seed, parsed.given)
    metric = _metric(options)
    num_steps = _num_steps(parsed, metric) if options.prune else None
    is_adaptive = options.prune or options.search == "tpe"
    identity = without(args, {name: has for name, has in _OWN.items() if name in _changing(is_adaptive)})
    name = f"{algorithm_name(type(parsed.config))}-{options.env}"
    folder = folder_of(options.out, name, identity, "sweep")
    sampler = _sampler(options, space)
    _check_trials(sampler, space, parsed, args)
    _check_first(parsed)
    check_place(options.on, "sweep")
    num_parallel = num_parallel_of(options.num_parallel, options.on, options.threads)
    trials = Trials(
        without(args, _OWN), type(parsed.config), folder, seeds=seeds, sampler=sampler, metric=metric,
        median=None if num_steps is None else Median(is_minimized=metric.is_minimized), num_steps=num_steps or 0,
        num_parallel=num_parallel, most_open=max(1, num_parallel // len(seeds)) if is_adaptive else num_parallel,
        is_quiet=options.quiet, is_json=options.json,
    )  # fmt: skip
    return trials.execute(["sweep", *identity])


def _space(args: Sequence[str]) -> tuple[list[Parameter], list[str]]:
    """Return the settings to vary, and the options of a trial: the defaults need not go with the other options.

    Raises:
        UsageError, SweepError: an `--over` cannot be parsed, is no field of the algorithm, or is also given as an option.
    """
    texts = _values_of("--over", args)
    words, _ = with_config(args)
    if not texts or not words or words[0].startswith("-") or {"-h", "--help"} & {*words}:
        return [], []  # the parser has something to say about it
    cls = find_algorithm(words[0])
    fields = {field.name for field in dataclasses.fields(cls) if field.init}
    options = {word.partition("=")[0][2:].replace("-", "_") for word in in_full(words, fields) if word.startswith("--")}
    given = options | {name.removeprefix("no_") for name in options}
    space = [_parameter(text, cls, fields, given) for text in texts]
    return space, options_of(cls, {parameter.name: _ends(parameter)[0] for parameter in space})


def _values_of(option: str, args: Sequence[str]) -> list[str]:
    """Values of an option that takes several, and may be repeated."""
    values: list[str] = []
    is_own = False
    for word in args:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            is_own = name == option
            values += [value] if is_own and equals else []
        elif is_own:
            values.append(word)
    return values


def _parameter(text: str, cls: type[Algorithm], fields: Collection[str], given: Collection[str]) -> Parameter:
    """Parse an `--over`.

    Raises:
        UsageError, SweepError: it cannot be parsed, is no field of the algorithm, or is also given as an option.
    """
    parameter = parse_parameter(text)
    (word,) = in_full([f"--{parameter.name.replace('_', '-')}"], fields)
    name = word[2:].replace("-", "_")
    if name not in fields and name in {field.name for field in dataclasses.fields(SweepOptions)}:
        msg = f"--over {text}: {name} is no field of {cls.__name__}; a sweep varies only these"
        raise UsageError(msg)
    try:
        check_names(f"sweep {algorithm_name(cls)}", [name], fields)
    except UsageError as error:
        msg = f"--over {text}: {error}"
        raise UsageError(msg) from error
    if name in given:
        msg = f"--over {name} and {word} contradict each other: leave one out"
        raise UsageError(msg)
    parameter = dataclasses.replace(parameter, name=name)
    return _of_type(parameter, types_of(cls)[name]) if isinstance(parameter, Range) else parameter


def _ends(parameter: Parameter) -> tuple[str, ...]:
    """All values, or the ends of a range."""
    if isinstance(parameter, Choices):
        return parameter.values
    return parameter.text(parameter.low), parameter.text(parameter.high)


def _changing(is_adaptive: bool) -> set[str]:
    """Options that may change when a sweep is continued. Choices that depend on results depend on the seeds and the metric."""
    own = {"--trials", "--out", "--num-parallel", "--quiet", "--json"}
    return own if is_adaptive else own | {"--seeds", "--seed", "--metric", "--minimize"}


def _of_type(parameter: Range, hint: Any) -> Range:
    """Return the range of a setting, of integers if it takes no other numbers.

    Raises:
        UsageError: it takes no numbers, or a uniform range is of integers.
    """
    kinds = {without_ranges(kind) for kind in (get_args(without_ranges(hint)) or (hint,))}
    if not kinds & {int, float}:
        msg = f"--over {parameter.name}: it takes no numbers, so it has no range; expected values with commas between them"
        raise UsageError(msg)
    if float in kinds or parameter.is_integer:
        return parameter
    if not parameter.is_log:
        low, high = parameter.low, parameter.high
        msg = f"--over {parameter.name}: it takes integers; expected `{parameter.name}=int:{low:g}:{high:g}`"
        raise UsageError(msg)
    return as_integers(parameter)


def _metric(options: SweepOptions) -> Metric:
    """Return the objective; by default the return of evaluations, if runs have them."""
    usual = RETURN_IN_SUMMARY if options.eval_every is None else _EVAL_RETURN
    metric = Metric(usual if options.metric is None else options.metric, options.minimize)
    if not metric.name.strip() or not metric.name.isprintable():
        msg = f"--metric {metric.name!r}: expected the name of a metric, such as {RETURN}"
        raise UsageError(msg)
    return metric


def _num_steps(parsed: Parsed[SweepOptions], metric: Metric) -> int:
    """Return the env steps of a run, at whose parts trials are compared.

    Raises:
        UsageError: that is not known, or the metric is known at the end alone.
    """
    if metric.in_rows in IN_SUMMARY:
        msg = f"--prune with --metric {metric.name}: it is known at the end of a run alone; expected a metric of metrics.jsonl"
        raise UsageError(msg)
    until = Until.parse(parsed.options.until or default_until(parsed.config))
    if until.steps is None:
        msg = f"--prune with --until {until}: trials are compared after equal numbers of env steps; add steps=N to --until"
        raise UsageError(msg)
    return until.steps


def _sampler(options: SweepOptions, space: Sequence[Parameter]) -> Sampler:
    """Return what chooses the settings.

    Raises:
        UsageError, SweepError: the number of trials is missing, or given for a grid; a grid has a range.
    """
    if options.search == "grid":
        sampler = Listed.grid(space)
        if options.trials is not None:
            num = sampler.num_trials
            msg = f"--trials {options.trials}: the grid has {num}; --trials is for --search random and --search tpe"
            raise UsageError(msg)
        return sampler
    if options.trials is None:
        msg = f"--search {options.search} needs a number of trials, such as `--trials 20`"
        raise UsageError(msg)
    if options.trials > MAX_TRIALS:
        msg = f"--trials {options.trials}: expected at most {MAX_TRIALS:,}"
        raise UsageError(msg)
    if options.search == "random":
        return Listed.random(space, options.trials)
    return Tpe(space, options.trials, is_minimized=options.minimize)


def _check_first(parsed: Parsed[SweepOptions]) -> None:
    """Check the environment, the flow and the deployment of a trial, as a run does before it starts.

    Raises:
        ValueError, TypeError: one of them is invalid.
        Exception: any error of the environment when it is made.
    """
    deployment(parsed.options.on)
    require_installed(parse_log(parsed.options.log))
    with sys_exit_is_an_error():
        task = parsed.config.resolve_task(parsed.options.task)
        build(parsed.config.resolved(task)[0], task).check(reports=True)


def _check_trials(sampler: Sampler, space: Space, parsed: Parsed[SweepOptions], args: Sequence[str]) -> None:
    """Check each value, or the ends of a range, as `levada train` does, and then the settings of each trial that is known.

    Raises:
        UsageError: a value is invalid, or some do not go together.
    """
    cls = type(parsed.config)
    first = {parameter.name: _ends(parameter)[0] for parameter in space}
    words = without(args, _OWN)
    values: dict[tuple[str, str], Any] = {}
    for parameter in space:
        name = parameter.name
        for value in _ends(parameter):
            try:
                checked = parse("train", TrainOptions, [*words, *options_of(cls, {**first, name: value})])
            except LevadaError as error:
                msg = f"--over {name}={value}: {error}"
                raise UsageError(msg) from error
            values[name, value] = getattr(checked.config, name)
    if not isinstance(sampler, Listed):
        return
    told = with_config(args)[1]
    algorithm: Algorithm | type[Algorithm] = told["algorithm"] if told else cls
    names = {field.name for field in dataclasses.fields(cls)} & parsed.given
    given = {name: getattr(parsed.config, name) for name in names}
    for number in range(1, sampler.num_trials + 1):
        settings = sampler.suggest(number)
        fields = {parameter.name: _value(parameter, settings[parameter.name], values) for parameter in space}
        try:
            configure(algorithm, parsed.options.env, {**given, **fields}, origin="command line")
        except LevadaError as error:
            msg = f"trial {number}, {shown(settings)}: {error}"
            raise UsageError(msg) from error


def _value(parameter: Parameter, text: str, values: Mapping[tuple[str, str], Any]) -> Any:
    """Value of a setting from its text."""
    if isinstance(parameter, Choices):
        return values[parameter.name, text]
    return int(text) if parameter.is_integer else float(text)
