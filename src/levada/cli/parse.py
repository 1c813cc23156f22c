"""Parser from command-line arguments to a configuration: `ppo --env CartPole-v1 --until return=475 --learning-rate 1e-3`.

The options of the command and the fields of the algorithm appear together, with the help from their docstrings, in the groups
of `levada.algorithms.fields`. Defaults are those of the preset for the environment.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import re
import shutil
import textwrap
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final, Generic, TypeVar, get_args, get_origin

import msgspec
import tyro

from levada.algorithms.algorithm import Algorithm
from levada.algorithms.fields import GROUPS, OWN, grouped, meanings
from levada.algorithms.foreign import here, on_the_command_line, option
from levada.algorithms.hints import elsewhere
from levada.algorithms.names import ALGORITHMS
from levada.algorithms.presets import PRESETS, preset
from levada.algorithms.registry import algorithm_home, algorithm_name, describe, find_algorithm
from levada.api import configure
from levada.api import settings as read_settings
from levada.cli.errors import ParserExit, UsageError, parsing
from levada.rl.envs.task import MaskOption, Task, Vectorization
from levada.run.identity import Origin, Setting
from levada.validation import accepted, types_of

_SHORT = {"discount": "gamma", "learning_rate": "lr", "max_lag": "lag"}
"""Field -> short form of its option."""

_METAVARS = {
    "env_kwargs": "[NAME=VALUE ...]", "until": "CONDITION", "on": "PLACE", "out": "DIR|URL", "svg": "FILE",
    "device": "auto|cpu|cuda", "checkpoint_every_updates": "INT|auto|None", "over": "NAME=VALUES",
}  # fmt: skip
"""Name -> placeholder of its value in the help, if its type is not a good one."""

_EXAMPLES = {
    "--env-kwargs": "repeat_action_probability=0.0", "--eval-env-kwargs": "repeat_action_probability=0.0",
    "--optimizer-kwargs": "weight_decay=0.01",
    "--policy-kwargs": "ppo.learning_rate=0.001",
}  # fmt: skip
_OF_POLICY = re.compile(r"([\w-]+\.)*[^\W\d]\w*")
"""Name of a field of a policy: POLICY.FIELD."""

OptionsT = TypeVar("OptionsT", bound="EnvOption")
RunOptionsT = TypeVar("RunOptionsT")


@dataclass(frozen=True, kw_only=True)
class EnvOption:
    """Options of every command about an algorithm."""

    env: Annotated[str, tyro.conf.arg(metavar="ENV", help_behavior_hint="(required)")] = ""
    """Environment: a registered id, such as CartPole-v1; one of another library, such as pettingzoo:mpe2.simple_spread_v3 and
    openspiel:kuhn_poker of several agents, or gymnax:CartPole-v1; my_module:MyEnv-v0, which imports my_module first; or a class
    or function in a file, path/to/file.py:MyEnv."""
    env_kwargs: tuple[str, ...] = ()
    """Keyword arguments of the environment, such as `--env-kwargs repeat_action_probability=0.0 mode=1`. Values are JSON or
    Python literals; anything else is text."""
    action_mask: MaskOption | None = "auto"
    """Source of action masks that are not part of the observations. `info`: `info["action_mask"]`. `method`:
    `env.action_masks()`. `auto`: the method if the environment has it, otherwise the info if it contains masks.
    None: no masks."""
    vectorization: Vectorization = "auto"
    """How several environments are stepped. `sync`: one after another. `async`: each in its own process.
    `vector_entry_point`: by the vector environment registered for the id. `envpool`: by EnvPool. `auto`: by the registered
    vector environment where that is faster, otherwise `sync`."""
    frame_stack: Annotated[int | None, tyro.conf.arg(metavar="K")] = None
    """Number of frames per observation. By default 4 for Atari, and no stacking otherwise."""
    reward_clip: Annotated[float | None, tyro.conf.arg(metavar="LIMIT")] = None
    """Clip the rewards used in training to [-LIMIT, LIMIT]; reported returns are not clipped. By default 1 for Atari, and no
    clipping otherwise."""
    life_loss: tyro.conf.FlagCreatePairsOff[bool] = False
    """In the training data, an episode terminates when a life is lost; the game itself continues."""
    config: Annotated[str | None, tyro.conf.arg(metavar="RUN/config.json")] = None
    """Use the settings of an earlier run instead of the defaults: algorithm, environment, options and fields. Options on the
    command line take precedence."""

    @property
    def task(self) -> Task:
        """The environment as a task.

        Raises:
            UsageError: a keyword argument has no value, or is repeated.
        """
        return Task(
            self.env, env_kwargs=kwargs_of("--env-kwargs", self.env_kwargs), vectorization=self.vectorization,
            frame_stack=self.frame_stack, reward_clip=self.reward_clip, life_loss=self.life_loss, action_mask=self.action_mask,
        )  # fmt: skip


@dataclass(frozen=True)
class Parsed(Generic[OptionsT]):
    """Result of parsing."""

    options: OptionsT
    config: Algorithm
    settings: dict[str, Setting]
    """Fields of the algorithm, with the origin of each value."""
    given: frozenset[str]
    """Names of the options and fields on the command line."""
    otherwise: Origin = "default"
    """Origin of the other options."""


def parse(verb: str, options: type[OptionsT], args: Sequence[str]) -> Parsed[OptionsT]:
    """Parse `ALGORITHM --env ENV ...`.

    Raises:
        UsageError, AlgorithmError, ConfigError: invalid arguments. ParserExit: the parser has printed its message.
    """
    args, told = with_config(args)
    if not args or args[0].startswith("-"):
        _without_algorithm(verb, options, args)
    cls = find_algorithm(args[0])
    words = in_full(args[1:], {*_fields(options), *_fields(cls)})
    words = join_until(words) if "until" in _fields(options) else words
    several = {name for name, hint in types_of(cls).items() if get_origin(hint) is tuple}
    words = _joined(words, several | ({"over"} & {*_fields(options)}))
    words = _capitalized(words, types_of(cls))
    names = _names(words)
    for name, count in Counter(name.removeprefix("no_") for name in names).items():
        if count > 1:
            msg = f"--{name.replace('_', '-')} is given {count} times; keep one"
            raise UsageError(msg)
    env = _env(words) or (told["env"].env if told else None)
    if env is None and "env" not in names and not {"-h", "--help"} & set(words):
        example = words[0] if words and not words[0].startswith("-") else "CartPole-v1"
        msg = f"--env is missing: `levada {verb} {args[0]} --env {example}`"
        raise UsageError(msg)
    check_names(f"{verb} {args[0]}", names, {*_fields(options), *_fields(cls)})
    algorithm = told["algorithm"] if told else cls
    base = options(**_as_options(told, env, _fields(options))) if told else options()
    sections = _sections(base, configure(algorithm, env or "", {})[0])
    with parsing():
        said: Any = tyro.cli(
            dataclasses.make_dataclass("Words", list(sections.items())),
            args=words,
            prog=f"levada {verb} {args[0]}",
            description=_description(cls, env),
            config=(tyro.conf.OmitArgPrefixes,),
        )
    values = {name: value for title in sections for name, value in vars(getattr(said, title)).items()}
    given = frozenset(names) | {name.removeprefix("no_") for name in names}
    hints = types_of(cls)
    fields = {name: _as_field(name, values[name], hints[name]) for name in _fields(cls) if name in given}
    config, settings = configure(algorithm, env or "", fields, origin="command line")
    if told:
        settings = {name: s if name in fields else Setting(s.value, "config") for name, s in settings.items()}
    kinds = types_of(options)
    parsed = options(**{name: _as_field(name, values[name], kinds[name]) for name in _fields(options)})
    return Parsed(parsed, config, settings, given, "config" if told else "default")


def in_full(words: Sequence[str], fields: Collection[str]) -> list[str]:
    """Expand short forms of options, unless a field has that name.

    >>> in_full(["--lr=0.1", "--gamma", "0.9"], {"learning_rate", "discount"})
    ['--learning-rate=0.1', '--discount', '0.9']
    """
    full = {option(short): option(name) for name, short in _SHORT.items() if name in fields and short not in fields}
    return ["".join((full.get(head, head), equals, value)) for head, equals, value in (w.partition("=") for w in words)]


def _joined(words: Sequence[str], fields: Collection[str]) -> list[str]:
    """Join repetitions of options that take several values.

    >>> _joined(["--policy", "ppo:a", "--seed", "1", "--policy=dqn:b"], {"policy"})
    ['--seed', '1', '--policy', 'ppo:a', 'dqn:b']
    """
    own = {option(name) for name in fields}
    values: dict[str, list[str]] = {}
    others = list[str]()
    current = others
    for word in words:
        head, equals, value = word.partition("=")
        if head in own:
            current = values.setdefault(head, [])
            current += [value] if equals else []
        else:
            if word.startswith("--"):
                current = others
            current.append(word)
    return others + [word for head, own_values in values.items() for word in (head, *own_values)]


def _capitalized(words: Sequence[str], hints: Mapping[str, Any]) -> list[str]:
    """Capitalize `true`, `false` and `none` after options that take them among other values.

    >>> _capitalized(["--compile=false", "--target-kl", "none"], {"compile": bool | int, "target_kl": float | None})
    ['--compile=False', '--target-kl', 'None']
    """
    kinds = {option(name): get_args(hint) for name, hint in hints.items() if str not in get_args(hint)}
    capitalized, current = list[str](), ""
    for word in words:
        head, equals, value = word.partition("=") if word.startswith("--") else (current, "", word)
        kind = {"true": bool, "false": bool, "none": type(None)}.get(value.lower())
        value = value.capitalize() if kind in kinds.get(head, ()) else value
        capitalized.append(f"{head}{equals}{value}" if word.startswith("--") else value)
        current = head
    return capitalized


def with_config(args: Sequence[str]) -> tuple[list[str], dict[str, Any] | None]:
    """The arguments with the algorithm of `--config RUN/config.json` in front, and the settings in that file, or None.

    Raises:
        UsageError: another algorithm is named, or the file is missing from the command.
        RunDirectoryError, LoadError: the file cannot be read.
    """
    words = [part for word in args for part in (word.split("=", 1) if word.startswith("--config=") else [word])]
    if "--config" not in words:
        return list(args), None
    place = words.index("--config")
    if place + 1 == len(words):
        raise UsageError("--config is given without a file: `levada train --config RUN/config.json`")
    told = read_settings(words[place + 1])
    own = type(told["algorithm"])
    if words[0].startswith("-"):
        words.insert(0, algorithm_home(own))
    elif find_algorithm(words[0]) is not own:
        msg = f"--config {words[place + 1]} is of {algorithm_name(own)}, not of {words[0]}; leave the algorithm out"
        raise UsageError(msg)
    return words, told


def _as_options(told: Mapping[str, Any], env: str | None, names: Collection[str]) -> dict[str, Any]:
    """Settings as options; those of the environment only if it is the same one."""
    task: Task = told["env"]
    values = {name: value for name, value in told.items() if name not in ("algorithm", "env")}
    if env == task.env:
        values |= {field.name: getattr(task, field.name) for field in dataclasses.fields(task)}
        values["env_kwargs"] = _as_words(task.env_kwargs)
    return {name: value for name, value in {**values, "env": env}.items() if name in names}


def _sections(options: EnvOption, config: Algorithm) -> dict[str, type[Any]]:
    """Options and fields as dataclasses, one per group of the help, with their values as defaults."""
    shown: dict[str, tuple[str, Any, Any]] = {}
    for part in (config, options):
        hints, texts = types_of(type(part)), meanings(type(part))
        usual = {field.name: field.default for field in dataclasses.fields(type(part))}
        for name in _fields(type(part)):
            value, is_unset = getattr(part, name), part is options and usual[name] is None
            value = _as_words(value) if _is_mapping(hints[name]) else value
            default = dataclasses.field(default_factory=partial(_same, value))
            shown[name] = (name, _shown(name, hints[name], value, texts.get(name, ""), is_unset), default)
    own = type(config).__name__.lower()
    return {
        own if title == OWN and own not in GROUPS else title: dataclasses.make_dataclass(
            title,
            [shown[name] for name in names],
            namespace={"__doc__": " "},  # the parser prints nothing for a blank docstring
            kw_only=True,
        )
        for title, names in grouped(shown, _fields(type(options))).items()
    }


def _is_mapping(hint: Any) -> bool:
    """Whether a field is given as `name=value`."""
    return get_origin(hint) in (dict, Mapping) and get_args(hint)[0] is str


def _as_words(kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    """`name=value` of each, the inverse of `kwargs_of`."""
    return tuple(f"{name}={msgspec.json.encode(value).decode()}" for name, value in kwargs.items())


def _as_field(name: str, value: Any, hint: Any) -> Any:
    """Value of a field from that of its option.

    Raises:
        UsageError: a keyword argument is no `name=value`, or of another type.
    """
    if not _is_mapping(hint):
        return value
    try:
        return msgspec.convert(kwargs_of(option(name), value), hint)
    except msgspec.ValidationError as error:
        msg = f"{option(name)} {' '.join(value)}: expected values of {get_args(hint)[1]}"
        raise UsageError(msg) from error


def _same(value: Any) -> Any:
    return value


def _shown(name: str, hint: Any, value: Any, text: str, is_unset: bool) -> Any:
    """Type hint with its help. An option whose default is None cannot be set to None by name."""
    about: dict[str, Any] = {"help": text}
    if name in _SHORT:
        about["aliases"] = [option(_SHORT[name])]
    if _is_mapping(hint):
        hint, about["metavar"] = tuple[str, ...], _METAVARS["env_kwargs"]
    elif metavar := _METAVARS.get(name) or _placeholder(hint):
        about["metavar"] = metavar
    if value is None or value in ((), {}):
        about["help_behavior_hint"] = "(default: None)" if "None" in text else ""
    if name == "env":
        about["help_behavior_hint"] = "(required)"
    return Annotated[(hint, tyro.conf.arg(**about), *([tyro.conf.DisallowNone] if is_unset else []))]


def _placeholder(hint: Any) -> str | None:
    """Placeholder of a value, with its range; None for the parser's own placeholder.

    >>> from levada.validation import PositiveInt
    >>> _placeholder(PositiveInt | None), _placeholder(bool)
    ('INT>=1|None', None)
    """
    known = None if hint is bool else accepted(hint)
    return None if known is None or known.metavar == "STR" else known.metavar


def origins(parsed: Parsed[Any]) -> Mapping[str, Origin]:
    """Origins of the options' values."""
    chosen: dict[str, Origin] = {
        name: "command line" if name in parsed.given else parsed.otherwise for name in _fields(type(parsed.options))
    }
    return {"algorithm_class": "command line", **chosen}


