"""Supported observation and action spaces, and nests of arrays for their values.

A *nest* is an array, a dict of nests or a tuple of nests, and represents a batch of observations. Its leaves share their
leading dimensions (time, environments).

    >>> import numpy as np
    >>> from gymnasium.spaces import Box, Dict, Discrete
    >>> space = Dict({"camera": Box(0, 255, (4, 4), np.uint8), "speed": Box(-1.0, 1.0, (2,), np.float64)})
    >>> check_observation_space(space)
    >>> buffers = allocate(space, 3)                            # room for the observations of 3 environments
    >>> {key: (leaf.shape, leaf.dtype.name) for key, leaf in named_leaves(buffers).items()}
    {'camera': ((3, 4, 4), 'uint8'), 'speed': ((3, 2), 'float32')}
    >>> write(buffers, 1, space.sample())

**Supported observations**: Box (vectors and images), Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple
of these, nested. **Supported actions**: Discrete, MultiDiscrete and MultiBinary of one dimension, float Box.

**Canonical spaces.** Policies, buffers and losses see the *canonical* space: floats are float32 (a float64 observation is
stored as float32), Discrete and MultiDiscrete count from 0, and a MultiBinary observation is a Box of int8. Images stay uint8.
`EnvBatch` and `Actor.act` convert between the two, so a `start` other than 0 never appears elsewhere.

**Action masks** follow the convention of Gymnasium and PettingZoo: the observation space is a Dict with exactly the keys
`"obs"` and `"action_mask"`. The mask is a Box or MultiBinary of shape `(n,)` for Discrete(n), and of shape `(sum(nvec),)` for
MultiDiscrete, whose masks are concatenated. Nonzero means allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from levada.flow.errors import LevadaError
from levada.flow.items import Allocate
from levada.rl.data.nest import Array, Nest, join_path, leaves, map_nest, named_leaves, write

__all__ = [
    "ACTION_MASK", "OBS", "STATE", "Array", "Nest", "SpaceError", "allocate", "canonical_action_space",
    "canonical_observation_space", "check_action_space", "check_observation_space", "has_action_mask",
    "has_state", "leaf_spaces", "leaves", "map_nest", "mask_sizes", "named_leaves", "write",
]  # fmt: skip

OBS = "obs"
ACTION_MASK = "action_mask"
STATE = "state"

_HINTS: dict[type[Space[Any]], str] = {
    spaces.Text: "encode the text as a Box of token numbers",
    spaces.Graph: "give nodes and edges as Boxes of a fixed size, padded, in a Dict",
    spaces.Sequence: "pad it to its greatest length: a Box, and a Box that says which entries are valid",
    spaces.OneOf: "use a Dict of all alternatives and a Discrete that says which one is meant",
}


class SpaceError(LevadaError, ValueError):
    """A space of the environment is not supported. The message names the space, the supported ones, and a remedy."""


def check_observation_space(space: Space[Any], action_space: Space[Any] | None = None) -> None:
    """Check that an observation space is supported and, given the `action_space`, that its mask has the right shape.

    >>> try:
    ...     check_observation_space(spaces.Dict({"hint": spaces.Text(8)}))
    ... except SpaceError as error:
    ...     print(str(error).partition("(")[0], "...", str(error).rpartition("; ")[2])
    observation space at 'hint' is Text ... encode the text as a Box of token numbers
    """
    _check_observation(space, "")
    paths = [path for path, _ in _paths(space, "")]
    if len(set(paths)) != len(paths):
        msg = (
            f"observation space has two leaves with the same path, among {sorted(paths)}; "
            "rename a key, so that a key with '/' in it does not collide with a nested one"
        )
        raise SpaceError(msg)
    if action_space is not None and isinstance(space, spaces.Dict) and ACTION_MASK in space.spaces:
        _check_mask(space, action_space)


def check_action_space(space: Space[Any]) -> None:
    """Check that an action space is supported.

    >>> check_action_space(spaces.Discrete(3, start=1))
    """
    supported = "levada supports Discrete, MultiDiscrete, MultiBinary and Box of floats"
    if isinstance(space, spaces.Discrete):
        return
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        if len(space.shape) != 1:
            msg = (
                f"action space is {space!r} of shape {space.shape}; {supported}, MultiDiscrete and "
                "MultiBinary of one dimension only; flatten it in an ActionWrapper"
            )
            raise SpaceError(msg)
    elif isinstance(space, spaces.Box):
        if space.dtype.kind != "f":
            msg = (
                f"action space is {space!r} with dtype {space.dtype}; {supported}; "
                "did you mean MultiDiscrete, or dtype=np.float32?"
            )
            raise SpaceError(msg)
        if 0 in space.shape:
            msg = f"action space is {space!r}, which has no elements; {supported}, with at least one element"
            raise SpaceError(msg)
        if bool(np.isnan(space.low).any() or np.isnan(space.high).any()):
            msg = f"action space is {space!r} with a bound that is NaN; bounds are finite numbers or infinite"
            raise SpaceError(msg)
    elif isinstance(space, spaces.Dict | spaces.Tuple):
        msg = (
            f"action space is {space!r}; {supported}, not Dict or Tuple; flatten it into one of these in an "
            "ActionWrapper (gymnasium.spaces.utils.flatten_space helps)"
        )
        raise SpaceError(msg)
    else:
        hint = _HINTS.get(type(space), "translate it in an ActionWrapper").partition(",")[0]
        msg = f"action space is {space!r}; {supported}; {hint}"
        raise SpaceError(msg)


def has_action_mask(space: Space[Any]) -> bool:
    """Return whether observations of this space contain an action mask.

    >>> has_action_mask(spaces.Dict({"obs": spaces.Box(-1, 1, (2,)), "action_mask": spaces.MultiBinary(4)}))
    True
    """
    return isinstance(space, spaces.Dict) and set(space.spaces) == {OBS, ACTION_MASK}


def has_state(space: Space[Any]) -> bool:
    """Return whether observations of this space, without action mask, are an agent's own and the global state.

    >>> has_state(spaces.Dict({"obs": spaces.Box(-1, 1, (2,)), "state": spaces.Box(-1, 1, (6,))}))
    True
    """
    return isinstance(space, spaces.Dict) and set(space.spaces) == {OBS, STATE}


def map_observations(own: Callable[[Any], Any], state: Callable[[Any], Any], obs: Any) -> Any:
    """Apply functions to the leaves of observations, with or without action masks: `state` to those of the global state beside an
    own observation, `own` to all others.

    >>> map_observations(len, sum, {"obs": {"obs": [1, 2], "state": [3, 4]}, "action_mask": [0]})
    {'obs': {'obs': 2, 'state': 7}, 'action_mask': 1}
    """
    if not isinstance(obs, dict):
        return map_nest(own, obs)
    if set(obs) == {OBS, STATE}:
        return {OBS: map_nest(own, obs[OBS]), STATE: map_nest(state, obs[STATE])}
    if set(obs) == {OBS, ACTION_MASK}:
        return {OBS: map_observations(own, state, obs[OBS]), ACTION_MASK: map_nest(own, obs[ACTION_MASK])}
    return map_nest(own, obs)


def mask_sizes(action_space: Space[Any]) -> tuple[int, ...]:
    """Return the number of mask entries of each discrete action; empty if the actions cannot be masked.

    >>> mask_sizes(spaces.Discrete(4)), mask_sizes(spaces.MultiDiscrete([2, 3])), mask_sizes(spaces.Box(-1, 1, (2,)))
    ((4,), (2, 3), ())
    """
    if isinstance(action_space, spaces.Discrete):
        return (int(action_space.n),)
    if isinstance(action_space, spaces.MultiDiscrete):
        return tuple(int(n) for n in action_space.nvec.reshape(-1))
    return ()


def canonical_observation_space(space: Space[Any]) -> Space[Any]:
    """Return the observation space as policies and buffers see it: floats are float32, integers count from 0.

    >>> space = spaces.Tuple((spaces.Box(-1, 1, (2,), np.float64), spaces.Discrete(3, start=5), spaces.MultiBinary(2)))
    >>> canonical_observation_space(space)
    Tuple(Box(-1.0, 1.0, (2,), float32), Discrete(3), Box(0, 1, (2,), int8))
    """
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: canonical_observation_space(child) for key, child in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([canonical_observation_space(child) for child in space.spaces])
    if isinstance(space, spaces.MultiBinary):
        return spaces.Box(0, 1, space.shape, np.int8)
    return canonical_action_space(space)


def canonical_action_space(space: Space[Any]) -> Space[Any]:
    """Return the action space as policies see it: Discrete counts from 0, a Box is float32.

    >>> canonical_action_space(spaces.Discrete(3, start=1))
    Discrete(3)
    """
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(space.nvec)
    if isinstance(space, spaces.Box) and space.dtype.kind == "f" and space.dtype != np.float32:
        with np.errstate(over="ignore"):  # a float64 bound beyond the float32 range becomes infinite
            return spaces.Box(space.low.astype(np.float32), space.high.astype(np.float32), dtype=np.float32)
    return space


def leaf_spaces(space: Space[Any]) -> dict[str, Space[Any]]:
    """Return the leaf spaces of nested Dict and Tuple spaces by path, in the order of `leaves`; path "" without nesting.

    >>> leaf_spaces(spaces.Dict({"a": spaces.Tuple((spaces.Discrete(2), spaces.Discrete(3))), "b": spaces.Discrete(4)}))
    {'a/0': Discrete(2), 'a/1': Discrete(3), 'b': Discrete(4)}
    """
    return dict(_paths(space, ""))


def allocate(space: Space[Any], *leading: int, make: Allocate = np.zeros) -> Nest:
    """Allocate zeros for observations (or actions) of a space, with leading dimensions such as (steps + 1, num_envs), in
    canonical dtypes. `make(shape, dtype)` creates the arrays, for example uninitialized ones in shared memory.

    >>> allocate(spaces.Box(-1, 1, (3,), np.float64), 2)
    array([[0., 0., 0.],
           [0., 0., 0.]], dtype=float32)
    """
    if isinstance(space, spaces.Dict):
        return {key: allocate(child, *leading, make=make) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(allocate(child, *leading, make=make) for child in space.spaces)
    if isinstance(space, spaces.Discrete):  # to make the canonical space would take longer than to allocate
        return make(leading, np.dtype(np.int64))
    canonical = canonical_observation_space(space)
    assert canonical.shape is not None
    return make((*leading, *canonical.shape), canonical.dtype)


def _children(space: Any) -> list[tuple[Any, Space[Any]]]:
    return list(space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces))


def _paths(space: Space[Any], path: str) -> list[tuple[str, Space[Any]]]:
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return [(path, space)]
    return [leaf for key, child in _children(space) for leaf in _paths(child, join_path(path, str(key)))]


def _check_observation(space: Space[Any], path: str) -> None:
    where = f"observation space at {path!r}" if path else "observation space"
    if isinstance(space, spaces.Dict | spaces.Tuple):
        if not space.spaces:
            msg = f"{where} is an empty {type(space).__name__}; give it at least one space"
            raise SpaceError(msg)
        for key, child in _children(space):
            if isinstance(space, spaces.Dict) and not isinstance(key, str):
                msg = f"{where} is a Dict with the key {key!r}; keys are str: did you mean {str(key)!r}?"
                raise SpaceError(msg)
            _check_observation(child, join_path(path, str(key)))
    elif isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        if 0 in (space.shape or ()):
            msg = f"{where} is {space!r}, which has no elements; leave it out"
            raise SpaceError(msg)
    else:
        hint = _HINTS.get(type(space), "translate it in an ObservationWrapper")
        msg = (
            f"{where} is {space!r}; levada supports Box, Discrete, MultiDiscrete, MultiBinary, and Dict or "
            f"Tuple of these; {hint}"
        )
        raise SpaceError(msg)


def _check_mask(space: spaces.Dict, action_space: Space[Any]) -> None:
    keys = sorted(space.spaces)
    if not has_action_mask(space):
        msg = (
            f"observation space is a Dict of {keys}: with an {ACTION_MASK!r} the keys are exactly {OBS!r} "
            f"and {ACTION_MASK!r}; put everything else under {OBS!r}, or call the mask something else"
        )
        raise SpaceError(msg)
    mask, size = space.spaces[ACTION_MASK], sum(mask_sizes(action_space))
    if not size:
        msg = (
            f"observation space has an {ACTION_MASK!r}, but the action space is {action_space!r}: "
            "only Discrete and MultiDiscrete actions can be masked"
        )
        raise SpaceError(msg)
    if not isinstance(mask, spaces.Box | spaces.MultiBinary) or mask.shape != (size,):
        msg = (
            f"observation space at {ACTION_MASK!r} is {mask!r}; for the action space {action_space!r} "
            f"expected MultiBinary({size}) or a Box of shape ({size},): one entry for each choice"
        )
        raise SpaceError(msg)
