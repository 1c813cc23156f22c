"""Compiled rollouts: T steps of B functional environments and the policy that acts in them, in one call, with the values and
log-probabilities.

A rollout and the same steps one by one have the same environments, noise and actions: both step them by
`levada.rl.envs.functional.env.advance`, with random numbers that follow from the seed and the number of the step.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from levada.flow.patience import taking_long
from levada.rl.acting.compiled.network import JaxNetwork, describable
from levada.rl.acting.compiled.packing import Packing
from levada.rl.acting.env_loop import Steps
from levada.rl.compute.xla import JaxPlace
from levada.rl.data.device_array import DeviceArray
from levada.rl.data.spaces import ACTION_MASK, OBS, Array, Nest, allocate, has_action_mask, leaves, map_nest
from levada.rl.envs.batch import EnvBatch
from levada.rl.envs.functional.env import FunctionalEnv, Running, advance, keys_ahead
from levada.rl.envs.functional.vector import FunctionalVectorEnv
from levada.rl.policies.heads.base import ActionHead
from levada.rl.policies.layers import NumpyLayers
from levada.rl.policies.policy import Policy

log: logging.Logger = logging.getLogger(__name__)

_LARGE_BYTES = 256
"""Size from which observations stay on a GPU. CartPole's, of 16 bytes, were faster through main memory."""
_FEW = 8
"""One in this many steps may end an episode for the values of final observations to be computed for these steps alone."""


class RolledOut(NamedTuple):
    """What a compiled call returns."""

    steps: Steps
    obs: Nest
    """``[B, ...]``: observations after the steps."""
    log_prob: Array
    """``[T, B]``."""
    value: Array | None
    """``[T + 1, B]``: values of the observations. None: the value shares layers with the policy."""
    next_value: Array | None
    """``[T, B]``: values after each step, before any reset."""
    kept: Nest | None = None
    """``[T + 1, B, ...]``: all observations, as `DeviceArray`, if they stay on a GPU; those of the steps are the same then."""


class CompiledRollout:
    """Rolls out a policy in a batch of functional environments."""

    def __init__(self, envs: FunctionalVectorEnv, policy: Policy, network: JaxNetwork) -> None:
        self._envs = envs
        self._place = JaxPlace(policy.device)
        one = allocate(policy.observation_space, 1)
        self._dtypes = map_nest(lambda leaf: torch.from_numpy(leaf).dtype, one)
        self._keeps = self._place.is_gpu and sum(leaf.nbytes for leaf in leaves(one)) >= _LARGE_BYTES
        self._names = network.weights
        space: Any = envs.single_action_space
        bounds = (space.low, space.high) if hasattr(space, "low") else None
        has_mask = has_action_mask(policy.observation_space)
        # on a GPU, all values take less time than to choose some of them
        next_values = _next_values_of_all if self._place.is_gpu else _next_values
        self._function = partial(_rollout, envs.functional, network, policy.head, has_mask, bounds, next_values)
        self._packing = Packing()
        self._run: Any = None

    def __call__(self, weights: Mapping[str, Array], noise: Array) -> RolledOut:
        """Act with `noise` ``[T, B, ...]``. No later call changes what is returned."""
        # one array, since each argument of a call costs microseconds
        packed = np.concatenate([weights[name].ravel() for name in self._names])
        with self._place.used():
            before = self._place.put(self._envs.running)
            if self._run is None:
                self._run = self._compiled({name: weights[name].shape for name in self._names})
                with taking_long("compiling the rollout"):
                    running, rolled = self._run(packed, before, noise)
            else:
                running, rolled = self._run(packed, before, noise)
        self._envs.running = running
        if self._keeps:
            return self._fetched(rolled)
        made: RolledOut = self._packing.unpack(rolled)
        return made

    def _compiled(self, shapes: Mapping[str, tuple[int, ...]]) -> Any:
        def run(packed: Any, before: Running, noise: Any) -> tuple[Running, Any]:
            running, rolled = self._function(shapes, packed, before, noise)
            return running, rolled if self._keeps else self._packing.pack(rolled)

        return jax.jit(run)

    def _fetched(self, rolled: RolledOut) -> RolledOut:
        """Return the results as arrays in main memory, but large observations as arrays on the GPU."""
        steps = rolled.steps
        obs, last, final = (
            map_nest(lambda leaf, dtype: from_dlpack(leaf).to(dtype, copy=True), nest, self._dtypes)
            for nest in (steps.obs, rolled.obs, steps.last_obs)
        )
        self._place.wait_for_copies()
        kept = map_nest(lambda rows, row: DeviceArray(torch.cat([rows, row[None]])), obs, last)
        others: RolledOut = jax.device_get(rolled._replace(steps=steps._replace(obs=(), last_obs=())))
        own = others.steps._replace(obs=kept, last_obs=map_nest(DeviceArray, final))
        return others._replace(steps=own, kept=kept)


