"""The optimizer and the learning-rate schedule as fields of a configuration.

>>> [round(SCHEDULES["cosine"](remaining), 2) for remaining in (1.0, 0.75, 0.5, 0.25, 0.0)]
[1.0, 0.85, 0.5, 0.15, 0.0]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

from levada.algorithms.checks import ConfigError
from levada.rl.learning.optimizers import Adam, Optimizer, OptimizerError, TorchOptimizer

Schedule: TypeAlias = Literal["linear", "cosine"]

SCHEDULES: Mapping[str, Callable[[float], float]] = {
    "linear": lambda remaining: remaining,
    "cosine": lambda remaining: 0.5 * (1.0 - math.cos(math.pi * remaining)),
}
"""Name -> function from the remaining fraction of `anneal_steps` to the factor. Cosine: arXiv 1608.03983, equation 5."""


def make_optimizer(config: Any) -> Optimizer:
    """Return the optimizer that the fields of a configuration describe, or raise ConfigError."""
    kind, kwargs = type(config).__name__, dict(config.optimizer_kwargs)
    if config.optimizer == "adam":
        if kwargs:
            msg = f"{kind}(optimizer_kwargs={kwargs}): expected none for optimizer='adam', which has the field adam_eps"
            raise ConfigError(msg)
        return Adam(eps=config.adam_eps, max_grad_norm=config.max_grad_norm)
    if "lr" in kwargs:
        msg = f"{kind}(optimizer_kwargs={kwargs}): lr is the field learning_rate"
        raise ConfigError(msg)
    try:
        return TorchOptimizer(optimizer=config.optimizer, kwargs=kwargs, max_grad_norm=config.max_grad_norm)
    except OptimizerError as error:
        msg = f"{kind}: {error}"
        raise ConfigError(msg) from error
