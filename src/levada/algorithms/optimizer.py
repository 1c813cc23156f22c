"""The optimizer as a field of a configuration."""

from __future__ import annotations

from typing import Any

from levada.algorithms.checks import ConfigError
from levada.rl.learning.optimizers import Adam, Optimizer, OptimizerError, TorchOptimizer


def make_optimizer(config: Any) -> Optimizer:
    """Return the optimizer of a configuration with `optimizer`, `optimizer_kwargs`, `adam_eps` and `max_grad_norm`.

    Raises:
        ConfigError: there is no such optimizer, or it does not take these arguments.

    """
    kind, kwargs = type(config).__name__, dict(config.optimizer_kwargs)
    if config.optimizer == "adam":
        if kwargs:
            msg = f"{kind}(optimizer_kwargs={kwargs}): expected none for optimizer='adam', which has the field adam_eps"
            raise ConfigError(msg)
        return Adam(eps=config.adam_eps, max_grad_norm=config.max_grad_norm)
    try:
        return TorchOptimizer(optimizer=config.optimizer, kwargs=kwargs, max_grad_norm=config.max_grad_norm)
    except OptimizerError as error:
        msg = f"{kind}: {error}"
        raise ConfigError(msg) from error
