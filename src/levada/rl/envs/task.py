"""The task: a recipe that makes environments wherever they are needed.

A task is plain data until `make` is called. It can be sent to another process if its callable can be pickled.

    >>> task = Task("CartPole-v1")
    >>> task.action_space
    Discrete(2)
    >>> with task.make(num_envs=4) as batch:
    ...     batch.reset(seed=1).shape
    (4, 4)
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property, partial
from typing import Annotated, Any, NamedTuple, Self

import gymnasium
from annotated_types import Interval
from gymnasium.vector import VectorEnv

from levada.rl.data.spaces import SpaceError, has_action_mask
from levada.rl.envs.atari import is_atari, preprocessing
from levada.rl.envs.batch import EnvBatch
from levada.rl.envs.functional.names import LIBRARIES, is_functional
from levada.rl.envs.making import EnvFactory, EnvMaker, Vectorization, takes_num_envs
from levada.rl.envs.masks import WHERE, WITHOUT, MaskOption, MaskSource
from levada.rl.envs.registry import TaskError, find_spec
from levada.rl.envs.user_files import split
from levada.validation import PositiveFloat, check_fields

__all__ = ["EnvFactory", "MaskOption", "Task", "TaskError", "Vectorization"]

MAX_FRAME_STACK = 1024


class _Probe(NamedTuple):
    """Spaces and mask source that one probed environment has."""

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    mask_source: MaskSource | None


class _Named:
    """Rejects unknown fields and suggests the intended ones."""

    def __new__(cls, *args: Any, **fields: Any) -> Self:
        known = [name for name in inspect.signature(cls).parameters if name != "_"]
        for name, value in fields.items():
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = (
                    f"did you mean {near[0]!r}?"
                    if near
                    else f"the environment's own go into env_kwargs={{{name!r}: {value!r}}}"
                )
                msg = f"Task has no field {name!r}; {hint}"
                raise TaskError(msg)
        return super().__new__(cls)


@dataclass(frozen=True)
class Task(_Named):
    """A recipe for environments: `Task("CartPole-v1")` or `Task(make_env, env_kwargs={"size": 5})`.

    The signature alone decides whether a callable makes one environment or a vector environment. If it has a parameter
    `num_envs`, it is called with it and must return a `gymnasium.vector.VectorEnv` of that size. Otherwise each call must
    return a new `gymnasium.Env`.

    >>> def make_env(size):
    ...     return gymnasium.make("FrozenLake-v1", map_name=f"{size}x{size}")
    >>> Task(make_env, env_kwargs={"size": 8}).observation_space
    Discrete(64)

    Raises:
        TaskError: a setting is invalid, or the environment cannot be found.
    """

    env: str | EnvFactory
    """Environment: a registered id ("CartPole-v1", "ALE/Pong-v5", or "my_module:MyEnv-v0", which imports my_module first), a
    class or function in a file ("path/to/file.py:MyEnv"), or a callable. "gymnax:CartPole-v1", "brax:ant", "playground:...",
    "pgx:..." and "craftax:..." are environments in JAX, whose rollouts are compiled (pip install 'levada[jax]')."""
    _: KW_ONLY
    env_kwargs: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Keyword arguments of the environment or the callable."""
    vectorization: Vectorization = "auto"
    """How several environments are stepped. "sync": sequentially, in this process. "async": one process per environment, worth
    the overhead only if a step takes milliseconds. "vector_entry_point": the vector environment registered for the id; its
    speed depends on its implementation, and it may differ from the single environment (Atari's has its preprocessing built
    in). "envpool": EnvPool's environment with this id, stepped by threads. "auto": the registered vector environment if there
    is one and it is faster for this number of environments, otherwise "sync"."""
    frame_stack: Annotated[int, Interval(ge=1, le=MAX_FRAME_STACK)] | None = None
    """Number of frames k per observation: observations are stacks ``[k, ...]`` of the last k frames, newest last, padded with
    copies of an episode's first frame (as in Gymnasium's `FrameStackObservation`). Larger stacks show more of the past. A
    replay stores each frame once, so turn off any stacking inside the environment. None: no stacking; 4 for Atari."""
    reward_clip: PositiveFloat | None = None
    """Bound of rewards: the rewards used in training are clipped to plus and minus this value. Reported returns are not
    clipped. None: no clipping; 1 for Atari, unless `env_kwargs` has `reward_clipping=False`."""
    life_loss: bool = False
    """Termination on life loss: in the training data, an episode terminates whenever `info["lives"]` decreases. The game itself
    continues, and the episode return covers all of it. The agent learns earlier to stay alive."""
    action_mask: MaskOption | None = "auto"
    """Source of action masks that are not part of the observations. "info": `info["action_mask"]` of each reset and step.
    "method": `env.action_masks()`, as in sb3-contrib. The mask is added to the observation. "auto": the method if the environment
    has it, else the info if a temporary environment has masks in it when it is reset. None: no masks."""

    def __post_init__(self) -> None:
        if isinstance(self.env, gymnasium.Env | VectorEnv):
            msg = (
                f"env is {self.env}, an environment that exists already; a task makes its own, as many as it "
                "needs: give the id, or a callable that makes a new one each time"
            )
            raise TaskError(msg)
        if not isinstance(self.env, str) and not callable(self.env):
            msg = (
                f"env is {self.env!r} ({type(self.env).__name__}), expected an id such as 'CartPole-v1', or "
                "a callable that makes an environment"
            )
            raise TaskError(msg)
        check_fields(self, TaskError)
        if not isinstance(self.env_kwargs, Mapping) or not all(isinstance(name, str) for name in self.env_kwargs):
            msg = f"env_kwargs is {self.env_kwargs!r}, expected a mapping from names to values, such as {{'size': 5}}"
            raise TaskError(msg)
        if self.action_mask not in (None, "auto") and self._is_vector:
            msg = (
                f"task {self.name!r}: action_mask={self.action_mask!r} reads the masks of single environments, and this one is "
                "vectorized by itself; have it show {'obs': ..., 'action_mask': ...}"
            )
            raise TaskError(msg)
        if "disable_env_checker" in self.env_kwargs and self._is_id:
            raise TaskError(
                "env_kwargs has 'disable_env_checker', an argument of gymnasium.make; levada keeps the checker off: leave it out"
            )
        if self.is_functional and self.vectorization != "auto":
            msg = (
                f"task {self.name!r}: vectorization={self.vectorization!r} cannot take effect, because environments of "
                f"{', '.join(LIBRARIES)} are stepped together by themselves; leave it out"
            )
            raise TaskError(msg)
        if self.is_functional and self.life_loss:
            msg = f"task {self.name!r}: life_loss=True needs info['lives'], which environments in JAX do not have; leave it out"
            raise TaskError(msg)
        if "num_envs" in self.env_kwargs:
            raise TaskError("env_kwargs has 'num_envs', which the algorithm decides; leave it out")
        if not isinstance(self.env, str) and self.vectorization != "auto":
            if self.vectorization in ("vector_entry_point", "envpool"):
                msg = (
                    f"task {self.name!r}: only an id goes together with vectorization={self.vectorization!r}; "
                    "a callable may take num_envs instead"
                )
                raise TaskError(msg)
            if takes_num_envs(self.env, self.env_kwargs):
                msg = (
                    f"task {self.name!r}: the callable takes num_envs, so it vectorizes by itself and "
                    f"vectorization={self.vectorization!r} cannot take effect; leave it out, or give a "
                    "callable that makes one environment"
                )
                raise TaskError(msg)
        object.__setattr__(self, "env_kwargs", dict(self.env_kwargs))
        if self._is_atari and self.vectorization not in ("sync", "async"):
            by_envpool = self.vectorization == "envpool"
            chosen = preprocessing(self.env_kwargs, self.frame_stack, self.reward_clip, by_envpool)
            for name, value in chosen._asdict().items():
                object.__setattr__(self, name, value)

    @property
    def name(self) -> str:
        """Id of the environment, or name of the callable."""
        if isinstance(self.env, str):
            return self.env
        factory: Any = self.env
        while isinstance(factory, partial):
            factory = factory.func
        return getattr(factory, "__qualname__", None) or type(factory).__qualname__

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """Observation space that one environment declares, or of its frame stacks; a `Policy` holds its canonical form. The
        first access makes an environment and closes it.
        """
        return self._probe.observation_space

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """Action space that one environment declares."""
        return self._probe.action_space

    @property
    def reward_threshold(self) -> float | None:
        """Mean return at which the task counts as solved, if its id is registered with one.

        >>> Task("CartPole-v1").reward_threshold
        475.0
        """
        if not self._is_id or self.vectorization == "envpool" or self.env_kwargs:
            return None  # other settings make it a different task
        threshold = find_spec(self.name).reward_threshold
        return None if threshold is None else float(threshold)

    @property
    def has_action_mask(self) -> bool:
        """Whether observations are {"obs": ..., "action_mask": ...}, natively or through `action_mask`."""
        return has_action_mask(self.observation_space)

    def resolved(self) -> Self:
        """Return the same task, with `action_mask="auto"` replaced by the source of masks, if there is one.

        >>> Task("Taxi-v4").resolved().action_mask
        'info'
        """
        probe = self._probe
        if probe.mask_source == self.action_mask or probe.mask_source is None:
            return self
        task = dataclasses.replace(self, action_mask=probe.mask_source)
        task.__dict__["_probe"] = probe  # one probe is enough
        return task

    @property
    def _is_id(self) -> bool:
        """Whether `env` is an id of Gymnasium's registry and not a class or function in a file."""
        return isinstance(self.env, str) and split(self.env) is None and not self.is_functional

    @property
    def is_functional(self) -> bool:
        """Whether the environment is a function in JAX, so that whole rollouts can be compiled."""
        return isinstance(self.env, str) and is_functional(self.env)

    @property
    def _is_vector(self) -> bool:
        if isinstance(self.env, str):
            return self.is_functional or self.vectorization in ("vector_entry_point", "envpool")
        return takes_num_envs(self.env, self.env_kwargs)

    def make(self, num_envs: int, num_threads: int | None = None) -> EnvBatch:
        """Make the environments; the caller closes them. `num_threads`: of environments that have their own.

        Raises:
            TaskError: the callable returned something else than environments.
        """
        if num_envs < 1:
            msg = f"task {self.name!r}: num_envs is {num_envs}, expected at least 1"
            raise TaskError(msg)
        source = self._mask_source
        batch = self._make(num_envs, self.vectorization, source, num_threads)
        if self.action_mask == "auto" and source is None and not self._is_atari:
            batch.reject_masks()  # has none to reject if its observations have masks
        return batch

    @property
    def _is_atari(self) -> bool:
        return isinstance(self.env, str) and is_atari(self.env)

    @property
    def _mask_source(self) -> MaskSource | None:
        if self.action_mask != "auto":
            return self.action_mask
        try:
            return self._probe.mask_source
        except SpaceError:
            raise
        except Exception:
            return None  # making all environments raises the same error, with their number

    @cached_property
    def _probe(self) -> _Probe:
        # Probing needs no worker processes.
        how: Vectorization = "sync" if self.vectorization == "async" else self.vectorization
        told = None if self.action_mask == "auto" else self.action_mask
        with self._make(1, how, told) as batch:
            probe = _Probe(batch.env_observation_space, batch.env_action_space, told)
            source = self._find_masks(batch) if self.action_mask == "auto" else None
        if source is None:
            return probe
        try:
            if self._is_vector:
                raise SpaceError("only masks of single environments are read; put it into the observations")
            with self._make(1, how, source) as batch:
                return _Probe(batch.env_observation_space, batch.env_action_space, source)
        except (SpaceError, TaskError) as error:
            what = str(error).removeprefix(f"task {self.name!r}: ")
            msg = f"task {self.name!r} has action masks in {WHERE[source]}, which cannot be used: {what}; {WITHOUT}"
            raise SpaceError(msg) from None

    def _find_masks(self, batch: EnvBatch) -> MaskSource | None:
        # environments in JAX have masks in observations only, and a reset, to look for others, would be compiled
        if has_action_mask(batch.env_observation_space) or self._is_atari or self.is_functional:
            return None
        try:
            return batch.find_masks()
        except SpaceError as error:
            msg = f"task {self.name!r}: {error}"
            raise SpaceError(msg) from None
        except (Exception, SystemExit):
            return None  # the run meets the same error and reports where, or rejects masks that appear later

    def _make(
        self, num_envs: int, vectorization: Vectorization, masks: MaskSource | None, num_threads: int | None = None
    ) -> EnvBatch:
        maker = EnvMaker(self.env, self.env_kwargs, self.name, vectorization, masks)
        try:
            batch = maker.make(num_envs, num_threads)
            if self.life_loss:
                batch.terminate_on_life_loss()
            if self.frame_stack is not None:
                batch.stack_frames(self.frame_stack)
            return batch
        except SpaceError as error:
            msg = f"task {self.name!r}: {error}"
            raise SpaceError(msg) from None


def single_env(task: Task) -> gymnasium.Env[Any, Any] | None:
    """Make a single environment for Gymnasium's checker; None if the callable only makes vector environments."""
    kwargs = {} if task._is_atari else task.env_kwargs  # Atari's vector environment takes different arguments
    maker = EnvMaker(task.env, kwargs, task.name, "sync")
    return None if maker.is_vector else maker.make_one()
