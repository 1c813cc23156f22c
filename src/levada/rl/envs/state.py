"""The state of environments as bytes, to resume in the middle of an episode, in another process, after a kill.

>>> env, other = (SerialVectorEnv([gymnasium.make("CartPole-v1") for _ in range(2)]) for _ in range(2))
>>> states = EnvStates(env)
>>> _ = env.reset(seed=1)
>>> EnvStates(other).restore(states.save())
>>> bool((other.step([0, 1])[0] == env.step([0, 1])[0]).all())
True

An environment is pickled with all its wrappers. Two kinds would lose their state, so it is read from their simulators:
MuJoCo's (`MjData`) and those of the Arcade Learning Environment (`cloneState`, including its random number generator).

A state is a pickle, and restoring one can execute any code in it: see `levada.run.storage.trust`.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils import EzPickle
from gymnasium.vector import VectorEnv, VectorWrapper

from levada.flow import NotSavedError
from levada.rl.envs import pygame_state
from levada.rl.envs.serial import SerialVectorEnv


class EnvStates:
    """Saves and restores one vector environment. Make it before the first reset."""

    def __init__(self, env: Any) -> None:
        """`env`: a vector environment, or anything else that has environments."""
        self.env = env
        self._layers = _Layers(env)

    def save(self) -> bytes:
        """Return the state of the environment; raise NotSavedError if it cannot be pickled, or would lose its state."""
        return _pickle(self._root, self._layers)

    def restore(self, state: bytes) -> None:
        """Restore the state of an environment that was made in the same way; raise NotSavedError for that of another one."""
        try:
            restored = _Reader(io.BytesIO(state), self._layers).load()
        except Exception as error:  # a class may raise any error while its state is restored
            msg = f"the state of {self.env} could not be put back ({type(error).__name__}: {error})"
            raise NotSavedError(msg) from error
        has_arrays_of = getattr(self._root, "has_arrays_of", None)  # of environments in JAX
        if _kinds(restored) != _kinds(self._root) or (has_arrays_of is not None and not has_arrays_of(restored)):
            msg = f"the saved state is that of other environments than {self.env}"
            raise NotSavedError(msg)
        if isinstance(self.env, SerialVectorEnv):
            self.env.envs = restored
        else:
            vars(self.env).update(vars(restored))
        self._layers = _Layers(self.env, self._layers)

    @property
    def _root(self) -> Any:
        """The object that is pickled."""
        return self.env.envs if isinstance(self.env, SerialVectorEnv) else self.env


class _Layers:
    """Environments and wrappers inside a vector environment, and their constant attributes."""

    def __init__(self, env: VectorEnv[Any, Any, Any], before: _Layers | None = None) -> None:
        """`before`: layers of the environment that this one replaces, in their initial state."""
        self.objects = list(_inside(env))
        self.index = {id(layer): number for number, layer in enumerate(self.objects)}
        self._fixed: dict[int, tuple[int, str]] = {}
        self._spaces: list[tuple[gymnasium.Space[Any], tuple[int, str], list[Any]]] = []
        old = {} if before is None else {where: state for _, where, state in before._spaces}
        for number, layer in enumerate(self.objects):
            for name, value in getattr(layer, "__dict__", {}).items():
                if isinstance(value, EnvSpec | FunctionType):
                    self._fixed[id(value)] = (number, name)
                elif isinstance(value, gymnasium.Space):
                    where = (number, name)
                    self._spaces.append((value, where, old.get(where) or _random_states(value)))

    def constants(self) -> dict[int, tuple[int, str]]:
        """Return the layer and attribute name of constants by id. A space is constant until it is sampled from."""
        unused = {id(space): where for space, where, states in self._spaces if _random_states(space) == states}
        return self._fixed | unused


def _inside(env: Any) -> Iterator[Any]:
    while isinstance(env, VectorWrapper | gymnasium.Wrapper):
        yield env
        env = env.env
    yield env
    if isinstance(env, VectorEnv):
        for single in getattr(env, "envs", ()):
            yield from _inside(single)


def _kinds(root: Any) -> list[type]:
    envs = root if isinstance(root, tuple) else (root,)
    return [type(layer) for env in envs for layer in _inside(env)]


def _random_states(space: gymnasium.Space[Any]) -> list[Any]:
    states = [None if space._np_random is None else space._np_random.bit_generator.state]
    inside = getattr(space, "spaces", ())
    for child in inside.values() if isinstance(inside, dict) else inside:
        states += _random_states(child)
    return states


def _pickle(root: Any, layers: _Layers) -> bytes:
    data = io.BytesIO()
    try:
        _Writer(data, layers).dump(root)
    except NotSavedError:
        raise
    except Exception as error:  # pickling calls methods of every object, which may raise any error
        name = type(layers.objects[-1]).__name__
        msg = f"{name} cannot be pickled ({type(error).__name__}: {error})"
        raise NotSavedError(msg) from error
    return data.getvalue()


class _Writer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, layers: _Layers) -> None:
        super().__init__(file, protocol=5)
        self._layers = layers
        self._constants = layers.constants()

    def reducer_override(self, obj: Any) -> Any:
        where = self._constants.get(id(obj))
        if where is not None:
            return _constant, where
        if isinstance(obj, EzPickle):
            if isinstance(obj, gymnasium.Env | VectorEnv):
                return self._own_state(obj)
            return object.__new__, (type(obj),), vars(obj), None, None, _set_attributes  # PettingZoo's
        return pygame_state.reduced(obj) or NotImplemented

    def _own_state(self, env: Any) -> Any:
        """Pickle an environment with its state; EzPickle would make a new one without it."""
        kind = _kind(env)
        number = self._layers.index.get(id(env))
        if kind is None or number is None:
            msg = f"{type(env).__name__} is pickled by its arguments (gymnasium's EzPickle), so its state would be lost"
            raise NotSavedError(msg)
        attributes = {name: value for name, value in vars(env).items() if name not in _OF_SIMULATOR}
        return _layer, (number,), (attributes, _SIMULATORS[kind][0](env), kind), None, None, _set_state


class _Reader(pickle.Unpickler):
    """Unpickles objects; constants are taken from the existing environment."""

    def __init__(self, file: io.BytesIO, layers: _Layers) -> None:
        super().__init__(file)
        self._layers = layers

    def find_class(self, module: str, name: str) -> Any:
        if module != __name__:
            return super().find_class(module, name)
        ours: dict[str, Callable[..., Any]] = {
            "_constant": lambda number, key: vars(self._layers.objects[number])[key],
            "_layer": self._layers.objects.__getitem__,
            "_set_state": _set_state,
            "_set_attributes": _set_attributes,
        }
        return ours[name]


# ---- simulators with their own state

_OF_SIMULATOR = frozenset({"ale", "data", "model", "mujoco_renderer"})


def _kind(env: Any) -> str | None:
    ale = getattr(env, "ale", None)
    if ale is not None and hasattr(ale, "cloneState"):
        return "ale"
    return "mujoco" if hasattr(env, "data") and hasattr(env, "model") and type(env.data).__name__ == "MjData" else None


def _restore_mujoco(env: Any, data: Any) -> None:
    import mujoco  # it is there, for the environment uses it

    mujoco.mj_copyData(env.data, env.model, data)


_SIMULATORS: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], None]]] = {
    "ale": (lambda env: env.ale.cloneState(include_rng=True), lambda env, state: env.ale.restoreState(state)),
    "mujoco": (lambda env: env.data, _restore_mujoco),
}


def _set_state(env: Any, state: tuple[dict[str, Any], Any, str]) -> None:
    attributes, simulator, kind = state
    vars(env).update(attributes)
    _SIMULATORS[kind][1](env, simulator)


def _set_attributes(env: Any, attributes: dict[str, Any]) -> None:
    vars(env).update(attributes)


def _constant(number: int, name: str) -> Any:
    raise AssertionError("only the reader of a state knows what this stands for")


def _layer(number: int) -> Any:
    raise AssertionError("only the reader of a state knows what this stands for")
