"""Recipes: what may be given, what it becomes, and a message for each way in which it can be wrong."""

from __future__ import annotations

import dataclasses
import importlib
import pickle
import subprocess
import sys
import types
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from support.envs.exact_mdp import ExactEnv, make_exact_env

from levada.flow.errors import LevadaError
from levada.rl.data.spaces import SpaceError
from levada.rl.envs.batch import EnvBatch, EnvError
from levada.rl.envs.serial import SerialVectorEnv
from levada.rl.envs.task import Task, TaskError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def vector_of(task: Task, num_envs: int = 2) -> VectorEnv[Any, Any, Any]:
    with task.make(num_envs) as batch:
        return batch._env


def make_cartpole(**kwargs: Any) -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1", **kwargs)


def make_cartpoles(num_envs: int, **kwargs: Any) -> VectorEnv[Any, Any, Any]:
    return SyncVectorEnv([partial(make_cartpole, **kwargs)] * num_envs)


class CountingEnv(ExactEnv):
    made = 0
    closed = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).made += 1

    def close(self) -> None:
        type(self).closed += 1


@pytest.fixture
def registry() -> Iterator[dict[str, Any]]:
    """Gymnasium's registry, restored afterwards."""
    importlib.import_module("ale_py")  # which registers once, when imported: before the copy, not inside a test
    before = dict(gymnasium.registry)
    yield gymnasium.registry
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


# --- ids ----------------------------------------------------------------------------------------------------------


def test_an_id_with_a_vector_environment_of_its_own_uses_it() -> None:
    task = Task("CartPole-v1")
    assert task.name == "CartPole-v1"
    assert task.action_space == spaces.Discrete(2)
    assert task.observation_space.shape == (4,)
    assert not task.has_action_mask
    env = vector_of(task, 5)
    assert isinstance(env, CartPoleVectorEnv)
    assert env.num_envs == 5
    assert isinstance(vector_of(task, 4), SerialVectorEnv), "few are stepped quicker one after the other"


def test_other_ids_are_stepped_one_after_the_other_without_the_checker() -> None:
    for task in (Task("FrozenLake-v1"), Task("CartPole-v1", vectorization="sync")):
        env = vector_of(task)
        assert isinstance(env, SerialVectorEnv)
        assert env.num_envs == 2
        assert env.envs[0] is not env.envs[1]
        assert "PassiveEnvChecker" not in str(env.envs[0])


@pytest.mark.parametrize("vectorization", ["auto", "sync", "vector_entry_point"])
def test_env_kwargs_reach_the_environment(vectorization: Any) -> None:
    task = Task("CartPole-v1", env_kwargs={"sutton_barto_reward": True}, vectorization=vectorization)
    with task.make(2) as batch:
        batch.reset(0)
        np.testing.assert_array_equal(batch.step([0, 1]).reward, [0.0, 0.0])


def test_a_time_limit_may_be_given() -> None:
    for vectorization in ("sync", "vector_entry_point"):
        task = Task("CartPole-v1", env_kwargs={"max_episode_steps": 2}, vectorization=vectorization)  # type: ignore[arg-type]
        with task.make(2) as batch:
            batch.reset(0)
            assert not batch.step([0, 1]).truncated.any()
            assert batch.step([0, 1]).truncated.all()


def test_vector_environments_known_to_be_unsound_are_not_taken(registry: dict[str, Any]) -> None:
    spec = registry["phys2d/CartPole-v1"]
    assert spec.vector_entry_point is not None
    spec = dataclasses.replace(spec, entry_point="rl.test_task:CountingEnv", max_episode_steps=5)
    registry["phys2d/CartPole-v1"] = spec
    gymnasium.register("Here-v0", entry_point=CountingEnv, vector_entry_point=spec.vector_entry_point)
    assert isinstance(vector_of(Task("Here-v0")), SerialVectorEnv)


def test_an_id_with_wrappers_of_its_own_is_not_vectorized_natively(registry: dict[str, Any]) -> None:
    spec = registry["CartPole-v1"]
    wrapper = gymnasium.make("CartPole-v1", max_episode_steps=9).spec.additional_wrappers  # type: ignore[union-attr]
    assert wrapper == ()
    registry["CartPole-v1"] = dataclasses.replace(
        spec,
        additional_wrappers=(
            gymnasium.envs.registration.WrapperSpec(
                "FlattenObservation", "gymnasium.wrappers.transform_observation:FlattenObservation", {}
            ),
        ),
    )
    assert isinstance(vector_of(Task("CartPole-v1")), SerialVectorEnv)


