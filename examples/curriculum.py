"""A curriculum: an instrument makes the task harder whenever the mean return passes a threshold.

    python examples/curriculum.py [--steps 60_000]
    levada train ppo --env examples/curriculum.py:Lock --until steps=60_000     # without the curriculum: the return stays 0

The task is a lock: each step enters a digit, a wrong one ends the episode, and only the open lock gives a reward. From the first
digit, a random policy opens a lock of 12 digits once in 17 million episodes. The curriculum begins before the last digit and adds
one more whenever the policy opens the lock in 90 of 100 episodes. It ends with the whole lock and a return of 1.

The number of digits is in a small file: the instrument writes it, and the environments, in this process or in others, read it
when they are reset. With `max_lag=0`, the default of PPO, all read a new number after the same update, so the same seed gives
the same bits on every deployment. With a larger lag this depends on timing. The number is not in the checkpoints; for a
curriculum that can resume, train in stages: one run per level, each with `init_from` the one before.
"""

import argparse
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import levada as lv
from levada.flow import Event, Used


class Lock(gymnasium.Env[Any, Any]):
    """A lock with `num_digits` places and 4 digits to choose from."""

    def __init__(self, num_digits: int = 12, level_file: str | None = None) -> None:
        self.digits = np.random.default_rng(0).integers(4, size=num_digits)
        # read again at each reset; without a file, always the whole lock
        self.level = np.array([num_digits]) if level_file is None else np.memmap(level_file, np.int64, "r", shape=1)
        self.observation_space = spaces.Discrete(num_digits + 1)
        self.action_space = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin after all digits but the last `level`."""
        super().reset(seed=seed)
        self.place = len(self.digits) - int(self.level[0])
        return self.place, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Enter a digit."""
        is_right = bool(action == self.digits[self.place])
        self.place += is_right
        is_open = self.place == len(self.digits)
        return self.place, float(is_open), is_open or not is_right, False, {}


class Curriculum:
    """Instrument that raises the level by one when the mean return of 100 episodes reaches the threshold."""

    def __init__(self, level_file: str, max_level: int, threshold: float = 0.9) -> None:
        self.level = np.memmap(level_file, np.int64, "w+", shape=1)
        self.level[0] = 1
        self.max_level, self.threshold = max_level, threshold
        self.returns = deque[float](maxlen=100)

    def on_event(self, event: Event) -> None:
        """Handle an event; `Used` has the episodes that an update has learned from."""
        if not isinstance(event, Used) or self.level[0] == self.max_level:
            return
        self.returns.extend(episode.episode_return for header in event.headers for episode in header.episodes)
        if len(self.returns) == self.returns.maxlen and np.mean(self.returns) >= self.threshold:
            self.level[0] += 1
            self.returns.clear()
            print(f"level {self.level[0]}")


def main() -> None:
    """Train with the curriculum, and evaluate on the whole lock."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=60_000, help="env steps")
    parser.add_argument("--digits", type=int, default=12)
    parser.add_argument("--on", default="inline", help="deployment, such as processes:2")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        level_file = str(Path(directory) / "level")
        curriculum = Curriculum(level_file, max_level=args.digits)
        task = lv.Task(Lock, env_kwargs={"num_digits": args.digits, "level_file": level_file})
        run = lv.train(
            "ppo", task, until=f"steps={args.steps}", seed=1, on=args.on, instruments=[curriculum],
            num_steps=32, learning_rate=3e-3,
        )  # fmt: skip
        evaluation = lv.evaluate(run, num_episodes=100, env_kwargs={"level_file": None})
        print(f"level {curriculum.level[0]} of {args.digits}, mean return of the whole lock {evaluation.mean:.2f}")


if __name__ == "__main__":
    main()
