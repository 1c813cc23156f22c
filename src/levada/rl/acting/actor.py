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
from typing import cast

import numpy as np

from levada.flow.items import Serve, serve_here
from levada.rl.acting.network import PolicyNetwork, WeightsError
from levada.rl.data.spaces import ACTION_MASK, OBS, Array, Nest, has_action_mask
from levada.rl.policies.heads.base import ActionHead
from levada.rl.policies.module import reward_scale
from levada.rl.policies.policy import Policy, Weights
from levada.rl.policies.weight_noise import WeightNoise


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
        self.has_weights: bool = False
        """Whether weights were loaded."""
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
        self.has_weights, self._noise = True, None

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
        log_prob: Array = self.head.log_prob(self.params(obs), action, self.mask(obs))
        return log_prob

    def value(self, obs: Nest) -> Array:
        """Return the value of each observation ``[N, ...]``, float32 ``[N]``."""
        return self.network.value(self._inner(obs))

    def act(self, obs: Nest, state: Array, rng: np.random.Generator | None = None) -> Array:
        """Return the actions ``[B, ...]``, sampled with a generator, and update the recurrent state in place; without a generator
        those of the deterministic policy.

        Raises:
            WeightsError: the network's outputs do not determine actions.
        """
        row, _, state[...] = self.step(obs, state)
        if not np.isfinite(row.max(axis=-1)).all():  # minus infinity may exclude some actions
            msg = (
                "the network gives NaN or infinity: its weights, or the statistics of its normalization, are infinite, or not "
                "those of a policy that has learned from such observations"
            )
            raise WeightsError(msg)
        mask = self.mask(obs)
        if rng is None:
            return self.head.mode(row, mask)
        return self.head.sample(row, self.head.draw(rng, 1, len(row))[0], mask)

    def mask(self, obs: Nest) -> Array | None:
        """Return the action mask in the observations, if there is one."""
        return cast("dict[str, Array]", obs)[ACTION_MASK] if self._has_mask else None

    def _inner(self, obs: Nest) -> Nest:
        """Return the observations without the mask; raise WeightsError if no weights are loaded."""
        if not self.has_weights:
            msg = f"Actor of policy {self.policy.name!r} has no weights; did you forget actor.load(weights)?"
            raise WeightsError(msg)
        return cast("dict[str, Nest]", obs)[OBS] if self._has_mask else obs
