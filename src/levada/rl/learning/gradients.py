"""Gradients at the shards: the samplers also differentiate, and the learner only applies the gradients.

learner = GradientLearner(policy=policy, loss=loss, coefficients=lambda num_transitions: {"learning_rate": 1e-3})
source = GradientSampler(sampler=sampler, prepare=GAE(discount=0.99, lambda_=1.0), learner=learner)
gradients = flow.source("gradient", source, reads=weights, shards=4)
batch = flow.batch("batch", gradients.via(Queue(max_lag=8, order="arrival")), size=1)
update = flow.learn("learn", learner, batch)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from levada.flow import Episode, Shard, Update
from levada.rl.acting.double_buffered import DoubleBufferedSampler
from levada.rl.acting.rollout import Rollout
from levada.rl.acting.sampler import Sampler
from levada.rl.compute.device import Sender, find_device
from levada.rl.compute.threads import use_threads
from levada.rl.data.normalize import Moments, merge_all
from levada.rl.data.spaces import Array
from levada.rl.learning.columns import to_tensors
from levada.rl.learning.learner import Learner
from levada.rl.learning.loss import POLICY
from levada.rl.learning.step import GradientStep
from levada.rl.learning.training import Training
from levada.rl.policies.policy import Weights
from levada.rl.replay.transitions import Transitions


@dataclass(frozen=True, slots=True, eq=False)
class Gradient:
    """The gradient of a loss on one rollout."""

    values: Array
    """``[P]``, float32, in the order of the module's parameters."""
    stats: Mapping[str, float]
    """Statistics that the loss reports."""
    moments: Mapping[str, Moments]
    """Moments of the rollout, for running statistics."""
    num_env_steps: int
    """Number of transitions in the rollout."""
    episodes: tuple[Episode, ...]
    """Episodes that ended, in order."""


@dataclass(frozen=True, kw_only=True)
class GradientSampler:
    """Recipe of a source of gradients, opened once per shard."""

    sampler: Sampler | DoubleBufferedSampler
    """Sampler that acts."""
    prepare: Callable[[Rollout], Transitions]
    """Function from a rollout to the batch that the loss needs."""
    learner: GradientLearner
    """Learner whose loss is differentiated. With `compile="auto"` the gradient is recorded and never compiled."""

    def verify(self) -> None:
        """Refuse a network that cannot act."""
        self.sampler.verify()

    def __call__(self, shard: Shard) -> LiveGradientSampler:
        """Make the environments of a shard."""
        return LiveGradientSampler(self, shard)


class LiveGradientSampler:
    """A running source of gradients."""

    def __init__(self, recipe: GradientSampler, shard: Shard) -> None:
        self._recipe = recipe
        self._sampler = recipe.sampler(shard)
        learner = recipe.learner
        self._step = GradientStep(learner.modules(0), learner.loss, tuple(learner.coefficients(0)))
        self._num_threads = shard.num_threads
        self._device = find_device(learner.policy.device)
        self._sender = Sender(self._device)

    def __call__(self, weights: Weights) -> Gradient:
        """Act for T steps, and differentiate their loss with the same weights."""
        learner, rollout = self._recipe.learner, self._sampler(weights)
        if self._num_threads is not None:
            use_threads(self._num_threads)
        data = self._recipe.prepare(rollout)
        tensors = {
            f"{POLICY}.{name}": torch.from_numpy(np.array(array)).to(self._device) for name, array in weights.items()
        }
        buffers = {name: tensor for name, tensor in tensors.items() if name not in self._step.layout.names}
        mode = learner.first_mode(self._device)
        columns = self._sender.send_all(to_tensors(data))
        gradient_of = self._step.on(mode, learner.coefficients(0), buffers, columns)
        index = torch.arange(data.num_rows, device=self._device)
        params = self._step.layout.flatten(tensors)
        gradient, stats, _ = gradient_of(params, params[:0], index)
        told = dict(zip(self._step.stats, stats.tolist(), strict=True))
        return Gradient(
            gradient.to("cpu", copy=True).numpy(), told, data.moments, rollout.num_env_steps, rollout.episodes
        )

    def state_dict(self) -> dict[str, Array]:
        """Return all state of the next gradient except the weights."""
        return self._sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Restore the state that `state_dict` returned."""
        self._sampler.load_state_dict(state)

    def close(self) -> None:
        """Close the environments."""
        self._sampler.close()


@dataclass(frozen=True, kw_only=True)
class GradientLearner(Learner):
    """Recipe of a learner that applies gradients: the mean gradient of a batch makes one step of Adam."""

    @classmethod
    def of(cls, learner: Learner) -> GradientLearner:
        """Make a gradient learner with the settings of `learner`, whose loss the shards differentiate."""
        return cls(**{field.name: getattr(learner, field.name) for field in fields(Learner)})

    def open(self, seed: int) -> LiveGradientLearner:  # type: ignore[override]  # it has no replicas
        """Start the learner with freshly initialized weights."""
        return LiveGradientLearner(self, seed)


class LiveGradientLearner(Training):
    """A running learner that applies gradients."""

    def update(self, batch: Sequence[Any]) -> Update[Weights]:
        """Apply the mean of some gradients, or raise NonFiniteError."""
        gradients: Sequence[Gradient] = batch
        values = self.recipe.coefficients(self.num_transitions)
        mean = torch.from_numpy(np.mean([some.values for some in gradients], axis=0)).to(self._device)
        state = self._state.copy()
        norm = self._apply(state, mean, values["learning_rate"], (POLICY,))
        self._follow(state, self.num_updates + 1, "updates")
        names = gradients[0].stats
        stats = {name: float(np.mean([some.stats[name] for some in gradients])) for name in names}
        moments = merge_all(some.moments for some in gradients)
        num_env_steps = sum(some.num_env_steps for some in gradients)
        stats |= {"grad_norm": float(norm)}
        return Update(*self._finish(state, self._buffers, stats, values, 1, num_env_steps, moments))
