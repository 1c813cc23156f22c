"""Sequences hold what happened: against an independent account of each episode, for random lengths, items and cuts."""

from functools import partial

import gymnasium
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from hypothesis import given, settings

from levada.flow import Replay, Shard
from levada.rl.acting.exploration import EpsilonGreedy
from levada.rl.acting.sequences import Sequences, time_major, unroll
from levada.rl.acting.step_sampler import StepSampler
from levada.rl.envs.task import Task
from levada.rl.policies.networks import ValueMLP
from levada.rl.policies.policy import Policy
from levada.rl.policies.recurrent import RecurrentNet
from levada.rl.replay.row_table import RowTable
from levada.rl.replay.transitions import Transitions

torch.set_num_threads(1)
UNITS = np.array([1e4, 1e2, 1e1], np.float32)
JOURNAL = {}
"""Environment -> its episodes: what was seen, done and given, and how it ended."""


class Chronicle(gymnasium.Env):
    """Episodes of random lengths, which end in either way, and are written down."""

    observation_space = spaces.Dict({"where": spaces.Box(-1e9, 1e9, (3,), np.float32), "last": spaces.Discrete(3)})
    action_space = spaces.Discrete(3)

    def __init__(self, longest):
        self.longest = longest

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.name = seed % 9973
            self.number, JOURNAL[self.name] = 0, []
        self.age, self.length = 0, int(self.np_random.integers(1, self.longest + 1))
        self.episode = {"obs": [], "action": [], "reward": [], "end": None}
        JOURNAL[self.name].append(self.episode)
        self.number += 1
        return self.see(0), {}

    def see(self, last):
        where = np.array([self.name, self.number - 1, self.age], np.float32) / UNITS
        self.episode["obs"].append((*where.tolist(), last))
        return {"where": where, "last": last}

    def step(self, action):
        self.age += 1
        reward = float(np.float32(self.np_random.normal()))
        self.episode["action"].append(int(action))
        self.episode["reward"].append(reward)
        over, cut = self.age == self.length, bool(self.np_random.random() < 0.5)
        if over:
            self.episode["end"] = "cut" if cut else "terminated"
        return self.see(int(action)), reward, over and not cut, over and cut, {}


POLICY = Policy(
    observation_space=Chronicle.observation_space, action_space=Chronicle.action_space, output="q_values",
    network=partial(RecurrentNet, hidden_sizes=(4,), rnn_size=3, policy_gain=1.0),
)  # fmt: skip
MODULE = POLICY.module(7)
WEIGHTS = POLICY.weights(MODULE)


def make_vector(num_envs, longest):
    """One that resets in the next step."""
    return SyncVectorEnv([partial(Chronicle, longest) for _ in range(num_envs)])


def sampler(cut, *, longest=7, num_envs=2, num_steps=5, resets_late=False, seed=3):
    task = Task(make_vector if resets_late else Chronicle, env_kwargs={"longest": longest})
    recipe = StepSampler(
        task=task, policy=POLICY, explore=EpsilonGreedy(start=0.5, end=0.5), num_envs=num_envs, num_steps=num_steps,
        num_overlap_steps=cut.num_overlap_steps,
    )  # fmt: skip
    return recipe(Shard("step", 0, 1, seed=seed))


