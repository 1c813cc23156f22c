"""Replicas of a learner: the same update, whoever computes which part of it, and nothing half done."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import learners
from support.learners import ALGORITHMS, NUM_PARTS, Told, Worker, group_of, in_threads, recipe, together, train
from torch import Tensor, nn

import levada as lv
from levada.algorithms.a3c import A3C
from levada.errors import DeploymentError, MinibatchError, NonFiniteError, ReplicaLostError
from levada.flow import Divisible, LevadaInternalError, Replica, Replicable
from levada.rl.compute.group import Group, Rendezvous
from levada.rl.learning.batches import Cut, Share, take
from levada.rl.learning.gradients import GradientLearner
from levada.rl.learning.learner import LiveLearner
from levada.rl.learning.loss import LossOutput
from levada.rl.replay.transitions import Transitions

NUM_UPDATES = 10


@pytest.fixture(scope="module")
def workers() -> Iterator[list[Worker]]:
    made = [Worker() for _ in range(4)]
    yield made
    for worker in made:
        worker.kill()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def alone(name: str, some: Any, **fields: Any) -> Told:
    """What a learner that never joined any other makes of it."""
    return train(recipe(name, **fields).open(1), [learners.whole(name, batch) for batch in some])


def assert_same(found: Told, expected: Told) -> None:
    assert found.fingerprint == expected.fingerprint
    assert found.stats == expected.stats
    for one, other in zip(found.priorities, expected.priorities, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_any_number_of_replicas_makes_the_same_update(name: str, workers: list[Worker]) -> None:
    some = learners.batches(name, NUM_UPDATES)
    expected = alone(name, some)
    for num, reduce, divided in ((2, "exact", False), (4, "exact", True), (2, "allreduce", True)):
        group = workers[:num]
        together(group, "open", lambda rank: [recipe(name), 1])
        learners.join(group, reduce)
        given = some if divided else [learners.whole(name, batch) for batch in some]
        found = together(
            group, "train", lambda rank, d=divided, n=num, g=given: [g, range(rank, NUM_PARTS, n) if d else None]
        )
        assert len({told.fingerprint for told in found}) == 1
        for told in found:
            if reduce == "exact":
                assert_same(told, expected)
            else:
                # Adam divides gradients by their size, so rounding moves where they are smallest
                np.testing.assert_allclose(told.params, expected.params, atol=1e-4)
                assert told.stats[-1] == pytest.approx(expected.stats[-1], rel=1e-3, abs=1e-4)


def test_a_lost_replica_changes_nothing_and_the_update_can_be_repeated(workers: list[Worker]) -> None:
    some = learners.batches("ppo", 3)
    expected = alone("ppo", some)
    group = [*workers[:2], Worker()]
    together(group, "open", lambda rank: [recipe("ppo"), 1])
    learners.join(group, "exact")
    before = together(group, "train", lambda rank: [some[:2]])[0].fingerprint
    group[2].kill()
    for worker in group[:2]:
        worker.send("update", some[2])
    assert all(isinstance(worker.receive(), ReplicaLostError) for worker in group[:2])
    assert together(group[:2], "fingerprint") == [before] * 2
    with pytest.raises(ReplicaLostError, match="the group of this replica is lost; it must join a new one"):
        together(group[:1], "update", lambda rank: [some[2]])
    learners.join(group[:2], "exact")
    for told in together(group[:2], "train", lambda rank: [some[2:]]):
        assert told.fingerprint == expected.fingerprint


def pair(name: str = "ppo", num: int = 2, **fields: Any) -> list[LiveLearner]:
    return [recipe(name, compile=False, **fields).open(1) for _ in range(num)]


def updates(lives: list[LiveLearner], batch: Any, parts: Any = (None, None)) -> list[Any]:
    return in_threads([lambda live=live, p=p: live.update(batch, p) for live, p in zip(lives, parts, strict=True)])


def test_a_replica_that_does_nothing_is_lost_after_the_time_limit() -> None:
    lives = pair()
    some = learners.batches("ppo", 1)
    with group_of(lives, timeout_s=5.0):
        before = lives[0].fingerprint()
        (error,) = in_threads([lambda: lives[0].update(some[0])])
        assert isinstance(error, ReplicaLostError) and "replica 0 of 2 lost the others" in str(error)
        assert lives[0].fingerprint() == before


@pytest.mark.parametrize("num_steps", [1, 2])
def test_a_replica_that_fails_in_the_middle_of_an_update(num_steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first gradient step the other cannot go on; after the last one it has made the update, and takes it back."""
    first, second = (learners.whole("sac", batch) for batch in learners.batches("sac", 2))
    expected = train(recipe("sac", compile=False).open(1), [first, second])
    lives = pair("sac")
    left, apply = [num_steps], LiveLearner._apply

    def failing(self: LiveLearner, *args: Any) -> Tensor:
        if self is lives[1]:
            left[0] -= 1
            if left[0] == 0:
                raise OSError("no disk is left")
        return apply(self, *args)

    with group_of(lives):
        updates(lives, first)
        before = lives[0].fingerprint()
        with monkeypatch.context() as patch:
            patch.setattr(LiveLearner, "_apply", failing)
            other, failed = updates(lives, second)
        assert isinstance(failed, OSError)
        if num_steps == 1:
            assert isinstance(other, ReplicaLostError)
        else:
            assert lives[0].fingerprint() == expected.fingerprint
            lives[0].undo()
        assert [live.fingerprint() for live in lives] == [before] * 2
    with group_of(lives):
        updates(lives, second)
        assert [live.fingerprint() for live in lives] == [expected.fingerprint] * 2


