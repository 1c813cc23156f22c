"""Players: policies that act for their agents in an environment of several, and learn nothing there.

A `Mind` chooses the actions: an `Actor` with trained weights, or a function (`ByHand`). A `LivePlayer` sits at the seats of the
policy, and `Playing` is one that takes its steps together with the samplers of policies that are trained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from levada.flow import Episode, Shard
from levada.flow.mistakes import mark_mistake
from levada.flow.state import rng_array, set_rng
from levada.rl.acting.actor import Actor
from levada.rl.acting.env_loop import Acting
from levada.rl.acting.rollout import EpisodeCounter
from levada.rl.data.spaces import Array, Nest, map_nest, named_leaves
from levada.rl.envs.agents.joint import Joint
from levada.rl.envs.batch import EnvBatch, StepResult
from levada.rl.policies.policy import Policy

ActByHand: TypeAlias = Callable[[Any, np.random.Generator], Any]
"""(observation of an agent, random numbers) -> its action, in the spaces that policies see."""


class Mind(Protocol):
    """Chooses actions. `Actor` is one."""

    def load(self, weights: Mapping[str, Array]) -> None:
        """Load the weights of the following steps."""

    def initial_state(self, num_rows: int) -> Array:
        """Return the state at the start of episodes, ``[num_rows, state_size]``."""

    def act(self, obs: Nest, state: Array, rng: np.random.Generator | None = None) -> Array:
        """Choose actions ``[B, ...]``, and update the state in place. Without a generator, the most probable ones."""


MakeMind: TypeAlias = Callable[[EnvBatch, Joint, Shard], Mind]
"""(seats, all copies of the environment, shard) -> a mind. Must be picklable."""


class ByHand:
    """A mind that asks a function, for each agent that acts."""

    def __init__(self, function: ActByHand, name: str, envs: EnvBatch) -> None:
        """`name`: of the policy, for messages."""
        self._function = function
        self._name = name
        self._envs = envs

    def load(self, weights: Mapping[str, Array]) -> None:
        """There are none."""

    def initial_state(self, num_rows: int) -> Array:
        """Return a state of size 0."""
        return np.zeros((num_rows, 0), np.float32)

    def act(self, obs: Nest, state: Array, rng: np.random.Generator | None = None) -> Array:
        """Ask for the action of each agent that acts.

        Raises:
            ValueError: an action is not in the space.
        """
        space, acts = self._envs.action_space, self._envs.acts
        actions = np.zeros((len(state), *(space.shape or ())), space.dtype)
        assert rng is not None, "a function gets random numbers"
        for row in range(len(state)) if acts is None else map(int, np.flatnonzero(acts)):
            try:
                actions[row] = self._ask(map_nest(lambda leaf, row=row: leaf[row], obs), rng)
            except Exception as error:
                mark_mistake(error)
                raise
        return actions

    def _ask(self, obs: Any, rng: np.random.Generator) -> Any:
        """Return the action of one agent."""
        try:
            action = self._function(obs, rng)
        except Exception as error:
            error.add_note(f"in the function of policy {self._name!r}")
            raise
        space = self._envs.action_space
        if not space.contains(action):
            msg = f"policy {self._name!r}: the function returned {action!r}, expected an action in {space}"
            raise ValueError(msg)
        return action


class LivePlayer:
    """A policy at its seats: acts, sees what comes of it, and counts the episodes of its agents."""

    def __init__(self, mind: Mind, envs: EnvBatch, seed: int) -> None:
        self.mind = mind
        self.envs = envs
        self._obs: Nest = envs.reset(seed)
        self._state = mind.initial_state(envs.num_envs)
        self._counter = EpisodeCounter(envs.num_envs)

    def act(self, rng: np.random.Generator | None) -> Array:
        """Choose actions ``[B, ...]``; agents that wait for their turn keep their recurrent state."""
        before, acts = self._state.copy(), self.envs.acts
        actions = self.mind.act(self._obs, self._state, rng)
        if acts is not None:
            self._state[~acts] = before[~acts]
        return actions

    def see(self, step: StepResult) -> list[tuple[int, Episode]]:
        """Take what came of a step; return the episodes of agents that ended, with their rows."""
        ended = step.terminated | step.truncated
        self._state[ended], self._obs = 0.0, step.obs
        counted = self._counter.count(step.reward[None], ended[None], ~step.is_reset[None])
        return list(zip(map(int, np.flatnonzero(ended)), counted, strict=True))

    def state_dict(self) -> dict[str, Array]:
        """Return all state of the next step except that of the environments, and the weights."""
        obs = {f"obs/{path}": leaf.copy() for path, leaf in named_leaves(self._obs).items()}
        counts = {f"episodes/{name}": array for name, array in self._counter.state_dict().items()}
        return {"state": self._state.copy(), "envs": np.frombuffer(self.envs.save(), np.uint8), **counts, **obs}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Restore the state that `state_dict` returned."""
        self.envs.restore(state["envs"].tobytes())
        self._state[...] = state["state"]
        self._counter.load_state_dict({name: state[f"episodes/{name}"] for name in self._counter.state_dict()})
        for path, leaf in named_leaves(self._obs).items():
            leaf[...] = state[f"obs/{path}"]


@dataclass(frozen=True, slots=True)
class Played:
    """What a player leaves of T steps."""

    episodes: tuple[Episode, ...]
    """Episodes that ended, in order."""


class Playing:
    """A player beside samplers: takes each step together with them."""

    def __init__(self, make: MakeMind, envs: EnvBatch, joint: Joint, num_steps: int, shard: Shard) -> None:
        """`envs`: its seats; `joint`: all copies of the environment; `num_steps`: T, number of steps per item."""
        self.envs = envs
        self._num_steps = num_steps
        self._rng = np.random.default_rng(shard.seed)
        self._player = LivePlayer(make(envs, joint, shard), envs, shard.seed)

    def sampling(self, weights: Any) -> Acting[Played]:
        """Yield the actions of T steps, each for the result of the step, and return the episodes that ended."""
        if weights is not None:
            self._player.mind.load(weights)
        episodes: list[Episode] = []
        for _ in range(self._num_steps):
            step = yield self._player.act(self._rng)
            episodes += [episode for _, episode in self._player.see(step)]
        return Played(tuple(episodes))

    def state_dict(self) -> dict[str, Array]:
        """Return all state of the next item except the weights."""
        return {"rng": rng_array(self._rng), **self._player.state_dict()}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Restore the state that `state_dict` returned."""
        set_rng(self._rng, state["rng"])
        self._player.load_state_dict(state)


@dataclass(frozen=True)
class ActorOf:
    """Makes actors of a policy."""

    policy: Policy

    def __call__(self, envs: EnvBatch, joint: Joint, shard: Shard) -> Mind:
        """Make an actor without weights."""
        return Actor(self.policy, num_threads=shard.num_threads)


@dataclass(frozen=True)
class ByHandOf:
    """Makes minds that ask a function."""

    function: ActByHand
    name: str

    def __call__(self, envs: EnvBatch, joint: Joint, shard: Shard) -> Mind:
        """Make one."""
        return ByHand(self.function, self.name, envs)
