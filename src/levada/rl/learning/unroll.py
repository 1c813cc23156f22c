"""A policy's outputs for the rows of a batch, which are transitions or whole rollouts of single environments.

    steps = Unrolled.of(apply, batch)           # rollouts: each [T, N], in the order of time
    steps, batch = evaluated(apply, batch)      # either: each [M], and the columns that go with them

Rows of rollouts are those of `Rollout.sequences`; recurrent policies require them. A row may also be the step of a team, with the
transitions of all agents and one state (`levada.rl.acting.team_steps`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from levada.rl.data.spaces import OBS, leaves, map_nest, map_observations

STATE, IS_FIRST = "state", "is_first"


class Evaluated(NamedTuple):
    """Log-probability, entropy and value of the actions taken."""

    log_prob: Tensor
    entropy: Tensor
    value: Tensor


class Unrolled(NamedTuple):
    """Log-probabilities, entropies and values of rollouts, ``[T, N]``, and last values."""

    log_prob: Tensor
    entropy: Tensor
    value: Tensor
    last_value: Tensor
    """``[N]``: value of the observation after the last step."""

    @classmethod
    def of(cls, apply: Callable[..., Any], batch: Mapping[str, Any]) -> Unrolled:
        """Evaluate rows with columns ``[N, T, ...]``."""
        if STATE in batch:
            obs = map_nest(lambda leaf: leaf.transpose(0, 1), batch["obs"])
            is_first = batch[IS_FIRST].t()
            distribution, value, *_, state = apply(obs, batch[STATE], is_first[:-1])
            _, last, *_ = apply(map_nest(lambda leaf: leaf[None], batch["last_obs"]), state, is_first[-1:])
            log_prob = distribution.log_prob(batch["action"].transpose(0, 1))
            return cls(log_prob, distribution.entropy(), value, last[0])
        shape = batch["reward"].shape
        distribution, value, *_ = apply(map_nest(lambda leaf: leaf.flatten(0, 1), batch["obs"]))
        _, last, *_ = apply(batch["last_obs"])
        log_prob = distribution.log_prob(batch["action"].flatten(0, 1)).view(shape).t()
        return cls(log_prob, distribution.entropy().view(shape).t(), value.view(shape).t(), last)


def evaluate_actions(apply: Callable[..., Any], batch: Mapping[str, Any]) -> tuple[Evaluated, Mapping[str, Any]]:
    """Evaluate transitions, or the steps of rollouts or of teams; return ``[M]`` each, with the matching columns ``[M]``."""
    if STATE not in batch:
        if batch["log_prob"].ndim == 2:
            batch = by_agent(batch)
        distribution, value, *_ = apply(batch["obs"])
        return Evaluated(distribution.log_prob(batch["action"]), distribution.entropy(), value), batch
    steps = Unrolled.of(apply, batch)
    shape = batch["reward"].shape
    by_step = {name: nest for name, nest in batch.items() if name != STATE and leaves(nest)[0].shape[:2] == shape}
    columns = {name: map_nest(lambda leaf: leaf.transpose(0, 1).flatten(0, 1), nest) for name, nest in by_step.items()}
    return Evaluated(steps.log_prob.flatten(), steps.entropy.flatten(), steps.value.flatten()), columns


def by_agent(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns ``[N * n, ...]`` of the agents' transitions, of columns ``[N, n, ...]`` of a team's steps. States stay
    ``[N, ...]``.
    """
    columns = {name: map_nest(_joined, nest) for name, nest in batch.items() if name != OBS}
    return {**columns, OBS: map_observations(_joined, lambda leaf: leaf, batch[OBS])}


def _joined(column: Tensor) -> Tensor:
    return column.flatten(0, 1)
