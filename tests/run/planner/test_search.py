"""The search for the fastest candidate, on simulated machines that differ from what it assumes."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import replace

import pytest
from support.simulated_machine import Machine, variants

from levada.run.planner.candidates import Candidate, Variant, candidates
from levada.run.planner.costs import Costs
from levada.run.planner.search import MAX_PROBES, Plan, search

PROFILES = {
    "slow environment": Machine(env_s=1e-3, learn_s=5e-5),
    "slow learner": Machine(env_s=1e-5, learn_s=5e-4, thread_gain=0.8),
    "expensive messages": Machine(env_s=8e-6, vector_s=6e-5, learn_s=1e-5, message_s=3e-3, item_steps=128),
    "waiting environment": Machine(env_s=1e-5, wait_s=2e-3, learn_s=5e-5),
    "balanced": Machine(env_s=4e-5, vector_s=1e-4, learn_s=5e-5),
    "cost per step of a shard": Machine(env_s=1e-6, vector_s=1e-3, learn_s=1e-5),
}


def plan_on(machine: Machine) -> tuple[Plan, float]:
    """Return the plan, and the speed of the best candidate."""
    possible = list(candidates(variants(), machine.num_cores, crosses_processes=True))
    best = max(machine.measure(each).steps_per_s for each in possible)
    return search(possible, machine.measure, num_cores=machine.num_cores), best


@pytest.mark.parametrize("profile", PROFILES)
def test_it_finds_the_best_in_eight_probes(profile):
    plan, best = plan_on(PROFILES[profile])
    assert plan.num_candidates == 216
    assert len(plan.probed) <= MAX_PROBES
    assert plan.steps_per_s >= 0.9 * best


def test_on_random_machines_it_rarely_misses():
    rng, shares = random.Random(1), []
    for _ in range(25):
        machine = Machine(
            num_cores=rng.choice([2, 4, 16]), env_s=10 ** rng.uniform(-6, -3), wait_s=rng.choice([0, 10 ** rng.uniform(-5, -2)]),
            vector_s=10 ** rng.uniform(-5, -3), learn_s=10 ** rng.uniform(-5, -3), thread_gain=rng.uniform(0, 0.9),
            message_s=10 ** rng.uniform(-4, -2.5), contention=rng.uniform(0, 0.4), releases_gil=rng.random() < 0.3,
            item_steps=rng.choice([16, 128, 1024]),
        )  # fmt: skip
        plan, best = plan_on(machine)
        shares.append(plan.steps_per_s / best)
    assert sum(share >= 0.9 for share in shares) >= 0.92 * len(shares)
    assert min(shares) >= 0.7


def test_the_first_probe_is_the_simplest_candidate():
    plan, _ = plan_on(PROFILES["balanced"])
    assert str(plan.probed[0].candidate) == "inline"
    assert plan.probed[0].predicted is None
    assert all(each.predicted is not None for each in plan.probed[1:])


def test_little_else_is_probed_where_nothing_else_promises_more():
    """Learning takes all the time."""
    machine = Machine(env_s=1e-6, vector_s=0.0, learn_s=1e-3)
    given = [each for each in variants() if each.threads == 1 and not each.overlaps]
    possible = list(candidates(given, 2, crosses_processes=True))
    plan = search(possible, machine.measure, num_cores=2)
    assert str(plan.best) == "inline"
    assert len({each.candidate for each in plan.probed}) <= 0.1 * len(possible)


def two(first: float, second: float, *luck: float) -> Plan:
    """Search two candidates of these speeds; the first probes of the second one are off by these factors."""
    machine = Machine(env_s=1e-4, learn_s=1e-4, contention=0.0, message_s=0.0)
    inline, other = candidates([Variant(shards=1, overlaps=False)], 2, crosses_processes=False)
    speeds = {
        inline: itertools.repeat(first),
        other: (second * factor for factor in (*luck, *itertools.repeat(1.0, 9))),
    }
    return search(
        [inline, other], lambda each: replace(machine.measure(inline), steps_per_s=next(speeds[each])), num_cores=2
    )


def num_probes(plan: Plan) -> dict[str, int]:
    return dict(Counter(str(each.candidate) for each in plan.probed))


def test_what_a_probe_cannot_tell_apart_is_probed_again():
    plan = two(1000.0, 900.0, 1.2)
    assert str(plan.best) == "inline"
    assert num_probes(plan) == {"inline": 3, "threads:1": 3}
    assert plan.steps_per_s == 1000.0


def test_a_lucky_probe_is_found_out():
    """It seemed to be so much faster that the other would not be probed again."""
    plan = two(1000.0, 800.0, 1.6)
    assert str(plan.best) == "inline"
    assert num_probes(plan) == {"inline": 3, "threads:1": 3}


def test_what_is_clearly_slower_is_probed_once():
    plan = two(1000.0, 1500.0)
    assert str(plan.best) == "threads:1"
    assert num_probes(plan) == {"inline": 1, "threads:1": 2}


def test_one_candidate_is_probed_once():
    machine = PROFILES["balanced"]
    [inline, *_] = candidates(variants(), 2, crosses_processes=True)
    assert num_probes(search([inline], machine.measure, num_cores=2)) == {"inline": 1}


def test_cheaper_sampling_is_tried_where_learning_takes_longer(monkeypatch):
    """The shorter of sampling and learning counts, too, because they overlap only in part."""
    machine, possible = partly_overlapping()
    assert search(possible, machine.measure, num_cores=2, max_probes=3).best == possible[2]
    monkeypatch.setattr("levada.run.planner.search._SERIAL_FRACTION", 0.0)
    assert search(possible, machine.measure, num_cores=2, max_probes=3).best == possible[1]


def test_what_is_predicted_to_be_nearly_as_fast_gets_the_probes_that_are_left(monkeypatch):
    monkeypatch.setattr("levada.run.planner.search._SERIAL_FRACTION", 0.0)
    machine, possible = partly_overlapping()
    plan = search(possible, machine.measure, num_cores=2)
    assert [each.candidate for each in plan.probed[:4]] == [*possible[:2], *possible[1:]]
    assert plan.best == possible[2]


def partly_overlapping() -> tuple[Machine, list[Candidate]]:
    """Return a machine and three candidates, of which the last is the fastest, but is not predicted to be."""
    machine = Machine(env_s=1e-6, vector_s=4e-4, learn_s=6e-5, contention=0.0, message_s=0.0, serial_fraction=0.5)
    few, many = (Variant(shards=1, num_envs=num, item_scale=1.0, overlaps=True) for num in (8, 16))
    possible = [Candidate("inline", 0, few), Candidate("processes", 1, few), Candidate("processes", 1, many)]
    assert machine.measure(possible[2]).steps_per_s > 1.1 * machine.measure(possible[1]).steps_per_s
    return machine, possible


def test_of_equals_the_simplest_is_chosen():
    machine = Machine(env_s=1e-4, learn_s=1e-4, contention=0.0, message_s=0.0)
    possible = list(candidates([Variant(shards=1, overlaps=False)], 2, crosses_processes=True))
    plan = search(possible, machine.measure, num_cores=2, max_probes=3)
    assert plan.best == possible[0]


def test_costs_between_numbers_of_environments_that_were_measured():
    costs, machine = Costs(2), Machine(env_s=1e-5, vector_s=1e-3, learn_s=1e-5)
    by_envs = {num: Candidate("inline", 0, Variant(shards=1, num_envs=num, overlaps=False)) for num in (4, 8, 64)}
    for num in (8, 64):
        costs.learn(by_envs[num], machine.measure(by_envs[num]))
    assert costs.predict(by_envs[4]) == pytest.approx(machine.measure(by_envs[4]).steps_per_s, rel=0.01)


@pytest.mark.parametrize(
    ("num_cores", "expected"), [(1, [1, 2, 4]), (2, [1, 2, 4, 8]), (8, [1, 2, 3, 4, 5, 6, 7, 8, 16])]
)
def test_numbers_of_workers(num_cores, expected):
    variant = Variant(shards=20, overlaps=False)
    found = [
        each.workers for each in candidates([variant], num_cores, crosses_processes=True) if each.kind == "processes"
    ]
    assert found == expected


def test_without_processes():
    kinds = {each.kind for each in candidates([Variant(shards=2, overlaps=False)], 2, crosses_processes=False)}
    assert kinds == {"inline", "threads"}
