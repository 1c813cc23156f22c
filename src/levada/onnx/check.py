"""Comparison of an ONNX file with the policy that it was made from: ONNX Runtime against what acts in environments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from gymnasium import spaces

from levada.math import Categorical
from levada.onnx.module import STATE, ActingModule
from levada.rl.acting.actor import Actor
from levada.rl.acting.trained_policy import TrainedPolicy
from levada.rl.data.spaces import Array
from levada.rl.envs.observations import make_reader
from levada.rl.policies.policy import Policy
from levada.rl.policies.q_distributions import ActionValues

if TYPE_CHECKING:
    from onnxruntime import InferenceSession  # not installed without `levada[export]`

TOLERANCE: Final = 1e-5
"""Largest difference of an output with which a file is kept, as a fraction of the largest output of the row, or of 1."""
NUM_CHECKED: Final = 64
"""Number of observations with which it is compared."""
_NUM_STEPS: Final = 3
"""Number of steps of an episode that a recurrent policy is compared in."""


def largest_difference(trained: TrainedPolicy, module: ActingModule, data: bytes) -> float:
    """Return the largest difference between a file and the policy, measured as `TOLERANCE` is.

    Actions are compared with those of `TrainedPolicy.act_batch`, parameters and recurrent states with those of the `Actor`
    that computes them. Where a discrete action is another one, the difference of their values or log-probabilities counts: in
    a tie, both are right. The module only makes the inputs.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    found = [each for num_rows in (1, NUM_CHECKED) for each in _differences(session, trained, module, num_rows)]
    return float(np.max(found))  # NaN if one is


def _differences(
    session: InferenceSession, trained: TrainedPolicy, module: ActingModule, num_rows: int
) -> Iterator[float]:
    policy = trained.policy
    own = TrainedPolicy(policy, trained.weights, version=trained.version)  # the given one may be in an episode
    actor = Actor(policy)
    actor.load(trained.weights)
    reader = make_reader(policy.env_observation_space, num_rows)
    state = found_state = actor.initial_state(num_rows)
    for step in range(_NUM_STEPS if policy.state_size else 1):
        inputs = module.examples(num_rows, seed=num_rows + step)
        feed = {name: tensor.numpy() for name, tensor in zip(module.input_names, inputs, strict=True)}
        if policy.state_size:
            feed[STATE] = found_state
        action, params, *after = session.run(None, feed)
        obs = module.observation(inputs)
        batch = reader.read(obs)
        row, _, state = actor.step(batch, state)
        yield _distance(params, row)
        if after:
            [found_state] = after
            yield _distance(found_state, state)
        wanted = own.act_batch(obs)
        if isinstance(policy.env_action_space, spaces.Box):
            yield _distance(action, wanted)
        else:
            yield _loss(policy, row, actor.mask(batch), action, wanted)


def _distance(found: Array, wanted: Array) -> float:
    found, wanted = (each.astype(np.float64).reshape(len(each), -1) for each in (found, wanted))
    difference = np.subtract(wanted, found, out=np.zeros_like(wanted), where=wanted != found)  # infinities may be equal
    return float((np.abs(difference) / _scale(wanted)).max(initial=0.0))


def _scale(wanted: Array) -> Array:
    """Return the largest finite number of each row, or 1, ``[N, 1]``."""
    finite = np.where(np.isfinite(wanted), wanted, 0.0)
    scale: Array = np.maximum(1.0, np.abs(finite).max(axis=1, keepdims=True, initial=0.0))
    return scale


def _loss(policy: Policy, row: Array, mask: Array | None, found: Array, wanted: Array) -> float:
    """Return how much better the policy's own parameters rate the wanted discrete actions than those that were found."""
    if np.array_equal(found, wanted):
        return 0.0
    space: Any = policy.env_action_space
    if not all(space.contains(each) for each in found):
        return float("inf")
    allowed = None if mask is None else torch.from_numpy(mask != 0)
    distribution = policy.head.distribution(torch.from_numpy(row), allowed)
    if isinstance(distribution, ActionValues):  # whose differences are those of the log-probabilities of their softmax
        distribution = Categorical(distribution.values, allowed)
    actions = (each.astype(np.int64) - getattr(space, "start", 0) for each in (found, wanted))
    shape = (len(row), -1) if space.shape else (len(row),)
    rating, best = (distribution.log_prob(torch.from_numpy(each.reshape(shape))).numpy() for each in actions)
    return float((np.abs(best - rating) / _scale(row)[:, 0]).max())
