"""The fields of a configuration: what each means, its group in the help, and what is said of a field that does not exist.

`GROUPS` is data, the most important first: the command line and `help` show fields in this order. A field that it does not name,
such as one of a user's own algorithm, stands in a group of its own.

>>> from levada.algorithms.ppo import PPO
>>> meanings(PPO)["num_epochs"].partition(".")[0]
'Passes over each batch'
>>> grouped(["clip", "num_envs", "mine", "hidden"])
{'common': ['num_envs'], 'own': ['mine'], 'optimisation': ['clip'], 'network': ['hidden']}
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import importlib
import inspect
import textwrap
from abc import ABCMeta
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

from levada.algorithms.checks import ConfigError
from levada.algorithms.foreign import RUN, here, in_python
from levada.algorithms.names import ALGORITHMS

_KNOWN_BEST = ("ppo", "dqn", "sac", "td3")
"""Named first where several have a field."""

OWN = "own"
"""Title of the group of fields that `GROUPS` does not name."""

GROUPS: Mapping[str, tuple[str, ...]] = {
    "common": (
        "env", "until", "seed", "on", "out", "num_envs", "learning_rate", "discount", "env_kwargs", "config", "init_from",
    ),
    OWN: (),
    "sampling": (
        "num_steps", "num_rollouts", "shards", "max_lag", "order", "num_groups", "on_new_weights", "replay_ratio",
        "replay_capacity", "normalise_obs", "normalise_reward", "frame_stack", "reward_clip", "life_loss", "action_mask",
        "vectorization",
    ),
    "exploration": (
        "epsilon_start", "epsilon_end", "epsilon_steps", "ladder", "noisy", "noisy_std", "noise", "entropy_per_action",
        "entropy_share", "log_alpha_init", "num_random_steps",
    ),
    "replay": (
        "capacity", "min_size", "samples_per_insert", "prioritised", "alpha", "beta", "eta", "first_priorities", "length",
        "burn_in", "overlap", "tolerance", "tables",
    ),
    "optimisation": (
        "batch_size", "minibatch_size", "num_minibatches", "num_epochs", "num_gradient_steps", "anneal_steps",
        "anneal_learning_rate", "anneal_clip", "gae_lambda", "lookahead", "clip", "clip_value", "clip_rho", "clip_c", "clip_is",
        "entropy_coef", "value_coef", "baseline", "target_kl", "normalise_advantage", "double", "dueling", "distribution",
        "num_atoms", "v_min", "v_max", "rescale", "huber", "num_critics", "actor_every", "target_every", "tau", "target_noise",
        "target_noise_clip", "max_grad_norm", "adam_eps",
    ),
    "network": ("hidden", "activation", "cell", "num_units", "log_std_init", "network"),
    "machine": ("threads", "device", "precision", "compile", "portable"),
    "output": ("quiet", "json", "tensorboard", "checkpoint_every_updates", "save_replays"),
}  # fmt: skip


def grouped(names: Collection[str], options: Collection[str] = ()) -> dict[str, list[str]]:
    """The names by title of their group, in the order of `GROUPS`.

    Names that it does not have are last in "output" if they are `options` of a command, and else in the group `OWN`.
    """
    groups = {title: [name for name in group if name in names] for title, group in GROUPS.items()}
    named = {name for group in groups.values() for name in group}
    for name in names:
        if name not in named:
            groups["output" if name in options else OWN].append(name)
    return {title: group for title, group in groups.items() if group}


def meanings(cls: type[Any]) -> dict[str, str]:
    """What the docstring below each field of a dataclass says, in one paragraph; of inherited ones, too.

    A class whose source cannot be read, because it was typed into an interpreter, adds none.
    """
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if "__dataclass_fields__" in vars(base):
            found |= _own_meanings(base)
    return {field.name: found[field.name] for field in dataclasses.fields(cls) if field.name in found}


def _own_meanings(cls: type[Any]) -> dict[str, str]:
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except (OSError, TypeError):
        return {}
    body = next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)).body
    found = {}
    for field, below in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            text = below.value.value if isinstance(below.value, ast.Constant) else None
            if isinstance(text, str):
                found[field.target.id] = " ".join(text.split())
    return found


class ConfigType(ABCMeta):
    """The type of configurations. Their docstring ends with the meaning of every field, which is what `help` shows."""

    @property
    def __doc__(cls) -> str:  # type: ignore[override]
        """Made when it is looked at, for that reads the source."""
        own = inspect.cleandoc(vars(cls).get("__doc__") or f"Configuration of {cls.__name__}.")
        if "__match_args__" not in vars(cls):  # it is no dataclass, or the decorator that makes it one is looking
            return own
        return f"{own}\n\nFields, all of them keyword arguments:\n\n{_listed(cls)}"


def _listed(cls: type[Any]) -> str:
    fields, texts = {field.name: field for field in dataclasses.fields(cls)}, meanings(cls)
    lines: list[str] = []
    for title, names in grouped(fields).items():
        lines += [f"--- {cls.__name__ if title == OWN else title}", ""]
        for name in names:
            field = fields[name]
            kind = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", str(field.type))
            default = "" if field.default is dataclasses.MISSING else f" = {field.default!r}"
            lines.append(f"{name}: {kind}{default}")
            lines += textwrap.wrap(texts.get(name, ""), 92, initial_indent="    ", subsequent_indent="    ")
        lines.append("")
    return "\n".join(lines)


def require_fields(cls: type[Any], names: Collection[str], positional: Sequence[Any] = ()) -> None:
    """Refuse fields that a configuration does not have, with the name that is meant.

    Raises:
        ConfigError: a name of another library, a misspelt one, or a value without a name.

    >>> from levada.algorithms.ppo import PPO
    >>> try:
    ...     require_fields(PPO, ["gamma"])
    ... except ConfigError as error:
    ...     print(error)
    PPO has no field 'gamma': here it is 'discount'
    """
    declared = [field.name for field in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []
    if not (positional or set(names) - {*declared}) or _takes(cls, positional, names):
        return
    if positional and declared:
        msg = f"{cls.__name__}({positional[0]!r}): fields are given by name, such as {cls.__name__}({declared[0]}=...)"
        raise ConfigError(msg)
    for name in names:
        if declared and name not in declared:
            msg = f"{cls.__name__} has no field {name!r}{_hint(name, declared)}"
            raise ConfigError(msg)


def _takes(cls: type[Any], positional: Sequence[Any], names: Collection[str]) -> bool:
    """Whether a constructor of the user's own, or one with an InitVar, takes that."""
    try:
        inspect.signature(cls.__init__).bind_partial(None, *positional, **dict.fromkeys(names))
    except TypeError:
        return False
    return True


