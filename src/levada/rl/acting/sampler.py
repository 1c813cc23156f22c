"""Sampler: the source of an RL flow. Acts in a vector environment and returns one rollout per firing.

    rollouts = flow.source("rollout", Sampler(task=task, policy=policy, num_envs=8, num_steps=128), reads=weights)

A step costs one forward pass of the policy, one step of the environments, and one row written into the rollout's arrays.
Noise, log-probabilities and values are computed once for the whole rollout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np

from levada.flow import Shard
from levada.flow.items import never, serve_here
from levada.flow.stopwatch import ENVIRONMENT, INFERENCE, WRITING
from levada.rl.acting.env_loop import Acting, EnvLoop, StepBuffer, play
from levada.rl.acting.frame_buffer import StepBuffers
from levada.rl.acting.network import check_network
from levada.rl.acting.rollout import Rollout
from levada.rl.data.frames import Frames, as_array
from levada.rl.data.nest import flat
from levada.rl.data.normalize import Moments, observation_moments
from levada.rl.data.spaces import Array, Nest, map_nest
from levada.rl.envs.task import Task
from levada.rl.policies.policy import Policy
from levada.validation import PositiveInt, check_fields

if TYPE_CHECKING:
    from levada.rl.acting.compiled.rollout import CompiledRollout, RolledOut

OnNewWeights: TypeAlias = Literal["continue", "cut"]


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """Recipe of a sampler, opened once per shard, where the shard runs.

    Raises:
        ValueError: a number is invalid.
    """

    task: Task
    """Task to act in."""
    policy: Policy
    """Policy to act with; each firing passes its weights."""
    num_envs: PositiveInt
    """B: number of environments per shard. Their observations go through the network together."""
    num_steps: PositiveInt
    """T: number of steps per rollout."""
    on_new_weights: OnNewWeights = "continue"
    """Handling of a rollout when newer weights arrive: continue it with the old ones, or cut it, send it as it is and mask its
    remaining rows."""
    discount: float = 0.99
    """Discount factor, used only to scale rewards if the policy normalizes them."""

    def __post_init__(self) -> None:
        check_fields(self, ValueError)

    def verify(self) -> None:
        """Raise ModelError if the network has the wrong inputs or outputs."""
        check_network(self.policy)

    def __call__(self, shard: Shard) -> LiveSampler:
        """Make the environments of a shard."""
        return LiveSampler(self, shard)


class _Acted(NamedTuple):
    """What acting fills."""

    buffer: StepBuffer
    rows: Array
    """``[T, B, row_size]``: the head's parameters."""
    value: Array
    """``[T+1, B]``: values, if the network computes them while acting."""


