"""Learner: trains networks on batches of transitions. The recipe is plain data; `open` makes the live learner.

One firing is one update, which advances the version by one: passes over the batch in minibatches, each of which is one functional
gradient step (see `levada.rl.learning.step`). All networks are stored in one flat vector, so a step is one recorded gradient, one
pass of the optimizer, and one update of the target networks.

Off-policy, with a target network, in the order of the samples, which are minibatches already:

    learner = Learner(
        policy=policy, loss=loss, minibatch_size=64, shuffle=False, targets=("policy",), target_update_interval=500,
        coefficients=lambda num_transitions: {"learning_rate": 1e-3}, tolerates_staleness=True,
    )
    update = flow.learn("learn", learner, flow.sample("sample", replay, size=8 * 64, minibatch_size=64))

On-policy there are several passes in random order, `num_epochs` of them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from levada.flow import LevadaError, Update
from levada.flow.state import PrefixView, rng_array, set_rng
from levada.rl.compute.device import Sender, find_device
from levada.rl.compute.matmul import has_faster_products
from levada.rl.compute.seeding import seeded
from levada.rl.compute.threads import use_threads
from levada.rl.data.normalize import Moments, StatisticsError, merge_all
from levada.rl.data.spaces import Array
from levada.rl.learning.columns import to_tensors
from levada.rl.learning.loss import POLICY, HasBatchStats, Loss
from levada.rl.learning.optimizers import Adam, Optimizer, OptimizerState, Part, copied, packed, unpacked
from levada.rl.learning.starting import check_fits, weights_in
from levada.rl.learning.step import GradientOf, GradientStep, Mode, below, has_compiler, num_weights
from levada.rl.policies.module import reward_scale, state_size_of
from levada.rl.policies.policy import Policy, Weights
from levada.rl.policies.weight_noise import WeightNoise
from levada.rl.replay.transitions import IS_STEP, MASK, REWARD, Transitions, concatenate
from levada.validation import PositiveInt, PositiveUnitFloat, check_fields

Compile = Literal["auto"] | bool

MINIBATCHES_THAT_EARN_COMPILING = 100_000
"""Threshold of `auto`: compiling costs 5 to 18 s and saves about 0.1 ms per minibatch compared with replaying the recorded
step. It is counted in minibatches and not in seconds, so that a run always switches at the same point."""

_VECTORS = ("params", "target")
_OPTIMIZER = "step/optimizer/"
_MOMENTS = "moments/"
_RETURN = "return"
_FIELDS = ("count", "mean", "var")

log: logging.Logger = logging.getLogger(__name__)


class NonFiniteError(LevadaError, ArithmeticError):
    """An update produced NaN or infinity and was rejected. The weights from before remain."""


class MinibatchError(LevadaError, ValueError):
    """A minibatch size does not suit the batch."""


@dataclass(frozen=True, kw_only=True)
class Learner:
    """Recipe of a learner.

    Raises:
        ValueError: a number or name is invalid.
    """

    policy: Policy
    """Policy to train; its module is the network `policy`, and its weights are published."""
    loss: Loss
    """Loss, differentiated with respect to all networks at once. See `levada.rl.learning.loss`."""
    coefficients: Callable[[int], Mapping[str, float]]
    """Function from the number of transitions trained on so far, each pass over a batch counted once, to the scalars of the next
    update, including `learning_rate`."""
    networks: Mapping[str, Callable[[], nn.Module]] = field(default_factory=dict)
    """Other networks by name, such as critics: functions that make them, called with PyTorch's generator seeded."""
    targets: tuple[str, ...] = ()
    """Names of the networks that have a target network."""
    target_update_interval: PositiveInt = 1
    """Number of gradient steps or updates between updates of the target networks."""
    target_update_unit: Literal["gradient_steps", "updates"] = "gradient_steps"
    """What that interval counts."""
    tau: PositiveUnitFloat = 1.0
    """Polyak factor of these updates: target += tau * (network - target)."""
    update_every: Mapping[str, int] = field(default_factory=dict)
    """Networks that are trained only in every n-th gradient step; all others are trained in every step."""
    noise: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Columns of standard normal noise added to the batch, as the shape of a row; for losses that sample actions."""
    optimizer: Optimizer = field(default_factory=Adam)
    """Optimizer: `Adam`, or a `TorchOptimizer`."""
    num_epochs: PositiveInt = 1
    """Number of passes over each batch. With more passes, the policy moves further from the one that collected
    the batch."""
    minibatch_size: PositiveInt | None = None
    """Number of transitions per gradient step; None: the whole batch. With smaller
    minibatches, gradient steps are more frequent and noisier."""
    sequence_length: PositiveInt = 1
    """Number of transitions in a row of the batch if the policy is recurrent; otherwise a row is one transition."""
    shuffle: bool = True
    """Shuffle the batch in each pass. False: minibatches are consecutive rows, as samples of a replay are drawn."""
    microbatch_size: PositiveInt | None = None
    """Gradient accumulation: number of transitions whose gradient is computed at a time; those of a minibatch are averaged. Only
    the activations of a microbatch need to be in memory. None: the whole minibatch."""
    stop_above: tuple[str, float] | None = None
    """Early stopping: a statistic and its limit. The remaining minibatches of an update are skipped once it exceeds the
    limit."""
    compile: Compile = "auto"
    """False: eager PyTorch, slow; breakpoints in the loss work. True: compile at once. `auto`: record and replay the step, and
    compile it if the run is long enough to be worth it; recurrent networks stay recorded."""
    sampled_moments: Callable[[Transitions], Mapping[str, Moments]] | None = None
    """Function from a batch to its moments, which are merged into the running statistics before the update; rewards are scaled
    here. None: moments come with the batch and are merged after the update, since its samples were taken without them."""
    tolerates_staleness: bool = False
    """Whether the loss corrects for the off-policyness of samples, or does not depend on which policy acted."""

    def __post_init__(self) -> None:
        check_fields(self, ValueError)
        unknown = [name for name in (*self.targets, *self.update_every) if name not in (POLICY, *self.networks)]
        if unknown or POLICY in self.networks:
            networks, every = [POLICY, *self.networks], dict(self.update_every)
            msg = f"Learner: networks are {networks}, targets {list(self.targets)}, update_every {every}"
            raise ValueError(msg)
        if "learning_rate" not in self.coefficients(0):
            msg = f"Learner: coefficients(0) gave {sorted(self.coefficients(0))}; expected 'learning_rate' among them"
            raise ValueError(msg)

    def verify(self) -> None:
        """Refuse a network, or a minibatch, that cannot be trained on.

        Raises:
            ModelError: the network has the wrong inputs or outputs.
            MinibatchError: the policy is recurrent, and minibatches are no whole sequences.
        """
        length = self.sequence_length if self.policy.state_size else 1
        for name in ("minibatch_size", "microbatch_size"):
            if (getattr(self, name) or 0) % length:
                msg = (
                    f"{name}={getattr(self, name)}: a recurrent policy learns from whole rollouts, so it must be a multiple of "
                    f"num_steps={length}"
                )
                raise MinibatchError(msg)

    @property
    def policy_name(self) -> str:
        """Name of the policy whose version each update advances."""
        return self.policy.name

    def modules(self, seed: int) -> nn.ModuleDict:
        """Make all networks by name, freshly initialized; those with a target network come first."""
        made: dict[str, nn.Module] = {POLICY: self.policy.module(seed)}
        with seeded(seed):
            made |= {name: make() for name, make in self.networks.items()}
        order = [*self.targets, *(name for name in made if name not in self.targets)]
        return nn.ModuleDict({name: made[name] for name in order})

    def first_mode(self, device: torch.device) -> Mode:
        """Return how gradients are computed initially; `auto` compiles later."""
        if self.compile is False:
            return "eager"
        if self.compile is True and has_compiler():
            return "compiled"
        return "graph" if device.type == "cuda" else "recorded"

    def open(self, seed: int) -> LiveLearner:
        """Start the learner with freshly initialized networks."""
        return LiveLearner(self, seed)


class _State(NamedTuple):
    """State that a step changes in place."""

    params: Tensor
    """``[P]``."""
    target: Tensor
    """``[Q]``: target parameters, of the first networks."""
    optimizer: OptimizerState

    def copy(self) -> _State:
        return _State(self.params.clone(), self.target.clone(), copied(self.optimizer))


class LiveLearner:
    """A running learner, made by `Learner.open`."""

    def __init__(self, recipe: Learner, seed: int) -> None:
        self.recipe = recipe
        modules = recipe.modules(seed)
        self._is_recurrent = state_size_of(modules[POLICY].get_submodule("network")) > 0
        noisy = {name: parameter.shape for name, parameter in modules[POLICY].named_parameters()}
        self._weight_noise = WeightNoise.of(noisy if recipe.policy.weight_noise else {})
        self._step = GradientStep(
            modules, recipe.loss, tuple(recipe.coefficients(0)), targets=recipe.targets, weight_noise=self._weight_noise
        )
        self._device = find_device(recipe.policy.device)
        self._sender = Sender(self._device)
        params = self._step.layout.flatten(dict(modules.named_parameters())).to(self._device)
        sizes = [num_weights(module) for module in modules.values()]
        ends = np.cumsum([0, *sizes]).tolist()
        self._spans = {name: slice(ends[k], ends[k + 1]) for k, name in enumerate(modules)}
        self._optimizer = recipe.optimizer.open({name: params[span] for name, span in self._spans.items()})
        target = params[: sum(sizes[: len(recipe.targets)])].clone()
        self._state = _State(params, target, self._optimizer.init())
        self._buffers = {name: self._put(buffer.detach()) for name, buffer in modules.named_buffers()}
        arrays = {name: buffer.detach().numpy() for name, buffer in modules[POLICY].named_buffers()}
        self._moments = recipe.policy.moments_of(arrays)  # float64; the normalization buffers are float32 copies
        self._rng = np.random.default_rng(seed)
        self.num_updates: int = 0
        self.num_minibatches: int = 0
        self.num_transitions: int = 0
        self._warned = False
        self._num_threads = torch.get_num_threads()  # acting may use a different number

    def update(self, batch: Sequence[Transitions]) -> Update[Weights]:
        """Train on one batch. MinibatchError: it does not divide into minibatches. NonFiniteError: the update was rejected."""
        use_threads(self._num_threads)
        data = concatenate(batch)
        sizes = self._sizes(data.num_rows)
        columns = to_tensors(data, stacks=self.recipe.shuffle)
        num_transitions = int(columns[MASK].sum()) if MASK in columns else data.num_rows
        values = self.recipe.coefficients(self.num_transitions)
        # A layer may change its buffers in place. Work on copies, so that a rejected update changes nothing.
        buffers, moments = {name: buffer.clone() for name, buffer in self._buffers.items()}, data.moments
        if self.recipe.sampled_moments is not None:
            moments = self.recipe.sampled_moments(data)
            running = merge_all([self._moments, moments])
            buffers |= self._normalizing(running)
            if _RETURN in running:
                columns[REWARD] = columns[REWARD] * reward_scale(running[_RETURN].var)
        before = self._rng.bit_generator.state
        for name, shape in self.recipe.noise.items():
            columns[name] = torch.from_numpy(self._rng.standard_normal((data.num_rows, *shape), np.float32))
        columns = self._sender.send_all(columns)
        state, stats, priorities, num = self._minibatches(columns, buffers, data.num_rows, sizes, values)
        try:
            weights, reported = self._finish(state, buffers, stats, values, num, num_transitions, moments)
        except NonFiniteError:
            self._rng.bit_generator.state = before
            raise
        if isinstance(self.recipe.loss, HasBatchStats):
            found = {name: float(value) for name, value in self.recipe.loss.batch_stats(columns).items()}
            reported |= {f"losses/{name}": value for name, value in found.items() if math.isfinite(value)}
        return Update(weights, reported, priorities)

    def weights(self) -> Weights:
        """Return a copy of the policy's current weights."""
        copy = _fetched(self._state.params)
        tensors = {
            **self._step.layout.views(copy),
            **{name: _fetched(buffer) for name, buffer in self._buffers.items()},
        }
        return {name: tensor.numpy() for name, tensor in below(tensors, f"{POLICY}.").items()}

    def state_dict(self) -> dict[str, Array]:
        """Return all state of the next update. The policy's weights are stored under `weights/`."""
        named = {f"weights/{name}": np.asarray(array) for name, array in self.weights().items()}
        named |= {f"step/{name}": _fetched(getattr(self._state, name)).numpy() for name in _VECTORS}
        moments = packed(self._state.optimizer, self._optimizer.template)
        named |= {f"{_OPTIMIZER}{name}": array for name, array in moments.items()}
        others = {name: buffer for name, buffer in self._buffers.items() if not name.startswith(f"{POLICY}.")}
        named |= {f"buffers/{name}": _fetched(buffer).numpy() for name, buffer in others.items()}
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
        self._state = _State(params, target, optimizer)
        self.num_updates, self.num_minibatches, self.num_transitions = (int(count) for count in state["counts"])
        set_rng(self._rng, state["rng"])

    def start_from(self, state: Mapping[str, Array]) -> None:
        """Load all networks of another run's `state_dict`, and its normalization; the optimizer and the counts start fresh. A
        learner of the policy alone needs nothing but its weights. StartError: names or shapes differ.
        """
        given = weights_in(state)
        check_fits(self.weights(), given)
        if self.recipe.networks:
            own = {name: _fetched(getattr(self._state, name)).numpy() for name in _VECTORS}
            vectors = {name: state[f"step/{name}"] for name in own if f"step/{name}" in state}
            check_fits(own, vectors)  # the other networks are stored without names, as parts of a flat vector
            params, target = (self._put(torch.tensor(vectors[name])) for name in _VECTORS)
        else:
            params = self._put(self._step.layout.flatten({f"{POLICY}.{n}": torch.tensor(a) for n, a in given.items()}))
            target = params[: len(self._state.target)].clone()
        self._load_buffers(state)
        self._state = self._state._replace(params=params, target=target)

    # ---- inside

    def _load_buffers(self, state: Mapping[str, Array]) -> None:
        given = weights_in(state)
        arrays = {**{f"{POLICY}.{name}": array for name, array in given.items()}}
        arrays |= {name.removeprefix("buffers/"): array for name, array in state.items() if name.startswith("buffers/")}
        self._buffers = {name: self._put(torch.tensor(arrays[name])) for name in self._buffers}
        self._moments = self.recipe.policy.moments_of(given)

    def _finish(
        self, state: _State, buffers: dict[str, Tensor], stats: Mapping[str, float], values: Mapping[str, float],
        num_minibatches: int, num_transitions: int, moments: Mapping[str, Moments],
    ) -> tuple[Weights, dict[str, float]]:  # fmt: skip
        """Accept or reject an update; return the weights and the scalars to report."""
        running = merge_all([self._moments, moments])
        if moments:
            buffers = buffers | self._normalizing(running)
        self._refuse_non_finite(state, buffers, stats)
        self._state, self._buffers, self._moments = state, buffers, running
        self.num_updates += 1
        self._follow(state, self.num_updates, "updates")
        self.num_minibatches += num_minibatches
        self.num_transitions += num_transitions
        reported = {f"losses/{name}": value for name, value in stats.items()}
        return self.weights(), reported | {f"charts/{name}": value for name, value in values.items()}

    def _follow(self, state: _State, count: int, unit: Literal["updates", "gradient_steps"]) -> None:
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

    def _minibatches(
        self, columns: Mapping[str, Any], buffers: Mapping[str, Tensor], num_rows: int,
        sizes: tuple[int, int], values: Mapping[str, float],
    ) -> tuple[_State, dict[str, float], Array | None, int]:  # fmt: skip
        """Return the state after all gradient steps, the mean statistics, the priorities, and the number of steps."""
        recipe = self.recipe
        state = self._state.copy()  # so that a rejected update changes nothing
        collected, priorities = list[Tensor](), list[Tensor]()
        size, micro = sizes
        gradient_of = self._step.on(self._mode(micro), values, buffers, columns)
        if micro < size:
            gradient_of = self._accumulated(gradient_of, columns.get(MASK, columns.get(IS_STEP)), micro)
        noises: Iterator[Tensor | None] = self._noises(recipe.num_epochs * num_rows // size)
        for rows in self._rows(num_rows, size):
            num = self.num_minibatches + len(collected) + 1
            active = tuple([name for name in self._spans if num % recipe.update_every.get(name, 1) == 0])
            gradient, stats, some = gradient_of(state.params, state.target, rows, active, next(noises))
            norm = self._apply(state, gradient, values["learning_rate"], active)
            collected.append(torch.cat([stats, norm[None]]))
            priorities.append(some.clone())  # a graph overwrites it
            self._follow(state, num, "gradient_steps")
            if self._exceeded(stats):
                break
        table = torch.stack(collected)
        # losses of networks that a step does not train are NaN
        means = (table.nanmean(0) if recipe.update_every else table.mean(0)).tolist()
        told = _fetched(torch.cat(priorities)).numpy() if len(priorities[0]) else None
        return state, dict(zip((*self._step.stats, "grad_norm"), means, strict=True)), told, len(collected)

    def _apply(self, state: _State, gradient: Tensor, learning_rate: float, active: Sequence[str]) -> Tensor:
        """Apply a gradient to some networks; return its norm."""
        parts = {}
        for name in active:
            span = self._spans[name]
            parts[name] = Part(state.params[span], gradient[span], state.optimizer[name])
        return self._optimizer.step(parts, learning_rate)

    def _rows(self, num_rows: int, size: int) -> Iterator[Tensor | slice]:
        """Rows of each gradient step of an update."""
        for _ in range(self.recipe.num_epochs):
            if self.recipe.shuffle:
                yield from torch.split(torch.from_numpy(self._rng.permutation(num_rows)).to(self._device), size)
            else:
                yield from (slice(start, start + size) for start in range(0, num_rows, size))

    def _noises(self, num: int) -> Iterator[Tensor | None]:
        """Noise on the policy's weights for each gradient step, ``[2, size]``: of the network and of its target."""
        if not self._weight_noise.size:
            return iter([None] * num)
        return iter(torch.from_numpy(self._weight_noise.draw(self._rng, num, 2)).to(self._device))

    @staticmethod
    def _accumulated(gradient_of: GradientOf, mask: Tensor | None, size: int) -> GradientOf:
        """Return a function that computes the mean gradient over many rows, `size` rows at a time."""

        def gradient(params: Tensor, target: Tensor, rows: Tensor | slice, *more: Any) -> tuple[Tensor, Tensor, Tensor]:
            if isinstance(rows, Tensor):
                pieces: Sequence[Tensor | slice] = torch.split(rows, size)
            else:
                pieces = [slice(start, start + size) for start in range(rows.start, rows.stop, size)]
            total: list[Tensor] = []
            priorities = []
            num_steps = [1.0 if mask is None else float(mask[piece].sum()) for piece in pieces]
            for piece, num in zip(pieces, num_steps, strict=True):
                *terms, told = gradient_of(params, target, piece, *more)
                terms = [num / max(sum(num_steps), 1.0) * term for term in terms]
                total = [a + b for a, b in zip(total, terms, strict=True)] if total else terms
                priorities.append(told.clone())
            return total[0], total[1], torch.cat(priorities)

        return gradient

    def _exceeded(self, stats: Tensor) -> bool:
        if self.recipe.stop_above is None:
            return False
        name, limit = self.recipe.stop_above
        return bool(stats[self._step.stats.index(name)] > limit)

    def _put(self, tensor: Tensor) -> Tensor:
        """Copy a tensor to the device."""
        return tensor.to(self._device, copy=True)

    def _mode(self, size: int) -> Mode:
        if self.recipe.compile is False or (self._device.type == "cuda" and self.recipe.compile == "auto"):
            return self.recipe.first_mode(self._device)
        earned = self.recipe.compile is True or (
            self.num_minibatches >= MINIBATCHES_THAT_EARN_COMPILING
            and not self._is_recurrent  # unrolling over its steps takes minutes to compile
            and not has_faster_products(self._step.layout.shapes, size)
        )
        if not earned:
            return "recorded"
        if has_compiler():
            return "compiled"
        if not self._warned:
            self._warned = True
            log.warning("no C++ compiler was found (c++, g++, clang++, or $CXX): updates go on uncompiled")
        return "recorded"

    def _sizes(self, num_rows: int) -> tuple[int, int]:
        """Number of rows of a minibatch and of a microbatch; a row of a recurrent policy is a whole sequence."""
        length = self.recipe.sequence_length if self._is_recurrent else 1
        size, micro = self.recipe.minibatch_size, self.recipe.microbatch_size
        size = num_rows if size is None else size // length
        micro = size if micro is None else micro // length
        for whole, part, kinds in ((num_rows, size, "batch minibatches"), (size, micro, "minibatch microbatches")):
            if whole % part:
                outer, inner = kinds.split()
                left = f"{whole % part} would be left"
                msg = f"a {outer} of {whole} rows does not divide into {inner} of {part}; {left}"
                raise MinibatchError(msg)
        return size, micro

    def _refuse_non_finite(self, state: _State, buffers: Mapping[str, Tensor], stats: Mapping[str, float]) -> None:
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
    return all(bool(torch.isfinite(t.sum())) or bool(torch.isfinite(t).all()) for t in floating)


def _fetched(tensor: Tensor) -> Tensor:
    """Copy a tensor to main memory."""
    return tensor.to("cpu", copy=True)
