"""All gradient steps of an update in one call, compiled by XLA: loss, gradient, clipping, Adam and target networks.

A step alone costs PyTorch 0.3 to 0.7 ms, mostly to start its hundred or two hundred operations. Here the losses are the same
functions, whose operations torchax runs in JAX; the gradient is JAX's. Sums are added in another order, so a run has other bits
than with PyTorch, and learns the same.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.dlpack import from_dlpack

from levada.flow.patience import taking_long
from levada.rl.compute.xla import JaxPlace, as_jax, missing_for_xla, missing_in_jax, prepare_jax
from levada.rl.data.nest import flatten
from levada.rl.data.spaces import Array
from levada.rl.learning.optimizers import Adam, OptimizerState
from levada.rl.learning.step import GradientStep, batch_of
from levada.rl.learning.training import Vectors
from levada.rl.policies.policy import Policy

log: logging.Logger = logging.getLogger(__name__)


class Targets(NamedTuple):
    """How target networks follow after each gradient step."""

    interval: int
    """Number of gradient steps between two updates of the target networks."""
    tau: float
    """Polyak factor."""


class FusedSteps:
    """The gradient steps of one learner. It compiles again for new shapes.

    Args:
        step: the loss of a gradient step.
        spans: position of each network in the vector of parameters.
        adam: the optimizer.
        targets: how target networks follow; None: not with gradient steps.
        update_every: networks that are trained only in every n-th gradient step.
        stop_above: index of a statistic, by name, and its limit; the rest of an update is skipped once it exceeds the limit.
        device: where all of it is computed, by PyTorch's name.
    """

    def __init__(
        self, step: GradientStep, spans: Mapping[str, slice], adam: Adam, targets: Targets | None,
        update_every: Mapping[str, int], stop_above: tuple[str, float] | None, device: str = "cpu",
    ) -> None:  # fmt: skip
        self._step = step
        self._spans = dict(spans)
        self._adam = adam
        self._targets = targets
        self._update_every = dict(update_every)
        self._stop_above = stop_above
        self._place = JaxPlace(device)
        self._made: dict[Any, Any] = {}
        self._last: tuple[Vectors, Any, Any, Any] | None = None
        """The state that was returned last, and its parameters, targets and moments, which need not be converted again. Without
        the targets (None) if others change them."""

    def __call__(
        self, state: Vectors, values: Mapping[str, float], buffers: Mapping[str, Tensor], columns: Mapping[str, Any],
        rows: Array | int, num_before: int,
    ) -> tuple[Vectors, Tensor, Array | None]:  # fmt: skip
        """Take all steps.

        Args:
            state: parameters, target parameters and optimizer before.
            values: coefficients of the loss.
            buffers: buffers of the networks.
            columns: columns ``[N, ...]`` of the batch.
            rows: rows of each step, ``[K, M]``; or the number of steps, if each takes the whole batch.
            num_before: number of gradient steps before these.

        Returns:
            The state after, the statistics and the gradient norm of each step that was taken ``[k, S + 1]``, and the priorities
            ``[K * M]`` if the loss has any.
        """
        leaves: list[Tensor] = []
        structure = {name: flatten(nest, leaves) for name, nest in columns.items()}
        num_steps = rows if isinstance(rows, int) else len(rows)
        index = None if isinstance(rows, int) else rows.astype(np.int32)
        shapes = [(leaf.shape, leaf.dtype) for leaf in leaves]
        key = (repr(structure), *shapes, num_steps, None if index is None else index.shape, *buffers)
        target = None
        if self._last is not None and self._last[0] is state:
            _, params, target, moments = self._last
        else:
            params, moments = _array(state.params), _moments(state.optimizer)
        args = (
            params, _array(state.target) if target is None else target, moments,
            np.array([*values.values()], np.float32), np.int32(num_before), index,
            [_array(buffer) for buffer in buffers.values()], [_array(leaf) for leaf in leaves],
        )  # fmt: skip
        run = self._made.get(key)
        with self._place.used():
            if run is None:
                with taking_long("compiling the update"):
                    run = self._made[key] = self._compiled(structure, tuple(values), tuple(buffers), num_steps)
                    made = run(*args)
            else:
                made = run(*args)
        params, target, moments, table, priorities, taken = made
        followed = state.target.clone() if target is None else self._tensor(target)
        after = Vectors(
            self._tensor(params), followed,
            {name: {key: self._tensor(moment) for key, moment in moments[name].items()} for name in state.optimizer},
        )  # fmt: skip
        self._last = after, params, target, moments
        self._place.wait_for_copies()
        steps = np.array(table) if taken is None else np.asarray(table)[np.asarray(taken)]
        return after, torch.from_numpy(steps), None if priorities is None else np.array(priorities).reshape(-1)

    def _compiled(
        self, structure: Mapping[str, Any], coefficients: tuple[str, ...], buffers: tuple[str, ...], num_steps: int
    ) -> Any:
        import jax
        import jax.numpy as jnp

        step, spans, adam, every = self._step, self._spans, self._adam, self._update_every
        stop = self._stop_above
        rate = coefficients.index("learning_rate")

        def loss(
            active: tuple[str, ...], params: Tensor, target: Tensor, values: Tensor, index: Tensor | None,
            fixed: Sequence[Tensor], leaves: Sequence[Tensor],
        ) -> tuple[Tensor, tuple[Tensor, Tensor]]:  # fmt: skip
            named = dict(zip(buffers, fixed, strict=True))
            batch = batch_of(structure, leaves, index)
            made, stats, priorities = step.loss_of(target, values, named, batch, active)(params, named)
            return made, (stats, priorities)

        def gradient(params: Any, target: Any, values: Any, index: Any, fixed: Any, leaves: Any, active: Any) -> Any:
            def of(params: Any) -> Any:
                return as_jax(partial(loss, active))(params, target, values, index, fixed, leaves)

            return jax.grad(of, has_aux=True)(params)

        def adapted(params: Any, moments: Any, gradient: Any, values: Any, active: tuple[str, ...]) -> Any:
            parts = [gradient[spans[name]] for name in active]
            norm = jnp.sqrt(sum(jnp.sum(jnp.square(part)) for part in parts))
            scale = 1.0 if adam.max_grad_norm is None else jnp.minimum(adam.max_grad_norm / (norm + 1e-6), 1.0)
            moments = dict(moments)
            for name, part in zip(active, parts, strict=True):
                own, grad, span = moments[name], part * scale, spans[name]
                count = own["step"] + 1.0
                mean = own["exp_avg"] + (1.0 - adam.beta1) * (grad - own["exp_avg"])
                square = adam.beta2 * own["exp_avg_sq"] + (1.0 - adam.beta2) * grad * grad
                root = jnp.sqrt(square) / jnp.sqrt(1.0 - adam.beta2**count) + adam.eps
                change = values[rate] / (1.0 - adam.beta1**count) * mean / root
                params = params.at[span].add(-change)
                moments[name] = {"exp_avg": mean, "exp_avg_sq": square, "step": count}
            return params, moments, norm

        def followed(params: Any, target: Any, count: Any) -> Any:
            if self._targets is None or not target.shape[0]:
                return target
            moved = target + self._targets.tau * (params[: target.shape[0]] - target)
            return jnp.where(count % self._targets.interval == 0, moved, target)

        # each set of networks that are trained together is a branch
        sets = list(dict.fromkeys(self._active(count) for count in range(1, 1 + _period(every))))

        def branch(active: tuple[str, ...]) -> Any:
            def run(carry: Any, index: Any, values: Any, fixed: Any, leaves: Any) -> Any:
                params, target, moments, count, _ = carry
                grad, (stats, priorities) = gradient(params, target, values, index, fixed, leaves, active)
                params, moments, norm = adapted(params, moments, grad, values, active)
                target = followed(params, target, count + 1)
                row = jnp.concatenate([stats, norm[None]])
                stopped = jnp.bool_(False)
                if stop is not None:
                    stopped = row[step.stats.index(stop[0])] > stop[1]
                return (params, target, moments, count + 1, stopped), (row, priorities, jnp.bool_(True))

            return run

        def update(
            params: Any, target: Any, moments: Any, values: Any, count: Any, rows: Any, fixed: Any, leaves: Any
        ) -> Any:
            def one(carry: Any, index: Any) -> Any:
                args = (carry, index, values, fixed, leaves)
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

            start = (params, target, moments, count, jnp.bool_(False))
            end, (table, priorities, taken) = jax.lax.scan(one, start, rows, length=num_steps)
            params, target, moments, *_ = end
            # each result costs microseconds
            return (
                params, None if self._targets is None else target, moments, table, priorities if priorities.size else None,
                None if stop is None else taken,
            )  # fmt: skip

        return jax.jit(update)

    def _tensor(self, array: Any) -> Tensor:
        """Return the array as a tensor in memory of its own."""
        return from_dlpack(array).clone() if self._place.is_gpu else torch.from_numpy(np.array(array))

    def _active(self, count: int) -> tuple[str, ...]:
        return tuple(name for name in self._spans if count % self._update_every.get(name, 1) == 0)


def why_not_fused(
    modules: nn.ModuleDict, policy: Policy, optimizer: object, device: torch.device, num_parts: int
) -> str | None:
    """Return why the gradient steps of a learner cannot be fused, or None."""
    missing = missing_for_xla()
    changing = [type(module).__name__ for module in modules.modules() if isinstance(module, _CHANGING)]
    reasons = {
        f"{missing} is not installed (pip install 'levada[jax]')": missing is not None,
        f"the optimizer is {type(optimizer).__name__}, expected Adam": not isinstance(optimizer, Adam),
        "minibatches consist of several microbatches": num_parts > 1,
        "the policy is recurrent": policy.state_size > 0,
        "the policy's weights have noise": policy.weight_noise > 0,
        f"the policy computes in {policy.precision}": policy.precision != "float32",
        f"a network has {', '.join(changing)}, which each forward pass changes or draws numbers for": bool(changing),
    }
    found = next((reason for reason, applies in reasons.items() if applies), None)
    if found is not None:
        return found
    prepare_jax(str(device))
    return missing_in_jax(str(device))


_CHANGING = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)


def _period(every: Mapping[str, int]) -> int:
    return int(np.lcm.reduce([1, *every.values()]))


def _moments(state: OptimizerState) -> dict[str, dict[str, Any]]:
    return {name: {key: _array(value) for key, value in own.items()} for name, own in state.items()}


def _array(tensor: Tensor) -> Any:
    """Return the tensor as JAX takes it, in the same memory; JAX has no 64 bits here."""
    if tensor.is_cuda:
        import jax

        narrow = {torch.int64: torch.int32, torch.float64: torch.float32}.get(tensor.dtype, tensor.dtype)
        return jax.dlpack.from_dlpack(tensor.to(narrow).contiguous())
    array = tensor.numpy()
    if array.dtype == np.int64:
        return array.astype(np.int32)
    return array.astype(np.float32) if array.dtype == np.float64 else array
