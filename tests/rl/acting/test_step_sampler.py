"""What is stored is what happened: each step once, with the rewards, the observation and the discount of its own window."""

from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from support.envs import small as small_envs

from levada.flow import Shard
from levada.rl.acting.actor import Actor
from levada.rl.acting.exploration import EpsilonGreedy
from levada.rl.acting.step_sampler import NStep, StepSampler
from levada.rl.envs.task import Task
from levada.rl.policies.networks import ValueMLP
from levada.rl.policies.policy import Policy


class Counting(gymnasium.Env):
    """Shows how often it was stepped in all, and in this episode, which ends after 5, 6, 7, 5, ... steps, each third time by
    truncation.
    """

    observation_space = spaces.Box(-1e6, 1e6, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self):
        self.total = self.episode = self.age = 0

    def _obs(self):
        return np.array([self.total, self.age], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age = 0
        return self._obs(), {}

    def step(self, action):
        self.total += 1
        self.age += 1
        over = self.age == 5 + self.episode % 3
        cut = over and self.episode % 3 == 2
        self.episode += over
        return self._obs(), float(self.total), over and not cut, cut, {}


def sampler(*, num_steps, n_step, vectorization="auto", num_envs=2, env=Counting, **options):
    task = Task(env, vectorization=vectorization)
    policy = Policy(
        observation_space=task.observation_space, action_space=task.action_space, output="q_values",
        network=partial(ValueMLP, hidden_sizes=(8,)),
    )  # fmt: skip
    options = {"num_overlap_steps": n_step - 1} | options
    recipe = StepSampler(
        task=task, policy=policy, explore=EpsilonGreedy(), num_envs=num_envs, num_steps=num_steps, **options
    )
    return recipe(Shard("step", 0, 1, seed=3)), policy.weights(policy.module(0))


@pytest.mark.parametrize("num_steps", [1, 3, 4, 16])
@pytest.mark.parametrize("n_step", [1, 2, 3, 5])
@pytest.mark.parametrize("vectorization", ["auto", "sync"])
def test_windows_are_those_of_an_independent_count(num_steps, n_step, vectorization):
    live, weights = sampler(num_steps=num_steps, n_step=n_step, vectorization=vectorization)
    look = NStep(discount=0.5, num_steps=n_step)
    found, num_env_steps = {}, 0
    for _ in range(60 // num_steps + 2):
        steps = live(weights)
        num_env_steps += steps.num_env_steps
        made = look(steps)
        columns = made.columns
        for row in range(made.num_rows):
            if columns["mask"][row]:
                found.setdefault((columns["obs"][row, 0], columns["obs"][row, 1]), []).append(
                    (columns["reward"][row], columns["discount"][row], tuple(columns["next_obs"][row]))
                )
    live.close()
    lengths = [(5 + i % 3, i % 3 == 2) for i in range(40)]
    total, expected = 0, {}
    for length, cut in lengths:
        for age in range(length):
            k = min(n_step, length - age)
            reward = sum(0.5**j * (total + age + j + 1) for j in range(k))
            ends = age + k == length
            discount = 0.0 if ends and not cut else 0.5**k
            expected[total + age, age] = (reward, discount, (total + age + k, age + k))
        total += length
    # an episode's first observation has the count of the one before; it is told apart by its age
    for (count, age), rows in found.items():
        reward, discount, after = expected[count, age]
        for row in rows:
            assert row[0] == pytest.approx(reward, rel=1e-5)
            assert row[1] == pytest.approx(discount)
            assert row[2] == after
    assert {len(rows) for rows in found.values()} == {2}  # once in each environment
    assert len(found) >= 60 - n_step
    assert sum(map(len, found.values())) >= num_env_steps - 2 * n_step


def test_a_saved_sampler_goes_on_in_the_middle_of_a_window():
    live, weights = sampler(num_steps=3, n_step=4, env="CartPole-v1")
    for _ in range(40):
        live(weights)
    other, _ = sampler(num_steps=3, n_step=4, env="CartPole-v1")
    other.load_state_dict({name: np.array(array) for name, array in live.state_dict().items()})
    look = NStep(discount=0.9, num_steps=4)
    for _ in range(30):
        one, two = look(live(weights)), look(other(weights))
        for name, column in one.columns.items():
            np.testing.assert_array_equal(column, two.columns[name], err_msg=name)
    live.close()
    other.close()


def td_error(row_tm1, action, reward, discount, row_t, mask_t):
    assert mask_t is None
    taken = np.take_along_axis(row_tm1, action[..., None], axis=-1)[..., 0]
    return np.abs(reward + discount * row_t.max(axis=-1) - taken)


@pytest.mark.parametrize("num_steps", [1, 4, 16])
@pytest.mark.parametrize("n_step", [1, 3])
def test_first_priorities_are_the_errors_of_the_network_that_acted(num_steps, n_step):
    look = NStep(discount=0.5, num_steps=n_step, priority=td_error)
    live, weights = sampler(
        num_steps=num_steps, n_step=n_step, num_overlap_steps=look.num_overlap_steps, keeps_network_outputs=True
    )
    actor = Actor(live.recipe.policy)
    actor.load(weights)
    found, num_cut = 0, 0
    for number in range(80 // num_steps):
        if number == 7:  # also after a resume
            state = {name: np.array(array) for name, array in live.state_dict().items() if not name.startswith("envs")}
            live.load_state_dict(state | {"envs": live.state_dict()["envs"]})
        columns = look(live(weights)).columns
        mask = columns["mask"]
        obs, action, after = columns["obs"][mask], columns["action"][mask], columns["next_obs"][mask]
        q_tm1, q_t = actor.params(obs).copy(), actor.params(after).copy()
        expected = td_error(q_tm1, action, columns["reward"][mask], columns["discount"][mask], q_t, None)
        # where an episode was cut, what comes after it was never acted on: the state before it stands in
        cut = (columns["discount"][mask] > 0) & (after[:, 1] == 7)
        np.testing.assert_allclose(columns["priority"][mask][~cut], expected[~cut], rtol=1e-5)
        found += mask.sum()
        num_cut += cut.sum()
    live.close()
    assert found > 100
    assert num_cut >= 2


@pytest.mark.parametrize("n_step", [1, 3])
def test_first_priorities_are_given_the_masks_of_the_observations_after_the_windows(n_step):
    seen = []

    def watch(row_tm1, action, reward, discount, row_t, mask_t):
        seen.append(mask_t.reshape(-1, 5).copy())
        return np.zeros_like(reward)

    look = NStep(discount=0.5, num_steps=n_step, priority=watch)
    live, weights = sampler(
        num_steps=4,
        n_step=n_step,
        env=small_envs.Masked,
        num_overlap_steps=look.num_overlap_steps,
        keeps_network_outputs=True,
    )
    all_columns = [look(live(weights)).columns for _ in range(20)]
    live.close()
    num = 0
    for columns, masks in zip(all_columns, seen, strict=True):
        life_lost = columns["mask"] & (columns["discount"] > 0) & (columns["next_obs"]["action_mask"].sum(axis=1) == 2)
        np.testing.assert_array_equal(masks[life_lost], columns["next_obs"]["action_mask"][life_lost])
        num += life_lost.sum()
    assert num > 60


def test_a_shard_that_begins_anew_explores_as_before():
    task_sampler, weights = sampler(num_steps=4, n_step=1, env="CartPole-v1")
    task_sampler.close()
    recipe = task_sampler.recipe
    seen = []

    class Watch(EpsilonGreedy):
        def plan(self, head, rng, num_steps, num_envs, shard, num_env_steps):
            seen.append(num_env_steps)
            return super().plan(head, rng, num_steps, num_envs, shard, num_env_steps)

    object.__setattr__(recipe, "explore", Watch())
    live = recipe(Shard("step", 1, 3, seed=1, generation=1, num_items=10))
    live(weights)
    live(weights)
    live.close()
    assert seen == [10 * 4 * 2 * 3, 11 * 4 * 2 * 3]
