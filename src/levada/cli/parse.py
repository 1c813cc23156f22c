"""From words to a configuration: `ppo --env CartPole-v1 --until return=475 --learning-rate 1e-3`.

The options of the command and the fields of the algorithm are given side by side, with the help that stands in their
docstrings. Defaults are those of the preset for the environment.
"""

from __future__ import annotations

import ast
import dataclasses
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

import msgspec
import tyro

from levada.algorithms.algorithm import Algorithm
from levada.algorithms.presets import preset
from levada.algorithms.registry import ALGORITHMS, algorithm_name, describe, find_algorithm
from levada.api import configure
from levada.cli.errors import ParserExit, UsageError, parsing
from levada.rl.task import Task
from levada.run.identity import Origin, Setting

_SHORT = {"--lag": "--max-lag"}
"""Names that everybody tries first."""

OptionsT = TypeVar("OptionsT", bound="EnvOption")
ConfigT = TypeVar("ConfigT", bound=Algorithm)


@dataclass(frozen=True, kw_only=True)
class EnvOption:
    """What every command about an algorithm must be told."""

    env: Annotated[str, tyro.conf.arg(metavar="ENV", help_behavior_hint="(required)")] = ""
    """A registered environment, such as CartPole-v1, or my_module:MyEnv-v0, which imports my_module first."""
    env_kwargs: tuple[str, ...] = ()
    """Keyword arguments of the environment: `--env-kwargs repeat_action_probability=0.0 mode=1`. Values are written as in
    JSON or Python; what is neither is text."""

    @property
    def task(self) -> Task:
        """The environment as a task.

        Raises:
            UsageError: a keyword argument without a value, or given twice.
        """
        kwargs: dict[str, Any] = {}
        for word in self.env_kwargs:
            name, equals, value = word.partition("=")
            if not (name.isidentifier() and equals):
                msg = f"--env-kwargs {word}: expected name=value, such as `--env-kwargs repeat_action_probability=0.0`"
                raise UsageError(msg)
            if name in kwargs:
                msg = f"--env-kwargs has {name} twice; keep one"
                raise UsageError(msg)
            kwargs[name] = _value(value)
        return Task(self.env, env_kwargs=kwargs)


@dataclass(frozen=True)
class _Words(Generic[OptionsT, ConfigT]):
    """The names are the headings of the help."""

    command: OptionsT
    algorithm: ConfigT


@dataclass(frozen=True)
class Parsed(Generic[OptionsT]):
    """What was said."""

    options: OptionsT
    config: Algorithm
    settings: dict[str, Setting]
    """The fields of the algorithm, and where each value is from."""
    given: frozenset[str]
    """Names of the options and fields that stood on the command line."""


def parse(verb: str, options: type[OptionsT], args: Sequence[str]) -> Parsed[OptionsT]:
    """Parse `ALGORITHM --env ENV ...`.

    Raises:
        UsageError, AlgorithmError, ConfigError: what cannot be; and ParserExit after tyro's own message.
    """
    if not args or args[0].startswith("-"):
        _without_algorithm(verb, options, args)
    cls = find_algorithm(args[0])
    args = [
        _SHORT.get(word.partition("=")[0], word.partition("=")[0]) + "".join(word.partition("=")[1:]) for word in args
    ]
    words = join_until(args[1:]) if "until" in _fields(options) else list(args[1:])
    names = _names(words)
    for name, count in Counter(name.removeprefix("no_") for name in names).items():
        if count > 1:
            msg = f"--{name.replace('_', '-')} is given {count} times; keep one"
            raise UsageError(msg)
    env = _env(words)
    if env is None and "env" not in names and not {"-h", "--help"} & set(words):
        msg = f"--env is missing: `levada {verb} {args[0]} --env CartPole-v1`"
        raise UsageError(msg)
    _check_names(verb, args[0], names, {*_fields(options), *_fields(cls)})
    start, settings = configure(cls, env or "", {})
    with parsing():
        said = tyro.cli(
            _Words[tyro.conf.DisallowNone[options], cls],  # type: ignore[valid-type]
            args=words,
            default=_Words(options(), start),
            prog=f"levada {verb} {args[0]}",
            description=_description(cls, env),
            config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
        )
    given = frozenset(names) | {name.removeprefix("no_") for name in names}
    settings |= {name: Setting(getattr(said.algorithm, name), "command line") for name in _fields(cls) if name in given}
    return Parsed(said.command, said.algorithm, settings, given)


