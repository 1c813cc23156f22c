"""Stacked frames: what is sampled is what Gymnasium's stacking would have given, bit for bit, and each frame is kept once."""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st
from support.envs.pixels import Pixels, make_pixels, make_stacked_pixels

import levada as lv
from levada.flow import Flow, Prioritized, Shard
from levada.rl.acting.evaluation import evaluate
from levada.rl.acting.exploration import EpsilonGreedy
from levada.rl.acting.step_sampler import NStep, StepSampler
from levada.rl.acting.trained_policy import TrainedPolicy
from levada.rl.data.frames import FramePart, FramePool, Frames, as_array
from levada.rl.data.spaces import SpaceError, map_nest
from levada.rl.envs.task import Task, TaskError
from levada.rl.policies.networks import ValueMLP
from levada.rl.policies.policy import Policy
from levada.rl.replay import frame_store as _frame_store
from levada.rl.replay.row_table import RowTable
from levada.rl.replay.transitions import Transitions, concatenate

MODES = [None, *(mode.value for mode in AutoresetMode)]
"""None: single environments, which levada steps by itself."""


def tasks(k: int, mode: str | None, longest: int) -> tuple[Task, Task]:
    """The task with levada's stacking, and with Gymnasium's."""
    if mode is None:
        ours = Task(Pixels, env_kwargs={"longest": longest}, frame_stack=k)
        return ours, Task(make_stacked_pixels, env_kwargs={"stack": k, "longest": longest})
    some = {"mode": mode, "longest": longest}
    return Task(make_pixels, env_kwargs=some, frame_stack=k), Task(make_pixels, env_kwargs={**some, "stack": k})


def sampler(task: Task, *, num_steps: int, num_envs: int, n_step: int, index: int = 0) -> tuple[Any, Any]:
    policy = Policy(
        observation_space=task.observation_space, action_space=task.action_space, output="q_values",
        network=partial(ValueMLP, hidden_sizes=(4,)),
    )  # fmt: skip
    recipe = StepSampler(
        task=task, policy=policy, explore=EpsilonGreedy(start=0.5, end=0.5), num_envs=num_envs, num_steps=num_steps,
        num_overlap_steps=n_step - 1,
    )  # fmt: skip
    return recipe(Shard("step", index, 2, seed=3 + index)), policy.weights(policy.module(0))


def table_of(capacity: int, **options: Any) -> RowTable:
    replay = Flow("flow").replay(
        "replay", of=Transitions, capacity=capacity, min_size=1, samples_per_insert=1.0, **options
    )
    return Transitions.open_table(replay, capacity=capacity, seed=0)


def put_together(some: Transitions) -> Transitions:
    return Transitions({name: map_nest(as_array, column) for name, column in some.columns.items()})


def assert_same(one: Transitions, other: Transitions) -> None:
    assert one.columns.keys() == other.columns.keys()
    for name, column in one.columns.items():
        assert isinstance(column, np.ndarray) and column.dtype == other.columns[name].dtype
        np.testing.assert_array_equal(column, other.columns[name], err_msg=name)


@pytest.mark.parametrize("mode", MODES)
@given(data=st.data())
@settings(deadline=None, max_examples=15)
def test_what_is_sampled_is_what_gymnasiums_stacking_gives(mode: str | None, data: st.DataObject) -> None:
    draw = data.draw
    k, longest = draw(st.integers(1, 5), label="k"), draw(st.integers(1, 12), label="longest")
    num_steps, num_envs, n_step = (draw(st.integers(1, most)) for most in (6, 3, 4))
    least = (num_steps + n_step) * num_envs
    capacity = draw(st.integers(least, least + 60), label="capacity")
    removal = draw(st.sampled_from(["fifo", "reservoir"]), label="removal")
    options = {"removal": removal, "sampler": draw(st.sampled_from(["uniform", Prioritized()]))}
    made = {"num_steps": num_steps, "num_envs": num_envs, "n_step": n_step}
    pairs = [
        [sampler(task, **made, index=index) for task in tasks(k, mode, longest)]
        for index in range(draw(st.integers(1, 2), label="shards"))
    ]
    ours, theirs = table_of(capacity, **options), table_of(capacity, **options)
    look = NStep(discount=0.9, num_steps=n_step)
    for number in range(draw(st.integers(1, 25), label="items")):
        (live, weights), (plain, _) = pairs[number % len(pairs)]
        frames, stacked = look(live(weights)), look(plain(weights))
        assert isinstance(frames.columns["obs"], Frames)
        assert isinstance(stacked.columns["obs"], np.ndarray)
        assert_same(put_together(frames), stacked)
        if draw(st.integers(0, 9)) == 0:
            continue  # lost on the way
        if draw(st.booleans()):
            frames = pickle.loads(pickle.dumps(frames))
        ours.insert(frames)
        theirs.insert(stacked)
        assert_nothing_leaks(ours)
        if theirs.num_entries:
            [[one], _], [[other], _] = ours.sample(30), theirs.sample(30)
            assert_same(one, other)
        if draw(st.integers(0, 9)) == 0:
            state = {name: np.array(array) for name, array in ours.state_dict().items()}
            ours = table_of(capacity, **options)
            ours.load_state_dict(state)
        if draw(st.integers(0, 9)) == 0:
            for one, _ in pairs[number % len(pairs)]:  # as after a restart, at another place of the same stream
                one._num_items = max(0, one._num_items - 2)
    for pair in pairs:
        for live, _ in pair:
            live.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("num_steps", "n_step", "k"), [(1, 1, 4), (8, 1, 4), (4, 3, 4), (1, 5, 2), (16, 3, 1)])