def elsewhere(name: str, put: Callable[[Collection[str]], str]) -> str | None:
    """What to say of a name that means a field of other algorithms; None if it does not. `put`: names as they are written.

    >>> print(elsewhere("clip_range", in_python))
    here it is 'clip', which ppo and appo have
    >>> print(elsewhere("capacity", in_python))
    dqn, sac, td3 and others have it
    """
    has = {own: {field.name for field in dataclasses.fields(_class_of(own))} for own in ALGORITHMS}
    every = set[str]().union(*has.values())
    targets = (name,) if name in every else here(name, every)
    wanted = {target.partition("=")[0] for target in targets}
    owners = [own for own in (*_KNOWN_BEST, *ALGORITHMS) if wanted and wanted <= has[own]]
    if not owners:
        return None
    owners = list(dict.fromkeys(owners))
    listed = f"{', '.join(owners[:3])} and others" if len(owners) > 3 else " and ".join(owners)
    verb = "has" if len(owners) == 1 else "have"
    return f"{listed} {verb} it" if targets == (name,) else f"here it is {put(targets)}, which {listed} {verb}"


def _class_of(algorithm: str) -> type[Any]:
    module, _, name = ALGORITHMS[algorithm].partition(":")
    cls: type[Any] = getattr(importlib.import_module(module), name)
    return cls


def _hint(name: str, declared: Sequence[str]) -> str:
    if found := here(name, {*declared, *RUN}):
        return f": here it is {in_python(found)}"
    if answer := elsewhere(name, in_python):
        return f": {answer}"
    if near := difflib.get_close_matches(name, declared, n=1):
        return f"; did you mean {near[0]!r}?"
    return f"; its fields: {', '.join(declared)}"
