"""Compiled rollouts: T steps of B functional environments and the policy that acts in them, in one call, with the values and
log-probabilities.

A rollout and the same steps one by one have the same environments, noise and actions: both step them by
`levada.rl.envs.functional.env.advance`, with random numbers that follow from the seed and the number of the step.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from levada.flow.patience import taking_long
from levada.rl.acting.compiled.network import JaxNetwork, describable
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
        self._function = partial(_rollout, envs.functional, network, policy.head, has_mask, bounds)
        self._run: Any = None

    def __call__(self, weights: Mapping[str, Array], noise: Array) -> RolledOut:
        """Act with `noise` ``[T, B, ...]``. No later call changes what is returned."""
        # one array, since each argument of a call costs microseconds
        packed = np.concatenate([weights[name].ravel() for name in self._names])
        with self._place.used():
            before = self._place.put(self._envs.running)
            if self._run is None:
                shapes = {name: weights[name].shape for name in self._names}
                self._run = jax.jit(partial(self._function, shapes))
                with taking_long("compiling the rollout"):
                    running, rolled = self._run(packed, before, noise)
            else:
                running, rolled = self._run(packed, before, noise)
        self._envs.running = running
        return self._fetched(rolled)

    def _fetched(self, rolled: RolledOut) -> RolledOut:
        """Return the results as arrays in main memory; on a GPU, all but large observations."""
        if not self._keeps:
            made: RolledOut = jax.tree.map(np.asarray, rolled)
            return made
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
    shapes: Mapping[str, tuple[int, ...]], packed: Any, running: Running, noise: Any,
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
    inner, mask = split(map_nest(_flat, steps.obs))
    shape = steps.reward.shape
    log_prob = head.log_prob(_flat(steps.row), _flat(steps.action), None if mask is None else mask != 0, jnp).reshape(
        shape
    )
    value = next_value = None
    if network.has_value:
        values = network.value(weights, inner).reshape(shape)
        last = network.value(weights, split(running.obs)[0])[None]
        value = jnp.concatenate([values, last])
        final = network.value(weights, split(map_nest(_flat, steps.last_obs))[0]).reshape(shape)
        # an observation has one value, wherever it is computed
        next_value = jnp.where(steps.terminated | steps.truncated, final, value[1:])
    return running, RolledOut(steps, running.obs, log_prob, value, next_value)


def _flat(array: Any) -> Any:
    return array.reshape(-1, *array.shape[2:])


def _unpacked(packed: Any, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
    parts = jnp.split(packed, ends[:-1])
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
