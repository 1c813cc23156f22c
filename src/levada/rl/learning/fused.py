"""All gradient steps of an update in one call, compiled by XLA: loss, gradient, clipping, Adam and target networks.

A step alone costs PyTorch 0.3 to 0.7 ms, mostly to start its hundred or two hundred operations. Here the losses are the same
functions, whose operations torchax runs in JAX; the gradient is JAX's. Sums are added in another order, so a run has other bits
than with PyTorch, and learns the same.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from levada.flow.patience import taking_long
from levada.rl.compute.seeding import SharedGenerators
from levada.rl.compute.xla import JaxPlace, as_jax
from levada.rl.data.nest import flatten
from levada.rl.data.spaces import Array
from levada.rl.learning.fusible import NotFusedError, refuse_impure, undone, why_not_traced
from levada.rl.learning.optimizers import Adam
from levada.rl.learning.step import GradientStep, batch_of
from levada.rl.learning.training import Held, Vectors

log: logging.Logger = logging.getLogger(__name__)


class Targets(NamedTuple):
    """How target networks follow."""

    interval: int
    """Number of gradient steps, or updates, between two updates of the target networks."""
    unit: Literal["gradient_steps", "updates"]
    """What that interval counts."""
    tau: float
    """Polyak factor."""


class InJax:
    """The state after an update, as arrays of JAX, which the next update takes without converting them."""

    def __init__(self, params: Any, target: Any, moments: Any, place: JaxPlace, *, is_finite: bool) -> None:
        self.arrays: tuple[Any, Any, Any] = params, target, moments
        """Parameters, target parameters and the optimizer's moments."""
        self.is_finite: bool | None = is_finite
        self._place = place

    @cached_property
    def vectors(self) -> Vectors:
        """The state as tensors in memory of their own."""
        params, target, moments = self.arrays
        of_optimizer = {
            name: {key: self._tensor(moment) for key, moment in own.items()} for name, own in moments.items()
        }
        made = Vectors(self._tensor(params), self._tensor(target), of_optimizer)
        self._place.wait_for_copies()
        return made

    def params_of(self, span: slice) -> Array:
        """Return a copy of some parameters, in main memory."""
        return np.array(self.arrays[0][span] if self._place.is_gpu else np.asarray(self.arrays[0])[span])

    def _tensor(self, array: Any) -> Tensor:
        is_there = self._place.is_gpu and not isinstance(array, np.ndarray)
        return from_dlpack(array).clone() if is_there else torch.from_numpy(np.array(array))


class Fused(NamedTuple):
    """What fused gradient steps return."""

    state: InJax
    """The state after them."""
    num_steps: int
    """Number of steps that were taken."""
    stats: Mapping[str, float]
    """Means over these of the statistics and the gradient norm."""
    priorities: Array | None
    """``[K * M]``, if the loss has any."""
    batch_stats: Mapping[str, float]
    """Statistics of the whole batch."""


