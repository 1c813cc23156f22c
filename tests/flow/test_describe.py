"""The JSON form and the hash: equal for equal flows in every process, different as soon as any option differs."""

from __future__ import annotations

import enum
import functools
import json
import math
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.flows.samples import (
    Adder,
    Roll,
    apex_like,
    impala_like,
    ppo_like,
    same,
    two_learners,
    two_readers,
    weighted_union,
)

from levada.flow import Flow, Prioritized, Queue
from levada.flow.describe import describe

TESTS = Path(__file__).resolve().parents[1]


class Color(enum.Enum):
    RED = 1


@dataclass(frozen=True)
class Config:
    rate: float = 0.5
    tags: frozenset[str] = frozenset({"a", "b", "c", "d"})
    options: tuple[tuple[str, int], ...] = (("x", 1),)
    cache: dict[str, Any] = field(default_factory=dict, compare=False)


class Plain:
    """No dataclass, no repr of its own."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __call__(self, item: Any) -> Any:
        return item


class Shown:
    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __repr__(self) -> str:
        return f"<Shown {self.rate} at {hex(id(self))}>"


def scaled(factor: float, item: Any) -> Any:
    return factor * item


def closing_over(number: int, *more: Any):
    def inner(item):
        return number, more, item

    return inner


# ---- the hash


SAMPLES = [ppo_like, impala_like, apex_like, two_learners, two_readers, weighted_union]


def flow_with(work: Any) -> Flow:
    flow = Flow("flow")
    rollouts = flow.source("rollout", Roll())
    flow.report(flow.map("map", work, rollouts).via(Queue(max_lag=None, capacity=1)))
    return flow


def mixed_flow() -> Flow:
    """Work of every sort whose hash could depend on the process."""
    works = [
        Config(), Plain(0.5), functools.partial(scaled, 0.5), closing_over(3, {"a", "b", "c"}), lambda item: item in {"x", "y"},
        Shown(0.5).__repr__, np.arange(3.0), {"set": {"p", "q", "r"}}, object(),
    ]  # fmt: skip
    return flow_with(functools.partial(print, *works))


def test_hashes_are_equal_in_processes_with_different_hash_seeds():
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]; import test_describe as t;"
        "print(*(build().hash() for build in (*t.SAMPLES, t.mixed_flow)))"
    )
    here = [build().hash() for build in SAMPLES]
    printed = []
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code, str(TESTS), str(TESTS / "flow")],
            capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": seed},
        )  # fmt: skip
        printed.append(done.stdout.split())
    assert printed[0] == printed[1]
    assert printed[0][: len(here)] == here
    assert len(set(printed[0])) == len(SAMPLES) + 1


def test_a_hash_is_a_sha256_of_the_json_form():
    assert re.fullmatch("[0-9a-f]{64}", ppo_like().hash())
    assert ppo_like().hash() == ppo_like().hash()


@pytest.mark.parametrize("build", SAMPLES, ids=lambda build: build.__name__)
def test_the_json_form_survives_json(build):
    form = build().to_json()
    assert json.loads(json.dumps(form)) == form
    assert list(form) == ["flow", "nodes", "registers", "replays", "edges"]


def variants() -> dict[str, Flow]:
    """Each differs from the first in one option."""

    def build(
        name="flow", node="rollout", shards=2, length=16, work=same, queue: Queue | None = None, size=4, step=1.0,
        policy="policy", every=1, capacity=100, min_size=10, ratio=2.0, tolerance=0.0, sampler="uniform", sample=8,
        weights=(1, 1), keys=("a", "b"), corrects=False, at="consumer", union=True, key=None,
    ):  # fmt: skip
        learner = Adder(policy, corrects, step)
        flow = Flow(name)
        register = flow.latest("weights", of=learner)
        reads = register if key is None else {key: register}
        rollouts = flow.source(node, Roll(length), reads=reads, shards=shards)
        other = flow.map("map", work, flow.source("other", Roll()))
        items = flow.union("union", rollouts, other, weights=weights) if union else rollouts
        parts = flow.split("split", items, keys=keys)
        batch = flow.batch("batch", parts["a"].via(queue or Queue(max_lag=1)), size=size, at=at)
        update = flow.learn("learn", learner, batch)
        flow.publish(update.weights, to=register, every=every)
        replay = flow.replay(
            "replay", of=list, capacity=capacity, min_size=min_size,
            samples_per_insert=ratio, tolerance=tolerance, sampler=sampler,
        )  # fmt: skip
        flow.store(parts["b"], to=replay)
        flow.report(flow.sample("sample", replay, size=sample))
        return flow

    changed: list[dict[str, Any]] = [
        {}, {"name": "other"}, {"node": "roll"}, {"shards": 3}, {"length": 17}, {"work": scaled}, {"size": 5},
        {"step": 2.0},
        {"queue": Queue(max_lag=2)}, {"queue": Queue(max_lag=1, order="arrival")},
        {"queue": Queue(max_lag=1, order="arrival", window=2)}, {"queue": Queue(max_lag=1, on_stale="drop")},
        {"queue": Queue(max_lag=1, on_stale="drop", on_full="block")}, {"queue": Queue(max_lag=1, on_stale="drop", capacity=9)},
        {"policy": "q"}, {"every": 2}, {"capacity": 101}, {"min_size": 11}, {"ratio": 2.5}, {"ratio": None},
        {"tolerance": 1.0},
        {"sampler": Prioritized()}, {"sample": 9}, {"weights": (1, 2)}, {"weights": None}, {"keys": ("a", "b", "c")},
        {"corrects": True}, {"at": "shard"}, {"union": False}, {"key": "policy"},
    ]  # fmt: skip
    return {str(options): build(**options) for options in changed}


def test_the_hash_changes_with_every_option():
    hashes = {text: flow.hash() for text, flow in variants().items()}
    assert len(set(hashes.values())) == len(hashes), hashes


def test_names_of_variables_and_what_is_only_looked_at_do_not_matter():
    flow, learner = Flow("ppo"), Adder()
    w = flow.latest("weights", of=learner)
    x = flow.source("rollout", Roll(), reads=w, shards=8)
    y = flow.map("gae", same, x)
    z = flow.learn("learn", learner, flow.batch("batch", y.via(Queue(max_lag=0)), size=8))
    flow.publish(z.weights, to=w)
    flow.report(z.stats)
    before = flow.hash()
    assert before == ppo_like().hash()
    flow.check()
    flow.bounds()
    flow.svg()
    assert flow.hash() == before


def test_a_deployment_does_not_matter():
    class Somewhere:
        def open(self, flow, *, seed, instruments):
            return self

        def __iter__(self):
            return iter([])

        def close(self):
            pass

    flow = ppo_like()
    list(flow.run(on=Somewhere(), seed=5))
    assert flow.hash() == ppo_like().hash()


# ---- what is said of a thing


@pytest.mark.parametrize(
    ("thing", "form"),
    [
        (None, None), (True, True), (3, 3), ("a", "a"), (0.1, 0.1), (math.inf, "inf"), (math.nan, "nan"),
        ((1, [2]), [1, [2]]), ({"b": 1, "a": 2}, {"a": 2, "b": 1}), ({3, 1, 2}, [1, 2, 3]),
        (same, "support.flows.samples.same"), (float, "builtins.float"),
        (Color, f"{__name__}.Color"), (Color.RED, f"{__name__}.Color.RED"),
    ],
)  # fmt: skip
def test_plain_things(thing, form):
    assert describe(thing) == form


def test_a_dataclass_by_its_fields_without_its_caches():
    described = describe(Config(cache={"much": 1}))
    assert described == describe(Config())
    assert described["rate"] == 0.5
    assert described["tags"] == ["a", "b", "c", "d"]
    assert "cache" not in described
    assert describe(Config(rate=0.25)) != described


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x: x + 1, lambda x: x + 2),
        (lambda x: x.a, lambda x: x.b),
        (lambda x, k=1: x, lambda x, k=2: x),
        (lambda x, *, k=1: x, lambda x, *, k=2: x),
        (lambda x: [y for y in x if y > 1], lambda x: [y for y in x if y > 2]),
        (closing_over(1), closing_over(2)),
        (functools.partial(scaled, 1.0), functools.partial(scaled, 2.0)),
        (functools.partial(scaled, factor=1.0), functools.partial(scaled, factor=2.0)),
        (Plain(1.0), Plain(2.0)),
        (Plain(1.0).__call__, Plain(2.0).__call__),
        (Shown(1.0), Shown(2.0)),
        (np.float32, np.float64),
        (np.dtype("f4"), np.dtype("f8")),
        (np.zeros(2), np.ones(2)),
        (np.zeros((2, 1)), np.zeros((1, 2))),
        (np.zeros(1, "f4"), np.zeros(1, "i4")),
        (np.array([1, "a"], object), np.array([1, "b"], object)),
        (b"a", b"b"),
        (1 + 2j, 1 - 2j),
        (range(3), range(4)),
    ],
)
def test_siblings_differ_and_twins_do_not(one, other):
    assert describe(one) != describe(other)
    assert describe(one) == describe(one)
    for thing in (one, other):
        assert not re.search("0x[0-9a-f]{6}", json.dumps(describe(thing)))
        assert flow_with(functools.partial(scaled, thing)).hash()


def test_a_function_that_calls_itself_is_described():
    def down(number):
        return number and down(number - 1)

    def even(number):
        return odd(number - 1)

    def odd(number):
        return even(number - 1)

    assert describe(down)["closure"] == [{"same as": "1 levels up"}]
    assert json.dumps(describe(even)) != json.dumps(describe(odd))


def test_a_name_that_is_bound_later_is_described():
    def early():
        return late

    described = describe(early)
    late = 1
    assert described["closure"] == [None]
    assert describe(early)["closure"] == [late]


def test_an_object_that_holds_itself_is_described():
    thing = Plain(1.0)
    thing.myself = thing
    assert describe(thing)["state"] == {"rate": 1.0, "myself": {"same as": "2 levels up"}}


def test_things_that_cannot_be_pickled_are_described_by_their_type():
    class Slots:
        __slots__ = ("rate",)

        def __init__(self):
            self.rate = 0.5

    assert describe(Slots())["state"] == [None, {"rate": 0.5}]
    assert describe(iter([]).__class__) == "builtins.list_iterator"
    assert describe(x for x in ()) == describe(y for y in ())
