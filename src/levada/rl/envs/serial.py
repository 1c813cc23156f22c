"""Sequential stepping of single environments: a vector environment that costs less than `SyncVectorEnv`; see
`benchmarks/vector_env.py`.

It resets an ended environment in the same step (`AutoresetMode.SAME_STEP`), writes each observation directly into its row, and
knows which environment failed. `EnvBatch` checks and copies its results like those of any vector environment.

    >>> import gymnasium
    >>> envs = SerialVectorEnv([gymnasium.make("CartPole-v1", disable_env_checker=True) for _ in range(2)])
    >>> obs, _ = envs.reset(seed=[1, 2])
    >>> obs.shape
    (2, 4)
    >>> envs.close()
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from levada.rl.data.spaces import Array, check_action_space, check_observation_space, map_nest
from levada.rl.envs.masks import reject_mask
from levada.rl.envs.observations import Violation, make_reader
from levada.rl.envs.rewards_and_dones import as_info, recorded_return

_LARGEST = float(np.finfo(np.float32).max)


class KeepFinalObs(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Copies an episode's last observation: vector environments reset before it is read, and its array may be reused."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return deepcopy(obs) if terminated or truncated else obs, reward, terminated, truncated, info


class SerialVectorEnv(VectorEnv[Any, Any, Any]):
    """Steps `envs` in order."""

    def __init__(self, envs: Sequence[gymnasium.Env[Any, Any]]) -> None:
        self.envs: tuple[gymnasium.Env[Any, Any], ...] = tuple(envs)
        self.num_envs: int = len(self.envs)
        self.failed: int | None = None
        self.at: int | None = None
        """Index of the environment that was stepped or reset last, which is the one that raised an error."""
        first = self.envs[0]
        self.metadata: dict[str, Any] = {**first.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
        self.render_mode: str | None = first.render_mode
        self.single_observation_space: gymnasium.Space[Any] = first.observation_space
        self.single_action_space: gymnasium.Space[Any] = first.action_space
        check_observation_space(first.observation_space, first.action_space)
        check_action_space(first.action_space)
        self.observation_space: gymnasium.Space[Any] = batch_space(first.observation_space, self.num_envs)
        self.action_space: gymnasium.Space[Any] = batch_space(first.action_space, self.num_envs)
        for index, env in enumerate(self.envs):
            for kind in ("observation_space", "action_space"):
                got, expected = getattr(env, kind), getattr(first, kind)
                if got != expected:
                    msg = f"{kind} is {got}, but that of environment 0 is {expected}"
                    raise Violation(msg, index)
        self._lives: Array | None = None
        self._rejects_masks = False
        self._reader = make_reader(first.observation_space, self.num_envs)

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset every environment; an int seeds them with seed, seed + 1, ..."""
        if seed is None or isinstance(seed, int):
            seeds: Sequence[int | None] = [None if seed is None else seed + i for i in range(self.num_envs)]
        else:
            seeds = seed
        rows = self._reader.allocate()
        for index, env in enumerate(self.envs):
            self._reader.put(rows, index, self._reset_one(env, index, seeds[index], options))
        return rows, self._info()

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Step every environment; `info["final_obs"][i]` is the true final observation of an ended episode."""
        put, rows = self._reader.put, self._reader.allocate()
        reward = np.empty(self.num_envs, np.float32)
        terminated, truncated = np.zeros((2, self.num_envs), np.bool_)
        final_obs: Array | None = None
        recorded: Array | None = None
        for index, (env, action) in enumerate(zip(self.envs, actions, strict=True)):
            self.at = index
            result = env.step(action)
            if type(result) is not tuple or len(result) != 5:
                raise Violation(_wrong_step(result), index)
            obs, r, has_terminated, has_truncated, info = result
            put(rows, index, obs)
            if self._lives is not None:
                self._lives[index] = _lives(info, index)
            if self._rejects_masks and (type(info) is not dict or info):
                reject_mask(info, self.single_action_space, index)
            reward[index] = r if isinstance(r, float) and -_LARGEST <= r <= _LARGEST else _number(r, index)
            if has_terminated is not False or has_truncated is not False:
                terminated[index] = _flag("terminated", has_terminated, index)
                truncated[index] = _flag("truncated", has_truncated, index)
                if has_terminated or has_truncated:
                    if final_obs is None:
                        final_obs = np.full(self.num_envs, None, object)
                    if (value := recorded_return(info)) is not None:
                        recorded = np.full(self.num_envs, np.nan) if recorded is None else recorded
                        recorded[index] = value
                    # Copied before the reset, because an environment may return the same array every time.
                    final_obs[index] = map_nest(lambda leaf, row=index: leaf[row].copy(), rows)
                    put(rows, index, self._reset_one(env, index, None, None))
        info = self._info()
        if final_obs is not None:
            info["final_obs"] = final_obs
        if recorded is not None:
            info |= as_info(recorded)
        return rows, reward, terminated, truncated, info

    def _info(self) -> dict[str, Any]:
        """Return what is used of the infos of all environments: the number of lives left, if they are counted."""
        return {} if self._lives is None else {"lives": self._lives.copy()}

    def report_lives(self) -> None:
        """Report `info["lives"]` from now on."""
        self._lives = np.zeros(self.num_envs, np.int64)

    def reject_masks(self) -> None:
        """Raise a Violation if `info["action_mask"]` appears, from now on."""
        self._rejects_masks = True

    def close_extras(self, **kwargs: Any) -> None:
        """Close every environment, even if closing one fails; the first error is raised at the end."""
        failure: Exception | None = None
        for env in self.envs:
            try:
                env.close()
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _reset_one(
        self, env: gymnasium.Env[Any, Any], index: int, seed: int | None, options: dict[str, Any] | None
    ) -> Any:
        self.at = index
        result = env.reset(seed=seed, options=options)
        if type(result) is not tuple or len(result) != 2:
            msg = f"reset() returned {_name(result)}, expected a tuple (obs, info)"
            raise Violation(msg, index)
        obs, info = result
        if self._lives is not None:
            self._lives[index] = _lives(info, index)
        if self._rejects_masks:
            reject_mask(info, self.single_action_space, index)
        return obs


def _lives(info: Any, index: int) -> int:
    lives = info.get("lives") if isinstance(info, dict) else None
    if not isinstance(lives, int | np.integer):
        msg = "life_loss=True needs info['lives'], a number, but " + (
            "info has none" if lives is None else f"it is {lives!r}"
        )
        raise Violation(msg, index)
    return int(lives)


def _wrong_step(result: Any) -> str:
    old = isinstance(result, tuple) and len(result) == 4
    hint = "; the 4 of the old gym API: split `done` into terminated and truncated" if old else ""
    return f"step() returned {_name(result)}, expected a tuple of 5 (obs, reward, terminated, truncated, info){hint}"


def _name(value: Any) -> str:
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else f"a {type(value).__name__}"


def _number(reward: Any, index: int) -> float:
    shape = getattr(reward, "shape", ())
    if shape != ():
        msg = f"reward has shape {tuple(shape)}, expected one number; did you forget .item() or a sum?"
        raise Violation(msg, index)
    try:
        if isinstance(reward, str | bytes):
            raise TypeError
        number = float(reward)
    except (TypeError, ValueError):
        msg = f"reward is {reward!r} ({type(reward).__name__}), expected a number"
        raise Violation(msg, index) from None
    if not -_LARGEST <= number <= _LARGEST:
        msg = f"reward is {number}, expected a finite number of float32"
        raise Violation(msg, index)
    return number


def _flag(name: str, value: Any, index: int) -> bool:
    is_number = isinstance(value, bool | np.bool_ | int | np.integer) or (
        isinstance(value, np.ndarray) and value.shape == () and value.dtype.kind in "biu"
    )
    if is_number and value in (0, 1):
        return bool(value)
    msg = f"{name} is {value!r} ({type(value).__name__}), expected a bool"
    raise Violation(msg, index)
