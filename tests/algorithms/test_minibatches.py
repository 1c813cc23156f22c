"""Each minibatch that a learner takes a gradient step on is drawn from the whole table, in every algorithm with a replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from levada.algorithms.registry import find_algorithm
from levada.flow import Flow, Shard
from levada.rl.envs.task import Task
from levada.rl.learning.loss import LossOutput, Networks
from levada.rl.replay.transitions import IMPORTANCE, PRIORITY, Transitions
from levada.runners import Inline
from levada.runners.processes import Processes

NUM_ROWS, NUM_MINIBATCHES, SIZE, NUM_UPDATES = 96, 8, 32, 40
"""Rows of a table; minibatches of an update, and their rows; updates that are looked at."""

DISCRETE, BOX = "CartPole-v1", "Pendulum-v1"
CASES = {
    "dqn": ("dqn", DISCRETE, {}), "dqn prioritized": ("dqn", DISCRETE, {"prioritized": True}),
    "rainbow": ("rainbow", DISCRETE, {}), "apex_dqn": ("apex_dqn", DISCRETE, {}), "apex_ddpg": ("apex_ddpg", BOX, {}),
    "r2d2": ("r2d2", DISCRETE, {}), "recurrent_sac": ("recurrent_sac", DISCRETE, {}),
    "recurrent_sac prioritized": ("recurrent_sac", DISCRETE, {"prioritized": True}),
    "sac": ("sac", BOX, {}), "sac prioritized": ("sac", BOX, {"prioritized": True}),
    "td3": ("td3", BOX, {}), "td3 prioritized": ("td3", BOX, {"prioritized": True}),
    "ddpg": ("ddpg", BOX, {}), "ddpg prioritized": ("ddpg", BOX, {"prioritized": True}),
}  # fmt: skip


@dataclass(frozen=True)
class Filling:
    """A source whose every item fills a table anew: each row says its place, and has the priority of that place."""

    steepness: float

    def __call__(self, shard: Shard) -> Callable[[Any], Transitions]:
        place = np.arange(NUM_ROWS, dtype=np.float32)
        return lambda weights: Transitions({"place": place, PRIORITY: 1.0 + self.steepness * place})


@dataclass(frozen=True)
class Watching:
    """A loss that notes which rows it was given; their priorities stay what they were."""

    steepness: float
    seen: list[tuple[np.ndarray, np.ndarray | None]]

    def __call__(self, networks: Networks, batch: Mapping[str, Any], coefficients: Any) -> LossOutput:
        place, importance = batch["place"], batch.get(IMPORTANCE)
        self.seen.append((place.numpy().astype(int), None if importance is None else importance.numpy()))
        loss = sum(0.0 * tensor.sum() for tensor in networks.policy._tensors.values())
        return LossOutput(torch.as_tensor(loss), {"loss": torch.zeros(())}, 1.0 + self.steepness * place)


def same(steps: Transitions) -> Transitions:
    return steps


def watched(name: str, env: str, options: Mapping[str, Any], steepness: float) -> tuple[Flow, list[Any]]:
    """The flow of an algorithm, with rows that can be told apart, and a learner that looks at them."""
    algorithm = find_algorithm(name)
    tables = options.get("tables", algorithm().tables)  # type: ignore[attr-defined]
    hp = algorithm(
        buffer_size=NUM_ROWS * tables, learning_starts=NUM_ROWS * tables, num_envs=1, num_steps=1, batch_size=SIZE,
        num_gradient_steps=NUM_MINIBATCHES, samples_per_insert=8.0, hidden_sizes=(4,), compile=False, **options,
    )  # fmt: skip
    flow, seen = hp.flow(Task(env)), list[Any]()
    [cut] = flow.nodes.keys() & {"n_step", "sequences"}
    learner = replace(flow.nodes["learn"].work, loss=Watching(steepness, seen), noise={})
    for node, work in (("step", Filling(steepness)), (cut, same), ("learn", learner)):
        flow.nodes[node] = replace(flow.nodes[node], work=work)
    return flow, seen


def run(flow: Flow, place: Any, num_updates: int = NUM_UPDATES) -> None:
    with place.open(flow, seed=1) as opened:
        for report in opened:
            if report.firing == num_updates:
                break


def expected(flow: Flow, steepness: float) -> np.ndarray:
    """How probable each row is."""
    sampler = flow.replays["replay"].sampler
    weights = np.ones(NUM_ROWS) if sampler == "uniform" else (1.0 + steepness * np.arange(NUM_ROWS)) ** sampler.alpha
    return np.asarray(weights / weights.sum())


def follow(rows: np.ndarray, probabilities: np.ndarray) -> bool:
    """Whether rows may have been drawn so. Rows from equal shares come nearer to it than independent ones."""
    return bool(stats.chisquare(np.bincount(rows, minlength=NUM_ROWS), probabilities * len(rows)).pvalue > 1e-4)


@pytest.mark.parametrize("steepness", [0.0, 0.1], ids=["equal", "unequal"])
@pytest.mark.parametrize("case", CASES)
def test_each_minibatch_is_drawn_from_the_whole_table(case: str, steepness: float) -> None:
    flow, seen = watched(*CASES[case], steepness)
    run(flow, Inline())
    check(flow, seen, steepness)


def test_it_is_so_with_tables_in_processes() -> None:
    flow, seen = watched("dqn", DISCRETE, {"prioritized": True, "tables": 2}, 0.1)
    run(flow, Processes(workers=1, replays="worker"))
    check(flow, seen, 0.1)


def check(flow: Flow, seen: list[Any], steepness: float) -> None:
    rows = np.stack([place for place, _ in seen[: NUM_MINIBATCHES * NUM_UPDATES]])
    assert rows.shape == (NUM_MINIBATCHES * NUM_UPDATES, SIZE)
    probabilities = expected(flow, steepness)
    for minibatch in range(NUM_MINIBATCHES):
        assert follow(rows[minibatch::NUM_MINIBATCHES].ravel(), probabilities), minibatch
    for part in (rows[:, : SIZE // 4], rows[:, -SIZE // 4 :]):
        assert follow(part.ravel(), probabilities)
    if flow.replays["replay"].sampler == "uniform":
        return
    largest = np.array([importance.max() for _, importance in seen]).reshape(NUM_UPDATES, NUM_MINIBATCHES)
    np.testing.assert_array_equal(largest.max(axis=1), 1.0)  # of the draw
    cumulated = np.concatenate([[0.0], probabilities.cumsum()])
    for place, importance in seen:
        # one row of each equal share of the priorities
        place, importance = place[(order := place.argsort())], importance[order]
        share = np.arange(SIZE) / SIZE
        assert (cumulated[place] < share + 1 / SIZE + 1e-6).all()
        assert (cumulated[place + 1] > share - 1e-6).all()
        # (N P(i))^-beta, but for a factor that the whole draw has in common
        importance = importance / importance.max()
        rarest = np.log(probabilities[place] / probabilities[place].min())
        beta = -np.log(importance) @ rarest / max(rarest @ rarest, 1e-9)
        np.testing.assert_allclose(importance, np.exp(-beta * rarest), rtol=1e-4)
        assert (0.4 - 1e-3 if steepness else 0.0) <= beta <= 1.001
