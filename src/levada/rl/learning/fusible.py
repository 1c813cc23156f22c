"""What can be fused: updates whose networks and losses are functions of tensors, without state, random numbers or branches.

What is known of the networks is checked when a learner is opened, the rest when an update is first compiled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from levada.rl.compute.seeding import SharedGenerators
from levada.rl.compute.xla import ImpureError, missing_for_xla, missing_in_jax, prepare_jax
from levada.rl.data.nest import flatten
from levada.rl.data.spaces import Array, map_nest
from levada.rl.learning.batches import changed
from levada.rl.learning.columns import as_tensors
from levada.rl.learning.optimizers import Adam
from levada.rl.learning.step import GradientStep
from levada.rl.learning.training import Vectors
from levada.rl.policies.policy import Policy

_CHANGING = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)


class NotFusedError(Exception):
    """The gradient steps of an update cannot be fused; the message is the reason."""


def why_not_fused(
    modules: nn.ModuleDict, policy: Policy, optimizer: object, device: torch.device, num_threads: int
) -> str | None:
    """Return why the gradient steps of a learner cannot be fused, or None. XLA gets `num_threads` unless JAX has been started."""
    missing = missing_for_xla()
    changing = [type(module).__name__ for module in modules.modules() if isinstance(module, _CHANGING)]
    reasons = {
        f"{missing} is not installed (pip install 'levada[jax]')": missing is not None,
        f"the optimizer is {type(optimizer).__name__}, expected Adam": not isinstance(optimizer, Adam),
        "the policy is recurrent": policy.state_size > 0,
        "the policy's weights have noise": policy.weight_noise > 0,
        f"the policy computes in {policy.precision}": policy.precision != "float32",
        f"a network has {', '.join(changing)}, which each forward pass changes or draws numbers for": bool(changing),
    }
    found = next((reason for reason, applies in reasons.items() if applies), None)
    if found is not None:
        return found
    prepare_jax(str(device), num_threads)
    return missing_in_jax(str(device))


def refuse_impure(
    step: GradientStep, active: tuple[str, ...], state: Vectors, values: Mapping[str, float],
    buffers: Mapping[str, Tensor], columns: Mapping[str, Any], rows: Array | None,
) -> None:  # fmt: skip
    """Compute one gradient in ordinary PyTorch, to see whether this changes buffers or draws random numbers. JAX does not tell:
    torchax leaves out some changes of buffers.

    Args:
        step: gradient step.
        active: networks that are trained.
        state: parameters and target parameters.
        values: coefficients of the loss.
        buffers: buffers of the networks, which stay as they are.
        columns: columns ``[N, ...]`` of the batch, arrays or tensors.
        rows: rows of a microbatch, ``[M]``; None: all.

    Raises:
        NotFusedError: it changes a buffer or draws random numbers.
    """
    device = state.params.device
    # a loss may change a whole batch in place; rows of it are copies
    tensors = {
        name: map_nest(lambda leaf: leaf.to(device, copy=rows is None), nest)
        for name, nest in as_tensors(columns).items()
    }
    leaves: list[Tensor] = []
    flatten(next(iter(tensors.values())), leaves)
    which = slice(0, len(leaves[0])) if rows is None else torch.from_numpy(rows).to(device)
    own, before = {name: buffer.clone() for name, buffer in buffers.items()}, _generators(device)
    step.on("eager", values, own, tensors)(state.params, state.target, which, active)
    if names := changed(buffers, own):
        msg = f"a forward pass changes the buffer {names[0]}"
        raise NotFusedError(msg)
    if not all(map(torch.equal, before, _generators(device))):
        raise NotFusedError("a network or the loss draws random numbers")


def why_not_traced(error: Exception) -> str:
    """Return the reason why JAX could not trace an update that PyTorch computes."""
    import jax

    if isinstance(error, ImpureError):
        return f"JAX cannot trace the update: {error}"
    if isinstance(error, jax.errors.ConcretizationTypeError):
        return "a network or the loss reads numbers out of tensors (if, bool(), float(), .item())"
    return f"JAX cannot trace the update ({type(error).__name__}: {str(error).strip().partition(chr(10))[0]})"


@contextmanager
def undone(modules: nn.Module, device: torch.device) -> Iterator[None]:
    """Undo afterwards what a trial changes: attributes of modules, and the generators of PyTorch, NumPy and Python."""
    kept = [(names, dict(names)) for module in modules.modules() for names in _attributes(module)]
    shared = SharedGenerators()
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        shared.restore()
        for names, before in kept:
            for name in names.keys() - before.keys():
                del names[name]
            names.update(before)


def _attributes(module: nn.Module) -> Iterator[dict[Any, Any]]:
    """Attributes of a module, and the dictionaries among them, such as its buffers."""
    yield vars(module)
    yield from (value for value in vars(module).values() if isinstance(value, dict))


def _generators(device: torch.device) -> list[Tensor]:
    """States of PyTorch's generators."""
    states = [torch.get_rng_state()]
    return states if device.type != "cuda" else [*states, torch.cuda.get_rng_state(device)]