class LiveSampler(EnvLoop):
    """A running sampler."""

    def __init__(self, recipe: Sampler, shard: Shard) -> None:
        if recipe.task.is_functional:
            from levada.rl.compute.xla import prepare_jax

            prepare_jax(recipe.policy.device)  # before the environments are made
        super().__init__(recipe.task, recipe.policy, recipe.num_envs, recipe.discount, shard)
        self.recipe = recipe
        self._empty = shard.empty
        self._buffers = StepBuffers(recipe.task, recipe.num_steps, recipe.num_envs)
        self._is_cut = shard.has_newer if recipe.on_new_weights == "cut" else never
        self._compiled: CompiledRollout | None = None
        if recipe.task.is_functional:
            from levada.rl.acting.compiled.rollout import compiled_rollout  # imports JAX

            is_here = shard.serve is serve_here
            self._compiled = compiled_rollout(
                self.envs, recipe.policy, is_cut=recipe.on_new_weights == "cut", is_here=is_here
            )

    def __call__(self, weights: Mapping[str, Array]) -> Rollout:
        """Act for T steps with these weights."""
        if self._compiled is not None:
            return self._roll_out(self._compiled, weights)
        return play(self.sampling(weights), self.envs.step, self.stopwatch)

    def sampling(self, weights: Mapping[str, Array]) -> Acting[Rollout]:
        """Yield the actions of T steps with these weights, each for the result of the step, and return the rollout."""
        num_steps, num_envs = self.recipe.num_steps, self.recipe.num_envs
        self.actor.load(weights)
        noise = self._noise()
        acted = self._allocate()
        buffer, rows, value = acted.buffer, acted.rows, acted.value
        buffer.begin(self.obs)
        head = self.actor.head
        has_values = True
        before = None if self.memory is None else (self.memory.state.copy(), self.memory.age == 0)

        def choose(t: int, row: Array, mask: Array | None, out: Array) -> Array:
            return head.sample(row, noise[t], mask, out)

        has_acted = np.zeros(num_envs, np.bool_)

        def record(t: int, row: Array, v_t: Array | None) -> None:
            nonlocal has_values
            rows[t] = row
            if before is not None and self.memory is not None and self.envs.acts is not None:
                first = ~has_acted & self.envs.acts  # the rows of an agent begin where it first acts
                has_acted[first] = True
                before[0][first], before[1][first] = self.memory.state[first], self.memory.age[first] == 0
            if v_t is None:
                has_values = False  # computing them for all steps at once is cheaper
            else:
                value[t] = v_t

        num_rows = yield from self.collecting(buffer, choose, record, is_cut=self._is_cut)
        if num_rows < num_steps:
            self._fill(buffer, rows, num_rows)
        return self._rollout(acted, num_rows, before, has_values=has_values)

    def _roll_out(self, compiled: CompiledRollout, weights: Mapping[str, Array]) -> Rollout:
        """Act for T steps with these weights, in one compiled call."""
        if not self.actor.has_weights:
            self.actor.load(weights)  # which checks them
        self.stopwatch.do(ENVIRONMENT)
        rolled = compiled(weights, self._noise())
        if rolled.value is None or rolled.next_value is None or self.recipe.policy.normalize_reward:
            self.actor.load(weights)
        steps = rolled.steps
        self.obs: Nest = rolled.obs
        self.stopwatch.do(WRITING)
        self.envs.check_steps(steps.last_obs, steps.reward)
        acted = self._allocate(steps.row)
        if rolled.kept is None:
            acted.buffer.fill_observations(steps.obs, self.obs)
        else:
            acted = acted._replace(buffer=replace(acted.buffer, obs=rolled.kept))
        acted.buffer.fill(steps)
        self.stopwatch.do(INFERENCE)
        return self._rollout(acted, self.recipe.num_steps, None, has_values=False, rolled=rolled)

    def _noise(self) -> Array:
        """Draw the noise of T steps."""
        return self.actor.head.draw(self.rng, self.recipe.num_steps, self.recipe.num_envs)

    def _allocate(self, rows: Array | None = None) -> _Acted:
        """Return memory for T steps; `rows`: if they are known."""
        num_steps, num_envs, empty = self.recipe.num_steps, self.recipe.num_envs, self._empty
        if rows is None:
            rows = np.empty((num_steps, num_envs, self.actor.head.row_size), np.float32)
        return _Acted(self._buffers.allocate(empty), rows, empty((num_steps + 1, num_envs), np.float32))

    def _rollout(
        self, collected: _Acted, num_rows: int, before: tuple[Array, Array] | None, *, has_values: bool,
        rolled: RolledOut | None = None,
    ) -> Rollout:  # fmt: skip
        """Compute what is computed for all steps at once, and return the rollout.

        Args:
            collected: what acting has filled.
            num_rows: number of filled rows.
            before: recurrent states before the first step, and whether episodes begin there.
            has_values: whether the network has computed values while acting.
            rolled: result of a compiled call, which has computed most of it.
        """
        actor, buffer, rows, value = self.actor, collected.buffer, collected.rows, collected.value
        num_steps, num_envs = self.recipe.num_steps, self.recipe.num_envs
        next_value = self._empty((num_steps, num_envs), np.float32)
        episodes, turns = self.episodes(buffer), self.turns(buffer, to_end=False)
        if turns is not None:
            buffer.arrange(turns)
            rows[...] = turns.rows(rows)
        obs, final_obs = buffer.observations()
        acted = map_nest(lambda leaf: leaf[:-1], obs)
        if rolled is not None and rolled.value is not None:
            value[...] = rolled.value
        elif self.memory is not None or has_values:
            state = actor.initial_state(0) if self.memory is None else self.memory.state
            value[num_rows] = actor.step(self.obs, state)[1]
            value[num_rows + 1 :] = 0.0
            if turns is not None:
                value[...] = turns.rows(value)
        else:
            value[...] = actor.value(map_nest(as_array, flat(obs))).reshape(num_steps + 1, num_envs)
        next_value[...] = value[1:] if rolled is None or rolled.next_value is None else rolled.next_value
        for t, index, last in final_obs if before is None and (rolled is None or rolled.next_value is None) else ():
            next_value[t, index] = actor.value(map_nest(as_array, last))
        for t, index, last, state in buffer.lasts:
            next_value[t, index] = actor.step(last, state)[1]
        if rolled is None:
            log_prob = actor.head.log_prob(flat(rows), flat(buffer.action), actor.mask(flat(acted)))
        else:
            log_prob = rolled.log_prob.copy()  # JAX's own memory cannot be written to, which PyTorch warns of
        moments = self._moments(acted, buffer.reward, buffer.ended, buffer.mask)
        if num_rows < num_steps:
            # A cut rollout bootstraps from the value of its last observation, like any other truncation.
            buffer.truncated[num_rows - 1] |= buffer.mask[num_rows - 1] & ~buffer.terminated[num_rows - 1]
        elif turns is not None:
            turns.cut(buffer.terminated, buffer.truncated)
        if actor.reward_scale != 1.0:
            buffer.reward[...] *= np.float32(actor.reward_scale)
        memory: list[Array] = []
        if before is not None:
            state, begins = before
            memory = [state, np.concatenate([begins[None], buffer.ended | ~buffer.mask])]
        return Rollout(
            obs.of_first_part() if isinstance(obs, Frames) else obs,
            buffer.action, buffer.reward, buffer.terminated, buffer.truncated, buffer.mask,
            log_prob.reshape(num_steps, num_envs), value[:-1], next_value, moments, episodes,
            *memory,
        )  # fmt: skip

    def _fill(self, buffer: StepBuffer, rows: Array, first: int) -> None:
        """Fill the masked rows from `first` on with valid parameters and actions, so that they cannot spoil a sum."""
        actor, memory = self.actor, self.memory
        row = actor.step(self.obs, actor.initial_state(0) if memory is None else memory.state)[0]
        rows[first:] = row
        buffer.action[first:] = actor.head.mode(row, actor.mask(self.obs))

    def _moments(self, obs: Nest, reward: Array, ended: Array, mask: Array) -> dict[str, Moments]:
        policy = self.recipe.policy
        found: dict[str, Moments] = {}
        if policy.normalize_obs:
            found |= observation_moments(policy.observation_space, map_nest(as_array, obs), mask)
        if policy.normalize_reward:
            found["return"] = self.returns.update(reward, ended, mask)
        return found