def compiled_rollout(envs: EnvBatch, policy: Policy, *, is_cut: bool, is_here: bool) -> CompiledRollout | None:
    """Return None, and log the reason, if rollouts cannot be compiled.

    Args:
        envs: the environments of a functional task.
        policy: policy that acts.
        is_cut: whether rollouts are cut when newer weights arrive.
        is_here: whether the network is computed by the sampler.
    """
    env = envs.vector_env
    layers: NumpyLayers | str = describable(policy)
    if is_cut:
        layers = "they are cut when newer weights arrive"
    elif not is_here:
        layers = "the network is computed elsewhere (inference)"
    elif not isinstance(env, FunctionalVectorEnv):
        layers = "the task stacks frames"
    if isinstance(layers, str):
        log.warning("environment %r: rollouts are not compiled, which makes them slower: %s", envs.name, layers)
        return None
    return CompiledRollout(cast("FunctionalVectorEnv", env), policy, JaxNetwork(policy, layers))


def _rollout(
    env: FunctionalEnv, network: JaxNetwork, head: ActionHead, has_mask: bool, bounds: tuple[Array, Array] | None,
    next_values: Callable[..., Any], shapes: Mapping[str, tuple[int, ...]], packed: Any, running: Running, noise: Any,
) -> tuple[Running, RolledOut]:  # fmt: skip
    weights = network.prepared(_unpacked(packed, shapes))
    keys = keys_ahead(running, *noise.shape[:2])

    def split(obs: Any) -> tuple[Nest, Any]:
        return (obs[OBS], obs[ACTION_MASK]) if has_mask else (obs, None)

    def step(running: Running, given: tuple[Any, Any]) -> tuple[Running, Steps]:
        obs, (noise_t, keys_t) = running.obs, given
        inner, mask = split(obs)
        row = network.row(weights, inner)
        action = head.choose(jnp, row, noise_t, mask)
        taken = action if bounds is None else jnp.clip(action, *bounds)
        after, came = advance(env, running, taken, keys_t)
        return after, Steps(obs, action, row, came.reward, came.terminated, came.truncated, came.last_obs)

    running, steps = jax.lax.scan(step, running, (noise, keys))
    mask = split(map_nest(_flat, steps.obs))[1]
    log_prob = head.log_prob(_flat(steps.row), _flat(steps.action), None if mask is None else mask != 0, jnp)
    value = next_value = None
    if network.has_value:

        def values(obs: Any) -> Any:
            return network.value(weights, split(obs)[0])

        both = map_nest(lambda rows, last: jnp.concatenate([_flat(rows), last]), steps.obs, running.obs)
        value = values(both).reshape(-1, noise.shape[1])
        ended = steps.terminated | steps.truncated
        next_value = next_values(values, value[1:], ended, map_nest(_flat, steps.last_obs))
    return running, RolledOut(
        steps, running.obs, log_prob.reshape(steps.reward.shape), value, next_value
    )  # fmt: skip


def _next_values_of_all(values: Callable[[Any], Any], following: Any, ended: Any, last_obs: Any) -> Any:
    """Return the values ``[T, B]`` after each step, before any reset.

    Args:
        values: computes the values of observations ``[N, ...]``.
        following: values of the rows that follow, which after a reset belong to the next episode.
        ended: where episodes ended.
        last_obs: ``[T * B, ...]``: observations after each step.
    """
    # an observation has one value, wherever it is computed
    return jnp.where(ended, values(last_obs).reshape(ended.shape), following)


def _next_values(values: Callable[[Any], Any], following: Any, ended: Any, last_obs: Any) -> Any:
    """The same, where only a few values have to be computed in most rollouts."""
    num_few = -(-ended.size // _FEW)

    def few() -> Any:
        index = jnp.flatnonzero(ended, size=num_few, fill_value=ended.size)  # the rest is outside, and dropped
        own = values(map_nest(lambda leaf: leaf[index], last_obs))
        return following.ravel().at[index].set(own, mode="drop").reshape(ended.shape)

    # a third branch, for rollouts in which no episode ends, would add a fifth to the time that compiling takes
    return jax.lax.cond(ended.sum() <= num_few, few, lambda: _next_values_of_all(values, following, ended, last_obs))


def _flat(array: Any) -> Any:
    return array.reshape(-1, *array.shape[2:])


def _unpacked(packed: Any, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
    parts = jnp.split(packed, ends[:-1])
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
