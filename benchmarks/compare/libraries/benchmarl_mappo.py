"""BenchMARL's MAPPO on MPE's simple_spread_v3, timed as a peer of levada.

    python benchmarl_mappo.py --preset default --steps 20480 --seed 0 --threads 1

BenchMARL takes the environment from PettingZoo, where MPE is no more; here it is that of the package mpe2, as in levada, with
three agents, discrete actions and games of 25 steps. `--preset default` has BenchMARL's settings: 45 passes over 6,000 steps of
10 environments, networks of 256-256. `--preset paper` has those that MAPPO's paper suggests for such tasks: 10 passes over 800
steps of 32 environments in one minibatch, networks of 64-64. All is done in one process, without evaluation and logs.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from _progress import Progress
from benchmarl.algorithms import MappoConfig
from benchmarl.environments.pettingzoo.common import PettingZooClass
from benchmarl.experiment import Callback, Experiment, ExperimentConfig
from benchmarl.models.mlp import MlpConfig
from mpe2 import simple_spread_v3
from torchrl.envs import PettingZooWrapper

GAME = {"N": 3, "max_cycles": 25, "continuous_actions": False}
PRESETS = {
    "default": {"frames": 6_000, "envs": 10, "passes": 45, "minibatch": 400, "lr": 5e-5, "sizes": [256, 256]},
    "paper": {"frames": 800, "envs": 32, "passes": 10, "minibatch": 800, "lr": 5e-4, "sizes": [64, 64]},
}


class Spread(PettingZooClass):
    """The environment of mpe2."""

    def get_env_fun(self, num_envs: int, continuous_actions: bool, seed: int | None, device: Any) -> Callable[[], Any]:
        """Return a function that makes it."""
        return lambda: PettingZooWrapper(
            simple_spread_v3.parallel_env(**GAME), categorical_actions=True, return_state=True, seed=seed, device=device
        )


class Told(Callback):
    """Tells the progress after each update."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def on_train_end(self, training_td: Any, group: str) -> None:
        """Called after all passes over a batch."""
        self._progress.update(int(self.experiment.total_frames))


def main() -> None:
    """Train once."""
    parser = argparse.ArgumentParser(description="BenchMARL's MAPPO on simple_spread_v3")
    parser.add_argument("--preset", choices=list(PRESETS), default="default")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    hp = PRESETS[args.preset]
    sys.stdout = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the log of torchrl goes to the standard output, which is for lines of progress

    progress = Progress(stop_return=None)
    with tempfile.TemporaryDirectory() as folder:
        experiment = Experiment(
            task=Spread("SIMPLE_SPREAD", config={"task": "simple_spread_v3", **GAME}),
            algorithm_config=MappoConfig.get_from_yaml(),
            model_config=replace(MlpConfig.get_from_yaml(), num_cells=hp["sizes"]),
            critic_model_config=replace(MlpConfig.get_from_yaml(), num_cells=hp["sizes"]),
            seed=args.seed,
            config=replace(
                ExperimentConfig.get_from_yaml(),
                on_policy_collected_frames_per_batch=hp["frames"], on_policy_n_envs_per_worker=hp["envs"],
                on_policy_n_minibatch_iters=hp["passes"], on_policy_minibatch_size=hp["minibatch"], lr=hp["lr"],
                max_n_frames=args.steps, prefer_continuous_actions=False, evaluation=False, render=False, loggers=[],
                create_json=False, save_folder=folder,
            ),
            callbacks=[Told(progress)],
        )  # fmt: skip
        experiment.run()
        progress.end(int(experiment.total_frames))


if __name__ == "__main__":
    main()
