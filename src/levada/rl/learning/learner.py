"""Learner: trains a policy on batches of transitions. The recipe is plain data; `open` makes the live learner.

One firing is one update: `num_epochs` passes over the batch in shuffled minibatches. Each minibatch is one functional gradient
step (see `levada.rl.learning.step`). Each update advances the version by one.

    learner = Learner(policy=policy, loss=loss, coefficients=lambda num_env_steps: {"learning_rate": 1e-3})
    update = flow.learn("learn", learner, batch)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from levada.flow import LevadaError, Update
from levada.flow.rng import rng_array, set_rng
from levada.rl.compute.device import Sender, find_device
from levada.rl.compute.matmul import has_faster_products
from levada.rl.compute.tensors import Stacks
from levada.rl.compute.threads import use_threads
from levada.rl.data.frames import Frames
from levada.rl.data.normalize import Moments, StatisticsError, merge_all
from levada.rl.data.spaces import Array, map_nest
from levada.rl.learning.adam import Adam, AdamPart, AdamState, adam_init, adam_step
from levada.rl.learning.starting import check_fits, weights_in
from levada.rl.learning.step import Loss, MinibatchStep, Mode, StepState, has_compiler
from levada.rl.learning.unroll import STATE
from levada.rl.policies.policy import Policy, Weights
from levada.rl.replay.transitions import MASK, Transitions, concatenate

Compile = Literal["auto"] | bool

MINIBATCHES_THAT_EARN_COMPILING = 100_000
"""Threshold of `auto`: compiling costs 5 to 18 s and saves about 0.1 ms per minibatch compared with replaying the recorded
step. It is counted in minibatches and not in seconds, so that a run always switches at the same point."""

_MOMENTS = "moments/"
_FIELDS = ("count", "mean", "var")

log = logging.getLogger(__name__)


class NonFiniteError(LevadaError, ArithmeticError):
    """An update produced NaN or infinity and was rejected. The weights from before remain."""


@dataclass(frozen=True, kw_only=True)
class Learner:
    """Recipe of a learner.

    Raises:
        ValueError: a number is invalid.
    """

    policy: Policy
    """Policy to train."""
    loss: Loss
    """Loss, differentiated with respect to the policy's parameters. See `levada.rl.learning.step.Loss`."""
    coefficients: Callable[[int], Mapping[str, float]]
    """Function from the number of env steps trained on so far to the scalars of the next update, including `learning_rate`."""
    optimizer: Adam = field(default_factory=Adam)
    """Adam's hyperparameters."""
    num_epochs: int = 1
    """Number of passes over each batch. More passes learn more from a sample and move further from the policy that took it."""
    minibatch_size: int | None = None
    """Number of transitions per gradient step; None: the whole batch. Smaller minibatches make more and noisier steps."""
    accumulate: bool = False
    """Gradient accumulation: one gradient step per pass over the batch, from the gradients of all its minibatches. Only one
    minibatch at a time needs to be in memory."""
    target_update_interval: int | None = None
    """Number of updates between copies of the parameters to the target network, for losses that use `apply.target`; None: no
    target network."""
    stop_above: tuple[str, float] | None = None
    """Early stopping: a statistic and its limit. The remaining minibatches of an update are skipped once it exceeds the
    limit."""
    compile: Compile = "auto"
    """False: eager PyTorch, slow; breakpoints in the loss work. True: compile at once. `auto`: record and replay the step, and
    compile it if the run is long enough to be worth it."""
    corrects_staleness: bool = False
    """Whether the loss corrects for the off-policyness of samples, however old their policy is."""

    def __post_init__(self) -> None:
        for name, value in (
            ("num_epochs", self.num_epochs), ("minibatch_size", self.minibatch_size), ("target_update_interval",
            self.target_update_interval),
        ):  # fmt: skip
            if value is not None and value < 1:
                msg = f"Learner({name}={value}): expected an integer >= 1"
                raise ValueError(msg)
        if not (isinstance(self.compile, bool) or self.compile == "auto"):
            msg = f"Learner(compile={self.compile!r}): expected True, False or 'auto'"
            raise ValueError(msg)
        if "learning_rate" not in self.coefficients(0):
            msg = f"Learner: coefficients(0) gave {sorted(self.coefficients(0))}; expected 'learning_rate' among them"
            raise ValueError(msg)

    @property
    def policy_name(self) -> str:
        """Name of the policy whose version each update advances."""
        return self.policy.name

    def first_mode(self, device: torch.device) -> Mode:
        """Return how gradients are computed initially; `auto` compiles later."""
        if self.compile is False:
            return "eager"
        if self.compile is True and has_compiler():
            return "compiled"
        return "graph" if device.type == "cuda" else "recorded"

    def open(self, seed: int) -> LiveLearner:
        """Start the learner with freshly initialized weights."""
        return LiveLearner(self, seed)


