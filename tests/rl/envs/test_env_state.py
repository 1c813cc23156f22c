"""Environments go on in the middle of their episodes. That other classes are refused finds mistakes, and is no wall."""

import io
from fractions import Fraction

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TransformObservation

from levada.flow import NotSavedError
from levada.rl.envs.task import Task

KEPT = [
    ("CartPole-v1", 8),
    ("CartPole-v1", 2),
    ("Acrobot-v1", 2),
    ("MountainCarContinuous-v0", 2),
    ("Pendulum-v1", 6),
    ("HalfCheetah-v5", 1),
    ("Ant-v5", 2),
    ("ale_py:ALE/Pong-v5", 1),
    ("FrozenLake-v1", 3),
]


@pytest.fixture(autouse=True)
def somewhere(tmp_path, monkeypatch):
    """MuJoCo writes a log wherever it is."""
    monkeypatch.chdir(tmp_path)


def step_together(one, other, num_steps):
    for _ in range(num_steps):
        action = np.stack([one.action_space.sample() for _ in range(one.num_envs)])
        a, b = one.step(action), other.step(action)
        assert np.array_equal(a.obs, b.obs)
        for name in ("reward", "terminated", "truncated", "is_reset"):
            assert np.array_equal(getattr(a, name), getattr(b, name)), name


def two(task, num_envs):
    return task.make(num_envs), task.make(num_envs)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(("env", "num_envs"), KEPT)
def test_goes_on_as_if_nothing_had_happened(env, num_envs):
    one, other = two(Task(env, vectorization="sync") if "ALE" in env else Task(env), num_envs)
    with one, other:
        one.reset(seed=1)
        other.reset(seed=2)
        for _ in range(30):
            one.step(np.stack([one.action_space.sample() for _ in range(num_envs)]))
        other.restore(one.save())
        step_together(one, other, 250)
        other.restore(one.save())  # and once more
        step_together(one, other, 10)


def shifted():
    env = gymnasium.make("CartPole-v1")
    return TransformObservation(env, lambda obs: obs + 1, env.observation_space)  # cannot be pickled by itself


class Sampling(gymnasium.Env):
    """Draws from its own space, which it seeds."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self):
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1.0, False, False, {}


@pytest.mark.parametrize("factory", [shifted, Sampling])
def test_environments_of_ones_own(factory):
    one, other = two(Task(factory), 2)
    with one, other:
        one.reset(seed=1)
        other.reset(seed=2)
        one.step(np.array([0, 1]))
        other.restore(one.save())
        step_together(one, other, 20)


class WithFile(Sampling):
    def __init__(self):
        super().__init__()
        self.file = io.TextIOWrapper(io.BytesIO())


@pytest.mark.parametrize(("env", "why"), [
    ("LunarLander-v3", "LunarLander is pickled by its arguments .*, so its state would be lost"),
    (WithFile, "WithFile cannot be pickled"),
])  # fmt: skip
def test_what_cannot_be_saved_says_why(env, why):
    with Task(env).make(2) as batch:
        batch.reset(seed=1)
        with pytest.raises(NotSavedError, match=why):
            batch.save()


def test_the_state_of_something_else_is_refused():
    cart, pendulum, carts = Task("CartPole-v1").make(2), Task("Pendulum-v1").make(2), Task("CartPole-v1").make(3)
    with cart, pendulum, carts:
        for batch in (cart, pendulum, carts):
            batch.reset(seed=1)
        for other in (pendulum, carts):
            with pytest.raises(NotSavedError):
                other.restore(cart.save())
        with pytest.raises(NotSavedError, match="could not be put back"):
            cart.restore(cart.save()[:-20])


def test_what_an_environment_has_only_since_it_was_reset_comes_back():
    first, other = Task("CartPole-v1").make(1), Task("CartPole-v1").make(1)
    with first, other:
        first.reset(seed=1)
        first._env.envs[0].unwrapped.share = Fraction(1, 3)
        other.restore(first.save())
        assert other._env.envs[0].unwrapped.share == Fraction(1, 3)
