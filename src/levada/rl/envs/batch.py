"""A batch of environments stepped together, for every kind of vector environment.

Vector environments differ in what happens after an episode ends (`gymnasium.vector.AutoresetMode`). A rollout that ignores
this contains transitions that never happened. `EnvBatch` reports all modes in one way:

    obs = batch.reset(seed)                           # once
    while True:
        result = batch.step(policy(obs))
        obs = result.obs                              # always: the observation to act on next

| where an episode ended | its row of `obs` | `final_obs` | the row's next step |
|---|---|---|---|
| NEXT_STEP | the true final observation | None | `is_reset`: no transition, the action is ignored |
| SAME_STEP, DISABLED | the next episode's first one | (indices, the true final observations) | ordinary |

The transition of row i is (previous `obs`, action, `reward`, next), with next = `final_obs` if it has row i, else `obs`. Where
`is_reset`, there is no transition.

    >>> import gymnasium, numpy as np
    >>> with EnvBatch(gymnasium.make_vec("CartPole-v1", num_envs=2)) as batch:
    ...     obs = batch.reset(seed=7)
    ...     result = batch.step(np.array([0, 1]))
    >>> result.obs.shape, result.reward, result.is_reset
    ((2, 4), array([1., 1.], dtype=float32), array([False, False]))
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from time import monotonic
from types import TracebackType
from typing import Any, NamedTuple, Self, cast

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import Space, spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from levada.flow.errors import LevadaError
from levada.flow.patience import CLOSE_S, OverdueError, limited, note_steps
from levada.rl.data.frames import FrameStack, stacked_space
from levada.rl.data.spaces import (
    Array,
    Nest,
    canonical_action_space,
    canonical_observation_space,
    check_action_space,
    check_observation_space,
    has_action_mask,
    map_nest,
    named_leaves,
    write,
)
from levada.rl.envs.actions import make_encoder
from levada.rl.envs.masks import MaskSource, find_masks, reject_mask
from levada.rl.envs.observations import Reader, Violation, make_reader
from levada.rl.envs.rewards_and_dones import MaskCheck, read_flags, read_reward, recorded_returns
from levada.rl.envs.serial import KeepFinalObs, SerialVectorEnv
from levada.rl.envs.state import EnvStates


class EnvError(LevadaError, RuntimeError):
    """An environment broke the Gymnasium contract: NaN, a wrong shape or dtype, a reward that is not a number.

    An exception raised by the environment keeps its type and traceback; a note adds where it happened.
    """


class StepResult(NamedTuple):
    """Result of a step, one row per environment, which later steps do not change. Do not write to the three boolean arrays: if
    no episode ended, they are one shared array of False.
    """

    obs: Nest
    """[B, ...] the observation to act on next."""
    reward: npt.NDArray[np.float32]
    """[B]"""
    terminated: npt.NDArray[np.bool_]
    """[B] the episode reached a terminal state."""
    truncated: npt.NDArray[np.bool_]
    """[B] the episode was truncated, for example by a time limit: bootstrap from its final observation."""
    is_reset: npt.NDArray[np.bool_]
    """[B] the row is no transition but a reset that ignored its action (NEXT_STEP, the step after an episode's end); or its agent
    did not act, see `EnvBatch.acts`."""
    final_obs: tuple[npt.NDArray[np.intp], Nest] | None
    """Indices of the episodes that ended in this step, and their true final observations; None if none ended, and in NEXT_STEP
    mode, where `obs` itself holds them."""
    life_lost: npt.NDArray[np.bool_]
    """[B] the episode ended for the learner because a life was lost; the game continues. See `Task.life_loss`."""
    recorded_return: npt.NDArray[np.float64] | None = None
    """[B] returns that the environments report of the games that ended, NaN elsewhere; None if they report none. See
    `levada.rl.envs.rewards_and_dones.recorded_return`."""

    @property
    def is_over(self) -> npt.NDArray[np.bool_]:
        """[B] the game ended, and with it the episode return."""
        return (self.terminated | self.truncated) & ~self.life_lost


class EnvBatch:
    """A vector environment with one reset rule, checked observations and rewards, and canonical spaces
    (`levada.rl.data.spaces`).

    - The batch owns `env`: `close()` closes it. Its metadata must declare an autoreset mode.
    - Actions are passed as the policy made them: counted from 0, and unclipped, so that log-probabilities belong to them.
    - An `AsyncVectorEnv` in SAME_STEP mode resets an environment before it sends the final observation. An environment that
      returns the same array each time needs `Task(..., vectorization="async")`, which copies it in time.
    - `env_observation_space` and `env_action_space` are those of the environment, or of the stacks after `stack_frames`.
    - A mask that allows no action is an error. At an episode's end all actions are allowed, because none follows.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], *, name: str | None = None) -> None:
        self._env = env
        self.name: str = name or (env.spec.id if env.spec is not None else type(env.unwrapped).__name__)
        self.num_envs: int = env.num_envs
        self._num_steps = 0
        self._seed: int | None = None
        self._env_seeds: list[int] | None = None
        self._closed = False
        self.stepping_since_s: float | None = None
        note_steps(self)
        try:
            raw_space, raw_action_space = env.single_observation_space, env.single_action_space
            check_observation_space(raw_space, raw_action_space)
            check_action_space(raw_action_space)
            self.autoreset_mode: AutoresetMode = self._declared_mode()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        if isinstance(env.unwrapped, SyncVectorEnv) and self.autoreset_mode is AutoresetMode.SAME_STEP:
            env.unwrapped.envs = [KeepFinalObs(single) for single in env.unwrapped.envs]
        self.observation_space: Space[Any] = canonical_observation_space(raw_space)
        self.action_space: Space[Any] = canonical_action_space(raw_action_space)
        self.env_observation_space: Space[Any] = raw_space
        self.env_action_space: Space[Any] = raw_action_space
        self._read = make_reader(raw_space, self.num_envs).read
        self._row_readers: dict[int, Reader] = {}
        self._raw_space = raw_space
        self._stack: FrameStack | None = None
        self._lives: npt.NDArray[np.int64] | None = None
        self._encode = make_encoder(raw_action_space, self.num_envs)
        self._rejects_masks = False
        self._check_mask = MaskCheck(raw_action_space) if has_action_mask(raw_space) else None
        self._shape = (self.num_envs,)
        self._none = np.zeros(self.num_envs, np.bool_)  # represents "no row" in every result
        self._none.flags.writeable = False
        self._done = self._none  # rows that the next step only resets
        self.acts_in_turns: bool = getattr(env, "acts_in_turns", False)
        self.acts: npt.NDArray[np.bool_] | None = None
        """[B] which rows act in the next step, for agents that come and go, or act in turns. None: all."""
        self._is_next_step = self.autoreset_mode is AutoresetMode.NEXT_STEP
        self._states = EnvStates(env)

    @classmethod
    def serial(cls, envs: Sequence[gymnasium.Env[Any, Any]], *, name: str | None = None) -> Self:
        """Step single environments sequentially, at less cost than `SyncVectorEnv`. The batch owns and closes them."""
        name = name or (envs[0].spec.id if envs[0].spec is not None else type(envs[0].unwrapped).__name__)
        try:
            env = SerialVectorEnv(envs)
        except BaseException as error:
            for opened in envs:
                opened.close()
            if isinstance(error, Violation):
                msg = f"environment {name!r}, env {error.env_index} of {len(envs)}: {error.what}"
                raise EnvError(msg) from None
            raise
        return cls(env, name=name)

    def stack_frames(self, num_frames: int) -> None:
        """Return stacks ``[B, k, ...]`` of the last k frames of a Box from now on. Call it before the first reset."""
        try:
            self.env_observation_space = stacked_space(self._raw_space, num_frames)
        except BaseException:
            self.close()
            raise
        self.observation_space = canonical_observation_space(self.env_observation_space)
        self._stack = FrameStack(cast("spaces.Box", self.observation_space), self.num_envs)

    def terminate_on_life_loss(self) -> None:
        """End an episode with each lost life from now on. Call it before the first reset."""
        self._lives = np.zeros(self.num_envs, np.int64)
        if isinstance(self._env.unwrapped, SerialVectorEnv):
            self._env.unwrapped.report_lives()

    def find_masks(self) -> MaskSource | None:
        """Find the source of action masks outside of the observations; see `levada.rl.envs.masks`. It may reset environments."""
        env = self._env.unwrapped
        found: MaskSource | None = self._call(find_masks, env.envs[0] if isinstance(env, SerialVectorEnv) else env)
        return found

    def reject_masks(self) -> None:
        """Raise an EnvError if `info["action_mask"]` appears, unless the observations have the masks."""
        if self._check_mask is not None:
            return
        if isinstance(self._env.unwrapped, SerialVectorEnv):
            self._env.unwrapped.reject_masks()
        else:
            self._rejects_masks = True

    def reset_each_episode(self) -> None:
        """Begin each episode with a reset, also in environments that save them in training, as Brax's do. Call it before the
        first reset.
        """
        reset_each_episode = getattr(self._env, "reset_each_episode", None)
        if reset_each_episode is not None:
            reset_each_episode()

    def reset(self, seed: int | None = None) -> Nest:
        """Start new episodes in all environments and return their first observations, [B, ...].

        The seed is hashed, into one hash per separately seeded environment, so that batches with seeds 0 and 1 share no
        episodes.
        """
        self._seed, self._env_seeds, self._num_steps = seed, None, 0
        self._done = self._none
        result = self._call(self._env.reset, seed=self._derived_seeds(seed))
        try:
            if not isinstance(result, tuple) or len(result) != 2:
                raise Violation("reset() did not return a tuple (obs, info)")
            if self._rejects_masks:
                reject_mask(result[1], self.env_action_space)
            obs = self._read(result[0])
            self.acts = getattr(self._env, "acts", None)
            if self._check_mask is not None:
                self._check_mask(obs, self._none if self.acts is None else ~self.acts)
            if self._lives is not None:
                self._lives[:] = self._read_lives(result[1])
        except Violation as violation:
            raise self._error(violation) from None
        self._num_steps = 1
        return obs if self._stack is None else self._stack.begin(cast("Array", obs))

    def step(self, actions: Any) -> StepResult:
        """Step each environment with its action, [B, ...]."""
        if not self._num_steps:
            msg = f"environment {self.name!r}: step() before reset(); call reset(seed) first"
            raise RuntimeError(msg)
        result = self._call(self._env.step, self._encode(actions))
        try:
            if not isinstance(result, tuple) or len(result) != 5:
                raise Violation("step() did not return a tuple (obs, reward, terminated, truncated, info)")
            rows, reward, terminated, truncated, info = result
            if self._rejects_masks:
                reject_mask(info, self.env_action_space)
            obs = self._read(rows)
            reward = read_reward(reward, self._shape)
            terminated = read_flags("terminated", terminated, self._none)
            truncated = read_flags("truncated", truncated, self._none)
            is_reset, self._done, final_obs, recorded = self._done, self._none, None, None
            if self.acts is not None:
                if not self.acts.all():
                    is_reset = ~self.acts
                self.acts = cast("Any", self._env).acts
            if terminated is not self._none or truncated is not self._none:
                done = terminated | truncated
                recorded = recorded_returns(info, done)
                if self._is_next_step:
                    self._done = done
                else:
                    final_obs = self._end(obs, info, done)
            if is_reset is not self._none and not self.acts_in_turns:
                self._check_resets(is_reset, terminated | truncated)
                reward[is_reset] = 0.0  # some environments repeat the last reward
            if self._check_mask is not None:
                self._check_mask(obs, self._done if self.acts is None else ~self.acts)
            life_lost = self._none
            if self._lives is not None:
                lives = self._read_lives(info)
                life_lost = (lives < self._lives) & ~(terminated | truncated | is_reset)
                terminated = terminated | life_lost
                self._lives[:] = lives
        except Violation as violation:
            raise self._error(violation) from None
        self._num_steps += 1
        if self._stack is not None:
            obs, final_obs = self._stack.step(cast("Array", obs), is_reset, final_obs)
        return StepResult(obs, reward, terminated, truncated, is_reset, final_obs, life_lost, recorded)

    @property
    def vector_env(self) -> VectorEnv[Any, Any, Any] | None:
        """The vector environment, if nothing is added to its steps: no frame stack, no termination on life loss."""
        return None if self._stack is not None or self._lives is not None else self._env

    def check_steps(self, obs: Nest, reward: Array) -> None:
        """Count T steps that the vector environment took by itself; raise EnvError if observations or rewards ``[T, B, ...]``
        are not finite.
        """
        columns = {f"observation {path}": leaf for path, leaf in named_leaves(obs).items()}
        for what, column in {"reward": reward, **columns}.items():
            if column.dtype.kind == "f" and not np.isfinite(column.sum()) and not np.isfinite(column).all():
                t, b = np.argwhere(~np.isfinite(column))[0][:2]
                self._num_steps += int(t)
                raise self._error(Violation(f"{what.strip()} is NaN or infinite", int(b)))
        self._num_steps += len(reward)

    def encode(self, actions: Any) -> Any:
        """Return actions ``[B, ...]`` as the environments take them."""
        return self._encode(actions)

    def save(self) -> bytes:
        """Return the state of the environments, in the middle of their episodes; raise NotSavedError if they cannot be saved."""
        where = np.array([self._num_steps]).tobytes() + np.asarray(self._done).tobytes()
        lives = b"" if self._lives is None else self._lives.tobytes()
        return where + lives + (b"" if self._stack is None else self._stack.save()) + self._states.save()

    def restore(self, state: bytes) -> None:
        """Restore the state that `save` returned from an equally made batch; raise NotSavedError for that of a different one."""
        head = np.dtype(np.int64).itemsize + self.num_envs
        done = np.frombuffer(state[head - self.num_envs : head], np.bool_)
        if self._lives is not None:
            lives = np.frombuffer(state, np.int64, self.num_envs, head)
            head += lives.nbytes
        stacks = 0 if self._stack is None else self._stack.num_bytes
        self._states.restore(state[head + stacks :])
        if self._stack is not None:
            self._stack.restore(state[head : head + stacks])
        if self._lives is not None:
            self._lives[:] = lives
        self._num_steps = int(np.frombuffer(state, np.int64, count=1)[0])
        self.acts = getattr(self._env, "acts", None)
        self._done = done if done.any() else self._none

    def close(self) -> None:
        """Close the environments; a second call does nothing. A close that takes longer than `CLOSE_S` is abandoned, with a
        warning; one that calls sys.exit raises an EnvError.
        """
        if self._closed:
            return
        self._closed = True
        try:
            with limited(CLOSE_S):
                self._env.close()
        except OverdueError:
            text = f"environment {self.name!r}: close() did not return within {CLOSE_S:g} s, and was left"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        except SystemExit as exit_:
            msg = f"environment {self.name!r}: close() called sys.exit({exit_.code!r})"
            raise EnvError(msg) from exit_

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the environments. An error becomes a warning, so that it hides no error of the block."""
        try:
            self.close()
        except Exception as second:
            text = str(second)
            if not isinstance(second, EnvError):
                text = f"environment {self.name!r}: close() raised {type(second).__name__}: {second}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    def __repr__(self) -> str:
        return f"EnvBatch({self.name!r}, num_envs={self.num_envs}, {self.autoreset_mode.name})"

    def _call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the environments; `stepping_since_s` says since when, and an error where it happened."""
        self.stepping_since_s = monotonic()
        try:
            return method(*args, **kwargs)
        except Violation as violation:
            raise self._error(violation) from None
        except Exception as error:
            error.add_note(self.where())
            raise
        finally:
            self.stepping_since_s = None

    def _declared_mode(self) -> AutoresetMode:
        mode = self._env.metadata.get("autoreset_mode")
        try:
            return AutoresetMode(mode)
        except ValueError:
            msg = (
                f"environment {self.name!r}: metadata['autoreset_mode'] is {mode!r}, expected one of "
                f"{', '.join(str(known) for known in AutoresetMode)}; it says what happens after an "
                "episode's end, and a wrong guess would spoil the data: set it in the class's metadata"
            )
            raise EnvError(msg) from None

    def _derived_seeds(self, seed: int | None) -> Any:
        if seed is None:
            return None
        # 31 bits, because some environments store their seed in an int32.
        words = [int(word) >> 1 for word in np.random.SeedSequence(seed).generate_state(self.num_envs)]
        if isinstance(self._env.unwrapped, SerialVectorEnv | SyncVectorEnv | AsyncVectorEnv):
            self._env_seeds = words
            return words
        return words[0]

    def _end(self, obs: Nest, info: Any, done: Array) -> tuple[npt.NDArray[np.intp], Nest]:
        """Return the true final observations; in DISABLED mode, also write the next episodes' first ones into `obs`."""
        indices = np.flatnonzero(done)
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            final = self._read_final(info, indices)
        else:
            final = map_nest(lambda leaf: leaf[indices], obs)
            self._reset_done(obs, done, indices)
        if self._check_mask is not None:
            self._check_mask(final, np.ones(len(indices), np.bool_))
        return indices, final

    def _check_resets(self, is_reset: Array, done: Array) -> None:
        both = is_reset & done
        if both.any():
            raise Violation(
                "an episode ended in the step that should only have reset it; the environment declares "
                "AutoresetMode.NEXT_STEP, but does it reset in the same step?",
                int(np.flatnonzero(both)[0]),
            )

    def _read_lives(self, info: Any) -> Array:
        lives = info.get("lives") if isinstance(info, dict) else None
        if lives is None or np.shape(lives) != self._shape:
            got = "has none" if lives is None else f"has them of shape {np.shape(lives)}"
            msg = f"life_loss=True needs info['lives'] of shape {self._shape}, but info {got}"
            raise Violation(msg)
        return np.asarray(lives)

    def _read_final(self, info: Any, indices: Array) -> Nest:
        final = info.get("final_obs") if isinstance(info, dict) else None
        if final is None:
            raise Violation(
                "an episode ended, but info has no 'final_obs'; an environment that declares "
                "AutoresetMode.SAME_STEP must give the true final observations there",
                int(indices[0]),
            )
        num_rows = len(indices)
        if num_rows not in self._row_readers:
            self._row_readers[num_rows] = make_reader(self._raw_space, num_rows, "final_obs")
        reader = self._row_readers[num_rows]
        try:
            if isinstance(final, np.ndarray) and final.dtype == object:  # an observation or None per environment
                rows = reader.allocate()
                for row, index in enumerate(indices):
                    reader.put(rows, row, final[index])
            else:  # batched like obs
                rows = map_nest(lambda leaf: np.asarray(leaf)[indices], final)
            return reader.read(rows)
        except Violation as violation:
            row_index = violation.env_index
            raise Violation(violation.what, None if row_index is None else int(indices[row_index])) from None

    def _reset_done(self, obs: Nest, done: Array, indices: Array) -> None:
        fresh, _ = self._call(self._env.reset, options={"reset_mask": done.copy()})
        write(obs, indices, map_nest(lambda leaf: leaf[indices], self._read(fresh)))

    def where(self) -> str:
        """Return the environment, the step and the seed as text."""
        return self._where(getattr(self._env, "at", None))

    def _where(self, env_index: int | None) -> str:
        when = f"step {self._num_steps}" if self._num_steps else "reset"
        if (
            env_index is not None and (told := getattr(self._env, "told", None)) is not None
        ):  # rows are agents, not environments
            return f"environment {self.name!r}, {when}, {told(env_index)}"
        which = f"env {env_index} of {self.num_envs}" if env_index is not None else f"{self.num_envs} envs"
        where = f"environment {self.name!r}, {which}, {when}, seed {self._seed}"
        if env_index is not None and self._env_seeds is not None:
            where += f" (this env: reset(seed={self._env_seeds[env_index]}))"
        return where

    def _error(self, violation: Violation) -> EnvError:
        return EnvError(f"{self._where(violation.env_index)}: {violation.what}")