@torch.no_grad()
def expected_sequences(cut):
    """Of all episodes in the journal: (environment, episode, first step) -> the row, written out."""
    rows = {}
    for name, episodes in JOURNAL.items():
        for number, episode in enumerate(episodes):
            num, is_over = len(episode["action"]), episode["end"] is not None
            *where, last = torch.tensor(episode["obs"]).T
            obs = {"where": torch.stack(where, dim=1), "last": last.long()}
            states = [torch.zeros(1, 6)]
            for features in MODULE.network.encode(obs)[:num]:
                states.append(MODULE.network.recur(features[None], states[-1])[1])
            for start in range(0, num, cut.stride):
                if not is_over and start + cut.length + cut.num_steps - 1 > num:
                    continue  # still to come
                slots = range(start - cut.burn_in, start + cut.length + cut.num_steps)
                steps = range(start, start + cut.length)
                row = {
                    "obs": [episode["obs"][i] if 0 <= i <= num else (0, 0, 0, 0) for i in slots],
                    "is_first": [i == 0 for i in slots],
                    "state": states[max(0, slots[0])][0].numpy() * (slots[0] >= 0),
                    "is_step": [i < num for i in steps],
                    "action": [episode["action"][i] if i < num else 0 for i in steps],
                }
                ahead = [max(0, min(cut.num_steps, num - i)) for i in steps]
                row["ahead"] = ahead
                row["reward"] = [
                    sum(cut.discount**k * episode["reward"][i + k] for k in range(n)) for i, n in zip(steps, ahead, strict=True)
                ]  # fmt: skip
                row["discount"] = [
                    0.0 if n == 0 or (i + n == num and episode["end"] == "terminated") else cut.discount**n
                    for i, n in zip(steps, ahead, strict=True)
                ]
                rows[name, number, start] = row
    return rows


def key_of(columns, row, burn_in):
    return tuple(np.rint(columns["obs"]["where"][row, burn_in] * UNITS).astype(int).tolist())


@settings(derandomize=True, database=None, deadline=None, max_examples=40)
@given(st.data())
def test_sequences_are_those_of_the_episodes(data):
    """None is lost, none is there twice, none leaves its episode; the state is that of the episode played again."""
    draw = data.draw
    length = draw(st.integers(1, 6))
    cut = Sequences(
        discount=0.5, length=length, burn_in=draw(st.integers(0, 4)), overlap=draw(st.integers(0, length - 1)),
        num_steps=draw(st.integers(1, 4)),
    )  # fmt: skip
    JOURNAL.clear()
    live = sampler(
        cut, longest=draw(st.sampled_from([1, 3, 8, 30])), num_envs=draw(st.integers(1, 3)),
        num_steps=draw(st.integers(1, 9)), resets_late=draw(st.booleans()), seed=draw(st.integers(0, 99)),
    )  # fmt: skip
    found = {}
    while live._num_items * live.recipe.num_steps < 40:
        rows = cut(live(WEIGHTS))
        for row in range(rows.num_rows):
            key = key_of(rows.columns, row, cut.burn_in)
            assert key not in found
            found[key] = {name: column[row] for name, column in rows.columns.items() if name != "obs"} | {
                "obs": [
                    (*where.tolist(), last.item())
                    for where, last in zip(
                        rows.columns["obs"]["where"][row], rows.columns["obs"]["last"][row], strict=True
                    )
                ]
            }
    live.close()
    expected = expected_sequences(cut)
    assert found.keys() == expected.keys()
    for name in rows.columns:
        got, told = (np.array([of[key][name] for key in expected]) for of in (found, expected))
        np.testing.assert_allclose(got, told, rtol=1e-5, atol=1e-5, err_msg=f"{name} of {list(expected)}")
    if not cut.overlap:  # every step of an episode that is over is learned from once
        for name, episodes in JOURNAL.items():
            for number, episode in enumerate(episodes):
                if episode["end"]:
                    steps = sum(int(row["is_step"].sum()) for key, row in found.items() if key[:2] == (name, number))
                    assert steps == len(episode["action"])


