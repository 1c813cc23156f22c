"""Convolutions of images.

In a minibatch of 84 x 84 images, scaling pixels and arranging them for the first convolution can take longer than the
layers after it. Two measures avoid that. The weights are scaled instead of the pixels, which are exact in bfloat16 from 0
to 255. And for a convolution with a stride of 4, each block of 4 x 4 pixels becomes the channels of one pixel in a smaller
image (Shi et al. 2016, arXiv 1609.05158). The convolution of that image has the same products; its rows are copied four
bytes at a time, and it has 64 channels in place of 4, which suits the matrix units of processors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn
from torch.nn import functional

from levada.rl.data.images import image_scale, image_sides, is_image, is_large_image
from levada.rl.data.spaces import SpaceError
from levada.rl.policies.layers import initialize, linear

ConvLayers: TypeAlias = Sequence[tuple[int, int, int]]
"""Filters, kernel and stride of each convolution."""

_SMALL_IMAGES: ConvLayers = ((32, 3, 1), (64, 3, 2), (64, 3, 2))
_SIDE = 4
"""Side of a block: as many pixels as an int32 has bytes."""


class Images(nn.Module):
    """Convolutional layers on images, followed by a linear layer. The output is float32 regardless of the compute dtype.

    >>> import numpy as np
    >>> images = Images(spaces.Box(0, 255, (84, 84, 3), np.uint8), 512, ((32, 8, 4), (64, 4, 2)))
    >>> images(torch.zeros(2, 84, 84, 3, dtype=torch.uint8)).shape
    torch.Size([2, 512])
    """

    in_bfloat16 = False
    """Whether large images are computed in bfloat16; set by the policy."""

    def __init__(self, space: Space[object], size: int, layers_if_large: ConvLayers) -> None:
        super().__init__()
        if not isinstance(space, spaces.Box) or not is_image(space):
            msg = f"{space} is no image, expected a uint8 or bool Box of three or four dimensions; did you want MLP?"
            raise SpaceError(msg)
        *stack, first, _, last = space.shape
        self._channel_last = last <= first
        height, width = image_sides(space)
        channels = math.prod(stack) * (last if self._channel_last else first)
        self._is_large = is_large_image(space)
        layers, padding = (layers_if_large, 0) if self._is_large else (_SMALL_IMAGES, 1)
        modules: list[nn.Module] = []
        for index, (out, kernel, stride) in enumerate(layers):
            if index == 0:
                convolution: nn.Conv2d = PixelConv2d(
                    channels, out, kernel, stride, padding, scale=image_scale(space), is_large=self._is_large
                )
            else:
                convolution = nn.Conv2d(channels, out, kernel, stride, padding)
            initialize(convolution, math.sqrt(2.0))
            modules += [convolution, nn.ReLU()]
            height, width = ((side + 2 * padding - kernel) // stride + 1 for side in (height, width))
            channels = out
        # flattened before the last ReLU, whose gradient then has the memory layout of its input
        modules[-1:] = [
            nn.Flatten(),
            nn.ReLU(),
            linear(channels * height * width, size, gain=math.sqrt(2.0)),
            nn.ReLU(),
        ]
        self.layers: nn.Sequential = nn.Sequential(*modules)

    def forward(self, obs: Tensor) -> Tensor:
        """Return features ``[N, size]``."""
        pixels = (obs.movedim(-1, -3) if self._channel_last else obs).flatten(1, -3)
        with torch.autocast(obs.device.type, torch.bfloat16, enabled=self._is_large and self.in_bfloat16):
            features: Tensor = self.layers(pixels)
        return features.float()

    def store_in_compute_dtype(self) -> None:
        """Store the weights as they are multiplied, for a module that only acts: casting them takes a third of its time."""
        if self._is_large and self.in_bfloat16:
            for layer in list(self.layers)[1:]:  # pixels are multiplied by scaled weights
                layer.to(torch.bfloat16)


class PixelConv2d(nn.Conv2d):
    """A convolution of pixels ``[N, channels, height, width]``, uint8 or bool, that are multiplied by `scale`.

    `is_large`: whether images are so large that the memory layout of their channels matters.

    >>> layer, pixels = PixelConv2d(4, 16, 8, 4, scale=1 / 255), torch.randint(256, (2, 4, 84, 84)).to(torch.uint8)
    >>> expected = functional.conv2d(pixels / 255, layer.weight, layer.bias, stride=4)
    >>> torch.testing.assert_close(layer(pixels), expected)
    """

    def __init__(
        self, channels: int, out: int, kernel: int, stride: int, padding: int = 0, *, scale: float = 1.0, is_large: bool = True
    ) -> None:  # fmt: skip
        super().__init__(channels, out, kernel, stride, padding)
        self.scale: float = scale
        self._is_large = is_large
        self._is_blockwise = stride == _SIDE and kernel % _SIDE == 0 and padding == 0

    def forward(self, pixels: Tensor) -> Tensor:
        """Return ``[N, out, rows, columns]``."""
        device = pixels.device.type
        is_half = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if is_half else torch.float32
        weight = self.weight * self.scale
        if self._is_blockwise and _has_whole_words(pixels):
            blocks = self._blocks(pixels).to(dtype).permute(0, 3, 1, 2)
            return functional.conv2d(blocks, self._block_weight(weight), self.bias)
        # Channels last: gradients of large images take 0.6 to 0.8 of the time, as does everything in bfloat16. Acting in
        # float32 takes as long or longer.
        if self._is_large and (is_half or torch.is_grad_enabled()):
            pixels = pixels.contiguous(memory_format=torch.channels_last)
        return functional.conv2d(pixels.to(dtype), weight, self.bias, self.stride, self.padding)

    def _blocks(self, pixels: Tensor) -> Tensor:
        """Return ``[N, rows, columns, channels * 16]``: as many blocks as the convolution sees."""
        kernel = self.kernel_size[0]
        rows, columns = ((side - kernel) // _SIDE + kernel // _SIDE for side in pixels.shape[2:])
        made: Tensor = torch.ops.levada.blocks(pixels, rows, columns)
        return made

    def _block_weight(self, weight: Tensor) -> Tensor:
        """Return the weight ``[out, channels * 16, kernel / 4, kernel / 4]`` of blocks."""
        split: Tensor = weight.unflatten(3, (-1, _SIDE)).unflatten(2, (-1, _SIDE))
        return split.permute(0, 1, 3, 5, 2, 4).flatten(1, 3)


def _has_whole_words(pixels: Tensor) -> bool:
    """Whether rows of pixels can be read as words of four bytes."""
    return (
        type(pixels) is Tensor
        and pixels.dtype == torch.uint8
        and pixels.device.type == "cpu"
        and not torch.compiler.is_exporting()
        and pixels.shape[-1] % _SIDE == 0
        and pixels.is_contiguous()
    )


# An operator of its own: the recording of an update (levada.rl.compute.tracing) has no view of bytes as words.
_LIBRARY: Final = torch.library.Library("levada", "FRAGMENT")
_LIBRARY.define("blocks(Tensor pixels, int rows, int columns) -> Tensor")


def _blocks(pixels: Tensor, rows: int, columns: int) -> Tensor:
    words = pixels.numpy().view(np.int32)[:, :, : rows * _SIDE, :columns]
    num_images, channels = words.shape[:2]
    split = words.reshape(num_images, channels, rows, _SIDE, columns)
    made = np.ascontiguousarray(split.transpose(0, 2, 4, 1, 3))  # NumPy takes two thirds of PyTorch's time
    return torch.from_numpy(made.view(np.uint8).reshape(num_images, rows, columns, channels * _SIDE * _SIDE))


_LIBRARY.impl("blocks", _blocks, "CPU")


def _like_blocks(pixels: Tensor, rows: int, columns: int) -> Tensor:
    return pixels.new_empty((pixels.shape[0], rows, columns, pixels.shape[1] * _SIDE * _SIDE))


torch.library.register_fake("levada::blocks", _like_blocks, lib=_LIBRARY)