def test_undo_goes_back_by_one_update() -> None:
    some = learners.batches("dqn", 3)
    lives = pair("dqn")
    with pytest.raises(RuntimeError, match="there is no update to undo"):
        lives[0].undo()
    with group_of(lives):
        updates(lives, learners.whole("dqn", some[0]))
        before = lives[0].fingerprint()
        first = updates(lives, learners.whole("dqn", some[1]))
        after = lives[0].fingerprint()
        for live in lives:
            live.undo()
        assert [live.fingerprint() for live in lives] == [before] * 2 != [after] * 2
        with pytest.raises(RuntimeError, match="there is no update to undo"):
            lives[0].undo()
        again = updates(lives, learners.whole("dqn", some[1]))
        assert lives[0].fingerprint() == after and again[0].stats == first[0].stats
        state = lives[0].state_dict()
        lives[0].load_state_dict(state)
        with pytest.raises(RuntimeError, match="there is no update to undo"):
            lives[0].undo()
    with pytest.raises(RuntimeError, match="there is no update to undo"):
        lives[1].undo()


def test_a_replica_that_is_ahead_is_found_out_and_taken_back() -> None:
    some = learners.batches("ppo", 2)
    lives = pair()
    with group_of(lives):
        updates(lives, some[0])
        lives[1].undo()
        found = updates(lives, some[1])
        assert all(isinstance(error, LevadaInternalError) and "need `undo`" in str(error) for error in found)
        lives[0].undo()
    with group_of(lives):
        assert not isinstance(updates(lives, some[0])[0], Exception)


def test_a_group_of_one_needs_no_network() -> None:
    some = learners.batches("impala", 2)
    live = recipe("impala").open(1)
    live.join(Replica(0, 1, "", "allreduce", 1.0))
    assert_same(train(live, some), alone("impala", some))
    given = recipe("impala").open(1)
    assert_same(
        train(given, [batch[::-1] for batch in some], [3, 2, 1, 0][::-1]), alone("impala", [b[::-1] for b in some])
    )