class LiveLearner:
    """A running learner, made by `Learner.open`."""

    def __init__(self, recipe: Learner, seed: int) -> None:
        self.recipe = recipe
        module = recipe.policy.module(seed)
        has_target = recipe.target_update_interval is not None
        self._step = MinibatchStep(module, recipe.loss, tuple(recipe.coefficients(0)), has_target=has_target)
        self._device = find_device(recipe.policy.device)
        self._sender = Sender(self._device)
        params = self._step.layout.flatten(dict(module.named_parameters())).to(self._device)
        self._target = params.clone() if has_target else None
        self._state = StepState(params, adam_init(params))
        self._buffers = {name: self._put(buffer.detach()) for name, buffer in module.named_buffers()}
        buffers = {name: buffer.detach().numpy() for name, buffer in module.named_buffers()}
        self._moments = recipe.policy.moments_of(buffers)  # float64; the normalization buffers are float32 copies
        self._rng = np.random.default_rng(seed)
        self.num_updates = 0
        self.num_minibatches = 0
        self.num_env_steps = 0
        self._warned = False
        self._num_threads = torch.get_num_threads()  # acting may use a different number

    def update(self, batch: Sequence[Transitions]) -> Update[Weights]:
        """Train on one batch.

        Raises:
            ValueError: the batch size is not a multiple of the minibatch size.
            NonFiniteError: the update was rejected.
        """
        use_threads(self._num_threads)
        data = concatenate(batch)
        columns = to_tensors(data)
        num_env_steps = int(columns[MASK].sum()) if MASK in columns else data.num_rows
        columns = self._sender.send_all(columns)
        size = self._minibatch_size(data.num_rows)
        values = self.recipe.coefficients(self.num_env_steps)
        # A layer may change its buffers in place. Work on copies, so that a rejected update changes nothing.
        buffers = {name: buffer.clone() for name, buffer in self._buffers.items()}
        before = self._rng.bit_generator.state
        state, stats, num_minibatches = self._minibatches(columns, buffers, data.num_rows, size, values)
        try:
            return self._finish(state, buffers, stats, values, num_minibatches, num_env_steps, data.moments)
        except NonFiniteError:
            self._rng.bit_generator.state = before
            raise

    def weights(self) -> Weights:
        """Return a copy of the current weights."""
        copy = _fetched(self._state.params)
        named = {name: view.numpy() for name, view in self._step.layout.views(copy).items()}
        return named | {name: _fetched(buffer).numpy() for name, buffer in self._buffers.items()}

    def state_dict(self) -> dict[str, Array]:
        """Return all state of the next update: weights, optimizer, counts, the generator that shuffles."""
        named = {f"weights/{name}": np.asarray(array) for name, array in self.weights().items()}
        mean, square, count = self._state.adam
        counts = np.array([self.num_updates, self.num_minibatches, self.num_env_steps], np.int64)
        for key, total in self._moments.items():
            named |= {f"{_MOMENTS}{key}/{name}": np.asarray(getattr(total, name)) for name in _FIELDS}
        if self._target is not None:
            named["target"] = _fetched(self._target).numpy()
        return named | {
            "optimizer/mean": _fetched(mean).numpy(), "optimizer/square": _fetched(square).numpy(),
            "optimizer/count": _fetched(count).numpy(), "counts": counts, "rng": rng_array(self._rng),
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Restore the state that `state_dict` returned."""
        arrays = {name.removeprefix("weights/"): array for name, array in state.items()}
        self._moments = self.recipe.policy.moments_of(arrays)
        for key in self._moments:
            if f"{_MOMENTS}{key}/count" in state:
                count, mean, var = (state[f"{_MOMENTS}{key}/{name}"] for name in _FIELDS)
                self._moments[key] = Moments(float(count), mean, var)
        weights = {name: self._put(torch.tensor(array)) for name, array in arrays.items()}
        self._buffers = {name: weights[name] for name in self._buffers}
        adam = AdamState(*(weights[f"optimizer/{name}"] for name in ("mean", "square", "count")))
        self._state = StepState(self._step.layout.flatten(weights), adam)
        if self._target is not None:
            self._target = weights["target"]
        self.num_updates, self.num_minibatches, self.num_env_steps = (int(count) for count in state["counts"])
        set_rng(self._rng, state["rng"])

    def start_from(self, state: Mapping[str, Array]) -> None:
        """Load the weights and normalization of another run's `state_dict`; the optimizer and the counts start fresh.

        Raises:
            StartError: names or shapes differ.

        """
        given = weights_in(state)
        check_fits(self.weights(), given)
        weights = {name: self._put(torch.tensor(array)) for name, array in given.items()}
        self._buffers = {name: weights[name] for name in self._buffers}
        self._moments = self.recipe.policy.moments_of(given)
        self._state = StepState(self._step.layout.flatten(weights), self._state.adam)
        if self._target is not None:
            self._target = self._state.params.clone()

    # ---- inside

    def _finish(
        self, state: StepState, buffers: dict[str, Tensor], stats: Mapping[str, float], values: Mapping[str, float],
        num_minibatches: int, num_env_steps: int, moments: Mapping[str, Moments],
    ) -> Update[Weights]:  # fmt: skip
        """Accept or reject an update."""
        running = merge_all([self._moments, moments])
        if moments:
            buffers = buffers | self._normalizing(running)
        self._refuse_non_finite(state, buffers, stats)
        self._state, self._buffers, self._moments = state, buffers, running
        self.num_updates += 1
        if self._target is not None and self.num_updates % (self.recipe.target_update_interval or 1) == 0:
            self._target = state.params.clone()
        self.num_minibatches += num_minibatches
        self.num_env_steps += num_env_steps
        reported = {f"losses/{name}": value for name, value in stats.items()}
        reported |= {f"charts/{name}": value for name, value in values.items()}
        return Update(self.weights(), reported)

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
        return {name: self._put(torch.from_numpy(array)) for name, array in arrays.items()}

    def _minibatches(
        self, columns: Mapping[str, Any], buffers: Mapping[str, Tensor], num_rows: int, size: int,
        values: Mapping[str, float],
    ) -> tuple[StepState, dict[str, float], int]:  # fmt: skip
        state, collected = self._state.copy(), []  # a copy, so that a rejected update changes nothing
        gradient_of = self._step.on(self._mode(size), values, buffers, columns, self._target)
        if self.recipe.accumulate and size < num_rows:
            gradient_of = self._accumulated(gradient_of, columns.get(MASK), size)
            size = num_rows
        for _ in range(self.recipe.num_epochs):
            order = torch.from_numpy(self._rng.permutation(num_rows)).to(self._device)
            for index in torch.split(order, size):
                gradient, stats = gradient_of(state.params, index)
                part = AdamPart(state.params, gradient, *state.adam)
                norm = adam_step(self.recipe.optimizer, [part], values["learning_rate"])
                collected.append(torch.cat([stats, norm[None]]))
                if self._exceeded(stats):
                    break
            else:
                continue
            break
        means = torch.stack(collected).mean(0).tolist()
        return state, dict(zip((*self._step.stats, "grad_norm"), means, strict=True)), len(collected)

    @staticmethod
    def _accumulated(
        gradient_of: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], mask: Tensor | None, size: int
    ) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Return a function that computes the mean gradient over many rows, `size` rows at a time."""

        def gradient(params: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
            total: list[Tensor] = []
            num_steps = [1.0 if mask is None else float(mask[part].sum()) for part in torch.split(index, size)]
            for part, num in zip(torch.split(index, size), num_steps, strict=True):
                share = num / max(sum(num_steps), 1.0)
                terms = [share * term for term in gradient_of(params, part)]
                total = [a + b for a, b in zip(total, terms, strict=True)] if total else terms
            return total[0], total[1]

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
            and not self.recipe.policy.state_size  # unrolling over its steps takes minutes to compile
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

    def _minibatch_size(self, num_rows: int) -> int:
        size = self.recipe.minibatch_size or num_rows
        if num_rows % size:
            msg = f"a batch of {num_rows} transitions does not divide into minibatches of {size}; {num_rows % size} would be left"
            raise ValueError(msg)
        return size

    def _refuse_non_finite(self, state: StepState, buffers: Mapping[str, Tensor], stats: Mapping[str, float]) -> None:
        mean, square, _ = state.adam
        if all_finite([state.params, mean, square, *buffers.values()]):
            return
        views = self._step.layout.views(state.params)
        views |= {"the optimizer's mean": mean, "the optimizer's mean square": square, **buffers}
        bad = [name for name, view in views.items() if not all_finite([view])]
        reported = ", ".join(f"{name} {value:g}" for name, value in stats.items())
        msg = (
            f"update {self.num_updates + 1} of policy {self.recipe.policy.name!r} gave NaN or infinity in "
            f"{', '.join(bad)}; it was refused. Statistics of the update: {reported}. Likely: a learning rate that is too "
            "high, or rewards or observations far from 1 (normalize_obs, normalize_reward)"
        )
        raise NonFiniteError(msg)


_KEPT = (MASK, "obs", "last_obs", STATE)
"""Inputs of the network, kept in masked steps."""


def to_tensors(data: Transitions) -> dict[str, Any]:
    """Convert the columns to tensors, the mask to float32. Masked steps become zero, except for observations and state: their
    weight is 0, and 0 times an overflow would be NaN.
    """
    columns: dict[str, Any] = {name: map_nest(_to_tensor, nest) for name, nest in data.columns.items()}
    if MASK not in columns:
        return columns
    mask = columns[MASK] = columns[MASK].to(torch.float32)
    left_out = mask == 0.0
    if bool(left_out.any()):
        for name, column in columns.items():
            if name not in _KEPT and isinstance(column, Tensor) and column.is_floating_point():
                fits = column.shape[: mask.ndim] == mask.shape
                assert fits, f"column {name!r} has shape {tuple(column.shape)}, the mask {tuple(mask.shape)}"
                rows = left_out.view(*mask.shape, *[1] * (column.ndim - mask.ndim))
                columns[name] = column.masked_fill(rows, 0.0)
    return columns


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Return whether all values are finite.

    A sum of finite values may overflow, but a finite sum has only finite terms. Summing takes a tenth of the time of checking
    each.
    """
    floating = [tensor for tensor in tensors if tensor.is_floating_point()]
    return all(bool(torch.isfinite(t.sum())) or bool(torch.isfinite(t).all()) for t in floating)


def _fetched(tensor: Tensor) -> Tensor:
    """Copy a tensor to main memory."""
    return tensor.to("cpu", copy=True)


def _to_tensor(leaf: Array | Frames) -> Tensor | Stacks:
    if isinstance(leaf, Frames):
        return Stacks(torch.from_numpy(leaf.pool.as_array()), torch.from_numpy(leaf.index))
    return torch.from_numpy(np.ascontiguousarray(leaf))
