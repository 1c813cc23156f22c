"""Networks in training: parameters, targets, optimizer, buffers, running statistics and counts.

An update works on a copy, which is committed as a whole or not at all. All networks are stored in one flat vector. What makes the
updates is up to the learner: `levada.rl.learning.learner` computes gradients, `levada.rl.learning.gradients` is given them.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from levada.flow import LevadaError
from levada.flow.state import PrefixView, rng_array, set_rng
from levada.rl.compute.device import find_device
from levada.rl.data.normalize import Moments, StatisticsError, merge_all
from levada.rl.data.spaces import Array
from levada.rl.learning.loss import POLICY
from levada.rl.learning.optimizers import OptimizerState, Part, copied, packed, unpacked
from levada.rl.learning.starting import check_fits, weights_in
from levada.rl.learning.step import GradientStep, below, num_weights
from levada.rl.policies.policy import Weights
from levada.rl.policies.weight_noise import WeightNoise

if TYPE_CHECKING:
    from levada.rl.learning.learner import Learner

_VECTORS = ("params", "target")
_OPTIMIZER = "step/optimizer/"
_MOMENTS = "moments/"
_FIELDS = ("count", "mean", "var")


class NonFiniteError(LevadaError, ArithmeticError):
    """An update produced NaN or infinity and was rejected. The weights from before remain."""


class Held(Protocol):
    """Parameters, targets and optimizer between two updates. An update replaces them, and changes nothing in place."""

    @property
    def is_finite(self) -> bool | None:
        """Whether all of it is finite. None: not known."""
        ...

    @property
    def vectors(self) -> Vectors:
        """The state as tensors, which must not be changed."""
        ...

    def params_of(self, span: slice) -> Array:
        """Return a copy of some parameters, in main memory."""
        ...


class Vectors(NamedTuple):
    """State that a step changes in place."""

    params: Tensor
    """``[P]``."""
    target: Tensor
    """``[Q]``: target parameters, of the first networks."""
    optimizer: OptimizerState

    @property
    def is_finite(self) -> None:
        """Whether all of it is finite, which is not known."""
        return None

    @property
    def vectors(self) -> Vectors:
        """The state itself."""
        return self

    def params_of(self, span: slice) -> Array:
        """Return a copy of some parameters, in main memory."""
        return fetched(self.params[span]).numpy()

    def copy(self) -> Vectors:
        """Return an independent copy."""
        return Vectors(self.params.clone(), self.target.clone(), copied(self.optimizer))


class Snapshot(NamedTuple):
    """Everything that an update replaces. No update changes a part of it in place."""

    state: Held
    buffers: dict[str, Tensor]
    moments: dict[str, Moments]
    counts: tuple[int, int, int]
    rng: Mapping[str, Any]


class Training:
    """The networks of a learner, their optimizer, and all other state of the next update."""

    def __init__(self, recipe: Learner, seed: int) -> None:
        self.recipe = recipe
        self._modules = modules = recipe.modules(seed)
        noisy = {name: parameter.shape for name, parameter in modules[POLICY].named_parameters()}
        self._weight_noise = WeightNoise.of(noisy if recipe.policy.weight_noise else {})
        self._step = GradientStep(
            modules, recipe.loss, tuple(recipe.coefficients(0)), targets=recipe.targets, weight_noise=self._weight_noise
        )
        self._device = find_device(recipe.policy.device)
        params = self._step.layout.flatten(dict(modules.named_parameters())).to(self._device)
        sizes = [num_weights(module) for module in modules.values()]
        ends = np.cumsum([0, *sizes]).tolist()
        self._spans = {name: slice(ends[k], ends[k + 1]) for k, name in enumerate(modules)}
        self._optimizer = recipe.optimizer.open({name: params[span] for name, span in self._spans.items()})
        target = params[: sum(sizes[: len(recipe.targets)])].clone()
        self._held: Held = Vectors(params, target, self._optimizer.init())
        self._own = self._step.layout.places(f"{POLICY}.")
        self._buffers = {name: self._put(buffer.detach()) for name, buffer in modules.named_buffers()}
        arrays = {name: buffer.detach().numpy() for name, buffer in modules[POLICY].named_buffers()}
        self._moments = recipe.policy.moments_of(arrays)  # float64; the normalization buffers are float32 copies
        self._rng = np.random.default_rng(seed)
        self.num_updates: int = 0
        self.num_minibatches: int = 0
        self.num_transitions: int = 0

    def weights(self) -> Weights:
        """Return a copy of the policy's current weights."""
        span = self._spans[POLICY]
        copy = self._held.params_of(span)
        own = {
            name: copy[start - span.start : end - span.start].reshape(shape) for name, start, end, shape in self._own
        }
        return own | {name: fetched(buffer).numpy() for name, buffer in below(self._buffers, f"{POLICY}.").items()}

    def state_dict(self) -> dict[str, Array]:
        """Return all state of the next update. The policy's weights are stored under `weights/`."""
        named = {f"weights/{name}": np.asarray(array) for name, array in self.weights().items()}
        named |= {f"step/{name}": fetched(getattr(self._state, name)).numpy() for name in _VECTORS}
        moments = packed(self._state.optimizer, self._optimizer.template)
        named |= {f"{_OPTIMIZER}{name}": array for name, array in moments.items()}
        others = {name: buffer for name, buffer in self._buffers.items() if not name.startswith(f"{POLICY}.")}
        named |= {f"buffers/{name}": fetched(buffer).numpy() for name, buffer in others.items()}
        for key, total in self._moments.items():
            named |= {f"{_MOMENTS}{key}/{name}": np.asarray(getattr(total, name)) for name in _FIELDS}
        counts = np.array([self.num_updates, self.num_minibatches, self.num_transitions], np.int64)
        return named | {"counts": counts, "rng": rng_array(self._rng)}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Restore the state that `state_dict` returned."""
        self._load_buffers(state)
        for key in self._moments:
            if f"{_MOMENTS}{key}/count" in state:
                count, mean, var = (state[f"{_MOMENTS}{key}/{name}"] for name in _FIELDS)
                self._moments[key] = Moments(float(count), mean, var)
        params, target = (self._put(torch.tensor(state[f"step/{name}"])) for name in _VECTORS)
        moments = PrefixView(state, _OPTIMIZER)
        optimizer = unpacked(moments, self._optimizer.template, self._optimizer.init())
        self._held = Vectors(params, target, optimizer)
        self.num_updates, self.num_minibatches, self.num_transitions = (int(count) for count in state["counts"])
        set_rng(self._rng, state["rng"])

    def start_from(self, state: Mapping[str, Array]) -> None:
        """Load all networks of another run's `state_dict`, and its normalization; the optimizer and the counts start fresh. A
        learner of the policy alone needs nothing but its weights. StartError: names or shapes differ.
        """
        given = weights_in(state)
        check_fits(self.weights(), given)
        if self.recipe.networks:
            own = {name: fetched(getattr(self._state, name)).numpy() for name in _VECTORS}
            vectors = {name: state[f"step/{name}"] for name in own if f"step/{name}" in state}
            check_fits(own, vectors)  # the other networks are stored without names, as parts of a flat vector
            params, target = (self._put(torch.tensor(vectors[name])) for name in _VECTORS)
        else:
            params = self._put(self._step.layout.flatten({f"{POLICY}.{n}": torch.tensor(a) for n, a in given.items()}))
            target = params[: len(self._state.target)].clone()
        self._load_buffers(state)
        self._held = self._state._replace(params=params, target=target)

    def fingerprint(self) -> str:
        """Return a hash of all state of the next update: of the CRC-32 of each array, which takes a third of the time of SHA-256
        and finds errors, not forgeries.
        """
        digest = hashlib.sha256()
        for name, array in sorted(self.state_dict().items()):
            crc = zlib.crc32(np.ascontiguousarray(array).data)
            digest.update(f"{name} {array.dtype.str} {array.shape} {crc} ".encode())
        return digest.hexdigest()

    # ---- inside

    @property
    def _state(self) -> Vectors:
        """The state as tensors, which must not be changed."""
        return self._held.vectors

    def _snapshot(self) -> Snapshot:
        counts = self.num_updates, self.num_minibatches, self.num_transitions
        return Snapshot(self._held, self._buffers, self._moments, counts, self._rng.bit_generator.state)

    def _restore(self, snapshot: Snapshot) -> None:
        self._held, self._buffers, self._moments = snapshot.state, snapshot.buffers, snapshot.moments
        self.num_updates, self.num_minibatches, self.num_transitions = snapshot.counts
        self._rng.bit_generator.state = snapshot.rng

    def _load_buffers(self, state: Mapping[str, Array]) -> None:
        given = weights_in(state)
        arrays = {**{f"{POLICY}.{name}": array for name, array in given.items()}}
        arrays |= {name.removeprefix("buffers/"): array for name, array in state.items() if name.startswith("buffers/")}
        self._buffers = {name: self._put(torch.tensor(arrays[name])) for name in self._buffers}
        self._moments = self.recipe.policy.moments_of(given)

    def _finish(
        self, state: Held, buffers: dict[str, Tensor], stats: Mapping[str, float], values: Mapping[str, float],
        num_minibatches: int, num_transitions: int, moments: Mapping[str, Moments],
    ) -> tuple[Weights, dict[str, float]]:  # fmt: skip
        """Accept or reject an update; return the weights and the scalars to report."""
        running = merge_all([self._moments, moments])
        if moments:
            buffers = buffers | self._normalizing(running)
        if not (state.is_finite and all_finite(buffers.values())):
            self._refuse_non_finite(state.vectors, buffers, stats)
        self._held, self._buffers, self._moments = state, buffers, running
        self.num_updates += 1
        self.num_minibatches += num_minibatches
        self.num_transitions += num_transitions
        reported = {f"losses/{name}": value for name, value in stats.items()}
        return self.weights(), reported | {f"charts/{name}": value for name, value in values.items()}

    def _follow(self, state: Vectors, count: int, unit: Literal["updates", "gradient_steps"]) -> None:
        """Update the target networks, if there are any and it is time."""
        recipe = self.recipe
        if recipe.targets and recipe.target_update_unit == unit and count % recipe.target_update_interval == 0:
            state.target.lerp_(state.params[: len(state.target)], recipe.tau)

    def _normalizing(self, running: Mapping[str, Moments]) -> dict[str, Tensor]:
        """Return the normalization buffers for the running moments."""
        try:
            arrays = self.recipe.policy.buffers_of(running)
        except StatisticsError as error:
            msg = (
                f"update {self.num_updates + 1} of policy {self.recipe.policy.name!r} was refused: {error}. Likely: the "
                "environment gave a value far outside of its usual range; clip or scale it in the environment"
            )
            raise NonFiniteError(msg) from error
        named = {f"{network}.{name}": array for network in self._spans for name, array in arrays.items()}
        return {name: self._put(torch.from_numpy(array)) for name, array in named.items() if name in self._buffers}

    def _apply(self, state: Vectors, gradient: Tensor, learning_rate: float, active: Sequence[str]) -> Tensor:
        """Apply a gradient to some networks; return its norm."""
        parts = {}
        for name in active:
            span = self._spans[name]
            parts[name] = Part(state.params[span], gradient[span], state.optimizer[name])
        return self._optimizer.step(parts, learning_rate)

    def _put(self, tensor: Tensor) -> Tensor:
        """Copy a tensor to the device."""
        return tensor.to(self._device, copy=True)

    def _refuse_non_finite(self, state: Vectors, buffers: Mapping[str, Tensor], stats: Mapping[str, float]) -> None:
        moments = {
            f"the optimizer's {name} of {network}": value
            for network, own in state.optimizer.items()
            for name, value in own.items()
            if isinstance(value, Tensor)
        }
        if all_finite([state.params, state.target, *moments.values(), *buffers.values()]):
            return
        views = self._step.layout.views(state.params) | {"the target networks": state.target, **moments, **buffers}
        bad = [name for name, view in views.items() if not all_finite([view])]
        reported = ", ".join(f"{name} {value:g}" for name, value in stats.items())
        msg = (
            f"update {self.num_updates + 1} of policy {self.recipe.policy.name!r} gave NaN or infinity in "
            f"{', '.join(bad)}; it was refused. Statistics of the update: {reported}. Likely: a learning rate that is too "
            "high, or rewards or observations far from 1 (normalize_obs, normalize_reward)"
        )
        raise NonFiniteError(msg)


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Return whether all values are finite. A finite sum has only finite terms, and summing takes a tenth of the time."""
    floating = [tensor for tensor in tensors if tensor.is_floating_point()]
    return all(math.isfinite(t.sum().item()) or bool(torch.isfinite(t).all()) for t in floating)


def fetched(tensor: Tensor) -> Tensor:
    """Copy a tensor to main memory."""
    return tensor.to("cpu", copy=True)
