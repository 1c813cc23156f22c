"""Notes for the user about learning: schedules that end before the run, and what to try if the return does not improve."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from gymnasium import spaces

from levada.algorithms.algorithm import Algorithm
from levada.algorithms.dqn import DQN
from levada.algorithms.presets import PRESETS
from levada.algorithms.registry import algorithm_name
from levada.algorithms.replayed import ReplayAlgorithm
from levada.algorithms.rollouts import RolloutAlgorithm
from levada.algorithms.sac import SAC
from levada.algorithms.td3 import TD3
from levada.rl.envs.agents.agents_task import AgentsTask
from levada.rl.envs.task import Task
from levada.run.monitor import Monitor
from levada.run.stagnation import Stagnation
from levada.run.until import DEFAULT_STEPS, Until

ENOUGH_N_STEP: Final = 3


def default_until(config: Algorithm) -> str:
    """Default stopping condition: the end of the last schedule, or `DEFAULT_STEPS` env steps."""
    return f"steps={max(config.annealed_over.values(), default=DEFAULT_STEPS)}"


class Watch:
    """Source of notes for the user before and during a run."""

    def __init__(self, config: Algorithm, task: Task, until: Until) -> None:
        # without an entropy bonus an agent still learns
        self._falls = {name: steps for name, steps in config.annealed_over.items() if name != "entropy_coef"}
        self._until = until
        self._last_steps: float = max(self._falls.values(), default=math.inf)
        num_envs = config.num_envs * config.shards if isinstance(config, RolloutAlgorithm | ReplayAlgorithm) else 1
        self._stagnation = Stagnation(
            until, goal=task.reward_threshold, num_envs=num_envs, advice=advice(config, task)
        )  # fmt: skip

    def before(self) -> str | None:
        """Warn if the run continues after its schedules have ended. If its length is open, `look` warns later."""
        return self._ended(self._until.steps or 0)

    def look(self, monitor: Monitor) -> str | None:
        """Note after an update, usually None. At the end of the run there is no warning about schedules."""
        outlasts = monitor.env_steps > self._last_steps and self._until.met(monitor) is None
        return (self._ended(monitor.env_steps) if outlasts else None) or self._stagnation.look(monitor)

    def _ended(self, num_env_steps: int) -> str | None:
        """Warn, once, if a run of this many env steps outlasts its schedules."""
        if num_env_steps <= (last := self._last_steps):
            return None
        self._last_steps = math.inf
        return (
            f"{' and '.join(self._falls)} {'falls' if len(self._falls) == 1 else 'fall'} to zero at {last:,} env steps: from "
            f"there on nothing is learned. For a longer run set anneal_steps to its length; until='steps={last}' ends it there"
        )


def advice(config: Algorithm, task: Task) -> str:
    """What to try if the return does not improve, most promising first.

    >>> from levada.algorithms.ppo import PPO
    >>> print(advice(PPO(), Task("Acrobot-v1")).partition(", ")[0])
    the preset of ppo for Acrobot-v1 (leave out fields of your own)
    """
    return ", ".join(_ideas(config, task))


def _ideas(config: Algorithm, task: Task) -> Iterator[str]:
    name = algorithm_name(type(config))
    presets = {algorithm: fields[task.name] for algorithm, fields in PRESETS.items() if task.name in fields}
    own = presets.pop(name, {})
    if any(_differs(getattr(config, field), value) for field, value in own.items()):
        yield f"the preset of {name} for {task.name} (leave out fields of your own)"
    if presets and not own:
        yield f"an algorithm with a preset for {task.name} ({', '.join(presets)})"
    if not isinstance(config, RolloutAlgorithm | ReplayAlgorithm) or isinstance(task, AgentsTask):
        return
    is_discrete = isinstance(task.action_space, spaces.Discrete)
    if isinstance(config, DQN):
        yield f"more exploration (epsilon_steps={config.epsilon_steps * 5}, or noisy=True)"
    elif isinstance(config, SAC):
        yield f"more exploration ({'target_entropy_ratio=0.9' if is_discrete else 'log_alpha_init=2'})"
    elif isinstance(config, TD3):
        yield f"more exploration (exploration_noise={max(0.3, 3 * config.exploration_noise):g})"
    elif isinstance(config, RolloutAlgorithm) and isinstance(task.action_space, spaces.Box):
        yield f"more exploration (log_std_init={config.log_std_init + 1:g})"
    elif isinstance(config, RolloutAlgorithm):
        yield f"more exploration (entropy_coef={max(0.01, 3 * config.entropy_coef):g})"
    if isinstance(config, ReplayAlgorithm):
        if config.n_step < ENOUGH_N_STEP:
            yield f"targets over more steps (n_step={ENOUGH_N_STEP})"
    elif isinstance(config, RolloutAlgorithm):
        if not config.normalize_obs and isinstance(task.observation_space, spaces.Box):
            yield "normalize_obs=True"
        if not config.normalize_reward:
            yield "normalize_reward=True"
        yield f"longer rollouts (num_steps={4 * config.num_steps})"
        yield f"an algorithm that keeps rare rewards in a replay ({'dqn' if is_discrete else 'sac'})"


def _differs(given: object, preset: object) -> bool:
    return tuple(given) != tuple(preset) if isinstance(preset, tuple) and isinstance(given, list) else given != preset
