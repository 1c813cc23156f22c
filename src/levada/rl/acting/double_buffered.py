"""Double-buffered sampling: while one group of environments steps, the actions of another are chosen.

    DoubleBufferedSampler(sampler=Sampler(task=task, policy=policy, num_envs=32, num_steps=20), num_groups=2)

is a source like the sampler, with rollouts of the same size. Each group acts in its own thread, so it pays off if environments
release the GIL while they step, as Atari's do, and a core is idle. Rollouts do not depend on which group is faster: each has
its own environments, generator and recurrent state. (Petrenko et al. 2020, arXiv 2006.11751, section 3.1)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import numpy as np

from levada.flow import Shard
from levada.flow.items import derive_seed, serve_here
from levada.flow.state import PrefixView
from levada.flow.stopwatch import Stopwatch
from levada.rl.acting.rollout import Rollout
from levada.rl.acting.sampler import Sampler
from levada.rl.data.frames import Frames
from levada.rl.data.normalize import merge_all
from levada.rl.data.spaces import Array, map_nest


@dataclass(frozen=True, kw_only=True)
class DoubleBufferedSampler:
    """Recipe of a source of rollouts.

    Raises:
        ValueError: `num_groups` is invalid.
    """

    sampler: Sampler
    """Sampler whose environments are split into the groups."""
    num_groups: int = 2
    """Number of groups. More groups hide slow environments better and choose fewer actions at once."""

    def __post_init__(self) -> None:
        if type(self.num_groups) is not int or self.num_groups < 1 or self.sampler.num_envs % self.num_groups:
            msg = (
                f"DoubleBufferedSampler(num_groups={self.num_groups!r}): expected an integer that divides "
                f"num_envs={self.sampler.num_envs}"
            )
            raise ValueError(msg)

    def verify(self) -> None:
        """Refuse a network that cannot act."""
        self.sampler.verify()

    def __call__(self, shard: Shard) -> LiveDoubleBufferedSampler:
        """Make the environments of a shard; raise ValueError if inference runs outside of the sampler."""
        return LiveDoubleBufferedSampler(self, shard)


class LiveDoubleBufferedSampler:
    """A running set of groups."""

    def __init__(self, recipe: DoubleBufferedSampler, shard: Shard) -> None:
        if shard.serve is not serve_here:
            msg = (
                "DoubleBufferedSampler: groups compute actions in the sampler; expected a deployment without inference=..., "
                "or num_groups=1"
            )
            raise ValueError(msg)
        each = replace(recipe.sampler, num_envs=recipe.sampler.num_envs // recipe.num_groups)
        lock = Lock()

        def empty(shape: tuple[int, ...], dtype: Any) -> Array:
            with lock:
                return shard.empty(shape, dtype)

        self._stopwatch = shard.stopwatch
        with ExitStack() as opened:
            self._groups = []
            for number in range(recipe.num_groups):
                seed = derive_seed(shard.seed, f"group{number}")
                self._groups.append(each(replace(shard, seed=seed, empty=empty, stopwatch=Stopwatch())))
                opened.callback(self._groups[-1].close)
            opened.pop_all()
        self._threads = ThreadPoolExecutor(recipe.num_groups, thread_name_prefix="levada group")

    def __call__(self, weights: Mapping[str, Array]) -> Rollout:
        """Act for T steps with these weights, in all groups at once."""
        for group in self._groups:
            group.stopwatch.restart()
        self._stopwatch.do("groups")
        made = [self._threads.submit(group, weights) for group in self._groups]
        wait(made)  # for all of them: after an error in one, no other may still be running
        self._stopwatch.divide([group.stopwatch for group in self._groups])
        return join([one.result() for one in made])

    def state_dict(self) -> dict[str, Array]:
        """Return all state of the next rollout except the weights."""
        states = [group.state_dict() for group in self._groups]
        return {f"{number}/{name}": array for number, state in enumerate(states) for name, array in state.items()}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Restore the state that `state_dict` returned."""
        for number, group in enumerate(self._groups):
            group.load_state_dict(PrefixView(state, f"{number}/"))

    def close(self) -> None:
        """Close the environments."""
        self._threads.shutdown()
        with ExitStack() as closing:
            for group in self._groups:
                closing.callback(group.close)


def join(rollouts: Sequence[Rollout]) -> Rollout:
    """Join rollouts of the same length into one with all their environments. Frames are not copied."""
    first = rollouts[0]
    if len(rollouts) == 1:
        return first
    columns = {
        name: np.concatenate([getattr(one, name) for one in rollouts], axis=1)
        for name in ("action", "reward", "terminated", "truncated", "mask", "log_prob", "value", "next_value")
    }
    if first.state is not None:
        columns["state"] = np.concatenate([one.state for one in rollouts if one.state is not None])
        columns["is_first"] = np.concatenate([one.is_first for one in rollouts if one.is_first is not None], axis=1)
    return Rollout(
        obs=map_nest(_beside, *(one.obs for one in rollouts)), moments=merge_all(one.moments for one in rollouts),
        episodes=tuple(episode for one in rollouts for episode in one.episodes), **columns,
    )  # fmt: skip


def _beside(*leaves: Any) -> Any:
    """Concatenate leaves ``[T+1, B, ...]`` along B."""
    if isinstance(leaves[0], Frames):
        return Frames.join([leaf.swapaxes(0, 1) for leaf in leaves]).swapaxes(0, 1)
    return np.concatenate(leaves, axis=1)
