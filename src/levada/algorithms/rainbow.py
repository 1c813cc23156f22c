"""Rainbow: DQN with all that improves it at once (Hessel et al. 2017, arXiv 1710.02298).

Double, dueling, prioritised, several steps, categorical returns, noisy nets: each is an option of `levada.algorithms.dqn`. Their
own numbers are those of the paper's table 1; what depends on the task (`v_min`, `v_max`, the learning rate, how long the target
stays, what is stored) is as in DQN. For Atari the paper has

    --learning-rate 6.25e-5 --batch-size 32 --samples-per-insert 8 --min-size 20_000 --capacity 1_000_000 --target-every 2_000
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from levada.algorithms.dqn import DQN


@dataclass(frozen=True, kw_only=True)
class Rainbow(DQN):
    """Configuration of Rainbow."""

    lookahead: int = 3
    """Steps whose rewards a target adds up before it trusts a network. More learn sooner, from actions of older policies."""
    dueling: bool = True
    """A value and advantages in place of values: learns sooner where actions matter little."""
    prioritised: bool = True
    """Sample more often what was more surprising."""
    alpha: float = 0.5
    """Exponent of the priorities, if prioritised. 0 is uniform."""
    distribution: Literal["mean", "categorical", "quantile"] = "categorical"
    """What is learned of a return: its mean, or its distribution by probabilities of atoms (C51) or by quantiles (QR-DQN)."""
    noisy: bool = True
    """Explore by noise on the weights, whose size is learned, in place of random actions."""
    adam_eps: float = 1.5e-4
    """Adam's epsilon."""
