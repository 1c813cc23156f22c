"""Acting: how samplers and evaluations use a policy, fast on small batches and without gradients.

    >>> from gymnasium import spaces
    >>> from levada.rl.policies.policy import Policy
    >>> policy = Policy(observation_space=spaces.Box(-1.0, 1.0, (4,)), action_space=spaces.Discrete(2))
    >>> actor = Actor(policy)

A sampler loads the newest weights, draws the noise of a whole rollout, and then acts step by step:

    >>> actor.load(policy.weights(policy.module(seed=0)))
    >>> noise = actor.head.draw(np.random.default_rng(0), num_steps=3, num_envs=8)
    >>> obs = np.zeros((8, 4), np.float32)
    >>> action = np.stack([actor.sample(obs, noise_t) for noise_t in noise])
    >>> actor.evaluate(obs, action[0]).shape, actor.value(obs).shape
    ((8,), (8,))
"""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import numpy as np
from gymnasium import Space, spaces

from levada.flow.items import Serve, serve_here
from levada.rl.acting.network import PolicyNetwork, WeightsError
from levada.rl.data.spaces import ACTION_MASK, OBS, Array, Nest, has_action_mask, mask_sizes
from levada.rl.envs.actions import make_encoder
from levada.rl.envs.masks import as_mask
from levada.rl.envs.observations import Violation, make_reader
from levada.rl.envs.rewards_and_dones import MaskCheck
from levada.rl.policies.heads.base import ActionHead
from levada.rl.policies.module import reward_scale
from levada.rl.policies.policy import Policy, Weights
from levada.rl.policies.weight_noise import WeightNoise

_MASK_HINT = f"the policy was trained with action masks: give {{{OBS!r}: observation, {ACTION_MASK!r}: mask}}"
_BATCH_HINT = "act_batch takes arrays of observations, one row for each"


