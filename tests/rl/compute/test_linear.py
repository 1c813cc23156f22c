"""Linear layers in JAX compute what PyTorch's compute, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from levada.rl.compute.xla import as_jax, missing_for_xla

if missing_for_xla() is not None:
    pytest.skip(f"{missing_for_xla()} is not installed: pip install 'levada[jax]'", allow_module_level=True)


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(
    ("batch", "num_in", "num_out"), [((7,), 5, 3), ((7,), 3, 5), ((2, 7), 4, 4), ((), 4, 3), ((1,), 1, 1), ((0,), 3, 2)]
)
def test_results_and_gradients_are_those_of_pytorch(
    batch: tuple[int, ...], num_in: int, num_out: int, has_bias: bool
) -> None:
    import jax

    rng = np.random.default_rng(0)
    shapes = [(*batch, num_in), (num_out, num_in), *[(num_out,)] * has_bias]
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    factor = rng.standard_normal((*batch, num_out)).astype(np.float32)

    def loss(factor: Tensor, *tensors: Tensor) -> Tensor:
        return (torch.nn.functional.linear(*tensors) * factor).sum()

    tensors = [torch.from_numpy(array).requires_grad_() for array in arrays]
    expected = loss(torch.from_numpy(factor), *tensors)
    expected.backward()
    run: Any = jax.jit(jax.value_and_grad(as_jax(loss), argnums=tuple(range(1, 1 + len(arrays)))))
    value, gradients = run(factor, *arrays)
    np.testing.assert_allclose(value, expected.item(), rtol=1e-5, atol=1e-6)
    for gradient, tensor in zip(gradients, tensors, strict=True):
        np.testing.assert_allclose(gradient, tensor.grad, rtol=1e-5, atol=1e-6)
