"""An environment of your own: an ordinary `gymnasium.Env`, checked, trained and evaluated.

    python examples/custom_env.py [--until return=0.95]
    levada check ppo --env examples/custom_env.py:Catch
    levada train ppo --env examples/custom_env.py:Catch --until return=0.95

PPO learns to catch nearly every ball within about 10,000 env steps. The policy is then evaluated on the field that it was trained
on, and on a wider one: the keyword arguments of the environment are `env_kwargs`.
"""

import argparse
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import levada as lv
from levada.testing import check_env


class Catch(gymnasium.Env[Any, Any]):
    """A ball falls straight down; move the paddle below it. The reward is 1 for a catch and -1 for a miss."""

    def __init__(self, num_rows: int = 8, num_columns: int = 5) -> None:
        self.num_rows, self.num_columns = num_rows, num_columns
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(3)  # left, stay, right

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Drop a new ball. All randomness comes from `self.np_random`, which `super().reset` seeds."""
        super().reset(seed=seed)
        self.row, self.ball = 0, int(self.np_random.integers(self.num_columns))
        self.paddle = self.num_columns // 2
        return self.observe(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Move the paddle, and the ball by one row. An episode terminates when the ball is down."""
        self.paddle = int(np.clip(self.paddle + action - 1, 0, self.num_columns - 1))
        self.row += 1
        is_down = self.row == self.num_rows
        reward = (1.0 if self.paddle == self.ball else -1.0) if is_down else 0.0
        return self.observe(), reward, is_down, False, {}

    def observe(self) -> np.ndarray:
        """Distance from the paddle to the ball, and the height of the ball, within -1 and 1."""
        distance = np.clip((self.ball - self.paddle) / 4, -1.0, 1.0)
        return np.array([distance, 1.0 - self.row / self.num_rows], np.float32)


def main() -> None:
    """Check, train, evaluate."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--until", default="return=0.95 steps=200_000", help="stopping condition of the training")
    args = parser.parse_args()
    check_env(lv.Task(Catch))
    run = lv.train("ppo", Catch, until=args.until, seed=1, num_steps=32, learning_rate=3e-3)
    for num_columns in (5, 9):
        evaluation = lv.evaluate(run, num_episodes=100, env_kwargs={"num_columns": num_columns})
        print(f"{num_columns} columns: mean return {evaluation.mean:.2f}")


if __name__ == "__main__":
    main()
