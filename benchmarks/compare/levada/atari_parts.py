"""What the parts of levada do alone, each with all cores, on an environment of Atari; printed as one JSON object.

    python benchmarks/compare/levada/atari_parts.py --env ALE/Pong-v5

- environment: steps/s of 32 environments, with random actions.
- inference: observations/s, 32 at a time, to the action.
- training: observations/s, the network's gradient of 256 at a time.

Networks compute in the numbers that levada chooses for itself.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable
from typing import Final, cast

import numpy as np
import torch
from gymnasium.spaces import Discrete

from levada.algorithms.ppo import PPO
from levada.rl.acting.actor import Actor
from levada.rl.compute.threads import set_threads
from levada.rl.data.spaces import Array
from levada.rl.envs.task import Task
from levada.runners.statistics import num_cores

_NUM_ENVS: Final = 32
_NUM_ROWS: Final = 256
_WARM_UP_S: Final = 1.0
_MEASURED_S: Final = 4.0
_NUM_DRAWS: Final = 256


def per_second(work: Callable[[], object], amount: int) -> tuple[float, int]:
    """What `work`, which does so much each time, does in a second, and how often it was called."""
    num_calls = _calls_within(work, _WARM_UP_S)
    begun_s = time.perf_counter()
    measured = _calls_within(work, _MEASURED_S)
    return amount * measured / (time.perf_counter() - begun_s), num_calls + measured


def main() -> None:
    """Measure one after the other."""
    parser = argparse.ArgumentParser(description="What the parts of levada do alone")
    parser.add_argument("--env", default="ALE/Pong-v5")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    threads = num_cores()
    set_threads(threads)
    rng = np.random.default_rng(arguments.seed)
    task = Task(arguments.env)
    policy = PPO().policy(task)
    module = policy.module(seed=arguments.seed)
    actor = Actor(policy, num_threads=threads)
    actor.load(policy.weights(module))
    noise = actor.head.draw(rng, num_steps=1, num_envs=_NUM_ENVS)[0]
    with task.make(_NUM_ENVS, threads) as envs:
        envs.reset(seed=arguments.seed)
        num_actions = cast("Discrete", task.action_space).n
        actions = itertools.cycle(rng.integers(num_actions, size=(_NUM_DRAWS, _NUM_ENVS)))
        environment, num_calls = per_second(lambda: envs.step(next(actions)), _NUM_ENVS)
        obs = cast("Array", envs.step(next(actions)).obs)
    inference, _ = per_second(lambda: actor.sample(obs, noise), _NUM_ENVS)
    rows = torch.from_numpy(np.resize(obs, (_NUM_ROWS, *obs.shape[1:])))

    def gradient() -> None:
        module.zero_grad()
        params, value = module.row(rows)
        (params.sum() + value.sum()).backward()

    training, _ = per_second(gradient, _NUM_ROWS)
    rates = {"environment": environment, "inference": inference, "training": training}
    print(json.dumps({"env_steps": num_calls * _NUM_ENVS, "precision": policy.precision, **rates}))


def _calls_within(work: Callable[[], object], seconds: float) -> int:
    end_s, num_calls = time.perf_counter() + seconds, 0
    while time.perf_counter() < end_s:
        work()
        num_calls += 1
    return num_calls


if __name__ == "__main__":
    main()
