"""Convolutions of pixels compute what those of scaled images in float32 do, whichever way they take."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional

from levada.rl.policies import images
from levada.rl.policies.images import Images, PixelConv2d

# channels, filters, kernel, stride, height, width
BLOCKWISE = [
    (4, 16, 8, 4, 84, 84),
    (1, 2, 8, 4, 84, 84),
    (4, 16, 8, 4, 210, 160),  # the last two rows are seen by no filter
    (3, 4, 4, 4, 36, 36),
    (2, 3, 12, 4, 41, 48),
    (1, 1, 8, 4, 8, 8),
]
OTHERWISE = [
    (4, 8, 8, 4, 84, 86),  # rows are no whole number of words
    (3, 4, 6, 4, 36, 36),
    (3, 4, 8, 2, 36, 36),
]


def pixels_of(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(256, shape, generator=generator).to(torch.uint8)


def expected_of(layer: PixelConv2d, pixels: Tensor) -> Tensor:
    return functional.conv2d(pixels.float() / 255, layer.weight, layer.bias, layer.stride)


@pytest.mark.parametrize("sizes", BLOCKWISE + OTHERWISE, ids=str)
@pytest.mark.parametrize("num_images", [1, 3])
def test_results_and_gradients_are_those_of_scaled_images(sizes: tuple[int, ...], num_images: int) -> None:
    channels, out, kernel, stride, height, width = sizes
    layer = PixelConv2d(channels, out, kernel, stride, scale=1 / 255)
    pixels = pixels_of(num_images, channels, height, width)
    made, expected = layer(pixels), expected_of(layer, pixels)
    torch.testing.assert_close(made, expected)
    factors = torch.randn(made.shape, generator=torch.Generator().manual_seed(1))
    parameters = list(layer.parameters())
    ours, theirs = (torch.autograd.grad((of * factors).sum(), parameters) for of in (made, expected))
    for one, other in zip(ours, theirs, strict=True):
        # A gradient sums thousands of terms: its rounding goes with the largest, however small the sum itself is.
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5 * float(other.abs().max()))


@pytest.mark.parametrize("sizes", BLOCKWISE + OTHERWISE, ids=str)
def test_blocks_are_used_wherever_they_fit(sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    channels, out, kernel, stride, height, width = sizes
    layer = PixelConv2d(channels, out, kernel, stride)
    calls: list[Tensor] = []

    def block_weight(weight: Tensor) -> Tensor:
        calls.append(weight)
        return type(layer)._block_weight(layer, weight)

    monkeypatch.setattr(layer, "_block_weight", block_weight)
    layer(pixels_of(2, channels, height, width))
    assert bool(calls) == (sizes in BLOCKWISE)


def test_memory_may_begin_and_lie_anywhere() -> None:
    layer = PixelConv2d(4, 8, 8, 4, scale=1 / 255)
    at_odd_place = pixels_of(4 * 84 * 84 + 3)[3:].view(1, 4, 84, 84)
    transposed = pixels_of(2, 4, 84, 84).transpose(2, 3)
    some_of_them = pixels_of(6, 4, 84, 84)[::2]
    for pixels in (at_odd_place, transposed, some_of_them):
        torch.testing.assert_close(layer(pixels), expected_of(layer, pixels))


def test_there_may_be_no_image() -> None:
    assert PixelConv2d(4, 8, 8, 4)(pixels_of(0, 4, 84, 84)).shape == (0, 8, 20, 20)


def test_in_bfloat16_pixels_are_exact_and_only_weights_are_rounded() -> None:
    layer = PixelConv2d(4, 16, 8, 4, scale=1 / 255)
    pixels = pixels_of(3, 4, 84, 84)
    with torch.autocast("cpu", torch.bfloat16):
        made = layer(pixels)
    assert made.dtype == torch.bfloat16
    assert layer.bias is not None
    weight = (layer.weight / 255).bfloat16().float()
    rounded = functional.conv2d(pixels.float(), weight, layer.bias.bfloat16().float(), 4)
    torch.testing.assert_close(made.float(), rounded, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("in_bfloat16", [False, True])
@pytest.mark.parametrize("shape", [(4, 84, 84), (84, 84, 3), (2, 3, 84, 84), (12, 12, 3)])
def test_acting_with_stored_weights_changes_no_bit(shape: tuple[int, ...], in_bfloat16: bool) -> None:
    torch.manual_seed(0)
    module = Images(spaces.Box(0, 255, shape, np.uint8), 32, ((8, 8, 4), (8, 4, 2)))
    module.in_bfloat16 = in_bfloat16
    obs = pixels_of(5, *shape)
    with torch.inference_mode():
        before = module(obs)
        module.store_in_compute_dtype()
        assert torch.equal(module(obs), before)


def test_blocks_need_whole_words() -> None:
    assert images._has_whole_words(pixels_of(1, 4, 84, 84))
    assert not images._has_whole_words(pixels_of(1, 4, 84, 84).float())
    assert not images._has_whole_words(pixels_of(1, 4, 84, 84).to(torch.bool))
