"""Videos during training: of each version that was evaluated, one episode."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from levada.api.evaluator import NODE, otherwise, policy_of
from levada.api.options import EvaluationOptions
from levada.flow import Event, Flow
from levada.flow.events import Evaluated
from levada.flow.items import derive_seed
from levada.rl.acting.evaluation import evaluate
from levada.rl.acting.trained_policy import TrainedPolicy
from levada.rl.envs.rendering import Recording, rendered
from levada.rl.envs.task import Task

VIDEOS: Final = "videos"
"""Folder in the directory of a run, with a folder for each version."""


class EvaluationVideos:
    """Instrument that records an episode with each evaluated version. Training waits meanwhile, and is not changed by it."""

    def __init__(self, flow: Flow, task: Task, options: EvaluationOptions, folder: Path, seed: int) -> None:
        self._policy, _ = policy_of(flow, task)
        self._task = otherwise(task, self._policy, options.eval_env_kwargs, "eval_env_kwargs")
        self._is_deterministic = not options.eval_stochastic
        self._folder = folder / VIDEOS
        self._seed = seed

    def on_event(self, event: Event) -> None:
        """Record an episode if an evaluation has ended."""
        if not isinstance(event, Evaluated) or event.node != NODE:
            return
        folder = self._folder / str(event.version)
        shutil.rmtree(folder, ignore_errors=True)  # of an update that is made again
        recording = Recording(folder=folder, prefix=f"version-{event.version}", num_episodes=1)
        evaluate(
            rendered(self._task, recording),
            TrainedPolicy(self._policy, event.weights, version=event.version),
            num_episodes=1, seed=derive_seed(self._seed, NODE, event.version), deterministic=self._is_deterministic,
        )  # fmt: skip