@pytest.mark.parametrize("name", ["impala", "dqn", "sac"])
def test_microbatches_change_only_the_rounding(name: str) -> None:
    some = learners.batches(name, NUM_UPDATES)
    several, one = alone(name, some), alone(name, some, num_microbatches=1)
    np.testing.assert_allclose(several.params, one.params, atol=1e-5)
    for a, b in zip(several.priorities, one.priorities, strict=True):
        if a is not None:
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


@given(
    num_parts=st.integers(1, 4), micro=st.integers(1, 3), num=st.integers(1, 3), size=st.integers(1, 4), shuffle=st.booleans(),
    seed=st.integers(0, 9),
)  # fmt: skip
def test_microbatches_are_the_same_rows_for_any_number_of_replicas(
    num_parts: int, micro: int, num: int, size: int, shuffle: bool, seed: int
) -> None:
    cut = Cut(num_rows=num_parts * micro * num, minibatch_size=num_parts * micro, num_parts=num_parts, shuffle=shuffle)
    steps = np.random.default_rng(seed).integers(0, 3, (num_parts, cut.part_size)).astype(np.float64)
    cpu, rngs = torch.device("cpu"), [np.random.default_rng(seed) for _ in range(size + 1)]
    places = {part: cut.rows_of(part) for part in range(num_parts)}
    assert sorted(cut.rows_by_part()) == list(range(cut.num_rows))
    whole = list(cut.microbatches(rngs[size], cpu, steps, places))
    rows = torch.stack([torch.stack(one.rows) for one in whole])
    assert rows.shape == (num, num_parts, micro) and sorted(rows.flatten().tolist()) == list(range(cut.num_rows))
    if not shuffle:
        assert rows.flatten().tolist() == list(range(cut.num_rows))
    assert all(set(rows[:, part].flatten().tolist()) == set(cut.rows_of(part).tolist()) for part in range(num_parts))
    assert all(sum(one.weights) == pytest.approx(1.0) or set(one.weights) == {0.0} for one in whole)
    for rank in range(min(size, num_parts)):
        parts = range(rank, num_parts, size)
        # a replica has the rows of its own parts alone, one part after the other
        own = Share(cut=cut, data=Transitions({}), parts=tuple(parts), is_whole=False, steps=steps)
        global_rows = torch.from_numpy(own.rows())
        for mine, all_ in zip(cut.microbatches(rngs[rank], cpu, steps, own.places()), whole, strict=True):
            assert [global_rows[some].tolist() for some in mine.rows] == [all_.rows[part].tolist() for part in parts]
            assert mine.weights == tuple(all_.weights[part] for part in parts)
        assert rngs[rank].bit_generator.state == rngs[size].bit_generator.state


def test_a_microbatch_counts_by_its_valid_steps() -> None:
    cut = Cut(num_rows=8, minibatch_size=4, num_parts=2, shuffle=False)
    steps = np.array([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]])
    places = {1: np.arange(4)}
    first, second = cut.microbatches(np.random.default_rng(0), torch.device("cpu"), steps, places)
    assert [one.tolist() for one in (*first.rows, *second.rows)] == [[0, 1], [2, 3]]
    assert first.weights == (2 / 3,) and second.weights == (0.0,)


@pytest.mark.parametrize(
    ("sizes", "parts", "match"),
    [
        (
            ((16, 16), (16, 8)),
            ([0, 2], [1, 3]),
            "replica 1 of 2: items of 16, 8 rows do not make 2 parts of the same number",
        ),
        (((16, 16), (8, 8)), ([0, 2], [1, 3]), r"same number of rows; those of the 2 replicas have \[16, 8\]"),
        (((12, 12), (12, 12)), ([0, 2], [1, 3]), "a batch of 48 rows does not divide into minibatches of 32"),
        (((16,), (16, 16)), ([0, 2], [1, 3]), "replica 0 of 2: items of 16 rows do not make 2 parts"),
    ],
)
def test_parts_of_different_sizes_are_refused_by_all(sizes: Any, parts: Any, match: str) -> None:
    lives = pair()
    (batch,) = learners.batches("ppo", 1)
    with group_of(lives):
        before = lives[0].fingerprint()
        given = [[take(batch[0], slice(0, size)) for size in some] for some in sizes]
        found = in_threads(
            [lambda live=live, s=s, p=p: live.update(s, p) for live, s, p in zip(lives, given, parts, strict=True)]
        )
        for error in found:
            with pytest.raises(MinibatchError, match=match):
                raise error
        assert [live.fingerprint() for live in lives] == [before] * 2
        assert not isinstance(updates(lives, batch)[0], Exception)  # the group is as good as before


