"""Time per step and policy, over the number of policies in one environment: an agent each, and PPO with a tiny network.

All is inline, in one thread, and the stopwatch of the run, which counts processor time here, tells what samplers do, learning
and the rest apart. The rest is what levada does beside them: the split by policy, advantages, batches, queues, tickets, weights,
counts and reports. An item is the rollout of one policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from time import process_time
from typing import Any, ClassVar, Final
from unittest.mock import patch

import gymnasium
import numpy as np
from pettingzoo import ParallelEnv

from benchmarks._growth.axis import Axis, Curve, Side
from levada.algorithms.multi_agent import multi_agent
from levada.algorithms.ppo import PPO
from levada.flow.stopwatch import ENVIRONMENT, INFERENCE, OUTSIDE, WRITING, Stopwatch, Times
from levada.rl.envs.agents.task import MultiAgentTask
from levada.run.monitor import Monitor
from levada.runners import inline_transport
from levada.runners.inline import Inline

SIZES: Final = (1, 3, 10, 30, 100)
NUM_STEPS: Final = 64
ITEMS: Final = 60
"""Items of a turn, at least."""
NUM_OBS: Final = 4
EPISODE: Final = 100
ACTIVITIES: Final = (ENVIRONMENT, INFERENCE, WRITING)
LEARNING: Final = "learning, us per item"
REST: Final = "the rest, us per item"


class Many(ParallelEnv):  # type: ignore[misc]  # pettingzoo has no types
    """An environment of many agents which computes nothing."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": [], "name": "many"}

    def __init__(self, num: int) -> None:
        self.possible_agents = [f"a{number}" for number in range(num)]
        self.agents: list[str] = []
        self._observation_space = gymnasium.spaces.Box(-1.0, 1.0, (NUM_OBS,))
        self._action_space = gymnasium.spaces.Discrete(2)
        self._obs = np.full(NUM_OBS, 0.5, np.float32)
        self._num_steps = 0

    def observation_space(self, agent: str) -> Any:
        """Four floats."""
        return self._observation_space

    def action_space(self, agent: str) -> Any:
        """Two actions."""
        return self._action_space

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode."""
        self.agents, self._num_steps = list(self.possible_agents), 0
        return dict.fromkeys(self.agents, self._obs), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """Reward one of the actions. All agents end an episode together."""
        self._num_steps += 1
        agents, is_over = self.agents, self._num_steps == EPISODE
        if is_over:
            self.agents = []
        rewards = {agent: float(actions[agent]) for agent in agents}
        ended, cut = dict.fromkeys(agents, is_over), dict.fromkeys(agents, False)
        return dict.fromkeys(agents, self._obs), rewards, ended, cut, {agent: {} for agent in agents}

    def close(self) -> None:
        """Nothing to close."""


class Run:
    """A run with so many policies."""

    def __init__(self, num: int) -> None:
        self._num = num
        agents = [f"a{number}" for number in range(num)]
        task = MultiAgentTask(partial(Many, num), policies={f"p{agent}": (agent,) for agent in agents})
        ppo = PPO(num_envs=1, num_steps=NUM_STEPS, num_epochs=1, minibatch_size=NUM_STEPS, hidden_sizes=(8,))
        flow = multi_agent(task, dict.fromkeys(task.policies, ppo))
        self._learners = frozenset(flow.learners())
        with patch.object(inline_transport, "Stopwatch", partial(Stopwatch, clock=process_time)):
            self.run = Inline().open(flow, seed=1, instruments=[Monitor()])
        self._reports = iter(self.run)
        self._update(2)

    def _update(self, num_updates: int) -> None:
        """Let each policy learn so many times."""
        for _ in islice(self._reports, num_updates * self._num):
            pass

    def turn(self, num_items: int) -> dict[str, float]:
        """Costs of an item, or of a step of a policy."""
        num_updates = -(-num_items // self._num)
        before = self._parts()
        self._update(num_updates)
        parts = {name: seconds - before[name] for name, seconds in self._parts().items()}
        us = {name: 1e6 * seconds / (num_updates * self._num) for name, seconds in parts.items()}
        return {_cost(name): us[name] / NUM_STEPS for name in ACTIVITIES} | {
            name: us[name] for name in (LEARNING, REST)
        }

    def _parts(self) -> dict[str, float]:
        """Seconds so far."""
        times: Times = self.run.transport.stopwatch.read()
        all_s = sum(seconds for own in times.values() for seconds in own.values())
        parts = {name: times["rollout"].get(name, 0.0) for name in ACTIVITIES}
        parts[LEARNING] = sum(sum(times.get(learner, {}).values()) for learner in self._learners)
        outside_s = times.get(OUTSIDE[0], {}).get(OUTSIDE[1], 0.0)  # other sizes had their turns
        return parts | {REST: all_s - outside_s - sum(parts.values())}


def _cost(activity: str) -> str:
    return f"{activity}, us per step and policy"


@contextmanager
def _sides(quick: bool) -> Iterator[Sequence[Side]]:
    with ExitStack() as closing:
        sides = []
        for num in (1, 2) if quick else SIZES:
            run = Run(num)
            closing.callback(run.run.close)
            sides.append(Side(num, partial(run.turn, 2 if quick else ITEMS)))
        yield sides


AXIS = Axis(
    "policies", "policies", [*map(Curve, map(_cost, ACTIVITIES)), Curve(LEARNING), Curve(REST)], _sides, turns=9
)
