"""Image spaces: which Boxes hold images, how large they are, and how their pixels are scaled."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space, spaces

from levada.rl.data.spaces import leaf_spaces


def is_image(space: Space[Any]) -> bool:
    """Return whether a space is one of images: a Box of uint8 or bool with three dimensions, or more for stacks of images.

    >>> is_image(spaces.Box(0, 255, (128,), np.uint8))
    False
    """
    return isinstance(space, spaces.Box) and len(space.shape) in (3, 4, 5) and space.dtype in (np.uint8, np.bool_)


def is_large_image(space: Space[Any], side: int = 36) -> bool:
    """Return whether a space is one of images of at least `side` pixels per side, whose convolutions take most of the time.

    >>> is_large_image(spaces.Box(0, 255, (4, 84, 84), np.uint8)), is_large_image(spaces.Box(0, 255, (10, 10, 6), np.uint8))
    (True, False)
    """
    return is_image(space) and min(image_sides(space)) >= side


def has_large_images(observation_space: Space[Any], side: int = 36) -> bool:
    """Return whether any leaf of the observation space is a large image.

    >>> has_large_images(spaces.Dict({"image": spaces.Box(0, 255, (4, 84, 84), np.uint8)}))
    True
    """
    return any(is_large_image(space, side) for space in leaf_spaces(observation_space).values())


def image_sides(space: Space[Any]) -> tuple[int, int]:
    """Return height and width: the sides that are not the channels, which are the smaller of the first and last."""
    assert space.shape is not None
    first, middle, last = space.shape[-3:]
    return (first, middle) if last <= first else (middle, last)


def image_scale(space: spaces.Box) -> float:
    """Return the factor that scales the pixels of uint8 images to at most 1; 1 for other dtypes."""
    return 1.0 / float(max(space.high.max(), 1)) if space.dtype == np.uint8 else 1.0