class Actor:
    """A policy's network and head for acting. Not thread-safe.

    Args:
        policy: the recipe.
        serve: makes the network, here or elsewhere; see `levada.flow.Shard`.
        num_threads: number of threads to compute with; None: as many as there are.
        owner: unique name of the actor's user, if its weights have their own noise.
    """

    def __init__(
        self, policy: Policy, serve: Serve = serve_here, num_threads: int | None = None, owner: str = ""
    ) -> None:
        self.policy = policy
        self.head: ActionHead = policy.head
        """Action head: draws noise (``head.draw``) and makes actions from parameters."""
        self.reward_scale: float = 1.0
        """Factor of rewards: 1 / std of the discounted return, or 1 if the policy does not normalize rewards."""
        self._has_mask = has_action_mask(policy.observation_space)
        self._reader = make_reader(policy.env_observation_space, num_rows=1)
        self._encode = make_encoder(policy.env_action_space, num_envs=1)
        self._check_mask = MaskCheck(policy.env_action_space) if self._has_mask else None
        self._loaded = False
        self._weight_noise: WeightNoise | None = None
        self._noise: Array | None = None
        # Served networks with equal recipes are shared. Networks with their own noise must not be.
        own = (owner,) if policy.weight_noise else ()
        self.network: PolicyNetwork = serve(partial(PolicyNetwork, policy, num_threads, *own))
        """The network, which may run elsewhere."""

    def load(self, weights: Weights) -> None:
        """Load a copy of the policy's weights; raise WeightsError if one is missing or has a different shape."""
        self.network.load(weights)
        if self.policy.normalize_reward:
            self.reward_scale = reward_scale(weights["returns.var"])
        if self.policy.weight_noise and self._weight_noise is None:
            self._weight_noise = WeightNoise.of({name: array.shape for name, array in weights.items()})
        self._loaded, self._noise = True, None

    def draw_weight_noise(self, rng: np.random.Generator) -> None:
        """Act with noise on the weights until others are loaded, if the policy uses weight noise."""
        if self._weight_noise is not None:
            self._noise = self._weight_noise.draw(rng)
            self._noise.setflags(write=False)

    def params(self, obs: Nest) -> Array:
        """Return the head's parameters ``[B, row_size]``; the next call overwrites them."""
        return self.forward(obs)[0]

    def forward(self, obs: Nest) -> tuple[Array, Array | None]:
        """Return the parameters, and the values ``[B]`` if the network computes both at once, otherwise None."""
        inner = self._inner(obs)
        return self.network.forward(inner) if self._noise is None else self.network.forward(inner, self._noise)

    def initial_state(self, num_rows: int) -> Array:
        """Return the initial state of episodes ``[num_rows, state_size]``; its size is 0 if the policy is not recurrent."""
        return np.zeros((num_rows, self.policy.state_size), np.float32)

    def step(self, obs: Nest, state: Array) -> tuple[Array, Array | None, Array]:
        """Return the result of `forward` and the next state; works for recurrent and other policies alike.

        >>> from gymnasium import spaces
        >>> from levada.rl.policies.policy import Policy
        >>> from levada.rl.policies.recurrent import RecurrentNet
        >>> vector = spaces.Box(-1.0, 1.0, (4,))
        >>> policy = Policy(observation_space=vector, action_space=spaces.Discrete(2), network=RecurrentNet)
        >>> actor = Actor(policy)
        >>> actor.load(policy.weights(policy.module(seed=0)))
        >>> row, value, state = actor.step(np.zeros((8, 4), np.float32), actor.initial_state(8))
        >>> row.shape, value.shape, state.shape
        ((8, 2), (8,), (8, 128))
        """
        if not self.policy.state_size:
            return *self.forward(obs), state
        row, value, after = self.network.step(self._inner(obs), state)
        return row, value, after

    def sample(self, obs: Nest, noise_t: Array, out: Array | None = None) -> Array:
        """Sample the actions ``[B, ...]`` with one step's noise, into `out` if given."""
        return self.head.sample(self.params(obs), noise_t, self.mask(obs), out)

    def mode(self, obs: Nest) -> Array:
        """Return the actions ``[B, ...]`` of the deterministic policy."""
        return self.head.mode(self.params(obs), self.mask(obs))

    def evaluate(self, obs: Nest, action: Array) -> Array:
        """Return the log-probability of each action ``[N, ...]``, float32 ``[N]``."""
        return self.head.log_prob(self.params(obs), action, self.mask(obs))

    def value(self, obs: Nest) -> Array:
        """Return the value of each observation ``[N, ...]``, float32 ``[N]``."""
        return self.network.value(self._inner(obs))

    def act(self, obs: Any, rng: np.random.Generator, deterministic: bool = False, state: Array | None = None) -> Array:
        """Return the action for one observation, both in the environment's format without batch dimension.

        As in `TrainedPolicy.act`, but with the `state` of a recurrent policy, ``[1, state_size]``, which is updated in place;
        None: the start of an episode.

        Raises:
            ValueError: the observation is not one of the space, or not finite, or its mask allows no action.

        >>> from gymnasium import spaces
        >>> from levada.rl.policies.policy import Policy
        >>> policy = Policy(observation_space=spaces.Discrete(3), action_space=spaces.Discrete(2, start=7))
        >>> actor = Actor(policy)
        >>> actor.load(policy.weights(policy.module(seed=0)))
        >>> actor.act(1, np.random.default_rng(0)) in (7, 8)
        True
        """
        try:
            rows = self._reader.allocate()
            self._reader.put(rows, 0, self._with_mask(obs, ()))
            batch = self._reader.read(rows)
            if self._check_mask is not None:
                self._check_mask(batch, np.zeros(1, np.bool_))
        except Violation as violation:
            is_of_reset = isinstance(obs, tuple) and len(obs) == 2 and isinstance(obs[1], dict)
            if self._lacks_mask(obs):
                hint = _MASK_HINT
            elif is_of_reset:
                hint = "env.reset() returns the observation and a dict: give the first"
            else:
                hint = "act takes one observation as the environment shows it; act_batch takes a batch"
            msg = f"act: {violation.bare} ({hint})"
            raise ValueError(msg) from None
        action = self._chosen(batch, 1, rng, deterministic, self.initial_state(1) if state is None else state)
        return cast("Array", self._encode(action)[0])

    def act_batch(
        self, obs: Any, rng: np.random.Generator, deterministic: bool = False, state: Array | None = None
    ) -> Array:
        """Return the actions ``[B, ...]`` for a batch of observations: arrays ``[B, ...]`` in the structure of the space.

        `state`: state of a recurrent policy ``[B, state_size]``, updated in place; None: the start of episodes.

        Raises:
            ValueError: as in `act`, or `state` has a different number of rows.
        """
        num_rows = self.num_rows(obs)
        try:
            batch = make_reader(self.policy.env_observation_space, num_rows).read(self._with_mask(obs, (num_rows,)))
            if self._check_mask is not None:
                self._check_mask(batch, np.zeros(num_rows, np.bool_))
        except Violation as violation:
            msg = f"act_batch: {violation.bare} ({_MASK_HINT if self._lacks_mask(obs) else _BATCH_HINT})"
            raise ValueError(msg) from None
        if state is None:
            state = self.initial_state(num_rows)
        if len(state) != num_rows:
            msg = f"act_batch: {num_rows} observations, but the state is that of {len(state)}"
            raise ValueError(msg)
        action = self._chosen(batch, num_rows, rng, deterministic, state)
        return make_encoder(self.policy.env_action_space, num_rows)(action)

    def num_rows(self, obs: Any) -> int:
        """Return the number of observations in a batch.

        Raises:
            ValueError: it is not a batch.
        """
        try:
            return _num_rows(obs, self.policy.env_observation_space)
        except Violation as violation:
            msg = f"act_batch: {violation.bare} ({_MASK_HINT if self._lacks_mask(obs) else _BATCH_HINT})"
            raise ValueError(msg) from None

    def _lacks_mask(self, obs: Any) -> bool:
        return self._has_mask and not (isinstance(obs, dict) and ACTION_MASK in obs)

    def _with_mask(self, obs: Any, batch_shape: tuple[int, ...]) -> Any:
        """Return observations with a mask of numbers in the dtype of the space, in whose values only zero counts."""
        if not self._has_mask or self._lacks_mask(obs):
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

    def _chosen(self, batch: Nest, num_rows: int, rng: np.random.Generator, deterministic: bool, state: Array) -> Array:
        """Return the actions ``[B, ...]`` of the canonical space, and update the state in place."""
        row, _, state[...] = self.step(batch, state)
        check_row(row)
        mask = self.mask(batch)
        if deterministic:
            return self.head.mode(row, mask)
        return self.head.sample(row, self.head.draw(rng, 1, num_rows)[0], mask)

    def mask(self, obs: Nest) -> Array | None:
        """Return the action mask in the observations, if there is one."""
        return cast("dict[str, Array]", obs)[ACTION_MASK] if self._has_mask else None

    def _inner(self, obs: Nest) -> Nest:
        """Return the observations without the mask; raise WeightsError if no weights are loaded."""
        if not self._loaded:
            msg = f"Actor of policy {self.policy.name!r} has no weights; did you forget actor.load(weights)?"
            raise WeightsError(msg)
        return cast("dict[str, Nest]", obs)[OBS] if self._has_mask else obs


def check_row(row: Array) -> None:
    """Raise WeightsError unless a network's outputs ``[B, N]`` determine actions; minus infinity may exclude some of them."""
    if not np.isfinite(row.max(axis=-1)).all():
        msg = (
            "the network gives NaN or infinity: its weights, or the statistics of its normalization, are infinite, or not those "
            "of a policy that has learned from such observations"
        )
        raise WeightsError(msg)


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