def _without_algorithm(verb: str, options: type[Any], args: Sequence[str]) -> None:
    """Report the missing algorithm, or print the help."""
    known = ", ".join(ALGORITHMS)
    if {"-h", "--help"} & set(args):
        print(
            f"usage: levada {verb} ALGORITHM --env ENV [OPTIONS]\n\n{(options.__doc__ or '').splitlines()[0]}\n\n"
            f"algorithms: {known}; a custom one is path/to/file.py:Class\n"
            f"`levada {verb} ppo --help` lists all options."
        )
        raise ParserExit(0)
    what = "the algorithm comes first:" if args else "which algorithm?"
    msg = f"{what} `levada {verb} ALGORITHM --env ENV ...`; algorithms: {known}"
    raise UsageError(msg)


RUNS: Final = tyro.conf.arg(metavar="RUN [RUN ...]", help_behavior_hint="(required)")
"""Argument of the commands about several runs."""


def parse_run(kind: type[RunOptionsT], verb: str, args: Sequence[str]) -> RunOptionsT:
    """Parse `RUN ...`, the arguments of a command about a run.

    Raises:
        UsageError: they cannot be parsed. ParserExit: the parser has printed its message.
    """
    check_names(verb, _names(args), _fields(kind), is_of_an_algorithm=False)
    with parsing():
        return tyro.cli(kind, args=list(args), prog=f"levada {verb}", config=(tyro.conf.FlagCreatePairsOff,))


