"""What the scripts of Sample-Factory have in common.

Steps are counted when they were learned from. A line of progress is written when the main process hears that an update
is finished; the last one before the processes are told to end.

It cannot be kept from writing files. They are as few as can be, and go to a directory that is deleted in the end.
"""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING, Any

from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.algo.utils.misc import EPISODIC, ExperimentStatus
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.train import make_runner

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Callable, Mapping

    from _progress import Progress
    from sample_factory.algo.runners.runner import Runner

NEVER_S = 1_000_000
SETTINGS = {
    "algo": "APPO",
    "num_workers": 2,
    "device": "cpu",
    "experiment_summaries_interval": 10,
    "experiment": "peer",
    "log_to_file": False,
    "save_every_sec": NEVER_S,
    "save_best_every_sec": NEVER_S,
}
"""Its default of a worker for each core is made two workers, so that it is the same everywhere."""


class _Report(AlgoObserver):
    """Passes finished episodes and finished updates on to `Progress`."""

    def __init__(self, progress: Progress, steps_of_update: int) -> None:
        self._progress = progress
        self._steps_of_update = steps_of_update
        self._env_steps = 0
        self._ended = False

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        del runner
        if not self._ended:  # an update may be under way when the end is announced
            self._env_steps = training_iteration_since_resume * self._steps_of_update
            self._progress.update(self._env_steps)

    def on_episode(self, _runner: Runner, message: dict[str, Any], _policy: int) -> None:
        self._progress.episode(float(message[EPISODIC]["reward"]), self._env_steps)

    def on_stop(self, runner: Runner) -> None:
        del runner
        self._ended = True
        self._progress.end(self._env_steps)


def train(
    settings: Mapping[str, Any],
    progress: Progress,
    *,
    steps: int,
    seed: int,
    set_defaults: Callable[[ArgumentParser], None] | None = None,
) -> int:
    """Train once, with its defaults or those of one of its examples; the exit code. The environment must be registered."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        given = {**SETTINGS, **settings, "train_dir": folder, "seed": seed, "train_for_env_steps": steps}
        words = [f"--{name}={value}" for name, value in given.items()]
        parser, _ = parse_sf_args(words)
        if set_defaults is not None:
            set_defaults(parser)
        config, runner = make_runner(parse_full_cfg(parser, words))
        report = _Report(progress, config.batch_size * config.num_batches_per_epoch)
        runner.register_observer(report)
        runner.register_episodic_stats_handler(report.on_episode)
        status = runner.init()
        if status == ExperimentStatus.SUCCESS:
            status = runner.run()
        os.chdir("/")
    return int(status)
