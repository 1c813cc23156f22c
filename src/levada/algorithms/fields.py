"""Fields of a configuration: their meanings, and their groups in the help.

`GROUPS` lists the most important group first; the command line and `help` show fields in this order. Fields that it does not
list, such as those of a custom algorithm, form a group of their own.

>>> from levada.algorithms.ppo import PPO
>>> meanings(PPO)["num_epochs"].partition(".")[0]
'Number of passes over each batch'
>>> grouped(["clip_range", "num_envs", "mine", "hidden_sizes"])
{'common': ['num_envs'], 'own': ['mine'], 'optimization': ['clip_range'], 'network': ['hidden_sizes']}
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from abc import ABCMeta
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from levada.algorithms.checks import ConfigError
from levada.validation import types_of, without_ranges

OWN = "own"
"""Title of the group of fields that are not in `GROUPS`."""

GROUPS: Mapping[str, tuple[str, ...]] = {
    "common": (
        "env", "until", "seed", "seeds", "num_parallel", "on", "out", "num_envs", "learning_rate", "discount", "env_kwargs",
        "config", "init_from",
    ),
    "sweep": ("over", "search", "trials", "metric", "minimize", "prune"),
    OWN: (),
    "policies": ("policy", "policy_kwargs", "on_failure"),
    "groups": (
        "of", "of_kwargs", "num_local_updates", "round_size", "outer_learning_rate", "outer_momentum", "staleness_exponent",
        "compression", "top_k_fraction",
    ),
    "average": ("anticipatory", "average_learning_rate", "average_samples_per_insert", "reservoir_size"),
    "sampling": (
        "num_steps", "num_rollouts", "shards", "max_lag", "order", "num_groups", "on_new_weights", "replay_ratio",
        "replay_buffer_size", "normalize_obs", "normalize_reward", "standardize_reward", "normalize_value", "agent_id",
        "value_per", "frame_stack", "reward_clip", "life_loss", "action_mask", "vectorization",
    ),
    "exploration": (
        "epsilon_start", "epsilon_end", "epsilon_steps", "epsilon_base", "epsilon_alpha", "noisy", "noisy_std",
        "exploration_noise", "target_entropy", "target_entropy_ratio", "log_alpha_init", "num_random_steps",
        "noise_fraction", "noise_alpha", "num_sampled_moves",
    ),
    "search": ("num_simulations", "puct_coef"),
    "replay": (
        "buffer_size", "learning_starts", "samples_per_insert", "prioritized", "priority_exponent",
        "importance_sampling_exponent", "max_priority_weight", "initial_priorities", "sequence_length", "burn_in", "overlap",
        "tolerance", "tables",
    ),
    "optimization": (
        "batch_size", "minibatch_size", "microbatch_size", "num_minibatches", "num_epochs", "num_gradient_steps", "anneal_steps",
        "learning_rate_schedule",
        "anneal_learning_rate", "anneal_clip_range", "anneal_entropy_coef",
        "gae_lambda", "n_step", "clip_range", "clip_range_vf", "clip_rho",
        "clip_c", "clip_importance",
        "entropy_coef", "value_coef", "baseline", "target_kl", "normalize_advantage", "double", "dueling", "distribution",
        "num_atoms", "v_min", "v_max", "value_rescaling", "huber_delta", "num_critics", "policy_delay",
        "target_update_interval", "tau", "target_policy_noise",
        "target_noise_clip", "output_penalty", "team_reward", "max_grad_norm", "optimizer", "optimizer_kwargs", "adam_eps",
    ),
    "network": (
        "hidden_sizes", "mixing_size", "activation", "rnn_type", "rnn_size", "log_std_init", "network", "features_extractor",
    ),
    "machine": ("threads", "device", "precision", "compile", "portable"),
    "evaluation": ("eval_every", "eval_episodes", "eval_env_kwargs", "eval_stochastic", "eval_video"),
    "output": ("quiet", "json", "watch", "trace", "log", "checkpoint_every_updates", "save_replays"),
}  # fmt: skip


def grouped(names: Collection[str], options: Collection[str] = ()) -> dict[str, list[str]]:
    """Names by the title of their group, in the order of `GROUPS`. Others come last in "output" if they are `options` of a
    command, and in the group `OWN` otherwise.
    """
    groups = {title: [name for name in group if name in names] for title, group in GROUPS.items()}
    named = {name for group in groups.values() for name in group}
    for name in names:
        if name not in named:
            groups["output" if name in options else OWN].append(name)
    return {title: group for title, group in groups.items() if group}


def meanings(cls: type[Any]) -> dict[str, str]:
    """Docstrings of a dataclass's fields, inherited ones included, each as one paragraph; none of a class without source."""
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
    """Metaclass of configurations. It appends the meaning of every field to the docstring, which `help` shows."""

    @property
    def __doc__(cls) -> str:  # type: ignore[override]
        """The docstring with all fields. Built on access, since this reads the source."""
        own = inspect.cleandoc(vars(cls).get("__doc__") or f"Configuration of {cls.__name__}.")
        if "__match_args__" not in vars(cls):  # not a dataclass, or the dataclass decorator is still running
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
    """Raise ConfigError, with a hint at the intended one, for a field that a configuration does not have.

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
            from levada.algorithms.hints import hint  # needed only for a mistake

            msg = f"{cls.__name__} has no field {name!r}{hint(name, declared)}"
            raise ConfigError(msg)


def _takes(cls: type[Any], positional: Sequence[Any], names: Collection[str]) -> bool:
    """Whether a custom constructor, or one with an InitVar, accepts these arguments."""
    try:
        inspect.signature(cls.__init__).bind_partial(None, *positional, **dict.fromkeys(names))
    except TypeError:
        return False
    return True


def converted(cls: type[Any], name: str, value: Any) -> Any:
    """Value of a field from JSON or the command line: a list where a tuple is expected, for example."""
    try:
        return msgspec.convert(value, without_ranges(types_of(cls)[name]), str_keys=True)
    except (msgspec.ValidationError, TypeError):
        return value  # the check of the algorithm has the words
