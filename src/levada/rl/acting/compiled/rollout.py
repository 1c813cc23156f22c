"""Compiled rollouts: T steps of B functional environments and the policy that acts in them, in one call.

A rollout and the same steps one by one have the same environments, noise and actions: both step them by
`levada.rl.envs.functional.env.advance`, with random numbers that follow from the seed and the number of the step.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from levada.flow.patience import taking_long
from levada.rl.acting.compiled.network import JaxNetwork, describable
from levada.rl.acting.env_loop import Steps
from levada.rl.data.spaces import ACTION_MASK, OBS, Array, Nest, has_action_mask, map_nest
from levada.rl.envs.batch import EnvBatch
from levada.rl.envs.functional.env import FunctionalEnv, Running, advance
from levada.rl.envs.functional.vector import FunctionalVectorEnv
from levada.rl.policies.heads.base import ActionHead
from levada.rl.policies.layers import NumpyLayers
from levada.rl.policies.policy import Policy

log: logging.Logger = logging.getLogger(__name__)


class CompiledRollout:
    """Rolls out a policy in a batch of functional environments."""

    def __init__(self, envs: FunctionalVectorEnv, policy: Policy, network: JaxNetwork) -> None:
        self._envs = envs
        self._network = network
        space: Any = envs.single_action_space
        bounds = (space.low, space.high) if hasattr(space, "low") else None
        has_mask = has_action_mask(policy.observation_space)
        self._run = jax.jit(partial(_rollout, envs.functional, network, policy.head, has_mask, bounds))
        self._is_compiled = False

    def __call__(self, weights: Mapping[str, Array], noise: Array) -> tuple[Steps, Nest]:
        """Act with `noise` ``[T, B, ...]``; return the steps, and the observations ``[B, ...]`` after them. No later call
        changes them.
        """
        chosen = {name: weights[name] for name in self._network.weights}
        if self._is_compiled:
            running, steps = self._run(chosen, self._envs.running, noise)
        else:
            with taking_long("compiling the rollout"):
                running, steps = self._run(chosen, self._envs.running, noise)
            self._is_compiled = True
        self._envs.running = running
        arrays: Steps = jax.tree.map(np.asarray, steps)
        return arrays, map_nest(np.asarray, running.obs)


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
    weights: Mapping[str, Any], running: Running, noise: Any,
) -> tuple[Running, Steps]:  # fmt: skip
    def step(running: Running, noise_t: Any) -> tuple[Running, Steps]:
        obs = running.obs
        inner, mask = (obs[OBS], obs[ACTION_MASK]) if has_mask else (obs, None)
        row = network.row(weights, inner)
        action = head.choose(jnp, row, noise_t, mask)
        taken = action if bounds is None else jnp.clip(action, *bounds)
        after, came = advance(env, running, taken)
        return after, Steps(obs, action, row, came.reward, came.terminated, came.truncated, came.last_obs)

    made: tuple[Running, Steps] = jax.lax.scan(step, running, noise)
    return made