@pytest.mark.parametrize("remove", ["fifo", "reservoir"])
def test_nothing_crosses_the_write_head(remove):
    """A sequence is drawn as it was stored, whole, also while others are written over it."""
    JOURNAL.clear()
    cut = Sequences(discount=0.9, length=4, burn_in=2, num_steps=2)
    live = sampler(cut, longest=12, num_envs=3)
    replay = Replay("replay", Transitions, 20, 1, 1.0, 0.0, "uniform", "admission", 1, None, remove)
    table, stored = RowTable(replay, capacity=20, seed=0), set()

    def whole(columns, row):
        nested = {f"obs/{key}": leaf for key, leaf in columns["obs"].items()}
        return b"".join(leaf[row].tobytes() for leaf in (columns | nested).values() if isinstance(leaf, np.ndarray))

    num_drawn = 0
    for _ in range(60):
        rows = cut(live(WEIGHTS))
        table.insert(rows)
        stored |= {whole(rows.columns, row) for row in range(rows.num_rows)}
        if table.num_entries:
            [batch], _ = table.sample(16)
            assert {whole(batch.columns, row) for row in range(16)} <= stored
            num_drawn += 1
    live.close()
    assert num_drawn > 50 and len(stored) > 40


@pytest.mark.parametrize("resets_late", [False, True])
def test_a_saved_sampler_goes_on_in_the_middle_of_a_sequence(resets_late):
    cut = Sequences(discount=0.9, length=4, burn_in=3, num_steps=2)
    make = partial(sampler, cut, longest=9, num_steps=3, resets_late=resets_late)
    live, other = make(), make()
    for _ in range(20):
        live(WEIGHTS)
    other.load_state_dict({name: np.array(array) for name, array in live.state_dict().items()})
    for _ in range(15):
        one, two = cut(live(WEIGHTS)), cut(other(WEIGHTS))
        for name in ("state", "action", "is_first", "reward"):
            np.testing.assert_array_equal(one.columns[name], two.columns[name], err_msg=name)
    live.close()
    other.close()


def test_a_loss_sees_steps_behind_the_burn_in():
    calls = []

    class Fake:
        def __call__(self, obs, state, is_first):
            calls.append((tuple(obs.shape), tuple(is_first.shape), float(state[0, 0])))
            return obs.sum(dim=2), state + 1.0

        frozen = property(lambda self: self)

    columns = {"obs": torch.ones(5, 9, 2), "is_first": torch.zeros(5, 9, dtype=torch.bool), "state": torch.zeros(5, 3)}
    columns |= {name: torch.zeros(5, 4) for name in ("action", "reward", "discount", "ahead", "is_step")}
    steps = time_major(columns)
    assert steps["reward"].shape == (4, 5) and steps["state"].shape == (5, 3)
    [values] = unroll(Fake(), steps, 3, steps["state"])
    assert values.shape == (6, 5)
    assert calls == [((3, 5, 2), (3, 5), 0.0), ((6, 5, 2), (6, 5), 1.0)]
    unroll(Fake(), steps, 0, torch.full((5, 3), 7.0))
    assert calls[2] == ((9, 5, 2), (9, 5), 7.0)


@pytest.mark.parametrize(("fields", "message"), [
    ({"length": 0}, r"Sequences\(length=0\): expected an integer >= 1"),
    ({"burn_in": -1}, r"Sequences\(burn_in=-1\): expected an integer >= 0"),
    ({"num_steps": 1.0}, r"Sequences\(num_steps=1.0\): expected an integer >= 1"),
    ({"overlap": 4}, r"Sequences\(overlap=4, length=4\): expected an overlap below the length"),
])  # fmt: skip
def test_numbers_that_cannot_be(fields, message):
    with pytest.raises(ValueError, match=message):
        Sequences(**{"discount": 0.9, "length": 4} | fields)


def test_steps_of_a_policy_without_memory_are_refused():
    task = Task("CartPole-v1")
    policy = Policy(
        observation_space=task.observation_space, action_space=task.action_space, output="q_values", network=ValueMLP
    )
    live = StepSampler(task=task, policy=policy, explore=EpsilonGreedy(), num_envs=1, num_steps=4)(
        Shard("step", 0, 1, seed=3)
    )
    steps = live(policy.weights(policy.module(0)))
    live.close()
    with pytest.raises(ValueError, match="the policy that acted is not recurrent; did you want NStep"):
        Sequences(discount=0.9, length=4)(steps)