def test_parts_of_others_are_refused() -> None:
    live = pair(num=1)[0]
    with pytest.raises(LevadaInternalError, match=r"replica got the parts \[0, 2\], and its own are \[0, 1, 2, 3\]"):
        live.update([], [0, 2])


@dataclass(frozen=True)
class WithFrames:
    """A loss with a statistic of whole batches that sees stacks of frames, and depends on the order of the rows."""

    loss: Any

    def __call__(self, *args: Any) -> LossOutput:
        return self.loss(*args)

    def batch_stats(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        assert "obs" in batch and "dreams" not in batch and set(batch) >= {"obs", "action"} and len(batch) > 2
        frames, places = batch["obs"]
        pixels = frames.index_select(0, places.flatten()).double().view(len(places), -1).sum(1)
        return {"order": pixels.dot(torch.arange(len(places), dtype=torch.float64))}


def test_statistics_of_a_batch_are_those_of_all_its_rows() -> None:
    (batch,) = learners.batches("frames", 1)
    loss = WithFrames(recipe("frames").loss)
    expected = recipe("frames", compile=False, loss=loss).open(1).update(batch).stats
    lives = pair("frames", loss=loss)
    with group_of(lives):
        divided = [[batch[part] for part in range(rank, NUM_PARTS, 2)] for rank in range(2)]
        for given in ([(batch, None)] * 2, [(some, (rank, rank + 2)) for rank, some in enumerate(divided)]):
            found = in_threads([lambda live=live, g=g: live.update(*g) for live, g in zip(lives, given, strict=True)])
            assert [update.stats["losses/order"] for update in found] == [expected["losses/order"]] * 2
            for live in lives:
                live.undo()


def test_nan_is_refused_by_all() -> None:
    lives = pair("dqn")
    (batch,) = learners.batches("dqn", 1)
    columns = dict(batch[3].columns)
    columns["reward"] = np.full_like(columns["reward"], np.nan)
    with group_of(lives):
        before = lives[0].fingerprint()
        found = updates(lives, learners.whole("dqn", [*batch[:3], Transitions(columns)]))
        assert [type(error) for error in found] == [NonFiniteError] * 2
        assert [live.fingerprint() for live in lives] == [before] * 2
        assert not isinstance(updates(lives, learners.whole("dqn", batch))[0], Exception)


class Normalized(nn.Module):
    """A policy's network with a layer of its own."""

    def __init__(self, num_params: int, layer: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), layer, nn.Tanh())
        self.policy, self.value = nn.Linear(8, num_params), nn.Linear(8, 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(obs)
        return self.policy(features), self.value(features).squeeze(-1)


class Counter(nn.Module):
    """A layer that counts its forward passes in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1.0)
        return x


def with_batch_norm(space: Any, num_params: int) -> nn.Module:
    return Normalized(num_params, nn.BatchNorm1d(8))


def with_counter(space: Any, num_params: int) -> nn.Module:
    return Normalized(num_params, Counter())


def test_networks_with_running_statistics_are_refused() -> None:
    task = lv.Task("CartPole-v1")
    spaces = {"observation_space": task.observation_space, "action_space": task.action_space}
    live = pair("impala", 1, policy=lv.Policy(network=with_batch_norm, **spaces))[0]
    with pytest.raises(
        DeploymentError, match=r"learners=2: policy\.network\.body\.1, a BatchNorm1d, changes its buffers"
    ):
        live.join(Replica(0, 2, "", "exact", 1.0))
    live.join(Replica(0, 1, "", "exact", 1.0))
    (batch,) = learners.batches("impala", 1)
    live.update(batch)
    lives = pair("impala", policy=lv.Policy(network=with_counter, **spaces))
    with group_of(lives):
        for error in updates(lives, batch):
            with pytest.raises(DeploymentError, match=r"changes the buffer policy\.network\.body\.1\.count"):
                raise error


@pytest.mark.parametrize(("num", "text"), [(1, "there is 1"), (2, "there are 2")])
def test_more_replicas_than_microbatches_are_refused(num: int, text: str) -> None:
    live = pair(num=1, num_microbatches=num)[0]
    message = (
        f"learners=4 share the microbatches of a minibatch, of which {text}: set microbatch_size to the size of a minibatch "
        f"divided by 4, or less, or use at most learners={num}"
    )
    with pytest.raises(DeploymentError) as caught:
        live.join(Replica(0, 4, "", "exact", 1.0))
    assert str(caught.value) == message


def test_who_can_be_replicated() -> None:
    learner = recipe("ppo")
    assert isinstance(learner, Divisible) and learner.num_parts == NUM_PARTS
    assert isinstance(learner.open(0), Replicable)
    gradients = A3C().flow(lv.Task("CartPole-v1")).learners()["learn"]
    assert isinstance(gradients, GradientLearner) and gradients.num_parts == 1
    assert not isinstance(gradients.open(0), Replicable)


def test_an_address_where_nobody_listens() -> None:
    live = pair(num=1)[0]
    rendezvous = Rendezvous("127.0.0.1")
    with pytest.raises(ReplicaLostError, match="replica 1 of 2 lost the others"):
        live.join(Replica(1, 2, rendezvous.address, "exact", 0.5))  # rank 0 never comes
    with pytest.raises(ReplicaLostError, match="it must join a new one"):
        live.update(learners.batches("ppo", 1)[0])


@pytest.mark.parametrize("private", ["on", "off"])
def test_vectors_are_added(private: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEVADA_TORCH_PRIVATE", private)
    rendezvous = Rendezvous("127.0.0.1")

    def one(rank: int) -> Tensor:
        place, vector = rendezvous if rank == 0 else None, torch.full((3,), 2.0**rank)
        Group(rendezvous.address, rank, 3, torch.device("cpu"), timeout_s=learners.TIMEOUT_S, rendezvous=place).add(
            vector
        )
        return vector

    assert [found.tolist() for found in in_threads([lambda rank=rank: one(rank) for rank in range(3)])] == [
        [7.0] * 3
    ] * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.uint8])
def test_rows_of_different_numbers_are_exchanged(dtype: torch.dtype) -> None:
    rendezvous = Rendezvous("127.0.0.1")
    rows = [(torch.arange(6).reshape(2, 3) % 2).to(dtype), torch.ones(0, 3, dtype=dtype), torch.ones(1, 3, dtype=dtype)]

    def one(rank: int) -> list[Tensor]:
        place = rendezvous if rank == 0 else None
        group = Group(rendezvous.address, rank, 3, torch.device("cpu"), timeout_s=learners.TIMEOUT_S, rendezvous=place)
        return group.gather_rows(rows[rank])

    for found in in_threads([lambda rank=rank: one(rank) for rank in range(3)]):
        assert all(torch.equal(a, b) and a.dtype == dtype for a, b in zip(found, rows, strict=True))


def test_a_rendezvous_listens_on_one_address() -> None:
    rendezvous = Rendezvous("127.0.0.2")
    host, _, port = rendezvous.address.rpartition(":")
    assert host == "127.0.0.2"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(port)), timeout=5.0)