def origins(parsed: Parsed[Any]) -> Mapping[str, Origin]:
    """Where the values of the options are from."""
    chosen: dict[str, Origin] = {
        name: "command line" if name in parsed.given else "default" for name in _fields(type(parsed.options))
    }
    return {"algorithm_class": "command line", **chosen}


def _without_algorithm(verb: str, options: type[Any], args: Sequence[str]) -> None:
    """Say what is missing, or help."""
    known = ", ".join(ALGORITHMS)
    if {"-h", "--help"} & set(args):
        print(
            f"usage: levada {verb} ALGORITHM --env ENV [OPTIONS]\n\n{(options.__doc__ or '').splitlines()[0]}\n\n"
            f"algorithms: {known}; one of your own is path/to/file.py:Class\n"
            f"`levada {verb} ppo --help` lists all options."
        )
        raise ParserExit(0)
    what = "the algorithm comes first:" if args else "which algorithm?"
    msg = f"{what} `levada {verb} ALGORITHM --env ENV ...`; algorithms: {known}"
    raise UsageError(msg)


def _check_names(verb: str, algorithm: str, names: Sequence[str], known: Collection[str]) -> None:
    """Refuse short forms, with the name that is meant; other unknown names are left to the parser, which knows near ones."""
    for name in names:
        meant = [full for full in known if _is_short_for(name, full)]
        if name not in known and meant:
            nearest = " or ".join(_option(full) for full in sorted(meant))
            msg = f"no option {_option(name)}; did you mean {nearest}? `levada {verb} {algorithm} --help` lists all"
            raise UsageError(msg)


def _is_short_for(name: str, full: str) -> bool:
    """Whether it is the initials of a name, one of its words, or the beginning of the first: lr, epochs, ent."""
    words = full.split("_")
    return name == "".join(word[0] for word in words) or name in words or words[0].startswith(name)


def _value(word: str) -> Any:
    """A value as it stands in JSON or Python; or the word itself.

    >>> [_value(word) for word in ("0.25", "true", "False", "None", "(84, 84)", "easy")]
    [0.25, True, False, None, (84, 84), 'easy']
    """
    try:
        return msgspec.json.decode(word)
    except msgspec.DecodeError:
        pass
    try:
        return ast.literal_eval(word)
    except (ValueError, SyntaxError):
        return word


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _description(cls: type[Algorithm], env: str | None) -> str:
    text = describe(cls)
    if env is not None and preset(algorithm_name(cls), env):
        text += f" Defaults are those of the preset for {env}."
    return text


def _fields(cls: type[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(cls)]


def join_until(words: Sequence[str]) -> list[str]:
    """The words with all conditions of `--until` in one: `--until return=475 steps=100_000` needs no quotes."""
    joined: list[str] = []
    conditions: list[str] = []
    place: int | None = None
    taking = False
    for word in words:
        if word == "--until" or word.startswith("--until="):
            place, taking = len(joined) if place is None else place, True
            conditions += [word.removeprefix("--until=")] if "=" in word else []
        elif taking and not word.startswith("-"):
            conditions.append(word)
        else:
            taking = False
            joined.append(word)
    if place is not None:
        joined[place:place] = ["--until", *([" ".join(conditions)] if conditions else [])]
    return joined


def _env(words: Sequence[str]) -> str | None:
    for index, word in enumerate(words):
        if word == "--env" and index + 1 < len(words) and not words[index + 1].startswith("--"):
            return words[index + 1]
        if word.startswith("--env="):
            return word.removeprefix("--env=")
    return None


def _names(words: Sequence[str]) -> list[str]:
    """Names of what was given."""
    return [word[2:].split("=")[0].replace("-", "_") for word in words if word.startswith("--")]
