"""Small flows with a replay, and work for them that is quick, exact, and tells what happened to it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from levada.flow import Flow, Prioritized, Shard, Update
from levada.rl.replay.transitions import IMPORTANCE, Transitions


@dataclass(frozen=True)
class Rows:
    """A source of `num` rows at a time: who made them, as how many of its items, with which weights."""

    num: int = 3
    sleep_s: float = 0.0
    delays: bool = False

    def __call__(self, shard: Shard) -> "_LiveRows":
        return _LiveRows(self, shard)


class _LiveRows:
    def __init__(self, recipe: Rows, shard: Shard) -> None:
        self.recipe, self.shard = recipe, shard
        self.made = 0
        self.rng = np.random.default_rng(shard.seed if recipe.delays else 0)

    def __call__(self, weights: Any) -> Transitions:
        self.made += 1
        time.sleep(self.recipe.sleep_s + (self.rng.random() * 0.005 if self.recipe.delays else 0.0))
        value = 1e-3 * weights["w"][0] + 10.0 * self.shard.index + self.made + np.arange(self.recipe.num) / 8.0
        return Transitions({"value": value.astype(np.float64)})

    def state_dict(self) -> dict[str, np.ndarray]:
        return {"made": np.array(self.made)}

    def load_state_dict(self, state: Any) -> None:
        self.made = int(state["made"])


@dataclass(frozen=True)
class Mixer:
    """A learner whose weights depend on everything that it has ever seen, in its order."""

    sleep_s: float = 0.0
    policy_name: str = "policy"
    tolerates_staleness: bool = True

    def open(self, seed: int) -> "_LiveMixer":
        return _LiveMixer(self)


class _LiveMixer:
    def __init__(self, recipe: Mixer) -> None:
        self.recipe = recipe
        self.w = np.zeros(1)
        self.num_updates = 0

    def weights(self) -> dict[str, np.ndarray]:
        return {"w": self.w.copy()}

    def update(self, batch: Any) -> Update[Any]:
        time.sleep(self.recipe.sleep_s)
        [some] = batch
        value = some.columns["value"]
        importance = some.columns.get(IMPORTANCE, np.ones(len(value)))
        self.w = np.array([np.sin(self.w[0] * 1.7 + float((value * importance).sum()))])
        self.num_updates += 1
        return Update(self.weights(), {"w": float(self.w[0])}, np.abs(np.sin(value)) + 0.1)

    def state_dict(self) -> dict[str, np.ndarray]:
        return {"w": self.w.copy(), "num_updates": np.array(self.num_updates)}

    def load_state_dict(self, state: Any) -> None:
        self.w, self.num_updates = state["w"].copy(), int(state["num_updates"])


def replay_flow(
    *,
    source: Callable[[Shard], Any] | None = None,
    learner: Any = None,
    shards: int = 2,
    size: int = 4,
    every: int = 1,
    prioritized: bool = True,
    capacity: int = 40,
    min_size: int = 8,
    samples_per_insert: float | None = 4.0,
    **options: Any,
) -> Flow:
    """rollout -> replay -> sample -> learn, with weights and priorities that go back."""
    flow = Flow("replay")
    learner = learner or Mixer()
    weights = flow.latest("weights", of=learner)
    rows = flow.source("rollout", source or Rows(), reads=weights, shards=shards)
    replay = flow.replay(
        "replay", of=Transitions, capacity=capacity, min_size=min_size, samples_per_insert=samples_per_insert,
        sampler=Prioritized(anneal_inserts=100) if prioritized else "uniform", **options,
    )  # fmt: skip
    flow.store(rows, to=replay)
    update = flow.learn("learn", learner, flow.sample("sample", replay, size=size))
    flow.publish(update.weights, to=weights, every=every)
    if prioritized:
        flow.reprioritize(update.priorities, of=replay)
    flow.report(update.stats)
    return flow


def end(flow: Flow, place: Any, num_updates: int, state: Any = None) -> tuple[float, Any]:
    """What the weights are after so many updates, and the statistics then."""
    with place.open(flow, seed=1, state=state) as run:
        for report in run:
            if report.firing == num_updates:
                return report.values["w"], run.statistics()
    raise AssertionError


@dataclass(frozen=True)
class Growing:
    """A source whose third item has other columns than those before."""

    def __call__(self, shard: Shard) -> Callable[[Any], Transitions]:
        made = iter(range(1_000_000))
        return lambda weights: Transitions({"value": np.zeros((3, 2) if next(made) == 2 else 3)})


@dataclass(frozen=True)
class Words:
    """A source of items that are no arrays, but hold one, which is made in the memory of the item."""

    def __call__(self, shard: Shard) -> Callable[[Any], dict[str, Any]]:
        made = iter(range(1_000_000))

        def write(weights: Any) -> dict[str, Any]:
            number = next(made)
            letters = shard.empty((1_000,), np.int64)
            letters[:] = number * 10 + shard.index
            return {"who": shard.index, "number": number, "letters": letters}

        return write


@dataclass(frozen=True)
class WordCounter:
    """A learner whose weights depend on all that it has seen, which it checks."""

    policy_name: str = "policy"
    tolerates_staleness: bool = True

    def open(self, seed: int) -> "_LiveWordCounter":
        return _LiveWordCounter()


class _LiveWordCounter:
    def __init__(self) -> None:
        self.w = np.zeros(1)

    def weights(self) -> dict[str, np.ndarray]:
        return {"w": self.w.copy()}

    def update(self, batch: Any) -> Update[Any]:
        for item in batch:
            assert (item["letters"] == item["number"] * 10 + item["who"]).all()
            self.w = np.sin(self.w * 1.7 + item["letters"][0])
        return Update(self.weights(), {"w": float(self.w[0])})
