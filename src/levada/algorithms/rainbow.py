"""Rainbow: DQN with its improvements combined (Hessel et al. 2017, arXiv 1710.02298).

Double Q-learning, dueling networks, prioritized replay, n-step returns, categorical returns and noisy nets are each an option
of `levada.algorithms.dqn`. Their settings have the values of the paper's table 1. Settings that depend on the task
(`v_min`, `v_max`, the learning rate, the target update interval, the replay) are those of DQN. For Atari the paper uses

    --learning-rate 6.25e-5 --batch-size 32 --samples-per-insert 8 --learning-starts 20_000 --buffer-size 1_000_000
    --target-update-interval 2_000
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from levada.algorithms.dqn import DQN


@dataclass(frozen=True, kw_only=True)
class Rainbow(DQN):
    """Configuration of Rainbow."""

    n_step: int = 3
    dueling: bool = True
    prioritized: bool = True
    priority_exponent: float = 0.5
    distribution: Literal["mean", "categorical", "quantile"] = "categorical"
    noisy: bool = True
    adam_eps: float = 1.5e-4
