"""The JSON lines that every peer prints, so that all of them are timed in the same way.

    progress = Progress(stop_return=475.0)
    while training:
        ...collect; for every finished episode: progress.episode(episode_return, env_steps)...
        ...update...
        progress.update(env_steps)  # {"event": "progress", "env_steps": 512, "t": 0.2, ...}
    progress.end(env_steps)  # {"event": "end", ..., "solved_env_steps": 60412}

A script may give the gradient steps so far beside the env steps, which are then in the line as "gradient_steps".

A line is written for the first finished update, then after an update at most every tenth of a second, then for
the end. So all lines are written between two updates: any two of them enclose whole iterations.
"""

from __future__ import annotations

import json
import time
from collections import deque

_INTERVAL_S = 0.1
_NUM_EPISODES = 100


class Progress:
    """Mean return of the last 100 episodes, and when to say so."""

    def __init__(self, *, stop_return: float | None) -> None:
        self._start = time.perf_counter()
        self._returns: deque[float] = deque(maxlen=_NUM_EPISODES)
        self._stop_return = stop_return
        self._next_t = 0.0
        self._solved_env_steps: int | None = None

    @property
    def solved(self) -> bool:
        """Whether the mean has reached `stop_return`; never true without one."""
        return self._solved_env_steps is not None

    def episode(self, episode_return: float, env_steps: int) -> None:
        """One episode has ended, at this number of steps."""
        self._returns.append(episode_return)
        if self._stop_return is None or self.solved:
            return
        mean = self._return_mean_100()
        if mean is not None and mean >= self._stop_return:
            self._solved_env_steps = env_steps

    def update(self, env_steps: int, gradient_steps: int | None = None) -> None:
        """One update of the network is finished."""
        t = time.perf_counter() - self._start
        if t >= self._next_t:
            self._next_t = t + _INTERVAL_S
            self._print({"event": "progress", "env_steps": env_steps, "gradient_steps": gradient_steps, "t": t})

    def end(self, env_steps: int, gradient_steps: int | None = None) -> None:
        """Training is finished: the last line."""
        t = time.perf_counter() - self._start
        line = {"event": "end", "env_steps": env_steps, "gradient_steps": gradient_steps, "t": t}
        self._print({**line, "solved_env_steps": self._solved_env_steps})

    def _return_mean_100(self) -> float | None:
        return sum(self._returns) / _NUM_EPISODES if len(self._returns) == _NUM_EPISODES else None

    def _print(self, line: dict[str, object]) -> None:
        print(json.dumps(line | {"return_mean_100": self._return_mean_100()}), flush=True)
