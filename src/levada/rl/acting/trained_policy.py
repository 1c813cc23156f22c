"""A policy with its weights: takes observations as environments return them, and returns actions as they take them.

action = run.policy.act(observation)
actions = run.policy.act_batch(observations)
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from gymnasium import Space, spaces

from levada.rl.acting.actor import Actor
from levada.rl.data.spaces import ACTION_MASK, OBS, Array, Nest, has_action_mask, mask_sizes
from levada.rl.envs.actions import make_encoder
from levada.rl.envs.masks import as_mask
from levada.rl.envs.observations import Violation, make_reader
from levada.rl.envs.rewards_and_dones import MaskCheck
from levada.rl.policies.policy import Policy, Weights

_MASK_HINT = f"the policy was trained with action masks: give {{{OBS!r}: observation, {ACTION_MASK!r}: mask}}"
_RESET_HINT = "env.reset() returns the observation and a dict: give the first"
_ONE_HINT = "act takes one observation as the environment shows it; act_batch takes a batch"
_BATCH_HINT = "act_batch takes arrays of observations, one row for each"


class TrainedPolicy:
    """A policy with its weights. Acts as in training, normalization included."""

    def __init__(self, policy: Policy, weights: Weights, *, version: int, seed: int = 0) -> None:
        """`version`: number of updates of the weights; `seed`: seed of sampled actions."""
        self.policy = policy
        self.weights = weights
        self.version = version
        self._rng = np.random.default_rng(seed)
        self._open()
        self._state = self._actor.initial_state(1)
        self._states = self._actor.initial_state(0)

    def reset(self, is_new: Array | None = None) -> None:
        """Reset the recurrent state at the start of episodes; other policies have no state.

        `is_new`: bool ``[B]``, the rows of `act_batch` whose episodes start; None: all rows, and the state of `act`.
        """
        if is_new is None:
            self._state[...], self._states = 0.0, self._actor.initial_state(0)
        else:
            self._states[np.asarray(is_new, np.bool_)] = 0.0

    def act(self, obs: Any, *, deterministic: bool = True) -> Array:
        """Return the action for one observation: the most probable one, or a sample as in training.

        The observation and the action have the environment's format: Discrete actions count from the `start` of the space, and
        continuous ones are clipped to the bounds. A recurrent policy keeps its state between calls; call `reset` at the start
        of an episode.

        Raises:
            ValueError: the observation differs from the environment's space in structure, shape, dtype or discrete values, is not
                finite, or its mask allows no action. The bounds of a Box are not checked, because environments exceed them.
        """
        try:
            rows = self._reader.allocate()
            self._reader.put(rows, 0, self._with_mask(obs, ()))
            batch = self._checked(self._reader.read(rows), 1)
        except Violation as violation:
            is_of_reset = isinstance(obs, tuple) and len(obs) == 2 and isinstance(obs[1], dict)
            raise self._error("act", obs, violation, _RESET_HINT if is_of_reset else _ONE_HINT) from None
        action = self._actor.act(batch, self._state, None if deterministic else self._rng)
        return cast("Array", self._encode(action)[0])

    def act_batch(self, obs: Any, *, deterministic: bool = True) -> Array:
        """Return the actions ``[B, ...]`` for a batch of observations: arrays ``[B, ...]`` in the structure of the space.

        Vector environments return such batches. Each row is computed as by `act`. A recurrent policy keeps a state per row; a
        different number of rows resets it. Call ``reset(is_new)`` at the start of episodes.

        Raises:
            ValueError: as in `act`.
        """
        space = self.policy.env_observation_space
        try:
            num_rows = _num_rows(obs, space)
            rows = make_reader(space, num_rows).read(self._with_mask(obs, (num_rows,)))
            batch = self._checked(rows, num_rows)
        except Violation as violation:
            raise self._error("act_batch", obs, violation, _BATCH_HINT) from None
        if len(self._states) != num_rows:
            self._states = self._actor.initial_state(num_rows)
        action = self._actor.act(batch, self._states, None if deterministic else self._rng)
        return make_encoder(self.policy.env_action_space, num_rows)(action)

    def _open(self) -> None:
        policy = self.policy
        self._actor = Actor(policy)
        self._actor.load(self.weights)
        self._reader = make_reader(policy.env_observation_space, num_rows=1)
        self._encode = make_encoder(policy.env_action_space, num_envs=1)
        self._check_mask = MaskCheck(policy.env_action_space) if has_action_mask(policy.observation_space) else None

    def __getstate__(self) -> dict[str, Any]:
        made = ("_actor", "_reader", "_encode", "_check_mask")
        return {name: value for name, value in vars(self).items() if name not in made}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open()

    def _checked(self, batch: Nest, num_rows: int) -> Nest:
        """Raise a Violation if a mask allows no action."""
        if self._check_mask is not None:
            self._check_mask(batch, np.zeros(num_rows, np.bool_))
        return batch

    def _error(self, name: str, obs: Any, violation: Violation, hint: str) -> ValueError:
        return ValueError(f"{name}: {violation.bare} ({_MASK_HINT if self._lacks_mask(obs) else hint})")

    def _lacks_mask(self, obs: Any) -> bool:
        return self._check_mask is not None and not (isinstance(obs, dict) and ACTION_MASK in obs)

    def _with_mask(self, obs: Any, batch_shape: tuple[int, ...]) -> Any:
        """Return observations with a mask of numbers in the dtype of the space, in whose values only zero counts."""
        if self._check_mask is None or self._lacks_mask(obs):
            return obs
        space = cast("spaces.Dict", self.policy.env_observation_space)[ACTION_MASK]
        if not batch_shape:
            try:
                one = as_mask(obs[ACTION_MASK], mask_sizes(self.policy.env_action_space))
            except ValueError as error:
                msg = f"{ACTION_MASK!r} {error}"
                raise Violation(msg) from None
            return {**obs, ACTION_MASK: one.astype(space.dtype)}
        mask = np.asarray(obs[ACTION_MASK])
        if mask.dtype.kind not in "biuf" or mask.shape != (*batch_shape, *cast("tuple[int, ...]", space.shape)):
            return obs  # rejected by the reader
        if not np.isfinite(mask).all():
            msg = f"{ACTION_MASK!r} is not finite: {mask.tolist()!r}"
            raise Violation(msg)
        return {**obs, ACTION_MASK: (mask != 0).astype(space.dtype)}


def _num_rows(obs: Any, space: Space[Any]) -> int:
    """Return the number of rows of a batch of observations, from its first leaf."""
    while isinstance(space, spaces.Dict | spaces.Tuple):
        key, space = next(iter(space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)))
        try:
            obs = obs[key]
        except (KeyError, IndexError, TypeError):
            msg = f"observation is a {type(obs).__name__} without {key!r}"
            raise Violation(msg) from None
    try:
        shape = np.shape(obs)
    except ValueError:  # ragged
        shape = ()
    one = space.shape or ()
    if not shape or not shape[0] or shape == one:
        expected = f"({', '.join(['B', *map(str, one)])}{'' if one else ','})"
        msg = f"observation has shape {shape}, expected {expected} with B of 1 or more"
        raise Violation(msg)
    return int(shape[0])