class FusedSteps:
    """The gradient steps of one learner. It compiles again for new shapes.

    Args:
        step: the loss of a gradient step.
        spans: position of each network in the vector of parameters.
        adam: the optimizer.
        targets: how target networks follow; None: there are none.
        update_every: networks that are trained only in every n-th gradient step.
        stop_above: index of a statistic, by name, and its limit; the rest of an update is skipped once it exceeds the limit.
        batch_stats: the loss's statistics of a whole batch; None: it has none.
        num_parts: number of microbatches per minibatch, which do not change the mean gradient.
        num_threads: number of microbatches that are computed at a time.
        device: where all of it is computed, by PyTorch's name.
    """

    def __init__(
        self, step: GradientStep, spans: Mapping[str, slice], adam: Adam, targets: Targets | None,
        update_every: Mapping[str, int], stop_above: tuple[str, float] | None,
        batch_stats: Callable[[Mapping[str, Any]], Mapping[str, Tensor]] | None = None, num_parts: int = 1,
        num_threads: int = 1, device: str = "cpu",
    ) -> None:  # fmt: skip
        self._step = step
        self._spans = dict(spans)
        self._adam = adam
        self._targets = targets
        self._update_every = dict(update_every)
        self._stop_above = stop_above
        self._batch_stats = batch_stats
        self._batch_names: tuple[str, ...] = ()  # known once it is traced
        self._num_parts = num_parts
        self._num_threads = num_threads
        self._device = torch.device(device)
        self._place = JaxPlace(device)
        self._made: dict[Any, Any] = {}
        interval = 1 if targets is None else targets.interval
        # counts are int32 in JAX, and only their remainders matter
        self._cycle = math.lcm(_period(self._update_every), interval)

    def __call__(
        self, state: Held, values: Mapping[str, float], buffers: Mapping[str, Tensor], columns: Mapping[str, Any],
        rows: Array | int, num_before: int, num_updates: int = 0, weights: Array | None = None,
    ) -> Fused:  # fmt: skip
        """Take all steps.

        Args:
            state: parameters, target parameters and optimizer before.
            values: coefficients of the loss.
            buffers: buffers of the networks.
            columns: columns ``[N, ...]`` of the batch, arrays or tensors.
            rows: rows of each step, ``[K, M]``; or the number of steps, if each takes the whole batch.
            num_before: number of gradient steps before these.
            num_updates: number of updates before this one.
            weights: of the microbatches in the mean of each step, ``[K, num_parts]``; None: there is one.

        Raises:
            NotFusedError: they cannot be fused.
        """
        leaves: list[Any] = []
        structure = {name: flatten(nest, leaves) for name, nest in columns.items()}
        num_steps = rows if isinstance(rows, int) else len(rows)
        index = None if isinstance(rows, int) else rows.astype(np.int32)
        key = (
            repr(structure), *[(leaf.shape, leaf.dtype) for leaf in leaves], num_steps,
            None if index is None else index.shape, *buffers,
        )  # fmt: skip
        params, target, moments = state.arrays if isinstance(state, InJax) else _arrays(state.vectors)
        args = (
            params, target, moments, np.array([*values.values()], np.float32),
            np.array([num_before % self._cycle, num_updates % self._cycle], np.int32), index, weights,
            [_array(buffer) for buffer in buffers.values()], [_array(leaf) for leaf in leaves],
        )  # fmt: skip
        run = self._made.get(key)
        with self._place.used():
            if run is None:
                with taking_long("compiling the update"):
                    run = self._compiled(structure, tuple(values), tuple(buffers), num_steps)
                    first = None if index is None else index[0][: index.shape[1] // self._num_parts]
                    trial = partial(
                        refuse_impure, self._step, tuple(self._spans), state.vectors, values, buffers, columns
                    )
                    self._trace(run, args, partial(trial, first))
                    self._made[key] = run
                    made = run(*args)
            else:
                made = run(*args)
        params, followed, moments, told, priorities = made
        num_taken, is_finite, *numbers = np.asarray(told).tolist()
        names = (*self._step.stats, "grad_norm")
        after = InJax(
            params, target if followed is None else followed, moments, self._place, is_finite=is_finite > 0.0
        )  # fmt: skip
        return Fused(
            after, int(num_taken), dict(zip(names, numbers, strict=False)),
            None if priorities is None else np.array(priorities).reshape(-1),
            dict(zip(self._batch_names, numbers[len(names) :], strict=True)),
        )  # fmt: skip

    def _trace(self, run: Any, args: tuple[Any, ...], trial: Callable[[], None]) -> None:
        """Trace the update, after a trial in ordinary PyTorch, which raises errors of the network's or the loss's own."""
        with undone(self._step.modules, self._device):
            generators = SharedGenerators()
            trial()
            self._step.tell_of_draws(generators)
            try:
                run.trace(*args)
            except Exception as error:  # PyTorch computed the same, so this is a limit of tracing
                raise NotFusedError(why_not_traced(error)) from error

    def _compiled(
        self, structure: Mapping[str, Any], coefficients: tuple[str, ...], buffers: tuple[str, ...], num_steps: int
    ) -> Any:
        import jax
        import jax.numpy as jnp

        step, spans, adam, every = self._step, self._spans, self._adam, self._update_every
        stop = self._stop_above
        rate, num_parts = coefficients.index("learning_rate"), self._num_parts

        def loss(
            active: tuple[str, ...], params: Mapping[str, Tensor], target: Tensor, values: Tensor, index: Tensor | None,
            fixed: Sequence[Tensor], leaves: Sequence[Tensor],
        ) -> tuple[Tensor, tuple[Tensor, Tensor]]:  # fmt: skip
            named = dict(zip(buffers, fixed, strict=True))
            batch = batch_of(structure, leaves, index)
            flat = torch.cat([params[name] for name in spans])  # JAX sorts mappings
            made, stats, priorities = step.loss_of(target, values, named, batch, active)(flat, named)
            return made, (stats, priorities)

        def gradient(params: Any, target: Any, values: Any, index: Any, fixed: Any, leaves: Any, active: Any) -> Any:
            def of(params: Any) -> Any:
                return as_jax(partial(loss, active))(params, target, values, index, fixed, leaves)

            return jax.grad(of, has_aux=True)(params)

        def mean_gradient(params: Any, target: Any, values: Any, rows: Any, *more: Any) -> Any:
            index, weights = rows
            if num_parts == 1:
                return gradient(params, target, values, index, *more)
            # they do not depend on each other, so several threads can compute them
            each = [gradient(params, target, values, own, *more) for own in jnp.split(index, num_parts)]
            mean, stats = jax.tree.map(
                lambda *parts: sum(part * weight for part, weight in zip(parts, weights, strict=True)),
                *[(grad, stats) for grad, (stats, _) in each],
            )
            return mean, (stats, jnp.concatenate([told for _, (_, told) in each]))

        def adapted(params: Any, moments: Any, gradient: Any, values: Any, active: tuple[str, ...]) -> Any:
            norm = jnp.sqrt(sum(jnp.sum(jnp.square(gradient[name])) for name in active))
            scale = 1.0 if adam.max_grad_norm is None else jnp.minimum(adam.max_grad_norm / (norm + 1e-6), 1.0)
            params, moments = dict(params), dict(moments)
            for name in active:
                own, grad = moments[name], gradient[name] * scale
                count = own["step"] + 1.0
                mean = own["exp_avg"] + (1.0 - adam.beta1) * (grad - own["exp_avg"])
                square = adam.beta2 * own["exp_avg_sq"] + (1.0 - adam.beta2) * grad * grad
                root = jnp.sqrt(square) / jnp.sqrt(1.0 - adam.beta2**count) + adam.eps
                change = values[rate] / (1.0 - adam.beta1**count) * mean / root
                params[name] = params[name] - change
                moments[name] = {"exp_avg": mean, "exp_avg_sq": square, "step": count}
            return params, moments, norm

        def joined(params: Any) -> Any:
            return jnp.concatenate([params[name] for name in spans])

        def followed(params: Any, target: Any, count: Any, unit: str) -> Any:
            if self._targets is None or self._targets.unit != unit:
                return target
            own = joined(params)[: target.shape[0]]
            moved = target + self._targets.tau * (own - target)
            return jnp.where(count % self._targets.interval == 0, moved, target)

        def of_batch(leaves: Sequence[Tensor]) -> Tensor:
            assert self._batch_stats is not None
            found = self._batch_stats(batch_of(structure, leaves, None))
            self._batch_names = tuple(found)
            return torch.stack([*found.values()])

        # each set of networks that are trained together is a branch
        sets = list(dict.fromkeys(self._active(count) for count in range(1, 1 + _period(every))))

        def branch(active: tuple[str, ...]) -> Any:
            def run(carry: Any, rows: Any, values: Any, fixed: Any, leaves: Any) -> Any:
                params, target, moments, count, _ = carry
                grad, (stats, priorities) = mean_gradient(params, target, values, rows, fixed, leaves, active)
                params, moments, norm = adapted(params, moments, grad, values, active)
                target = followed(params, target, count + 1, "gradient_steps")
                row = jnp.concatenate([jnp.ones(1), stats, norm[None]])
                stopped = jnp.bool_(False)
                if stop is not None:
                    stopped = stats[step.stats.index(stop[0])] > stop[1]
                return (params, target, moments, count + 1, stopped), (row, priorities)

            return run

        def update(
            params: Any, target: Any, moments: Any, values: Any, counts: Any, rows: Any, weights: Any, fixed: Any,
            leaves: Any,
        ) -> Any:  # fmt: skip
            def one(carry: Any, rows: Any) -> Any:
                args = (carry, rows, values, fixed, leaves)
                if len(sets) == 1:
                    take = branch(sets[0])
                else:
                    which = jnp.asarray([sets.index(self._active(c)) for c in range(_period(every))])
                    place = which[(carry[3] + 1) % _period(every)]

                    def take(*args: Any) -> Any:
                        return jax.lax.switch(place, [branch(active) for active in sets], *args)

                if stop is None:
                    return take(*args)
                shapes = jax.eval_shape(take, *args)[1]
                nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
                return jax.lax.cond(carry[4], lambda *args: (args[0], nothing), take, *args)

            # vectors of their own, so that a step need not copy the whole to change a part of it
            networks = {name: params[span] for name, span in spans.items()}
            start = (networks, target, moments, counts[0], jnp.bool_(False))
            end, (table, priorities) = jax.lax.scan(one, start, (rows, weights), length=num_steps)
            networks, target, moments, *_ = end
            target = followed(networks, target, counts[1] + 1, "updates")
            params = joined(networks)
            state = [params, target, *jax.tree.leaves(moments)]
            is_finite = jnp.stack([jnp.isfinite(part).all() for part in state]).all()
            found = jnp.zeros(0) if self._batch_stats is None else as_jax(of_batch)(leaves)
            # of a step that was not taken, all is 0; a network that a step does not train has a loss of NaN
            taken, numbers = table[:, :1], table[:, 1:]
            counts_too = (taken > 0.0) & ~jnp.isnan(numbers) if every else taken > 0.0
            means = jnp.where(counts_too, numbers, 0.0).sum(0) / jnp.where(counts_too, 1.0, 0.0).sum(0)
            # each result costs microseconds, so the numbers are one
            told = jnp.concatenate([taken.sum(0), is_finite[None].astype(jnp.float32), means, found])
            return (
                params, None if self._targets is None else target, moments, told, priorities if priorities.size else None,
            )  # fmt: skip

        options = self._place.compiler_options(num_threads=min(self._num_threads, num_parts))
        return jax.jit(update, compiler_options=None if options is None else dict(options))

    def _active(self, count: int) -> tuple[str, ...]:
        return tuple(name for name in self._spans if count % self._update_every.get(name, 1) == 0)


def _period(every: Mapping[str, int]) -> int:
    return math.lcm(*every.values())


def _arrays(state: Vectors) -> tuple[Any, Any, Any]:
    moments = {name: {key: _array(value) for key, value in own.items()} for name, own in state.optimizer.items()}
    return _array(state.params), _array(state.target), moments


def _array(leaf: Tensor | Array) -> Any:
    """Return the tensor as JAX takes it, in the same memory; JAX has no 64 bits here."""
    if isinstance(leaf, Tensor) and leaf.is_cuda:
        import jax

        narrow = {torch.int64: torch.int32, torch.float64: torch.float32}.get(leaf.dtype, leaf.dtype)
        return jax.dlpack.from_dlpack(leaf.to(narrow).contiguous())
    array = leaf.numpy() if isinstance(leaf, Tensor) else leaf
    if array.dtype == np.int64:
        return array.astype(np.int32)
    return array.astype(np.float32) if array.dtype == np.float64 else array
