"""Samplers of several policies in one environment: each acts for its agents, and all take each step together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from levada.flow import Shard
from levada.flow.items import derive_seed
from levada.flow.state import PrefixView
from levada.rl.acting.sampler import Sampler
from levada.rl.acting.step_sampler import StepSampler
from levada.rl.data.spaces import Array
from levada.rl.envs.multi_agent import MultiAgentTask
from levada.validation import PositiveInt, check_fields

ENVS = "envs"


@dataclass(frozen=True, kw_only=True)
class MultiAgentSampler:
    """Recipe of a source of mappings from policies to their items.

    Raises:
        ValueError: the samplers take different numbers of steps.
    """

    task: MultiAgentTask
    samplers: Mapping[str, Sampler | StepSampler]
    """Policy -> the sampler of its algorithm."""
    num_envs: PositiveInt
    """B: number of copies of the environment per shard."""

    def __post_init__(self) -> None:
        check_fields(self, ValueError)
        steps = {name: sampler.num_steps for name, sampler in self.samplers.items()}
        if len(set(steps.values())) > 1:
            told = ", ".join(f"{name}: {num_steps}" for name, num_steps in steps.items())
            msg = f"policies in one environment take each step together; expected the same num_steps, got {told}"
            raise ValueError(msg)

    def verify(self) -> None:
        """Refuse networks that cannot act."""
        for sampler in self.samplers.values():
            sampler.verify()

    def __call__(self, shard: Shard) -> LiveMultiAgentSampler:
        """Make the environments of a shard."""
        return LiveMultiAgentSampler(self, shard)


class LiveMultiAgentSampler:
    """A running sampler."""

    def __init__(self, recipe: MultiAgentSampler, shard: Shard) -> None:
        self._joint = recipe.task.make(recipe.num_envs, derive_seed(shard.seed, "envs"))
        self._samplers: dict[str, Any] = {}
        for name, sampler in recipe.samplers.items():
            task = replace(recipe.task[name], joint=self._joint)
            num_rows = self._joint.seats[name].num_envs
            own: Any = replace(sampler, task=task, num_envs=num_rows)
            self._samplers[name] = own(replace(shard, seed=derive_seed(shard.seed, name)))

    def __call__(self, weights: Mapping[str, Mapping[str, Array]]) -> dict[str, Any]:
        """Act for T steps with these weights, by policy."""
        acting = {name: sampler.sampling(weights[name]) for name, sampler in self._samplers.items()}
        actions = {name: next(each) for name, each in acting.items()}
        items: dict[str, Any] = {}
        while not items:
            for name, sampler in self._samplers.items():
                self._joint.seats[name].act(sampler.envs.encode(actions[name]))
            self._joint.step()
            for name, sampler in self._samplers.items():
                try:
                    actions[name] = acting[name].send(sampler.envs.step(actions[name]))
                except StopIteration as over:
                    items[name] = over.value
        return items

    def state_dict(self) -> dict[str, Array]:
        """Return all state of the next item except the weights."""
        states = {name: sampler.state_dict() for name, sampler in self._samplers.items()}
        own = {f"{name}/{key}": array for name, state in states.items() for key, array in state.items()}
        return {ENVS: np.frombuffer(self._joint.save(), np.uint8), **own}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Restore the state that `state_dict` returned."""
        self._joint.restore(state[ENVS].tobytes())
        for name, sampler in self._samplers.items():
            sampler.load_state_dict(PrefixView(state, f"{name}/"))

    def close(self) -> None:
        """Close the environments."""
        self._joint.close()