def test_an_id_may_name_the_module_that_registers_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: dict[str, Any]
) -> None:
    (tmp_path / "levada_test_zoo.py").write_text(
        "import gymnasium\n"
        "from support.envs.exact_mdp import ExactEnv\n"
        "gymnasium.register('Zoo/Exact-v3', entry_point=ExactEnv, max_episode_steps=5)\n"
    )
    (tmp_path / "levada_test_broken.py").write_text("import a_package_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    task = Task("levada_test_zoo:Zoo/Exact-v3")
    assert task.observation_space == spaces.Discrete(5)
    assert task.name == "levada_test_zoo:Zoo/Exact-v3"
    with pytest.raises(TaskError, match=r"did you mean 'Zoo/Exact-v3'\?$"):
        _ = Task("levada_test_zoo:Zoo/Exact-v1").observation_space
    with pytest.raises(
        TaskError, match="there is no module 'levada_test_zo' to import; an id is 'Env-v0', or 'module:Env"
    ):
        _ = Task("levada_test_zo:Zoo/Exact-v3").observation_space
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_not_there"):
        _ = Task("levada_test_broken:Exact-v3").observation_space
    monkeypatch.delitem(sys.modules, "levada_test_zoo")


@pytest.mark.parametrize(
    ("env_id", "nearest"),
    [
        ("CartPole-v7", "CartPole-v1"),
        ("CartPole", "CartPole-v1"),
        ("cartpole-v1", "CartPole-v1"),
        ("CartPol-v1", "CartPole-v1"),
        ("LunarLandr-v2", "LunarLander-v3"),
        ("MountainCarContinous-v0", "MountainCarContinuous-v0"),
        ("Half Cheetah-v5", "HalfCheetah-v5"),
    ],
)
def test_an_unknown_id_is_answered_with_the_nearest(env_id: str, nearest: str) -> None:
    with pytest.raises(
        TaskError, match=f"task '{env_id}': Gymnasium has no such id; did you mean '{nearest}'\\?"
    ) as caught:
        Task(env_id).make(1)
    assert isinstance(caught.value, LevadaError)
    assert isinstance(caught.value, ValueError)


def test_a_forgotten_namespace_is_found(registry: dict[str, Any]) -> None:
    gymnasium.register("Thing-v4", entry_point=ExactEnv)
    gymnasium.register("Zoo/Thing-v5", entry_point=ExactEnv)
    with pytest.raises(TaskError, match=r"no such id; did you mean 'Zoo/Thing-v5'\?"):
        Task("Thing-v5").make(1)


@pytest.mark.parametrize(
    ("env_id", "meant"),
    [
        ("Gymnax:CartPole-v1", "gymnax:CartPole-v1"),
        ("BRAX:ant", "brax:ant"),
        ("mujoco_playground:CartpoleBalance", "playground:CartpoleBalance"),
    ],
)
def test_a_library_of_environments_in_jax_is_known_by_its_other_names(env_id: str, meant: str) -> None:
    with pytest.raises(TaskError, match=f"^task '{env_id}': there is no such id; did you mean '{meant}'\\?$"):
        _ = Task(env_id).observation_space


def test_nor_is_it_asked_about_if_a_module_of_that_name_registers_the_id(
    registry: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "Pgx", types.ModuleType("Pgx"))
    gymnasium.register("Own-v0", entry_point=ExactEnv)
    assert Task("Pgx:Own-v0").action_space == spaces.Discrete(2)
    with pytest.raises(TaskError, match="did you mean 'pgx:Other-v0'"):
        _ = Task("Pgx:Other-v0").action_space


def test_an_id_like_no_other() -> None:
    with pytest.raises(
        TaskError, match=r"no such id\. If a module of yours registers it, write 'that_module:Xyzzy-v0'\.$"
    ):
        Task("Xyzzy-v0").make(1)


def _block(monkeypatch: pytest.MonkeyPatch, package: str, gymnasium_package: str | None = None) -> None:
    for name in [name for name in sys.modules if gymnasium_package and name.startswith(gymnasium_package)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)


@pytest.mark.parametrize(
    ("env_id", "blocked", "package", "extra"),
    [
        ("LunarLander-v3", "Box2D", "Box2D", "box2d"),
        ("HalfCheetah-v5", "mujoco", "MuJoCo", "mujoco"),
        ("ALE/Pong-v5", "ale_py", "ale-py", "atari"),
        ("PongNoFrameskip-v4", "ale_py", "ale-py", "atari"),
    ],
)
def test_a_missing_package_is_answered_with_the_command(
    env_id: str, blocked: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _block(monkeypatch, blocked, f"gymnasium.envs.{extra}")
    message = f"^task '{env_id}' needs {package}, which is not installed; run: pip install 'levada\\[{extra}\\]'$"
    with pytest.raises(TaskError, match=message) as caught:
        _ = Task(env_id).action_space
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize(
    ("env_id", "blocked", "package", "command"),
    [
        ("gymnax:CartPole-v1", "jax", "gymnax", "'levada[jax]'"),
        ("playground:CartpoleBalance", "jax", "playground", "'levada[jax]' playground"),
    ],
)
def test_a_missing_package_of_an_environment_in_jax_is_answered_with_the_command(
    env_id: str, blocked: str, package: str, command: str
) -> None:
    program = f"""
import sys
sys.modules[{blocked!r}] = None  # in a process that has imported nothing that imports it
from levada.rl.envs.task import Task, TaskError
try:
    Task({env_id!r}).action_space
except TaskError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=600)
    said = done.stdout
    assert said.startswith(f"task {env_id!r} needs {package} and JAX (")
    assert said.rstrip().endswith(f"run: pip install {command}")


def test_atari_is_registered_by_itself(monkeypatch: pytest.MonkeyPatch, registry: dict[str, Any]) -> None:
    fake = types.ModuleType("ale_py")

    def import_ale(name: str) -> Any:
        assert name == "ale_py"
        if "ALE/Fake-v5" not in registry:
            gymnasium.register("ALE/Fake-v5", entry_point=ExactEnv)
        return fake

    monkeypatch.setattr("levada.rl.envs.registry.importlib.import_module", import_ale)
    assert Task("ALE/Fake-v5", vectorization="sync").action_space == spaces.Discrete(2)


def test_other_missing_packages(registry: dict[str, Any]) -> None:
    def needs_gymnasium_extra() -> Any:
        raise gymnasium.error.DependencyNotInstalled("foo is not installed, run `pip install foo`")

    def needs_import() -> Any:
        raise ImportError("libfoo.so")

    gymnasium.register("NeedsFoo-v0", entry_point=needs_gymnasium_extra)
    gymnasium.register("NeedsLibFoo-v0", entry_point=needs_import)
    with pytest.raises(
        TaskError, match="task 'NeedsFoo-v0' needs a package that is not installed: foo is not installed, run"
    ):
        Task("NeedsFoo-v0").make(1)
    with pytest.raises(ImportError, match="libfoo") as caught:
        Task("NeedsLibFoo-v0").make(1)
    assert caught.value.__notes__ == ["while making 1 of task 'NeedsLibFoo-v0' with env_kwargs {}"]


def test_errors_of_gymnasium_name_the_task(registry: dict[str, Any]) -> None:
    gymnasium.register("VectorOnly-v0", vector_entry_point=make_cartpoles)
    with pytest.raises(
        TaskError, match="task 'VectorOnly-v0': VectorOnly-v0 registered but entry_point is not specified"
    ):
        Task("VectorOnly-v0", vectorization="sync").make(1)
    assert isinstance(vector_of(Task("VectorOnly-v0")), SyncVectorEnv)


@pytest.mark.parametrize("env", ["CartPole-v1", "ALE/Pong-v5"])
def test_a_wrong_keyword_is_the_users_mistake(env: str) -> None:
    with pytest.raises(
        TaskError, match=f"task '{env}': env_kwargs has 'gravitee', which the environment does not take"
    ) as caught:
        Task(env, env_kwargs={"gravitee": 1}).make(6)
    assert isinstance(caught.value.__cause__, TypeError)


def test_a_type_error_of_the_environment_keeps_its_type() -> None:
    def make(size: int) -> Any:
        raise TypeError("size is 3")

    with pytest.raises(TypeError, match="size is 3") as caught:
        Task(make, env_kwargs={"size": 3}).make(2)
    [note] = caught.value.__notes__
    assert note.startswith("while making 2 of task") and note.endswith("with env_kwargs {'size': 3}")


def test_an_outdated_version_is_said_once_and_is_no_failure(registry: dict[str, Any]) -> None:
    gymnasium.register("Dated-v0", entry_point=ExactEnv)
    gymnasium.register("Dated-v1", entry_point=ExactEnv)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("error")
        task = Task("Dated-v0")
        assert task.action_space == spaces.Discrete(2)
        task.make(3).close()
        task.make(3).close()
    assert len(seen) == 1
    assert "The environment Dated-v0 is out of date" in str(seen[0].message)


def test_warnings_of_the_environment_itself_are_left_alone() -> None:
    def make() -> gymnasium.Env[Any, Any]:
        warnings.warn("mine", DeprecationWarning, stacklevel=2)
        return ExactEnv()

    with pytest.raises(DeprecationWarning, match="mine"):
        Task(make).make(1)


# --- callables ----------------------------------------------------------------------------------------------------


def test_a_callable_that_makes_one_environment() -> None:
    task = Task(make_exact_env, env_kwargs={"one_hot": True})
    assert task.name == "make_exact_env"
    assert task.observation_space.shape == (5,)
    assert isinstance(vector_of(task), SerialVectorEnv)
    assert Task(ExactEnv).observation_space == spaces.Discrete(5)
    assert Task(ExactEnv).name == "ExactEnv"
    assert Task(partial(make_exact_env, one_hot=True)).name == "make_exact_env"
    assert Task(lambda: ExactEnv()).action_space == spaces.Discrete(2)
    assert Task(make_cartpole, env_kwargs={"sutton_barto_reward": True}).action_space == spaces.Discrete(2)


@pytest.mark.parametrize(
    "factory",
    [
        make_cartpoles,
        CartPoleVectorEnv,
        partial(make_cartpoles, num_envs=99),
        lambda num_envs: make_cartpoles(num_envs),
        lambda *, num_envs, extra=1: make_cartpoles(num_envs),
    ],
)
def test_a_callable_that_takes_num_envs_makes_a_vector_environment(factory: Any) -> None:
    task = Task(factory)
    assert task.action_space == spaces.Discrete(2)
    with task.make(3) as batch:
        assert batch.num_envs == 3
        assert batch.name == task.name
        assert batch.reset(0).shape == (3, 4)  # type: ignore[union-attr]


def test_a_callable_without_a_signature_makes_one_environment() -> None:
    class Opaque:
        __signature__ = "none"

        def __call__(self) -> gymnasium.Env[Any, Any]:
            return ExactEnv()

    task = Task(Opaque())
    assert task.action_space == spaces.Discrete(2)
    assert task.name.endswith("Opaque")


def test_async_makes_a_process_for_each() -> None:
    task = Task(make_exact_env, vectorization="async")
    assert task.action_space == spaces.Discrete(2)
    with task.make(2) as batch:
        assert isinstance(batch._env, AsyncVectorEnv)
        assert batch.autoreset_mode is AutoresetMode.SAME_STEP
        asynchronous = [batch.reset(3), *(batch.step([0, 1])[:4] for _ in range(20))]
    with Task(make_exact_env).make(2) as batch:
        serial = [batch.reset(3), *(batch.step([0, 1])[:4] for _ in range(20))]
    for one, other in zip(asynchronous, serial, strict=True):
        np.testing.assert_equal(one, other)


def test_async_of_an_id_registers_it_in_its_process() -> None:
    with Task("FrozenLake-v1", vectorization="async").make(1) as batch:
        assert batch.reset(0) == [0]


_shared = ExactEnv()

CALLABLE_ERRORS: list[tuple[Any, dict[str, Any], str]] = [
    (lambda: None, {}, "returned None, expected a gymnasium.Env; did you forget `return`"),
    (lambda: 3, {}, "returned a int, expected a gymnasium.Env$"),
    (lambda: _shared, {}, "the callable returned the same environment twice; make a new one in each call"),
    (
        lambda: gymnasium.wrappers.TimeLimit(_shared, 5),
        {},
        "the callable returned the same environment twice; make a new one in each call",
    ),
    (lambda: make_cartpoles(2), {}, "returned a VectorEnv but has no parameter num_envs; give it one"),
    (
        lambda num_envs: make_cartpole(),
        {},
        "takes num_envs, so it must return a gymnasium.vector.VectorEnv, but it returned a T",
    ),
    (lambda num_envs: make_cartpoles(4), {}, "was asked for 2 environments, but returned 4; does it pass num_envs on"),
    (
        lambda n: make_cartpoles(n),
        {},
        "needs n, which env_kwargs does not give; a parameter .* must be called num_envs",
    ),
    (lambda size, depth, num_envs: None, {"size": 3}, "needs depth, which env_kwargs does not give"),
]


@pytest.mark.parametrize(("factory", "kwargs", "message"), CALLABLE_ERRORS)
def test_callables_that_make_something_else(factory: Any, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        Task(factory, env_kwargs=kwargs).make(2)


def test_an_environment_of_the_old_gym_package_is_recognized() -> None:
    old = type("OldEnv", (), {"__module__": "gym.envs.classic"})
    with pytest.raises(
        TaskError, match=r"a OldEnv, expected a gymnasium.Env; this is one of the old gym package: convert it"
    ):
        Task(lambda: old()).make(1)


def test_what_was_made_is_closed_when_a_later_one_fails() -> None:
    made: list[CountingEnv] = []

    def make() -> CountingEnv:
        if len(made) == 2:
            raise OSError("no more")
        made.append(CountingEnv())
        return made[-1]

    CountingEnv.closed = 0
    with pytest.raises(OSError, match="no more") as caught:
        Task(make).make(3)
    assert CountingEnv.closed == 2
    assert "while making 3 of task" in caught.value.__notes__[0]


FILE_ENVS = """
import gymnasium

class Picky(gymnasium.Env):
    def __init__(self, n=20):
        raise ValueError("n must be at most 10")

class Plain(gymnasium.Env):
    pass

class NoEnv:
    def __init__(self, n=20):
        pass
"""


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("Picky", ValueError, "^n must be at most 10"),
        ("Plain", TaskError, r"envs_of_mine\.py:Plain': env_kwargs has 'n', .* not take: Plain\(\) takes no arguments"),
        ("NoEnv", TaskError, "returned a NoEnv, expected a gymnasium.Env"),
    ],
)
def test_what_a_class_of_a_file_raises_with_env_kwargs_is_what_is_said(
    tmp_path: Path, name: str, kind: type[Exception], said: str
) -> None:
    (tmp_path / "envs_of_mine.py").write_text(FILE_ENVS)
    with pytest.raises(kind, match=said) as caught:
        Task(f"{tmp_path}/envs_of_mine.py:{name}", env_kwargs={"n": 12}).make(1)
    assert "no module" not in str(caught.value)
    if kind is ValueError:
        assert "with env_kwargs {'n': 12}" in caught.value.__notes__[0]


# --- the recipe itself --------------------------------------------------------------------------------------------


def test_nothing_is_made_before_it_is_needed_and_spaces_are_looked_up_once() -> None:
    CountingEnv.made = CountingEnv.closed = 0
    task = Task(CountingEnv)
    assert CountingEnv.made == 0
    for _ in range(3):
        assert task.action_space == spaces.Discrete(2)
        assert task.observation_space == spaces.Discrete(5)
    assert (CountingEnv.made, CountingEnv.closed) == (1, 1)
    with task.make(4) as batch:
        assert batch.observation_space == task.observation_space
    assert (CountingEnv.made, CountingEnv.closed) == (5, 5)


def test_a_task_can_be_pickled_if_its_callable_can_and_needs_no_second_look() -> None:
    task = Task(CountingEnv, vectorization="sync")
    assert task.observation_space == spaces.Discrete(5)
    CountingEnv.made = 0
    copy = pickle.loads(pickle.dumps(task))
    assert copy == task
    assert copy.observation_space == spaces.Discrete(5)
    assert CountingEnv.made == 0
    assert pickle.loads(pickle.dumps(Task("CartPole-v1"))) == Task("CartPole-v1")


def test_a_task_is_a_value() -> None:
    kwargs = {"one_hot": True}
    task = Task(make_exact_env, env_kwargs=kwargs)
    kwargs["one_hot"] = False
    assert task.env_kwargs == {"one_hot": True}
    assert task == Task(make_exact_env, env_kwargs={"one_hot": True})
    assert task != Task(make_exact_env)
    assert hash(task) == hash(Task(make_exact_env, env_kwargs={"one_hot": True}))
    with pytest.raises(dataclasses.FrozenInstanceError):
        task.env = "CartPole-v1"  # type: ignore[misc]


RECIPE_ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"env": 3}, r"env is 3 \(int\), expected an id such as 'CartPole-v1', or a callable"),
    ({"env": _shared}, "an environment that exists already; a task makes its own, as many as it needs"),
    (
        {"env": "CartPole-v1", "vectorization": "asink"},
        r"vectorization='asink'.: expected 'auto', 'sync', 'async'",
    ),
    (
        {"env": "CartPole-v1", "vectorization": 3},
        "vectorization=3.: expected 'auto', 'sync', 'async', 'vector_entry_point' or 'envpool'$",
    ),
    ({"env": "CartPole-v1", "env_kwargs": {"num_envs": 3}}, "env_kwargs has 'num_envs', which the algorithm decides"),
    (
        {"env": ExactEnv, "vectorization": "vector_entry_point"},
        "task 'ExactEnv': only an id goes together with vectorization='vector_entry_point'",
    ),
    ({"env": make_cartpoles, "vectorization": "sync"}, "vectorization='sync' cannot take effect; leave it out"),
]


@pytest.mark.parametrize(("fields", "message"), RECIPE_ERRORS)
def test_recipes_that_contradict_themselves_are_refused_at_once(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        Task(**fields)


def test_numbers_and_vectorizations_that_cannot_be() -> None:
    with pytest.raises(TaskError, match="task 'CartPole-v1': num_envs is 0, expected at least 1"):
        Task("CartPole-v1").make(0)
    with pytest.raises(
        TaskError, match="task 'Pendulum-v1' has no vector_entry_point; use vectorization='auto' or 'sync'"
    ):
        Task("Pendulum-v1", vectorization="vector_entry_point").make(2)


def test_unsupported_spaces_name_the_task() -> None:
    class Wordy(ExactEnv):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = spaces.Text(3)  # type: ignore[assignment]

    with pytest.raises(SpaceError, match=r"task '.*Wordy': observation space is Text"):
        _ = Task(Wordy).observation_space


def test_environments_that_differ_name_the_task() -> None:
    sizes = iter([2, 2, 3])  # the first is looked at

    def make() -> gymnasium.Env[Any, Any]:
        env = ExactEnv()
        env.observation_space = spaces.Discrete(next(sizes))
        return env

    with pytest.raises(EnvError, match=r"environment '.*make', env 1 of 2: observation_space is Discrete\(3\)"):
        Task(make).make(2)


def test_masks_are_seen() -> None:
    class Masked(ExactEnv):
        def __init__(self) -> None:
            super().__init__()
            inner = {"obs": self.observation_space, "action_mask": spaces.MultiBinary(2)}
            self.observation_space = spaces.Dict(inner)  # type: ignore[assignment]

        def _observe(self) -> Any:
            return {"obs": self.state, "action_mask": np.array([1, self.state % 2], np.int8)}

    task = Task(Masked)
    assert task.has_action_mask
    with task.make(2) as batch:
        obs: Any = batch.reset(0)
        assert obs["action_mask"].shape == (2, 2)
        assert isinstance(batch, EnvBatch)


def test_box2d_is_stepped() -> None:
    with Task("LunarLander-v3", env_kwargs={"continuous": True}).make(2) as batch:
        obs: Any = batch.reset(0)
        assert obs.shape == (2, 8)
        result = batch.step(np.full((2, 2), 5.0, np.float32))  # beyond the bounds: clipped
        assert np.isfinite(result.reward).all()
