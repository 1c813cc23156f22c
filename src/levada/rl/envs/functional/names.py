"""Libraries of functional environments; imports none of them.

>>> is_functional("gymnax:CartPole-v1"), is_functional("CartPole-v1")
(True, False)
"""

from __future__ import annotations

from typing import NamedTuple


class Library(NamedTuple):
    """How a library is found."""

    package: str
    """Package to install."""
    adapter: str
    """Module that adapts its environments."""
    install: str = "'levada[jax]'"
    """Arguments of `pip install` that install it and JAX."""


LIBRARIES: dict[str, Library] = {
    "gymnax": Library("gymnax", "gymnax_like"),
    "craftax": Library("craftax", "gymnax_like"),
    "brax": Library("brax", "brax_like"),
    "playground": Library("playground", "brax_like", install="'levada[jax]' playground"),
    "pgx": Library("pgx", "pgx_games"),
}


_OTHER_NAMES = {"mujoco_playground": "playground"}
"""Other names of a library, such as that of its module -> prefix of its ids."""


def meant_id(env_id: str) -> str | None:
    """Return the id of a functional environment that was probably meant, or None.

    >>> meant_id("Gymnax:CartPole-v1"), meant_id("mujoco_playground:CartpoleBalance"), meant_id("mine:CartPole-v1")
    ('gymnax:CartPole-v1', 'playground:CartpoleBalance', None)
    """
    given, colon, name = env_id.partition(":")
    library = _OTHER_NAMES.get(given.lower(), given.lower())
    return f"{library}:{name}" if library in LIBRARIES and library != given and colon and name else None


def is_functional(env_id: str) -> bool:
    """Whether an id begins with the name of a library of functional environments, which may lack that environment."""
    library, colon, _ = env_id.partition(":")
    return library in LIBRARIES and bool(colon)