def check_names(command: str, names: Sequence[str], known: Collection[str], *, is_of_an_algorithm: bool = True) -> None:
    """Reject unknown names, with a hint at the intended one: of another library or algorithm, a short form, or similar.

    Raises:
        UsageError: a name is unknown.
    """
    for name in names:
        if name in known or name.removeprefix("no_") in known or name == "help":
            continue
        near = [full for full in sorted(known) if _is_short_for(name, full)]
        short = [_SHORT[full] for full in known if full in _SHORT]
        near = near or difflib.get_close_matches(name, [*known, *short], n=1)
        if found := here(name, known):
            hint = f": here it is {on_the_command_line(found)};"
        elif is_of_an_algorithm and (answer := elsewhere(name, on_the_command_line)):
            of_policy = "; `--policy-kwargs POLICY.NAME=VALUE` sets it for a policy" if "policy_kwargs" in known else ""
            hint = f": {answer}{of_policy};"
        else:
            hint = f"; did you mean {' or '.join(map(option, near))}?" if near else ";"
        msg = f"no option {option(name)}{hint} `levada {command} --help` lists all"
        raise UsageError(msg)


def _is_short_for(name: str, full: str) -> bool:
    """Whether a name is the initials of another, one of its words, or a prefix of its first word: lr, epochs, ent."""
    words = full.split("_")
    return name == "".join(word[0] for word in words) or name in words or words[0].startswith(name)


