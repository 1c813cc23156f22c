"""Environments in JAX as tasks: what an agent sees of them is what the libraries do, with exact ends of episodes and states."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from levada.flow import NotSavedError
from levada.rl.acting import evaluation
from levada.rl.acting.actor import Actor
from levada.rl.compute.xla import prepare_jax
from levada.rl.data.spaces import has_action_mask, map_nest
from levada.rl.envs.task import Task, TaskError
from levada.rl.policies.policy import Policy

if importlib.util.find_spec("gymnax") is None:
    pytest.skip("JAX and gymnax are not installed: pip install 'levada[jax]'", allow_module_level=True)

prepare_jax()
from levada.rl.envs.functional import brax_like  # noqa: E402
from levada.rl.envs.functional.env import FunctionalEnv, begin, keys_ahead  # noqa: E402
from levada.rl.envs.functional.vector import FunctionalVectorEnv  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:JAXopt is no longer maintained:DeprecationWarning")  # of Brax's imports
SMALL = ["gymnax:CartPole-v1", "gymnax:Pendulum-v1", "pgx:2048", "brax:fast"]


def actions_of(batch: Any, num_steps: int, seed: int = 0) -> list[Any]:
    batch.action_space.seed(seed)
    return [np.stack([batch.action_space.sample() for _ in range(batch.num_envs)]) for _ in range(num_steps)]


def play(batch: Any, actions: list[Any]) -> list[Any]:
    results = [batch.step(action) for action in actions]
    return [map_nest(np.array, (r.obs, r.reward, r.terminated, r.truncated)) for r in results]


def equal(one: Any, other: Any) -> bool:
    pairs = map_nest(lambda a, b: bool((a == b).all()), one, other)
    found: list[bool] = []
    map_nest(found.append, pairs)
    return all(found)


@pytest.mark.parametrize("env_id", SMALL)
def test_a_seed_gives_the_same_episodes_and_another_seed_others(env_id: str) -> None:
    with Task(env_id).make(3) as batch:
        actions = actions_of(batch, 30)
        first = batch.reset(seed=1)
        seen = play(batch, actions)
        again = batch.reset(seed=1)
        assert equal(first, again)
        assert equal(tuple(seen), tuple(play(batch, actions)))
        if env_id != "brax:fast":  # begins in the same state always
            assert not equal(first, batch.reset(seed=2))


@pytest.mark.parametrize("env_id", SMALL)
def test_a_state_is_restored_exactly_in_the_middle_of_episodes(env_id: str) -> None:
    with Task(env_id).make(2) as batch, Task(env_id).make(2) as other:
        actions = actions_of(batch, 60)
        batch.reset(seed=3)
        other.reset(seed=4)
        play(batch, actions[:20])
        state = batch.save()
        other.restore(state)
        assert equal(tuple(play(batch, actions[20:])), tuple(play(other, actions[20:])))


def test_a_task_resets_no_environment_to_look_for_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which would compile the reset."""
    monkeypatch.setattr(FunctionalVectorEnv, "reset", None)
    assert not has_action_mask(Task("gymnax:CartPole-v1").observation_space)
    assert has_action_mask(Task("pgx:2048").observation_space)


def test_the_state_of_another_environment_is_refused() -> None:
    cart, carts, acrobot = (
        Task(f"gymnax:{name}").make(n) for name, n in (("CartPole-v1", 2), ("CartPole-v1", 3), ("Acrobot-v1", 2))
    )
    with cart, carts, acrobot:
        for batch in (cart, carts, acrobot):
            batch.reset(seed=1)
        for other, reason in ((carts, "could not be put back"), (acrobot, "that of other environments")):
            before = other.save()
            with pytest.raises(NotSavedError, match=reason):
                other.restore(cart.save())
            assert other.save() == before


@pytest.mark.parametrize(
    ("env_id", "kwargs"), [("craftax:Craftax-Classic-Symbolic-v1", {}), ("playground:CartpoleBalance", {"impl": "jax"})]
)
def test_states_with_keys_of_random_numbers_are_restored(env_id: str, kwargs: dict[str, Any]) -> None:
    if env_id.startswith("playground") and importlib.util.find_spec("mujoco_playground") is None:
        pytest.skip("MuJoCo Playground is not installed: pip install playground")
    with Task(env_id, env_kwargs=kwargs).make(1) as batch:
        actions = actions_of(batch, 6)
        batch.reset(seed=3)
        play(batch, actions[:3])
        state = batch.save()
        seen = play(batch, actions[3:])
        batch.restore(state)
        assert batch.save() == state
        assert equal(tuple(seen), tuple(play(batch, actions[3:])))


def test_the_step_limit_of_gymnax_truncates_and_a_fall_terminates() -> None:
    with Task("gymnax:CartPole-v1", env_kwargs={"max_steps_in_episode": 8}).make(4) as batch:
        batch.reset(seed=0)
        results = [batch.step(np.full(4, t % 2)) for t in range(8)]
    assert [r.truncated.all() for r in results] == [False] * 7 + [True]
    assert not any(r.terminated.any() for r in results)
    index, last = results[-1].final_obs
    assert index.tolist() == [0, 1, 2, 3]
    assert not np.isclose(last, results[-1].obs).any()  # the next episode has begun
    with Task("gymnax:CartPole-v1").make(4) as batch:
        batch.reset(seed=0)
        results = [batch.step(np.zeros(4, np.int64)) for _ in range(12)]
    assert sum(int(r.terminated.sum()) for r in results) >= 4
    assert not any(r.truncated.any() for r in results)


