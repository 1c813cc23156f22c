"""What the scripts of RLlib have in common: its cluster, the loop of training, and how steps are counted.

Steps are counted when they were learned from. RLlib counts one more for each piece of an episode in a batch, which holds the
value after it; here they are taken off, by the share that they have of what was sampled. A line of progress is written after an
iteration, which lasts a second, if there was an update in it.
"""

from __future__ import annotations

import logging
import tempfile
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import ray

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from _progress import Progress
    from ray.rllib.algorithms.impala import IMPALAConfig

STORE_BYTES = 1 << 30
QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}


@contextmanager
def cluster(num_cpus: int, *, threads: int) -> Iterator[None]:
    """A cluster for this process alone. `num_cpus`: one for each process; they need not be there."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        ray.init(
            num_cpus=num_cpus,
            include_dashboard=False,
            object_store_memory=STORE_BYTES,
            _temp_dir=folder,
            runtime_env={"env_vars": {"OMP_NUM_THREADS": str(threads)}},
            **QUIET,
        )
        try:
            yield
        finally:
            ray.shutdown()


def updates(config: IMPALAConfig) -> Iterator[int]:
    """Train, and yield the steps learned from so far after each iteration that had an update."""
    algorithm = config.reporting(min_time_s_per_iteration=1).build_algo()
    num_steps = int(config.rollout_fragment_length)
    env_steps = 0
    try:
        while True:
            before, env_steps = env_steps, _learned_steps(algorithm.train(), num_steps)
            if env_steps > before:
                yield env_steps
    finally:
        algorithm.stop()


def train(config: IMPALAConfig, progress: Progress, num_env_steps: int) -> None:
    """Train for so many steps."""
    with closing(updates(config)) as training:
        for env_steps in training:
            progress.update(env_steps)
            if env_steps >= num_env_steps:
                break
        progress.end(env_steps)


def _learned_steps(result: Mapping[str, Any], num_steps: int) -> int:
    runners = result.get("env_runners", {})
    rows = result.get("learners", {}).get("__all_modules__", {}).get("num_env_steps_trained_lifetime", 0)
    sampled = runners.get("num_env_steps_sampled_lifetime", 0)
    if not rows or not sampled:
        return 0
    pieces = sampled / num_steps + runners.get("num_episodes_lifetime", 0)
    return int(rows * sampled / (sampled + pieces))
