"""Names of groups of runs: the algorithm, and the settings that tell a group from the others of that algorithm.

>>> name_of("ppo", {"learning_rate": 0.001, "target_kl": None})
'ppo learning_rate=0.001'
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain, count
from typing import Any, Final

import msgspec

from levada.run.display.printable import printable

MOST_CHARS: Final = 40
"""Number of characters of a value; the middle of a longer one is left out."""


def name_of(algorithm: str, settings: Mapping[str, Any]) -> str:
    """Make a name of an algorithm and of settings; those that are None are left out."""
    parts = (f"{name}={_shown(value)}" for name, value in settings.items() if value is not None)
    return printable(" ".join([algorithm, *parts]))


def distinct(names: Iterable[str]) -> list[str]:
    """Number names that have occurred before.

    >>> distinct(["ppo", "dqn", "ppo"])
    ['ppo', 'dqn', 'ppo #2']
    """
    found: list[str] = []
    for name in names:
        numbered = (f"{name} #{number}" for number in count(2))
        found.append(next(each for each in chain([name], numbered) if each not in found))
    return found


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    half = MOST_CHARS // 2
    return text if len(text) <= MOST_CHARS else f"{text[:half]}…{text[1 - half :]}"
