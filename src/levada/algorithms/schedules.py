"""Learning-rate schedules by name: factors of the learning rate over the annealed part of a run.

>>> [round(SCHEDULES["cosine"](remaining), 2) for remaining in (1.0, 0.75, 0.5, 0.25, 0.0)]
[1.0, 0.85, 0.5, 0.15, 0.0]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

Schedule: TypeAlias = Literal["linear", "cosine"]

SCHEDULES: Mapping[str, Callable[[float], float]] = {
    "linear": lambda remaining: remaining,
    "cosine": lambda remaining: 0.5 * (1.0 - math.cos(math.pi * remaining)),
}
"""Name -> function from the remaining fraction of `anneal_steps` to the factor. Cosine: arXiv 1608.03983, equation 5."""
