"""Time of stepping environments one after another: `SerialVectorEnv` compared with gymnasium's `SyncVectorEnv`.

    python benchmarks/vector_env.py

Microseconds of processor time per step of all environments, with random actions, one thread. Both vector environments are used
as samplers use them, through an `EnvBatch`, which checks and copies the results. The last column is a loop that steps the
environments, resets those whose episode has ended, and stores nothing. All three alternate, and the fastest of many short turns
counts, because other programs only make them slower.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from rich.console import Console
from rich.table import Table

from levada.rl.compute.threads import set_threads
from levada.rl.envs.batch import EnvBatch
from levada.rl.envs.serial import SerialVectorEnv

NUM_TURNS = 60
CASES = (("CartPole-v1", 1), ("CartPole-v1", 8), ("CartPole-v1", 64), ("Acrobot-v1", 8), ("Pendulum-v1", 8))
Actions = Sequence[np.ndarray[Any, np.dtype[Any]]]


def make_one(env: str) -> gymnasium.Env[Any, Any]:
    """Make one environment, as a task does."""
    return gymnasium.make(env, disable_env_checker=True)


def batch_of(vector_env: Any, actions: Actions) -> Callable[[], None]:
    """Return a function that steps a vector environment once with each of the actions."""
    batch = EnvBatch(vector_env)
    batch.reset(seed=1)

    def turn() -> None:
        for action in actions:
            batch.step(action)

    return turn


def loop_of(envs: Sequence[gymnasium.Env[Any, Any]], actions: Actions) -> Callable[[], None]:
    """Return a function that steps the environments alone."""
    for seed, env in enumerate(envs):
        env.reset(seed=seed)

    def turn() -> None:
        for action in actions:
            for env, one in zip(envs, action, strict=True):
                _, _, terminated, truncated, _ = env.step(one)
                if terminated or truncated:
                    env.reset()

    return turn


def main() -> None:
    """Measure all three, in turn."""
    set_threads(1)
    table = Table("environment", "number", "Serial, us", "Sync, us", "Sync / Serial", "environments alone, us")
    for env, num_envs in CASES:
        make = partial(make_one, env)
        num_steps = max(10, 800 // num_envs)
        space = gymnasium.vector.utils.batch_space(make().action_space, num_envs)
        space.seed(1)
        actions = [space.sample() for _ in range(num_steps)]
        turns = (
            batch_of(SerialVectorEnv([make() for _ in range(num_envs)]), actions),
            batch_of(SyncVectorEnv([make] * num_envs, copy=False, autoreset_mode=AutoresetMode.SAME_STEP), actions),
            loop_of([make() for _ in range(num_envs)], actions),
        )
        times: list[list[float]] = [[] for _ in turns]
        for _ in range(NUM_TURNS):
            for some, turn in zip(times, turns, strict=True):
                begun_s = time.process_time()
                turn()
                some.append(1e6 * (time.process_time() - begun_s) / num_steps)
        serial, sync, alone = map(min, times)
        table.add_row(env, f"{num_envs}", f"{serial:.0f}", f"{sync:.0f}", f"{sync / serial:.2f}", f"{alone:.0f}")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
