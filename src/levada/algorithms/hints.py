"""Hints for unknown fields of a configuration: the name in levada, or the algorithms that have the field."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Collection, Sequence
from pkgutil import resolve_name

from levada.algorithms.foreign import RUN, here, in_python
from levada.algorithms.names import ALGORITHMS

_KNOWN_BEST = ("ppo", "dqn", "sac", "td3")
"""Algorithms named first when several have a field."""


def elsewhere(name: str, put: Callable[[Collection[str]], str]) -> str | None:
    """Hint for a name that means a field of other algorithms; None if it does not. `put` formats names.

    >>> print(elsewhere("clip_coef", in_python))
    here it is 'clip_range', which ppo, appo, ippo and others have
    >>> print(elsewhere("buffer_size", in_python))
    dqn, sac, td3 and others have it
    """
    has = {own: {field.name for field in dataclasses.fields(resolve_name(home))} for own, home in ALGORITHMS.items()}
    every = set[str]().union(*has.values())
    targets = (name,) if name in every else here(name, every)
    wanted = {target.partition("=")[0] for target in targets}
    in_order = dict.fromkeys((*_KNOWN_BEST, *ALGORITHMS))
    owners = [own for own in in_order if wanted and wanted <= has[own]]
    if not owners:
        return None
    listed = f"{', '.join(owners[:3])} and others" if len(owners) > 3 else " and ".join(owners)
    verb = "has" if len(owners) == 1 else "have"
    return f"{listed} {verb} it" if targets == (name,) else f"here it is {put(targets)}, which {listed} {verb}"


OF_TASKS = ("env_kwargs", "vectorization", "frame_stack", "reward_clip", "life_loss", "action_mask")
"""Settings of the environment, which belong to `Task`."""


def hint(name: str, declared: Sequence[str]) -> str:
    """Hint at the field that an unknown name means, beginning with a colon or semicolon."""
    if name in OF_TASKS:
        return f"; it is a setting of the environment: Task(env, {name}=...)"
    if found := here(name, {*declared, *RUN}):
        return f": here it is {in_python(found)}"
    if answer := elsewhere(name, in_python):
        of_policy = "; policy_kwargs={'POLICY.NAME': value} sets it for a policy" if "policy_kwargs" in declared else ""
        return f": {answer}{of_policy}"
    if near := difflib.get_close_matches(name, declared, n=1):
        return f"; did you mean {near[0]!r}?"
    return f"; its fields: {', '.join(declared)}"
