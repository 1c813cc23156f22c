"""PufferLib's PuffeRL on CartPole-v1, timed as a peer of levada.

    python pufferlib_ppo.py --steps 400000 --seed 0 --threads 1

One process: 8 environments one after the other, 64 steps of each, one minibatch of all 512, learned from once; its
default network, and the settings of its `config/default.ini`, but for a constant learning rate and for Adam, which is
cheaper than Muon, its default. What helps it too: the table that it draws on the terminal four times a second is left out,
and so are checkpoints but the one at the end, which goes to a directory that is deleted. (Environments in processes of
their own, which it has too, are slower where cores are few: they wait busily.)

A row of a rollout in which an environment is only reset is no step. PuffeRL counts those; here they are taken off.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from ast import literal_eval
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from _progress import Progress

NUM_ENVS = 8
NUM_STEPS = 64
HIDDEN = 128


def main() -> None:
    """Train once."""
    parser = argparse.ArgumentParser(description="PufferLib's PuffeRL on CartPole-v1")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # to import pufferlib makes a link there
        _train(args.steps, args.seed, folder)
        os.chdir("/")


def _train(num_steps: int, seed: int, folder: str) -> None:
    import pufferlib
    import pufferlib.emulation
    import pufferlib.models
    import pufferlib.vector
    from pufferlib.pufferl import PuffeRL

    class Quiet(PuffeRL):
        def print_dashboard(self, *_args: Any, **_kwargs: Any) -> None:
            pass

    def make_env(buf: Any = None, seed: int = 0) -> Any:
        env = pufferlib.EpisodeStats(gym.make("CartPole-v1"))
        return pufferlib.emulation.GymnasiumPufferEnv(env=env, buf=buf, seed=seed)

    progress = Progress(stop_return=None)
    envs = pufferlib.vector.make(make_env, backend=pufferlib.vector.Serial, num_envs=NUM_ENVS, seed=seed)
    policy = pufferlib.models.Default(envs.driver_env, hidden_size=HIDDEN)
    settings = {
        **_defaults(pufferlib.__path__[0]),
        "env": "CartPole-v1",
        "seed": seed,
        "device": "cpu",
        "use_rnn": False,
        "optimizer": "adam",
        "learning_rate": 2.5e-3,
        "anneal_lr": False,
        "bptt_horizon": NUM_STEPS,
        "batch_size": NUM_ENVS * NUM_STEPS,
        "minibatch_size": NUM_ENVS * NUM_STEPS,
        "update_epochs": 1,
        "total_timesteps": 2 * num_steps,  # once it is there, it saves a checkpoint with every update
        "checkpoint_interval": 1_000_000,
        "data_dir": folder,
    }
    trainer = Quiet(settings, envs, policy)
    env_steps = num_episodes = 0
    while env_steps < num_steps:
        num_known = len(trainer.stats["episode_return"])
        returns = trainer.evaluate()["episode_return"][num_known:]
        num_episodes += len(returns)
        env_steps = (
            trainer.global_step - num_episodes
        )  # a reset after each, or at the latest when the next rollout begins
        for episode_return in returns:
            progress.episode(float(episode_return), env_steps)
        trainer.train()
        progress.update(env_steps)
    progress.end(env_steps)
    trainer.close()


def _defaults(folder: str) -> dict[str, Any]:
    """Its settings for training, as its own command reads them."""
    parser = ConfigParser()
    parser.read(Path(folder) / "config" / "default.ini")
    return {name: _value(text) for name, text in parser["train"].items()}


def _value(text: str) -> Any:
    try:
        return literal_eval(text)
    except (ValueError, SyntaxError):
        return text


if __name__ == "__main__":
    main()
