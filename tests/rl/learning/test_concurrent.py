"""Microbatches in several threads: the same bits, for any number of threads."""

from __future__ import annotations

import time
from threading import Barrier, get_ident
from typing import Any, ClassVar

import pytest
import torch
from rl.learning.test_replicas import Normalized, assert_same, with_batch_norm, with_counter
from support import learners
from support.learners import ALGORITHMS, Told, recipe, train
from torch import Tensor, nn

import levada as lv
from levada.rl.compute.threads import Concurrent, set_threads

CARTPOLE = {
    "observation_space": lv.Task("CartPole-v1").observation_space,
    "action_space": lv.Task("CartPole-v1").action_space,
}


def trained(num_threads: int, name: str, num_updates: int = 3, **fields: Any) -> Told:
    before = torch.get_num_threads()
    set_threads(num_threads)
    try:
        torch.manual_seed(0)
        live = recipe(name, **fields).open(1)
        return train(live, [learners.whole(name, batch) for batch in learners.batches(name, num_updates)])
    finally:
        set_threads(before)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_any_number_of_threads_makes_the_same_updates(name: str) -> None:
    expected = trained(1, name)
    for num_threads in (2, 3, 4):
        assert_same(trained(num_threads, name), expected)


def with_dropout(space: Any, num_params: int) -> nn.Module:
    return Normalized(num_params, nn.Dropout(0.5))


@pytest.mark.parametrize("network", [with_counter, with_batch_norm, with_dropout])
def test_networks_whose_microbatches_depend_on_each_other_compute_them_in_order(network: Any) -> None:
    policy = lv.Policy(network=network, **CARTPOLE)
    assert_same(trained(4, "impala", policy=policy), trained(1, "impala", policy=policy))


class Noted(nn.Module):
    """A layer that cannot be recorded, so that it runs in Python, and which notes the threads that are inside."""

    inside: ClassVar[set[int]] = set()
    found: ClassVar[list[int]] = []

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        self.inside.add(get_ident())
        self.found.append(len(self.inside))
        time.sleep(0.001)
        y: Tensor = self.lstm(x[None])[0][0]
        self.inside.remove(get_ident())
        return y


def with_noted(space: Any, num_params: int) -> nn.Module:
    return Normalized(num_params, Noted())


def test_a_network_that_cannot_be_recorded_runs_in_one_thread_at_a_time() -> None:
    policy = lv.Policy(network=with_noted, **CARTPOLE)
    assert_same(trained(4, "impala", policy=policy), trained(1, "impala", policy=policy))
    assert set(Noted.found) == {1}


def test_calls_are_made_at_the_same_time_and_returned_in_order() -> None:
    together = Barrier(3, timeout=20)

    def call(number: int) -> tuple[int, int]:
        together.wait()
        return number, torch.get_num_threads()

    assert Concurrent(num_calls=3, num_threads=1).map(call, range(6)) == [(number, 1) for number in range(6)]


def test_all_calls_have_ended_when_one_fails() -> None:
    ended = []

    def call(number: int) -> None:
        if number == failing:
            raise ValueError(number)
        torch.ones(100_000).sin()
        ended.append(number)

    for failing in (0, 1):
        ended.clear()
        with pytest.raises(ValueError, match=str(failing)):
            Concurrent(num_calls=2, num_threads=1).map(call, [0, 1])
        assert ended == [1 - failing]
