"""Sample-Factory's APPO on CartPole-v1, timed as a peer of levada.

    python sample_factory_appo.py --steps 150000 --seed 0 --threads 1

With the settings that its documentation gives for CartPole-v1: asynchronous, 20 environments in each worker, two
processes that act for them, updates from 512 steps, each learned from once. Its default of a worker for each core is
made two workers, so that it is the same everywhere. It sets the threads of its processes itself, to one.

Steps are counted when they were learned from. A line of progress is written when the main process hears that an update
is finished; the last one before the processes are told to end.

It cannot be kept from writing files. They are as few as can be, and go to a directory that is deleted in the end.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import gymnasium as gym
from _progress import Progress
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.algo.utils.misc import EPISODIC, ExperimentStatus
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner

if TYPE_CHECKING:
    from sample_factory.algo.runners.runner import Runner

ENV = "CartPole-v1"
BATCH_SIZE = 512
NEVER_S = 1_000_000
SETTINGS = {
    "algo": "APPO",
    "env": ENV,
    "num_workers": 2,
    "num_envs_per_worker": 20,
    "policy_workers_per_policy": 2,
    "batch_size": BATCH_SIZE,
    "use_rnn": False,
    "recurrence": 1,
    "with_vtrace": False,
    "reward_scale": 0.1,
    "device": "cpu",
    "experiment_summaries_interval": 10,
    "experiment": "peer",
    "log_to_file": False,
    "save_every_sec": NEVER_S,
    "save_best_every_sec": NEVER_S,
}


def _make_env(_name: str, _cfg: Any = None, _env_config: Any = None, render_mode: str | None = None) -> gym.Env:
    return gym.make(ENV, render_mode=render_mode)


class _Report(AlgoObserver):
    """Passes finished episodes and finished updates on to `Progress`."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._env_steps = 0
        self._ended = False

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        del runner
        if not self._ended:  # an update may be under way when the end is announced
            self._env_steps = training_iteration_since_resume * BATCH_SIZE
            self._progress.update(self._env_steps)

    def on_episode(self, _runner: Runner, message: dict[str, Any], _policy: int) -> None:
        self._progress.episode(float(message[EPISODIC]["reward"]), self._env_steps)

    def on_stop(self, runner: Runner) -> None:
        del runner
        self._ended = True
        self._progress.end(self._env_steps)


def main() -> int:
    """Train once."""
    parser = argparse.ArgumentParser(description="Sample-Factory's APPO on CartPole-v1")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="has no effect")
    args = parser.parse_args()

    report = _Report(Progress(stop_return=None))
    register_env(ENV, _make_env)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        settings = {**SETTINGS, "train_dir": folder, "seed": args.seed, "train_for_env_steps": args.steps}
        words = [f"--{name}={value}" for name, value in settings.items()]
        config = parse_full_cfg(parse_sf_args(words)[0], words)
        config, runner = make_runner(config)
        runner.register_observer(report)
        runner.register_episodic_stats_handler(report.on_episode)
        status = runner.init()
        if status == ExperimentStatus.SUCCESS:
            status = runner.run()
        os.chdir("/")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