def kwargs_of(flag: str, words: Sequence[str]) -> dict[str, Any]:
    """Parse the keyword arguments that an option has as `name=value`.

    Raises:
        UsageError: one has no value, or is repeated.
    """
    kwargs: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        known = _OF_POLICY.fullmatch(name) if flag == "--policy-kwargs" else name.isidentifier()
        if not (known and equals):
            msg = f"{flag} {word}: expected name=value, such as `{flag} {_EXAMPLES.get(flag, 'size=3')}`"
            raise UsageError(msg)
        if name in kwargs:
            msg = f"{flag} has {name} twice; keep one"
            raise UsageError(msg)
        kwargs[name] = value_of(value)
    return kwargs


def value_of(word: str) -> Any:
    """Parse a value as JSON or a Python literal; otherwise return the word.

    >>> [value_of(word) for word in ("0.25", "true", "False", "None", "(84, 84)", "easy")]
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


def _description(cls: type[Algorithm], env: str | None) -> str:
    text = describe(cls)
    if env is not None and preset(algorithm_name(cls), env):
        text += f" Defaults are those of the preset for {env}."
    elif env is None and algorithm_name(cls) in PRESETS:
        text += " Presets for some environments replace these defaults: add --env ENV to see them."
    # the parser joins lines, except indented ones
    return textwrap.fill(text, shutil.get_terminal_size().columns, subsequent_indent="  ")


def _fields(cls: type[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(cls) if field.init]


def join_until(words: Sequence[str]) -> list[str]:
    """Join all conditions of `--until` into one argument: `--until return=475 steps=100_000` needs no quotes."""
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
    """Names of the options in the arguments."""
    return [word[2:].split("=")[0].replace("-", "_") for word in words if word.startswith("--")]