def test_a_fall_in_the_last_step_is_terminal() -> None:
    with Task("gymnax:CartPole-v1").make(1) as batch:
        batch.reset(seed=0)
        length = next(t for t in range(1, 50) if batch.step(np.zeros(1, np.int64)).terminated.any())
    with Task("gymnax:CartPole-v1", env_kwargs={"max_steps_in_episode": length}).make(1) as batch:
        batch.reset(seed=0)
        for _ in range(length):
            last = batch.step(np.zeros(1, np.int64))
    assert (last.terminated[0], last.truncated[0]) == (True, False)


def test_steps_are_those_of_gymnax() -> None:
    import gymnax
    import jax

    env, params = gymnax.make("Pendulum-v1")
    with Task("gymnax:Pendulum-v1").make(1) as batch:
        obs = batch.reset(seed=5)
        # gymnax's Pendulum draws nothing in a step, so the angle and the velocity are the whole state
        theta, theta_dot = float(np.arctan2(obs[0, 1], obs[0, 0])), float(obs[0, 2])
        state = env.reset(jax.random.key(0), params)[1].replace(theta=theta, theta_dot=theta_dot)
        for action in actions_of(batch, 20):
            theirs, state, reward, _, _ = env.step_env(jax.random.key(1), state, action[0], params)
            ours = batch.step(action)
            np.testing.assert_allclose(ours.obs[0], np.asarray(theirs), atol=1e-3)
            np.testing.assert_allclose(ours.reward[0], np.asarray(reward).reshape(()), atol=1e-3)


def test_episodes_of_brax_are_truncated_by_their_length() -> None:
    with Task("brax:fast", env_kwargs={"episode_length": 5}).make(2) as batch:
        first = batch.reset(seed=0)
        results = [batch.step(action) for action in actions_of(batch, 5)]
    assert [r.truncated.all() for r in results] == [False] * 4 + [True]
    assert equal(results[-1].obs, first)  # as Brax does in training


@pytest.mark.filterwarnings("ignore:Brax System:UserWarning")
@pytest.mark.filterwarnings("ignore:Accessing:DeprecationWarning")
def test_an_evaluation_resets_brax_before_each_episode() -> None:
    task = Task("brax:inverted_pendulum", env_kwargs={"episode_length": 60})
    policy = Policy(observation_space=task.observation_space, action_space=task.action_space)
    actor = Actor(policy)
    actor.load(policy.weights(policy.module(seed=1)))
    episodes = evaluation.play(task, actor, num_episodes=12, seed=0, deterministic=True, max_envs=2)
    assert len({episode.length for episode in episodes}) > 2  # with two environments


def counting_env() -> FunctionalEnv:
    """An environment like Brax's, whose first observation is random and whose state has a counter beside the physics."""
    import jax
    import jax.numpy as jnp
    from brax.envs.base import State

    class Env:
        action_size = 1

        def reset(self, key: Any) -> Any:
            obs = jax.random.uniform(key, (1,))
            return State(None, obs, jnp.float32(0), jnp.float32(0), info={"key": key, "count": jnp.int32(0)})

        def step(self, state: Any, action: Any) -> Any:
            info = {"key": jax.random.split(state.info["key"])[0], "count": state.info["count"] + 1}
            return state.replace(obs=state.obs + 1.0, reward=info["count"].astype(jnp.float32), info=info)

    return brax_like._adapted(Env(), length=3, repeat=1)


def test_in_training_what_brax_keeps_beside_its_physics_goes_on_with_the_next_episode() -> None:
    envs = FunctionalVectorEnv(counting_env(), num_envs=2)
    first, _ = envs.reset(seed=1)
    actions = np.zeros((2, 1), np.float32)
    rewards = [envs.step(actions)[1].tolist() for _ in range(6)]
    assert rewards == [[t, t] for t in range(1, 7)]
    assert (envs.step(actions)[0] == first + 1).all()
    keys = envs.running.state[0].info["key"]
    assert envs.running.state[0].info["count"].tolist() == [7, 7]
    other = FunctionalVectorEnv(counting_env(), num_envs=2)
    other.__dict__.update(envs.__getstate__())
    assert other.running.state[0].info["key"].dtype == keys.dtype
    assert other.step(actions)[1].tolist() == [8, 8]


def test_no_two_environments_and_steps_have_the_same_random_numbers() -> None:
    import jax

    num_envs, num_steps = 4, 6
    seen: list[bytes] = []

    def kept(keys: Any) -> None:
        seen.extend(np.asarray(jax.random.key_data(key)).tobytes() for key in keys)

    env = counting_env()
    running = begin(env, num_envs, np.uint32(1))
    resets = running.state[0].info["key"]
    kept(resets)
    for key in resets:  # what an environment splits from the key of its reset
        kept(jax.random.split(key, 2 * num_envs))
    for keys in keys_ahead(running, num_steps, num_envs):
        kept(keys)
    assert len(set(seen)) == len(seen)


