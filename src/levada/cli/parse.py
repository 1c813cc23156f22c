"""From words to a configuration: `ppo --env CartPole-v1 --until return=475 --learning-rate 1e-3`.

The options of the command and the fields of the algorithm are given side by side, with the help that stands in their
docstrings. Defaults are those of the preset for the environment.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import tyro

from levada.algorithms.algorithm import Algorithm
from levada.algorithms.registry import ALGORITHMS, find_algorithm
from levada.api import configure
from levada.cli.errors import UsageError
from levada.run.identity import Setting

O = TypeVar("O")
C = TypeVar("C", bound=Algorithm)


@dataclass(frozen=True)
class _Words(Generic[O, C]):
    options: O
    """Options"""
    config: C
    """Fields of the algorithm"""


@dataclass(frozen=True)
class Parsed(Generic[O]):
    """What was said."""

    options: O
    config: Algorithm
    settings: dict[str, Setting]
    """The fields of the algorithm, and where each value is from."""
    given: frozenset[str]
    """Names of the options and fields that stood on the command line."""


def parse(verb: str, options: type[O], args: Sequence[str]) -> Parsed[O]:
    """Parse `ALGORITHM --env ENV ...`.

    Raises:
        UsageError, AlgorithmError, ConfigError: what cannot be; and SystemExit after tyro's own message.
    """
    if not args or args[0].startswith("-"):
        wants_help = bool(args) and args[0] in ("-h", "--help")
        msg = f"usage: levada {verb} ALGORITHM --env ENV ...; algorithms: {', '.join(ALGORITHMS)}"
        if wants_help:
            print(msg + f"\n`levada {verb} ppo --help` lists all options.")
            raise SystemExit(0)
        raise UsageError(msg)
    cls = find_algorithm(args[0])
    words = list(args[1:])
    env = _env(words)
    start, settings = configure(cls, env or "", {})
    given = frozenset(_names(words))
    said = tyro.cli(
        _Words[options, cls],  # type: ignore[valid-type]
        args=words,
        default=_Words(options(), start),
        prog=f"levada {verb} {args[0]}",
        description=cls.__doc__,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
    )
    if env is None:
        msg = f"--env is missing: `levada {verb} {args[0]} --env CartPole-v1`"
        raise UsageError(msg)
    settings |= {
        field.name: Setting(getattr(said.config, field.name), "command line")
        for field in dataclasses.fields(cls)
        if field.name in given
    }
    return Parsed(said.options, said.config, settings, given)


def origins(parsed: Parsed[Any]) -> Mapping[str, Any]:
    """Where the values of the options are from."""
    return {
        field.name: "command line" if field.name in parsed.given else "default"
        for field in dataclasses.fields(parsed.options)
    }


def _env(words: Sequence[str]) -> str | None:
    for index, word in enumerate(words):
        if word == "--env" and index + 1 < len(words) and not words[index + 1].startswith("--"):
            return words[index + 1]
        if word.startswith("--env="):
            return word.removeprefix("--env=")
    return None


def _names(words: Sequence[str]) -> list[str]:
    names = [word[2:].split("=")[0].replace("-", "_") for word in words if word.startswith("--")]
    return names + [name.removeprefix("no_") for name in names if name.startswith("no_")]
