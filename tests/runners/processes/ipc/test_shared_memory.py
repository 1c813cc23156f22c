from __future__ import annotations

import numpy as np
import pytest

from levada.algorithms.gae import GAE
from levada.flow import LevadaInternalError, Shard
from levada.rl.acting.sampler import Sampler
from levada.rl.envs.task import Task
from levada.rl.policies.policy import Policy
from levada.runners.processes.ipc.packet import pack, unpack
from levada.runners.processes.ipc.shared_memory import Arena, Segment
from levada.runners.processes.ipc.weights_ring import Ring, RingReader

READ_ONLY = np.arange(3)
READ_ONLY.flags.writeable = False
ARRAYS = {
    "no axis": np.array(3.0),
    "empty": np.zeros((0, 3), np.float32),
    "bool": np.array([[True], [False]]),
    "half": np.arange(3, dtype=np.float16),
    "complex": np.ones(2, np.complex64),
    "read-only": READ_ONLY,
    "columns first": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "every second": np.arange(10)[::2],
    "broadcast": np.broadcast_to(np.float32(1.0), (3, 3)),
    "other byte order": np.arange(3, dtype=">f4"),
    "text": np.array(["a", "bc"]),
    "dates": np.zeros(2, "M8[s]"),
    "fields": np.zeros(3, [("a", "f4"), ("b", "i8")]),
    "objects": np.array([1, "x", None], object),
    "subclass": np.ma.array([1, 2], mask=[True, False]),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_of_any_kind_arrives_as_it_was(name: str) -> None:
    array = ARRAYS[name]
    arena = Arena(Segment.create(1 << 16))
    arrived = unpack(pack(array, arena), memoryview(arena.segment.memory))
    assert (type(arrived), arrived.dtype, arrived.shape) == (type(array), array.dtype, array.shape)
    np.testing.assert_array_equal(arrived, array)
    assert arrived.flags.writeable == (name != "read-only")


def test_an_array_that_is_there_twice_is_sent_once() -> None:
    array = np.ones(100)
    arena = Arena(Segment.create(1 << 16))
    packet = pack([array, array], arena)
    first, second = unpack(packet, memoryview(arena.segment.memory))
    assert first is second
    assert packet.num_copied == array.nbytes


def test_weights_stay_as_they_are_as_long_as_anything_refers_to_them() -> None:
    ring = Ring(2, {"bias": np.zeros(1000)})
    reader = RingReader(ring.place, ring.share())
    kept = {}
    for version in range(1, 20):
        ring.write(version, {"bias": np.full(1000, float(version))})
        weights = reader.read(None)[1]
        if version % 3 == 0:
            kept[version] = weights["bias"][10:20].reshape(5, 2)
        if version == 12:
            del kept[3], kept[6]
    assert {version: float(part.mean()) for version, part in kept.items()} == {9: 9.0, 12: 12.0, 15: 15.0, 18: 18.0}


def test_a_reader_uses_its_memory_again() -> None:
    ring = Ring(2, {"bias": np.zeros(1000)})
    reader = RingReader(ring.place, ring.share())
    places = set()
    for version in range(1, 20):
        ring.write(version, {"bias": np.full(1000, float(version))})
        places.add(reader.read(None)[1]["bias"].ctypes.data)
    assert len(places) == 2  # one that is being read into, and one for the version before


def test_a_version_that_a_ticket_names_is_looked_at_where_it_is() -> None:
    ring = Ring(2, {"bias": np.zeros(1000)})
    reader = RingReader(ring.place, ring.share())
    ring.write(1, {"bias": np.ones(1000)})
    old, new = reader.read(0)[1]["bias"], reader.read(1)[1]["bias"]
    assert np.shares_memory(new, reader.read(1)[1]["bias"])
    assert (old.mean(), new.mean()) == (0.0, 1.0)
    with pytest.raises(ValueError, match="read-only"):
        new[0] = 2.0
    for version in (2, 3):
        ring.write(version, {"bias": np.full(1000, float(version))})
    with pytest.raises(LevadaInternalError, match="version 0 is gone, the newest is 3"):
        reader.read(0)


# ---- what a sampler makes


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_a_rollout_is_written_in_place(env):
    """Each column is written where its consumer will look at it; only what is computed at the end is copied, once."""
    arena = Arena(Segment.create(1 << 20))
    task = Task(env)
    policy = Policy(observation_space=task.observation_space, action_space=task.action_space)
    recipe = Sampler(task=task, policy=policy, num_envs=3, num_steps=5)
    sampler = recipe(Shard("rollout", 0, 1, 7, empty=arena.empty))
    weights = policy.weights(policy.module(seed=0))
    for _ in range(2):
        arena.clear()
        rollout = sampler(weights)
        memory = np.frombuffer(arena.segment.memory, np.uint8)
        for name in ("obs", "action", "reward", "terminated", "truncated", "mask", "value", "next_value"):
            assert np.shares_memory(getattr(rollout, name), memory), name
        packet = pack(rollout, arena)
        assert packet.num_copied == rollout.log_prob.nbytes
        made = pack(GAE(discount=0.99, lambda_=0.95)(rollout), arena)
        assert made.num_copied == 3 * rollout.log_prob.nbytes  # log_prob, advantage and target: none of it twice
        columns = unpack(made, memoryview(arena.segment.memory)).columns
        assert all(np.shares_memory(column, memory) for column in columns.values())
    sampler.close()


def test_the_same_is_made_in_any_memory():
    arena, task = Arena(Segment.create(1 << 20)), Task("CartPole-v1")
    policy = Policy(observation_space=task.observation_space, action_space=task.action_space)
    recipe = Sampler(task=task, policy=policy, num_envs=3, num_steps=64)
    weights = policy.weights(policy.module(seed=0))
    one, other = (recipe(Shard("rollout", 0, 1, 7, empty=empty))(weights) for empty in (np.empty, arena.empty))
    for name in ("obs", "action", "reward", "terminated", "truncated", "mask", "value", "next_value", "log_prob"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    assert one.episodes == other.episodes
