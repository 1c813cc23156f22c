"""Learner: makes a policy better from batches of transitions. The recipe is plain data; `open` gives the live one.

One firing is one update: `num_epochs` passes over the batch in shuffled minibatches, each of which is one functional
step (see `levada.rl.step`), and one version more.

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
from levada.rl._products import has_quicker_products
from levada.rl.device import Sender, find_device
from levada.rl.frames import Frames
from levada.rl.normalise import Moments, StatisticsError, merge_all
from levada.rl.optimise import Adam, AdamPart, AdamState, adam_init, adam_step
from levada.rl.policy import Policy, Weights
from levada.rl.spaces import Array, map_nest
from levada.rl.starting import check_fits, weights_in
from levada.rl.step import Loss, MinibatchStep, Mode, StepState, has_compiler
from levada.rl.tensors import Stacks
from levada.rl.threads import use_threads
from levada.rl.transitions import MASK, Transitions, concatenate
from levada.rl.unrolled import STATE

Compile = Literal["auto"] | bool

MINIBATCHES_THAT_EARN_COMPILING = 100_000
"""In `auto`: compiling costs 5 to 18 s and saves about 0.1 ms a minibatch against replaying the recorded step. Counted in
minibatches and not in seconds, so that the same run always switches at the same place."""

_MOMENTS = "moments/"
_FIELDS = ("count", "mean", "var")

log = logging.getLogger(__name__)


class NonFiniteError(LevadaError, ArithmeticError):
    """An update produced NaN or infinity. It was refused: the weights are those from before."""


@dataclass(frozen=True, kw_only=True)
class Learner:
    """Recipe of a learner.

    Raises:
        ValueError: numbers that cannot be.
    """

    policy: Policy
    """What is learned."""
    loss: Loss
    """See `levada.rl.step.Loss`; it is differentiated with respect to the policy's parameters."""
    coefficients: Callable[[int], Mapping[str, float]]
    """Env steps that were learned from so far -> the scalars of the next update; `learning_rate` must be among them."""
    optimizer: Adam = field(default_factory=Adam)
    """Adam's constants."""
    num_epochs: int = 1
    """Passes over each batch. More learn more from a sample, and lead further from the policy that took it."""
    minibatch_size: int | None = None
    """Transitions per step; None: the whole batch. Smaller means more, noisier steps."""
    accumulate: bool = False
    """One step for each pass over the batch, by the gradients of all its minibatches together: of a large batch no more than a
    minibatch need be in memory."""
    target_every: int | None = None
    """Updates from one copy of the parameters to the next, for losses that ask for `apply.target`; None: there is none."""
    stop_above: tuple[str, float] | None = None
    """A reported statistic and a limit: the remaining minibatches of an update are left out once it is exceeded."""
    compile: Compile = "auto"
    """False: ordinary torch, slow, breakpoints in the loss work. True: compiled at once. `auto`: recorded and replayed, and
    compiled once the run is long enough to earn it."""
    corrects_staleness: bool = False
    """Whether the loss corrects for samples of an older policy without bound."""

    def __post_init__(self) -> None:
        for name, value in (
            ("num_epochs", self.num_epochs), ("minibatch_size", self.minibatch_size), ("target_every", self.target_every),
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
        """The policy whose version each update advances."""
        return self.policy.name

    def first_mode(self, device: torch.device) -> Mode:
        """How gradients are computed from the beginning; what `auto` compiles, it compiles later."""
        if self.compile is False:
            return "eager"
        if self.compile is True and has_compiler():
            return "compiled"
        return "graph" if device.type == "cuda" else "recorded"

    def open(self, seed: int) -> LiveLearner:
        """Start the learner with freshly initialised weights."""
        return LiveLearner(self, seed)


class LiveLearner:
    """A learner at work; made by `Learner.open`."""

    def __init__(self, recipe: Learner, seed: int) -> None:
        self.recipe = recipe
        module = recipe.policy.module(seed)
        has_target = recipe.target_every is not None
        self._step = MinibatchStep(module, recipe.loss, tuple(recipe.coefficients(0)), has_target=has_target)
        self._device = find_device(recipe.policy.device)
        self._sender = Sender(self._device)
        params = self._step.layout.flatten(dict(module.named_parameters())).to(self._device)
        self._target = params.clone() if has_target else None
        self._state = StepState(params, adam_init(params))
        self._buffers = {name: self._put(buffer.detach()) for name, buffer in module.named_buffers()}
        buffers = {name: buffer.detach().numpy() for name, buffer in module.named_buffers()}
        self._moments = recipe.policy.moments_of(buffers)  # float64; the normalising buffers are float32 copies
        self._rng = np.random.default_rng(seed)
        self.num_updates = 0
        self.num_minibatches = 0
        self.num_env_steps = 0
        self._warned = False
        self._num_threads = torch.get_num_threads()  # acting may use another number

    def update(self, batch: Sequence[Transitions]) -> Update[Weights]:
        """Learn from one batch.

        Raises:
            ValueError: the batch does not divide into minibatches.
            NonFiniteError: the update was refused.
        """
        use_threads(self._num_threads)
        data = concatenate(batch)
        columns = to_tensors(data)
        num_env_steps = int(columns[MASK].sum()) if MASK in columns else data.num_rows
        columns = self._sender.send_all(columns)
        size = self._minibatch_size(data.num_rows)
        values = self.recipe.coefficients(self.num_env_steps)
        # a layer may change its buffers in place: copies, so that a refused update changes nothing
        buffers = {name: buffer.clone() for name, buffer in self._buffers.items()}
        before = self._rng.bit_generator.state
        state, stats, num_minibatches = self._minibatches(columns, buffers, data.num_rows, size, values)
        try:
            return self._finish(state, buffers, stats, values, num_minibatches, num_env_steps, data.moments)
        except NonFiniteError:
            self._rng.bit_generator.state = before
            raise

    def weights(self) -> Weights:
        """The present weights: a copy, which later updates do not change."""
        copy = _fetched(self._state.params)
        named = {name: view.numpy() for name, view in self._step.layout.views(copy).items()}
        return named | {name: _fetched(buffer).numpy() for name, buffer in self._buffers.items()}

    def state_dict(self) -> dict[str, Array]:
        """Everything that the next update depends on: weights, optimiser, counts, the generator that shuffles."""
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
        """Go on from what `state_dict` gave."""
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
        """Take the weights of another run's `state_dict`, normalisation included; optimiser and counts stay new.

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
        """Accept an update, or refuse it."""
        running = merge_all([self._moments, moments])
        if moments:
            buffers = buffers | self._normalising(running)
        self._refuse_non_finite(state, buffers, stats)
        self._state, self._buffers, self._moments = state, buffers, running
        self.num_updates += 1
        if self._target is not None and self.num_updates % (self.recipe.target_every or 1) == 0:
            self._target = state.params.clone()
        self.num_minibatches += num_minibatches
        self.num_env_steps += num_env_steps
        reported = {f"losses/{name}": value for name, value in stats.items()}
        reported |= {f"charts/{name}": value for name, value in values.items()}
        return Update(self.weights(), reported)

    def _normalising(self, running: Mapping[str, Moments]) -> dict[str, Tensor]:
        """The buffers that normalise, from the running moments."""
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
        state, collected = self._state.copy(), []  # so that a refused update changes nothing
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
        """The gradient of the mean over many rows, by that over `size` at a time."""

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
        """A copy on the device."""
        return tensor.to(self._device, copy=True)

    def _mode(self, size: int) -> Mode:
        if self.recipe.compile is False or (self._device.type == "cuda" and self.recipe.compile == "auto"):
            return self.recipe.first_mode(self._device)
        earned = self.recipe.compile is True or (
            self.num_minibatches >= MINIBATCHES_THAT_EARN_COMPILING
            and not self.recipe.policy.state_size  # unrolled over its steps, it keeps the compiler busy for minutes
            and not has_quicker_products(self._step.layout.shapes, size)
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
            "high, or rewards or observations far from 1 (normalise_obs, normalise_reward)"
        )
        raise NonFiniteError(msg)


_KEPT = (MASK, "obs", "last_obs", STATE)
"""What the network is given, whoever acted."""


def to_tensors(data: Transitions) -> dict[str, Any]:
    """The columns as tensors, the mask as float32. Steps that are masked out hold zeros but for observations and state: they
    are weighed by 0, and 0 times what overflows would be NaN.
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
    """Whether no number is NaN or infinite.

    A sum of finite numbers may overflow, but no other sum is finite; and it takes a tenth of the time of looking at each.
    """
    floating = [tensor for tensor in tensors if tensor.is_floating_point()]
    return all(bool(torch.isfinite(t.sum())) or bool(torch.isfinite(t).all()) for t in floating)


def _fetched(tensor: Tensor) -> Tensor:
    """A copy in main memory."""
    return tensor.to("cpu", copy=True)


def _to_tensor(leaf: Array | Frames) -> Tensor | Stacks:
    if isinstance(leaf, Frames):
        return Stacks(torch.from_numpy(leaf.pool.as_array()), torch.from_numpy(leaf.index))
    return torch.from_numpy(np.ascontiguousarray(leaf))