def test_each_frame_is_kept_once(mode: str | None, num_steps: int, n_step: int, k: int) -> None:
    """The frames of N transitions are N, one more for each end of an episode, and some for each stream."""
    num_envs, shards, capacity, longest = 3, 2, 240, 60
    task, _ = tasks(k, mode, longest)
    lives = [
        sampler(task, num_steps=num_steps, num_envs=num_envs, n_step=n_step, index=index) for index in range(shards)
    ]
    table, look = table_of(capacity), NStep(discount=0.9, num_steps=n_step)
    per_stream = num_envs * (num_steps + k + 2 * n_step)
    for number in range(320 * 3 // num_steps // num_envs):
        live, weights = lives[number % shards]
        table.insert(look(live(weights)))
        num_ends = table.num_entries / 10  # more than can be: about 8 of 240
        assert table.num_frames <= table.num_entries + num_ends + shards * per_stream
    assert table.num_entries == capacity
    assert table._frames.num_slots <= 1.1 * capacity + 2 * shards * per_stream
    assert_nothing_leaks(table)
    for live, _ in lives:
        live.close()


def assert_nothing_leaks(table: RowTable) -> None:
    """The slots that are taken are those that rows refer to."""
    taken = set(range(1, table._frames.num_slots + 1)) - set(table._frames._free)
    assert taken == set(table._slots(np.arange(table.num_entries)).ravel().tolist())
    assert table.num_frames == len(taken)


def item(first: int, *, stream: str = "step/0", change: int = 0) -> Transitions:
    """Rows first, first + 1, first + 2, stacks of two frames; with the same ids other frames if there is a change."""
    frames = (np.arange(first - 1, first + 4, dtype=np.uint8) + np.uint8(change))[:, None]
    part = FramePart(frames, np.arange(first - 1, first + 4), stream)
    pool, rows = FramePool((part,)), np.arange(3)
    index = np.stack([rows, rows + 1], axis=1)
    return Transitions({"obs": Frames(pool, index), "next_obs": Frames(pool, index + 1), "row": rows + first + change})


def newest(table: RowTable) -> dict[int, list[int]]:
    """Row -> its four frames, of all rows."""
    [batch], _ = table.sample(400)
    both = np.concatenate([np.asarray(batch.columns[name]) for name in ("obs", "next_obs")], axis=1)[..., 0]
    return dict(zip(np.asarray(batch.columns["row"]).tolist(), both.tolist(), strict=True))


def expected(*rows: int) -> dict[int, list[int]]:
    return {row: [row - 1, row, row, row + 1] for row in rows}


def test_frames_that_the_item_before_brought_are_not_kept_twice() -> None:
    table = table_of(6)
    table.insert(item(10))
    assert table.num_frames == 5  # 9 to 13
    table.insert(item(13))
    assert table.num_frames == 8
    assert newest(table) == expected(*range(10, 16))
    table.insert(item(16))
    assert table.num_frames == 8  # 12 to 19: the first row that is left still sees 12
    assert newest(table) == expected(*range(13, 19))


def test_frames_are_compared_and_not_believed() -> None:
    """The same ids in the same stream, other frames: a shard that began anew. And other streams, a lost item, an item twice."""
    table = table_of(100)
    for one in (item(10), item(13, change=100), item(13, stream="step/1"), item(19), item(19)):
        table.insert(one)
    assert newest(table) == expected(*range(10, 16), *range(113, 116), *range(19, 22))
    assert table.num_frames == 5 + 5 + 5 + 5 + 0


def test_frames_whose_slots_are_used_again_are_not_found() -> None:
    table = table_of(3)
    table.insert(item(10))
    table.insert(item(40, stream="step/1"))  # all that the first had is gone
    assert table.num_frames == 5
    table.insert(item(13))
    table.insert(item(43, stream="step/1"))
    assert newest(table) == expected(43, 44, 45)
    assert table._frames.num_slots <= 10


def test_there_is_room_for_more_frames_than_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Items without any overlap: 5 frames for 3 rows."""
    table = table_of(30)
    for number in range(30):
        table.insert(item(7 * number % 200 + 1, stream=str(number)))
        [batch], _ = table.sample(50)
        row, obs = (np.asarray(batch.columns[name]) for name in ("row", "obs"))
        np.testing.assert_array_equal(obs[..., 0], np.stack([row - 1, row], axis=1))
    assert table.num_frames == 50
    assert len(table._frames._blocks) > 1
    monkeypatch.setattr(_frame_store, "PIECE", 3)
    state = {name: np.array(array) for name, array in table.state_dict().items()}
    assert len([name for name in state if name.startswith("frames/")]) > 17, (
        "piece by piece, so that memory does not double"
    )
    other = table_of(30)
    other.load_state_dict(state)
    assert newest(other) == newest(table)


def test_rows_that_are_left_out_keep_no_frames() -> None:
    table, some = table_of(100), item(10)
    table.insert(Transitions({**some.columns, "mask": np.array([True, False, False])}))
    assert table.num_frames == 3
    table.insert(Transitions({**some.columns, "mask": np.zeros(3, np.bool_)}))
    assert table.num_frames == 3
    assert newest(table) == expected(10)


@pytest.mark.parametrize(("frames", "match"), [
    (np.zeros((9, 2), np.uint8), r"frames of uint8 \(1,\) was given frames of uint8 \(2,\)"),
    (np.zeros((9, 1), np.int16), r"was given frames of int16 \(1,\)"),
])  # fmt: skip
def test_other_frames_are_refused(frames: Any, match: str) -> None:
    table, some = table_of(100), item(10)
    table.insert(some)
    pool = FramePool((FramePart(frames, np.arange(9), "step/0"),))
    index = np.array([[0, 1]])
    with pytest.raises(ValueError, match=match):
        table.insert(
            Transitions({"obs": Frames(pool, index), "next_obs": Frames(pool, index), "row": np.zeros(1, int)})
        )


def test_parts_of_a_batch_are_put_together() -> None:
    one, other = item(10), item(20)
    both = concatenate([one, other])
    assert np.asarray(both.columns["obs"])[..., 0].tolist() == [
        [9, 10],
        [10, 11],
        [11, 12],
        [19, 20],
        [20, 21],
        [21, 22],
    ]
    joined = Frames.join([one.columns["obs"], other.columns["obs"], one.columns["next_obs"]])  # type: ignore[list-item]
    assert len(joined.pool.parts) == 2
    np.testing.assert_array_equal(joined[:6], both.columns["obs"])
    np.testing.assert_array_equal(joined[6:], one.columns["next_obs"])


def test_a_saved_sampler_goes_on_in_the_middle_of_stack_and_window() -> None:
    for n_step in (1, 3):
        made = {"num_steps": 3, "num_envs": 2, "n_step": n_step}
        task = Task(Pixels, frame_stack=4)
        (live, weights), (other, _), look = (
            sampler(task, **made),
            sampler(task, **made),
            NStep(discount=0.9, num_steps=n_step),
        )
        for _ in range(17):
            live(weights)
        other.load_state_dict({name: np.array(array) for name, array in live.state_dict().items()})
        for _ in range(20):
            one, two = look(live(weights)), look(other(weights))
            assert_same(put_together(one), put_together(two))
            assert [part.ids.tolist() for part in one.columns["obs"].pool.parts] == [  # type: ignore[union-attr]
                part.ids.tolist()
                for part in two.columns["obs"].pool.parts  # type: ignore[union-attr]
            ]
        live.close()
        other.close()


def test_the_spaces_of_a_task_are_those_of_stacks() -> None:
    task = Task(Pixels, frame_stack=4)
    assert task.observation_space == spaces.Box(0, 255, (4, 10, 10), np.uint8)
    floats = Task("CartPole-v1", frame_stack=3)
    assert floats.observation_space.shape == (3, 4)
    with floats.make(2) as batch:
        assert (
            batch.observation_space
            == Policy(observation_space=floats.observation_space, action_space=floats.action_space).observation_space
        )
        obs = batch.reset(seed=1)
        assert isinstance(obs, np.ndarray) and obs.shape == (2, 3, 4)
        np.testing.assert_array_equal(obs[:, 0], obs[:, 2])


@pytest.mark.parametrize("k", [0, -1, True, 2.0, "4", 1025])
def test_stacks_that_cannot_be(k: Any) -> None:
    with pytest.raises(TaskError, match=r"frame_stack=.*: expected an integer from 1 to 1024, or None"):
        Task("CartPole-v1", frame_stack=k)


@pytest.mark.parametrize(
    "env", ["FrozenLake-v1", "support.envs.small:SmallMasked-v0", "support.envs.small:SmallDictObs-v0"]
)
def test_only_boxes_are_stacked(env: str) -> None:
    with pytest.raises(SpaceError, match=r"frame_stack=4: observations are .*, expected a Box"):
        _ = Task(env, frame_stack=4).observation_space


def test_a_rollout_and_an_evaluation_see_stacks() -> None:
    ours, theirs = tasks(3, None, 9)
    policy = Policy(observation_space=ours.observation_space, action_space=ours.action_space)
    weights, found = policy.weights(policy.module(0)), []
    for task in (ours, theirs):
        live = lv.Sampler(task=task, policy=policy, num_envs=2, num_steps=20)(Shard("rollout", 0, 1, seed=1))
        live(weights)
        found.append(live(weights))
        live.close()
    one, other = found
    for name in ("obs", "action", "value", "next_value"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    trained = TrainedPolicy(policy, weights, version=0)
    results = [evaluate(task, trained, num_episodes=10, seed=2) for task in (ours, theirs)]
    assert results[0].episodes == results[1].episodes
