"""Pygame's objects as bytes: environments hold surfaces and fonts, drawn or not, and pygame cannot pickle them.

A surface keeps its picture. A clock starts anew. A font that pygame has closed is lost: drawing with it would be an error anyway.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

Reduced: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]
"""How to make an object again, as `object.__reduce__` returns it."""


def reduced(obj: Any) -> Reduced | None:
    """Return how to make one of pygame's objects again; None for all other objects."""
    kind = type(obj)
    reduce = _REDUCE.get(f"{kind.__module__}.{kind.__qualname__}")
    return None if reduce is None else reduce(obj)


def _reduced_surface(surface: Any) -> Reduced:
    import pygame  # it is there, for the environment uses it

    form: Any = "RGBA" if surface.get_flags() & pygame.SRCALPHA else "RGB"
    picture = zlib.compress(pygame.image.tobytes(surface, form), 1)  # most are of one color
    return _surface, (picture, surface.get_size(), form)


def _surface(picture: bytes, size: tuple[int, int], form: Any) -> Any:
    import pygame

    return pygame.image.frombytes(zlib.decompress(picture), size, form)


def _reduced_font(font: Any) -> Reduced:
    import pygame

    try:
        return _font, (font.path, font.size)
    except pygame.error:  # closing any environment may have quit the module, and with it all fonts
        return type(None), ()


def _font(path: str, size: float) -> Any:
    import pygame.freetype

    pygame.freetype.init()
    return pygame.freetype.Font(path if Path(path).is_file() else None, size)  # another machine may have it elsewhere


_REDUCE: Mapping[str, Callable[[Any], Reduced]] = {
    "pygame.surface.Surface": _reduced_surface,
    "pygame.freetype.Font": _reduced_font,
    "pygame._freetype.Font": _reduced_font,
    "pygame.time.Clock": lambda clock: (type(clock), ()),
}
