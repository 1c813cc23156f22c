"""Sequences: cuts what a recurrent policy went through into rows that each hold a piece of one episode, to learn from as a whole.

sampler = StepSampler(task=task, policy=policy, explore=EpsilonGreedy(), num_envs=8, num_steps=20, num_old=sequences.num_old)
sequences = Sequences(discount=0.99, length=20, burn_in=10)
flow.store(flow.map("sequences", sequences, flow.source("step", sampler, reads=weights)), to=replay)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from levada.rl._env_loop import Walk
from levada.rl.frames import as_array
from levada.rl.net import Net
from levada.rl.spaces import Array, Nest, map_nest
from levada.rl.step_sampler import Steps, look_ahead
from levada.rl.transitions import Transitions

_NEVER = 2**40
"""The row in which an episode ends that has not ended yet."""


@dataclass(frozen=True, kw_only=True)
class Sequences:
    """Cuts episodes into sequences of steps, each one row of a replay: a function for `flow.map`.

    A sequence holds `length` steps to learn from, at most `burn_in` steps before them, which only bring the state up to date
    (Kapturowski et al. 2019, Recurrent experience replay in distributed reinforcement learning, section 3), and what follows
    for `num_steps`, as far as the targets look ahead. It never leaves its episode: what is beyond its ends is padding, all zeros.
    Sequences begin each ``length - overlap`` steps of an episode, from its first, so without overlap each step is learned from in
    one sequence.

    The columns of N sequences, with S = burn_in + length + num_steps slots:

    - `obs` ``[N, S, ...]``: of the burn-in, the steps, and what follows. The first step to learn from is always slot `burn_in`;
      where an episode begins later than slot 0, padding comes before it. Its true last observation is the last that is there.
    - `is_first` ``[N, S]``, bool: where an episode begins, and the state with it.
    - `state` ``[N, state_size]``: of the policy before slot 0, by the weights that acted; 0 if that is padding.
    - `action`, `reward`, `discount` ``[N, length, ...]``: of the steps; the latter two over `num_steps`, as `NStep` has them.
    - `ahead` ``[N, length]``, int64: after how many steps `discount` applies: for step i it is the value of slot
      ``burn_in + i + ahead``.
    - `is_step` ``[N, length]``, bool: False where the episode was over.

    Sequences that go beyond the item wait for the next one, which begins with the steps that they need: give
    `StepSampler(num_old=sequences.num_old)`.

    Raises:
        ValueError: numbers that cannot be.

    """

    discount: float
    """What a reward loses each step."""
    length: int
    """Steps to learn from. Longer ones remember further back, and are fewer."""
    burn_in: int = 0
    """Steps before them. More make up for states by older weights, and take longer."""
    overlap: int = 0
    """Steps that a sequence shares with the next, beside the burn-in. More repeat each step more often."""
    num_steps: int = 1
    """Steps whose rewards a target adds up."""

    def __post_init__(self) -> None:
        for name, least in (("length", 1), ("burn_in", 0), ("overlap", 0), ("num_steps", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                msg = f"Sequences({name}={value!r}): expected an integer >= {least}"
                raise ValueError(msg)
        if self.overlap >= self.length:
            msg = f"Sequences(overlap={self.overlap}, length={self.length}): expected an overlap below the length"
            raise ValueError(msg)

    @property
    def stride(self) -> int:
        """Steps from the beginning of a sequence to that of the next."""
        return self.length - self.overlap

    @property
    def num_old(self) -> int:
        """Steps of the item before that the sequences of an item need."""
        return self.burn_in + self.length + self.num_steps - 2

    def __call__(self, steps: Steps) -> Transitions:
        """The sequences that are complete, and were not before.

        Raises:
            ValueError: the policy that acted is not recurrent.

        """
        walk, memory = steps.walk, steps.walk.memory
        if memory is None:
            msg = "Sequences: the policy that acted is not recurrent; did you want NStep?"
            raise ValueError(msg)
        num_rows, end_of = len(walk.reward), _ends(walk)
        complete = np.minimum(np.arange(num_rows)[:, None] + self.length + self.num_steps - 2, end_of)
        begins = walk.mask & (memory.age % self.stride == 0) & (complete >= steps.num_old) & (complete < num_rows)
        start, env = (index[:, None] for index in np.nonzero(begins))
        first, end = start - memory.age[start, env], end_of[start, env]

        slot = start + np.arange(-self.burn_in, self.length + self.num_steps)
        is_there = (slot >= first) & (slot <= end + 1)
        row = slot.clip(0, num_rows)
        seen, finals = steps.observations
        obs = map_nest(lambda leaf: _zero(as_array(leaf[row, env]), is_there), seen)
        for t, index, final in finals:
            n, s = np.nonzero((slot == t + 1) & (end == t) & np.isin(env, index))
            place = np.searchsorted(index, env[n, 0])
            map_nest(lambda to, of, n=n, s=s, p=place: to.__setitem__((n, s), as_array(of[p])), obs, final)

        step = start + np.arange(self.length)
        is_step = step <= end
        step, envs = step.clip(max=num_rows - 1), np.broadcast_to(env, is_step.shape)
        reward, last, discount = look_ahead(walk, step, envs, is_step, self.num_steps, self.discount)
        columns: dict[str, Nest] = {
            "obs": obs,
            "is_first": slot == first,
            "state": _zero(memory.state[row[:, 0], env[:, 0]], is_there[:, 0]),
            "action": _zero(walk.action[step, env], is_step),
            "reward": reward,
            "discount": _zero(discount, is_step),
            "ahead": _zero(last - step + 1, is_step),
            "is_step": is_step,
        }
        return Transitions(columns)


_BY_STEP = ("obs", "is_first", "action", "reward", "discount", "ahead", "is_step")


def time_major(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Of a batch of sequences as tensors ``[N, L, ...]`` the columns that have steps, as ``[L, N, ...]``, and the state as it is.

    For a loss, as `unroll` is.
    """
    steps = {name: map_nest(lambda leaf: leaf.transpose(0, 1), batch[name]) for name in _BY_STEP}
    return steps | {"state": batch["state"]}


def unroll(net: Net, steps: Mapping[str, Any], burn_in: int, state: Tensor | None) -> tuple[Any, ...]:
    """What a recurrent network gives for the steps behind the burn-in and what follows them: ``[length + num_steps, N, ...]``.

    No gradient goes into the burn-in.

    Args:
        net: ``net(obs, state, is_first)`` gives whatever it gives, and the state last.
        steps: columns of sequences, from `time_major`.
        burn_in: as it was for `Sequences`.
        state: before the burn-in ``[N, state_size]``, such as the one that was stored; a net of your own may take None.

    """
    obs, is_first = steps["obs"], steps["is_first"]
    if burn_in:
        *_, state = net.frozen(map_nest(lambda leaf: leaf[:burn_in], obs), state, is_first[:burn_in])
    *outputs, _ = net(map_nest(lambda leaf: leaf[burn_in:], obs), state, is_first[burn_in:])
    return tuple(outputs)


def _ends(walk: Walk) -> Array:
    """The row ``[T, B]`` in which the episode of each row ends, `_NEVER` where that is not known yet."""
    row = np.arange(len(walk.reward))[:, None]
    ends: Array = np.minimum.accumulate(np.where(walk.ended, row, _NEVER)[::-1])[::-1]
    return ends


def _zero(array: Array, where_not: Array) -> Array:
    """The array, a copy already, with zeros where there is nothing."""
    array[~where_not] = 0
    return array
