"""Speed that PyTorch and the environment allow for `compare.py mappo-spread` on one thread.

    python benchmarks/mappo_limit.py

Two costs of an env step are measured, both in processor time: the gradient steps that learn from it, and the step of the
environment itself.

- The gradient steps are plain PyTorch: actor and critic on a minibatch of random numbers, PPO's loss, the gradient and its norm,
  and Adam. Networks, sizes of minibatches and passes are those of `compare.py mappo-spread`. With a value per agent
  (`value_per="agent"`), the critic sees the state and the observation of each agent; with a value per state, as there, the agents
  share one.
- The environment is mpe2's simple_spread_v3 with fixed actions, resets included, without PettingZoo's conversion from one agent
  after the other to all at once, which levada skips as well.

A program on one thread that does nothing else makes as many steps/s as the last column says. Only faster operations than those of
plain PyTorch can exceed it.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import torch
from mpe2 import simple_spread_v3
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.compare.multi_agent_presets import MAPPO_SPREAD
from benchmarks.compare.presets import Preset
from levada.algorithms.mappo import MAPPO
from levada.rl.envs.agents.converted import adapted

NUM_AGENTS: Final = 3
NUM_ACTIONS: Final = 5
OBS_SIZE: Final = 18 + NUM_AGENTS
"""An agent's observation in simple_spread_v3, and its index."""
STATE_SIZE: Final = 18 * NUM_AGENTS
NUM_TURNS: Final = 3
DURATION_S: Final = 6.0


def cpu_per_env_step_us(hp: MAPPO, *, value_per_agent: bool) -> float:
    """Processor time of the gradient steps, divided by the env steps that they learn from, in microseconds."""
    num_states = hp.num_envs * hp.num_steps // (hp.num_minibatches or 1)
    step = gradient_step(hp.hidden_sizes, num_states, value_per_agent=value_per_agent)
    for _ in range(20):
        step()
    num, start_s = 0, time.process_time()
    while time.process_time() < start_s + DURATION_S:
        step()
        num += 1
    return (time.process_time() - start_s) / num / num_states * hp.num_epochs * 1e6


def gradient_step(hidden_sizes: tuple[int, ...], num_states: int, *, value_per_agent: bool) -> Callable[[], None]:
    """A gradient step on minibatches of the transitions of `num_states` states."""
    actor = mlp(OBS_SIZE, hidden_sizes, NUM_ACTIONS)
    critic = mlp(STATE_SIZE + (OBS_SIZE if value_per_agent else 0), hidden_sizes, 1)
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=5e-5, eps=1e-6, fused=True)
    num_rows = num_states * NUM_AGENTS
    obs = torch.randn(num_rows, OBS_SIZE)
    of_critic = torch.randn(num_rows if value_per_agent else num_states, critic[0].in_features)
    action = torch.randint(NUM_ACTIONS, (num_rows, 1))
    old_log_prob, advantage, target = torch.randn(num_rows) - 1.6, torch.randn(num_rows), torch.randn(num_rows)

    def step() -> None:
        log_prob = actor(obs).log_softmax(dim=1).gather(1, action)[:, 0]
        value = critic(of_critic)[:, 0]
        if not value_per_agent:
            value = value.repeat_interleave(NUM_AGENTS)
        loss = ppo_loss(log_prob, old_log_prob, advantage) + (value - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_([*actor.parameters(), *critic.parameters()], 5.0)
        optimizer.step()

    return step


def cpu_of_environment_us() -> float:
    """Processor time of a step of the environment, in microseconds."""
    env = adapted(simple_spread_v3.parallel_env())
    num, start_s = 0, time.process_time()
    while time.process_time() < start_s + DURATION_S:
        env.reset(seed=num)
        while env.movers:
            env.step(dict.fromkeys(env.movers, 1))
            num += 1
    return (time.process_time() - start_s) / num * 1e6


def ppo_loss(log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor) -> Tensor:
    """PPO's clipped loss."""
    ratio = (log_prob - old_log_prob).exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()


def mlp(num_inputs: int, hidden_sizes: tuple[int, ...], num_outputs: int) -> Any:
    """A network with tanh between linear layers."""
    sizes = (num_inputs, *hidden_sizes)
    hidden = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*hidden, nn.Linear(sizes[-1], num_outputs))


def main() -> None:
    """Measure both kinds of critics with the settings of each preset."""
    torch.set_num_threads(1)
    table = Table("settings", "critic", "learning: us per env step", "environment: us per env step", "at most, steps/s")
    for preset in (each for each in MAPPO_SPREAD.presets if each.threads == 1):
        for value_per_agent in (True, False):
            learning: list[float] = []
            environment: list[float] = []
            for _ in range(NUM_TURNS):
                learning.append(cpu_per_env_step_us(_config(preset), value_per_agent=value_per_agent))
                environment.append(cpu_of_environment_us())
            rates = [1e6 / (a + b) for a, b in zip(learning, environment, strict=True)]
            critic = "a value per agent" if value_per_agent else "a value per state"
            table.add_row(preset.name, critic, _spread(learning), _spread(environment), _spread(rates))
    Console().print(table)


def _spread(found: list[float]) -> str:
    return f"{statistics.median(found):,.0f} ({min(found):,.0f} - {max(found):,.0f})"


def _config(preset: Preset) -> MAPPO:
    settings: dict[str, Any] = dict(preset.levada)
    return MAPPO(**settings)


if __name__ == "__main__":
    main()
