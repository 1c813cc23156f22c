"""Sequences: splits the steps of a recurrent policy into rows that each hold a part of one episode, for training on sequences.

sampler = StepSampler(task=task, policy=policy, explore=EpsilonGreedy(), num_envs=8, num_steps=20,
num_overlap_steps=sequences.num_overlap_steps)
sequences = Sequences(discount=0.99, length=20, burn_in=10)
flow.store(flow.map("sequences", sequences, flow.source("step", sampler, reads=weights)), to=replay)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from levada.rl.acting.env_loop import StepBuffer
from levada.rl.acting.sizes import Sizes
from levada.rl.acting.step_sampler import Steps, look_ahead
from levada.rl.compute.functional import Net
from levada.rl.data.frames import as_array
from levada.rl.data.spaces import Array, Nest, map_nest
from levada.rl.replay.transitions import IMPORTANCE, RETURN, Transitions
from levada.validation import NonNegativeInt, PositiveInt, check_fields

_NEVER = 2**40
"""Row in which an unfinished episode ends."""


@dataclass(frozen=True, kw_only=True)
class Sequences:
    """Splits episodes into sequences of steps, each one row of a replay; a function for `flow.map`.

    A sequence holds `length` training steps, up to `burn_in` steps before them, which only compute the recurrent state
    (Kapturowski et al. 2019, Recurrent experience replay in distributed reinforcement learning, section 3), and the next
    `num_steps`, for n-step targets. It never extends beyond its episode: the slots outside are padding, all zeros. Sequences
    start every ``length - overlap`` steps of an episode, from its first, so without overlap each step is trained on in one
    sequence.

    The columns of N sequences, with S = burn_in + length + num_steps slots:

    - `obs` ``[N, S, ...]``: observations of the burn-in, the training steps, and the steps after them. The first training step
      is always in slot `burn_in`; if the episode starts later than slot 0, padding precedes it. The last observation of an
      ended episode is its true final one.
    - `is_first` ``[N, S]``, bool: where an episode starts and the state is reset.
    - `state` ``[N, state_size]``: state of the acting policy before slot 0; 0 if that slot is padding.
    - `action`, `reward`, `discount` ``[N, length, ...]``: of the training steps; reward and discount over `num_steps`, as in
      `NStep`.
    - `ahead` ``[N, length]``, int64: number of steps to the bootstrap value: `discount` of step i applies to the value of slot
      ``burn_in + i + ahead``.
    - `is_step` ``[N, length]``, bool: False after the end of the episode.
    - `discounted_return` ``[N, length]``, if the policy normalizes rewards: as in `NStep`.

    Sequences that extend beyond the item wait for the next one, which starts with the steps they need: use
    `StepSampler(num_overlap_steps=sequences.num_overlap_steps)`.

    Raises:
        ValueError: a number is invalid.
    """

    NODE: ClassVar[str] = "sequences"
    discount: float
    """Discount factor per step."""
    length: PositiveInt
    """Number of training steps. Longer sequences capture longer dependencies and are fewer."""
    burn_in: NonNegativeInt = 0
    """Number of steps before the training steps. A longer burn-in corrects states of older weights better and takes longer."""
    overlap: NonNegativeInt = 0
    """Number of steps that consecutive sequences share, besides the burn-in. A larger overlap repeats each step more often."""
    num_steps: PositiveInt = 1
    """Number of steps n of n-step returns."""

    def __post_init__(self) -> None:
        check_fields(self, ValueError)
        if self.overlap >= self.length:
            msg = f"Sequences(overlap={self.overlap}, length={self.length}): expected an overlap below the length"
            raise ValueError(msg)

    @property
    def stride(self) -> int:
        """Number of steps between the starts of consecutive sequences."""
        return self.length - self.overlap

    @property
    def num_overlap_steps(self) -> int:
        """Number of steps of the previous item that the sequences of an item need."""
        return self.burn_in + self.length + self.num_steps - 2

    def entry_nbytes(self, sizes: Sizes) -> int:
        """Bytes of a sequence without its recurrent state: of each step the action, four numbers and a flag."""
        num_observations = self.burn_in + self.length + self.num_steps
        return num_observations * (sizes.observation + 1) + self.length * (sizes.action + 17)

    def __call__(self, steps: Steps) -> Transitions:
        """Return the sequences that this item completes.

        Raises:
            ValueError: the policy that acted is not recurrent.
        """
        buffer, memory = steps.buffer, steps.buffer.memory
        if memory is None:
            msg = "Sequences: the policy that acted is not recurrent; did you want NStep?"
            raise ValueError(msg)
        num_rows, end_of = len(buffer.reward), _ends(buffer)
        complete = np.minimum(np.arange(num_rows)[:, None] + self.length + self.num_steps - 2, end_of)
        begins = buffer.mask & (memory.age % self.stride == 0)
        begins &= (complete >= steps.num_overlap_steps) & (complete < num_rows)
        start, env = (index[:, None] for index in np.nonzero(begins))
        first, end = start - memory.age[start, env], end_of[start, env]

        slot = start + np.arange(-self.burn_in, self.length + self.num_steps)
        is_there = (slot >= first) & (slot <= end + 1)
        row = slot.clip(0, num_rows)
        seen, final_obs = steps.observations
        obs = map_nest(lambda leaf: _zero(as_array(leaf[row, env]), is_there), seen)
        for t, index, final in final_obs:
            n, s = np.nonzero((slot == t + 1) & (end == t) & np.isin(env, index))
            place = np.searchsorted(index, env[n, 0])
            map_nest(lambda to, of, n=n, s=s, p=place: to.__setitem__((n, s), as_array(of[p])), obs, final)

        step = start + np.arange(self.length)
        is_step = step <= end
        step, envs = step.clip(max=num_rows - 1), np.broadcast_to(env, is_step.shape)
        reward, last, discount = look_ahead(buffer, step, envs, is_step, self.num_steps, self.discount)
        columns: dict[str, Nest] = {
            "obs": obs,
            "is_first": slot == first,
            "state": _zero(memory.state[row[:, 0], env[:, 0]], is_there[:, 0]),
            "action": _zero(buffer.action[step, env], is_step),
            "reward": reward,
            "discount": _zero(discount, is_step),
            "ahead": _zero(last - step + 1, is_step),
            "is_step": is_step,
        }
        if buffer.discounted_return is not None:
            columns[RETURN] = _zero(buffer.discounted_return[step, env], is_step)
        return Transitions(columns)


_BY_ROW = ("state", IMPORTANCE)
"""Columns of a batch of sequences that have no steps."""


def time_major(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Transpose the columns with steps of a batch of tensors from ``[N, L, ...]`` to ``[L, N, ...]``, for losses."""
    return {
        name: nest if name in _BY_ROW else map_nest(lambda leaf: leaf.transpose(0, 1), nest)
        for name, nest in batch.items()
    }


def unroll(net: Net, steps: Mapping[str, Any], burn_in: int, state: Tensor | None) -> tuple[Any, ...]:
    """Compute a recurrent network's outputs after the burn-in, which gets no gradient: ``[length + num_steps, N, ...]``.

    `steps` is made by `time_major`; `state` ``[N, state_size]`` is that before the burn-in. A custom net may accept None.
    """
    obs, is_first = steps["obs"], steps["is_first"]
    if burn_in:
        *_, state = net.frozen(map_nest(lambda leaf: leaf[:burn_in], obs), state, is_first[:burn_in])
    *outputs, _ = net(map_nest(lambda leaf: leaf[burn_in:], obs), state, is_first[burn_in:])
    return tuple(outputs)


def _ends(buffer: StepBuffer) -> Array:
    """Return the row ``[T, B]`` in which the episode of each row ends, `_NEVER` if it is not known yet."""
    row = np.arange(len(buffer.reward))[:, None]
    return np.minimum.accumulate(np.where(buffer.ended, row, _NEVER)[::-1])[::-1]


def _zero(array: Array, where_not: Array) -> Array:
    """Zero the padding of an array, in place."""
    array[~where_not] = 0
    return array
