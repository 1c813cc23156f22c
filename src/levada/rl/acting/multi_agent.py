"""Samplers of several policies in one environment: each acts for its agents, and all take each step together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from levada.flow import Shard
from levada.flow.items import PerPolicy, derive_seed
from levada.flow.of_policy import name_policy, of_policy
from levada.flow.state import PrefixView
from levada.flow.stopwatch import ENVIRONMENT
from levada.rl.acting.player import MakeMind, Played, Playing
from levada.rl.acting.sampler import Sampler
from levada.rl.acting.step_sampler import Steps, StepSampler
from levada.rl.data.spaces import Array
from levada.rl.envs.agents.task import MultiAgentTask
from levada.rl.envs.registry import TaskError
from levada.validation import check_fields

ENVS = "envs"


@dataclass(frozen=True, kw_only=True)
class MultiAgentSampler:
    """Recipe of a source of items by policy.

    Raises:
        ValueError: the samplers cannot take each step together.
    """

    task: MultiAgentTask
    samplers: Mapping[str, Sampler | StepSampler]
    """Policy -> the sampler of its algorithm. Their numbers of environments count an agent in each copy of the environment."""
    players: Mapping[str, MakeMind] = field(default_factory=dict)
    """Policies that are not trained: what makes their minds. They pass no items on."""

    def __post_init__(self) -> None:
        check_fields(self, ValueError)
        given = (*self.samplers, *self.players)
        if sorted(given) != sorted(self.task.policies) or not self.samplers:
            what = f"samplers of {', '.join(given)}" if self.samplers else "no policy that is trained"
            msg = f"{what}; expected one for each policy: {', '.join(self.task.policies)}"
            raise ValueError(msg)
        _check_equal("num_steps", {name: sampler.num_steps for name, sampler in self.samplers.items()})
        _check_equal(
            "num_envs / number of agents",
            {name: sampler.num_envs / len(self.task.policies[name]) for name, sampler in self.samplers.items()},
        )
        for name, sampler in self.samplers.items():
            if isinstance(sampler, Sampler) and sampler.on_new_weights == "cut":
                msg = f"policy {name!r}: on_new_weights='cut' would cut the items of the other policies, too; expected 'continue'"
                raise ValueError(msg)

    @property
    def num_envs(self) -> int:
        """B: number of copies of the environment per shard."""
        name, sampler = next(iter(self.samplers.items()))
        return sampler.num_envs // len(self.task.policies[name])

    @property
    def num_steps(self) -> int:
        """T: number of steps per item."""
        return next(iter(self.samplers.values())).num_steps

    def verify(self) -> None:
        """Refuse networks that cannot act, and what learning from a replay lacks for agents that act in turns.

        Raises:
            ModelError, TaskError: a sampler has one of these.
        """
        for name, sampler in self.samplers.items():
            with of_policy(name):
                sampler.verify()
            lacks = isinstance(sampler, StepSampler) and (sampler.is_recurrent or sampler.policy.normalize_reward)
            if lacks and self.task.acts_in_turns:
                what = "recurrent layers" if sampler.policy.state_size else "normalize_reward"
                msg = (
                    f"policy {name!r}: the agents of {self.task.name} act in turns; expected no {what}, which learning from a "
                    "replay has only for agents that act at once"
                )
                raise TaskError(msg)

    def __call__(self, shard: Shard) -> LiveMultiAgentSampler:
        """Make the environments of a shard."""
        return LiveMultiAgentSampler(self, shard)


class LiveMultiAgentSampler:
    """A running sampler."""

    def __init__(self, recipe: MultiAgentSampler, shard: Shard) -> None:
        self._joint = recipe.task.make(recipe.num_envs, derive_seed(shard.seed, ENVS))
        self._num_env_steps = recipe.num_steps * recipe.num_envs
        self._stopwatch = shard.stopwatch
        self._samplers: dict[str, Any] = {}
        try:
            for name, sampler in recipe.samplers.items():
                own: Any = replace(sampler, task=recipe.task[name].within(self._joint))
                with of_policy(name):
                    self._samplers[name] = own(_seeded(shard, name))
            for name, make in recipe.players.items():
                envs = recipe.task[name].within(self._joint).make(self._joint.seats[name].num_envs, shard.num_threads)
                self._samplers[name] = Playing(make, envs, self._joint, recipe.num_steps, _seeded(shard, name))
        except BaseException:
            self.close()
            raise

    def __call__(self, weights: Mapping[str, Mapping[str, Array]]) -> PerPolicy:
        """Act for T steps with these weights, by policy."""
        acting = {name: sampler.sampling(weights.get(name)) for name, sampler in self._samplers.items()}
        actions = dict[str, Any]()
        for name, each in acting.items():
            with of_policy(name):
                actions[name] = next(each)
        items: dict[str, Any] = {}
        began = list[Array]()
        while not items:
            for name, sampler in self._samplers.items():
                self._joint.seats[name].act(sampler.envs.encode(actions[name]))
            self._stopwatch.do(ENVIRONMENT)
            self._joint.step()
            began.append(self._joint.began)
            for name, sampler in self._samplers.items():
                self._stopwatch.do(ENVIRONMENT)  # the policy before has inferred
                try:
                    actions[name] = acting[name].send(sampler.envs.step(actions[name]))
                except StopIteration as over:
                    items[name] = over.value
                except Exception as error:
                    name_policy(error, name)
                    raise
        others = {name: items.pop(name) for name in list(items) if isinstance(items[name], Played)}
        for name, item in items.items():
            if isinstance(item, Steps) and not self._joint.acts_in_turns:
                items[name] = replace(item, began=np.stack(began), acts=self._joint.seats[name].acts)
        return PerPolicy(items, num_env_steps=self._num_env_steps, others=others)

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


def _seeded(shard: Shard, name: str) -> Shard:
    """Return the shard with the seed of a policy's sampler."""
    return replace(shard, seed=derive_seed(shard.seed, name))


def _check_equal(what: str, values: Mapping[str, float]) -> None:
    """Refuse samplers that differ in a number, or have no whole one."""
    if len(set(values.values())) > 1 or any(value % 1 for value in values.values()):
        told = ", ".join(f"{name}: {value:g}" for name, value in values.items())
        msg = (
            f"policies in one environment take each step together; expected the same {what}, a whole number; got {told}"
        )
        raise ValueError(msg)