def test_illegal_moves_are_masked_and_games_for_two_refused() -> None:
    task = Task("pgx:2048")
    assert isinstance(task.observation_space, spaces.Dict)
    assert task.has_action_mask
    with pytest.raises(TaskError, match="the game has 2 players"):
        _ = Task("pgx:tic_tac_toe").observation_space


@pytest.mark.parametrize(
    ("env_id", "kwargs", "message"),
    [
        ("gymnax:CartPole-v0", {}, "did you mean 'gymnax:CartPole-v1'"),
        ("brax:an", {}, "did you mean 'brax:ant'"),
        ("craftax:x", {}, r"it has Craftax-Classic-Pixels-v1, .*, Craftax-Symbolic-v1$"),
        ("gymnax:xyzzy", {}, r"it has Acrobot-v1, .*, \.\.\.$"),
        ("gymnax:CartPole-v1", {"size": 5}, "expected parameters"),
        ("gymnax:CartPole-v1", {"max_steps_in_episode": "abc"}, r"='abc' \(str\), expected an integer"),
        ("gymnax:CartPole-v1", {"max_steps_in_episode": 8.5}, r"=8.5 \(float\), expected an integer"),
        ("gymnax:CartPole-v1", {"max_steps_in_episode": True}, r"=True \(bool\), expected an integer"),
        ("gymnax:CartPole-v1", {"max_steps_in_episode": 0}, "max_steps_in_episode=0, expected at least one step"),
        ("gymnax:CartPole-v1", {"gravity": None}, r"gravity=None \(NoneType\), expected a number, as the default 9.8"),
        ("gymnax:MetaMaze-misc", {"normalize_time": 1}, r"normalize_time=1 \(int\), expected True or False"),
        ("gymnax:Acrobot-v1", {"available_torque": None}, "cannot step this environment with env_kwargs"),
        ("craftax:Craftax-Classic-Symbolic-v1", {"cow_health": 2.5}, r"cow_health=2.5 \(float\), expected an integer"),
        ("craftax:Craftax-Classic-Symbolic-v1", {"max_timesteps": -1}, "max_timesteps=-1, expected at least one step"),
        ("brax:fast", {"episode_length": 0}, "expected a positive integer"),
        ("brax:ant", {"size": 5}, "are refused"),
        ("pgx:2048", {"size": 5}, "take no arguments"),
    ],
)
@pytest.mark.filterwarnings("ignore:Brax System:UserWarning")
def test_mistakes_are_told(env_id: str, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        _ = Task(env_id, env_kwargs=kwargs).observation_space


@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [
        ("gymnax:CartPole-v1", {"gravity": 10, "length": np.float32(0.5), "max_steps_in_episode": np.int64(9)}),
        ("gymnax:MetaMaze-misc", {"punishment": -1, "normalize_time": True}),
        ("gymnax:Asterix-MinAtar", {"shot_cool_down": 0}),  # JAX warns of its step
    ],
)
def test_parameters_take_values_of_the_types_of_their_defaults(env_id: str, kwargs: dict[str, Any]) -> None:
    assert isinstance(Task(env_id, env_kwargs=kwargs).action_space, spaces.Discrete)


def test_an_environment_that_its_library_cannot_step_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from gymnax.environments.classic_control.cartpole import CartPole

    def step_env(*_: Any) -> Any:
        raise IndexError("no such reward")

    monkeypatch.setattr(CartPole, "step_env", step_env)  # as that of gymnax 0.0.9's SimpleBandit
    with pytest.raises(TaskError, match=r"gymnax \d.* cannot step .* with its defaults: IndexError: no such reward"):
        _ = Task("gymnax:CartPole-v1").observation_space


@pytest.mark.parametrize("env_id", ["gymnax:", "pgx:", "pgx:nope"])
def test_an_id_without_an_environment_is_refused_with_those_that_there_are(env_id: str) -> None:
    with pytest.raises(TaskError, match=f"task '{env_id}': .* has no such environment; it has ") as caught:
        _ = Task(env_id).observation_space
    listed = str(caught.value).split("it has ")[1]
    assert "CartPole-v1" in listed if env_id == "gymnax:" else listed.startswith("2048, minatar-")
    assert "chess" not in listed


def test_options_that_cannot_take_effect_are_refused() -> None:
    with pytest.raises(TaskError, match="vectorization='sync' cannot take effect"):
        Task("gymnax:CartPole-v1", vectorization="sync")
    with pytest.raises(TaskError, match=r"life_loss=True needs info\['lives'\], which environments in JAX do not have"):
        Task("gymnax:CartPole-v1", life_loss=True)


def test_jax_is_not_imported_unless_it_is_needed() -> None:
    code = "import sys; from levada.rl.envs.task import Task; Task('CartPole-v1').observation_space; print('jax' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    assert found.stdout.strip() == "False"
