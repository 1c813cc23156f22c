"""The search for the fastest candidate, on simulated machines that differ from what it assumes."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from support.simulated_machine import Machine, variants

from levada.run.planner.candidates import Candidate, Variant, candidates
from levada.run.planner.costs import Costs, Measured
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


def test_nothing_else_is_probed_where_nothing_else_promises_more():
    """Learning takes all the time, and there is one setting."""
    machine = Machine(env_s=1e-6, vector_s=0.0, learn_s=1e-3)
    possible = list(candidates([Variant(shards=1, overlaps=False)], 2, crosses_processes=True))
    plan = search(possible, machine.measure, num_cores=2)
    assert str(plan.best) == "inline"
    assert len({each.candidate for each in plan.probed}) <= 3


def test_what_probes_cannot_tell_apart_is_probed_again():
    """A candidate that is slower by a tenth has a lucky first probe."""
    machine = Machine(env_s=1e-4, learn_s=1e-4, contention=0.0, message_s=0.0)
    inline, other = list(candidates([Variant(shards=1, overlaps=False)], 2, crosses_processes=False))
    luck = {inline: iter([1.0] * 4), other: iter([1.1, 0.9, 0.9, 0.9])}

    def probe(candidate: Candidate) -> Measured:
        found = machine.measure(inline)
        return replace(found, steps_per_s=found.steps_per_s * next(luck[candidate]))

    plan = search([inline, other], probe, num_cores=2)
    assert plan.best == inline
    assert Counter(each.candidate for each in plan.probed) == {inline: 4, other: 4}
    assert plan.steps_per_s == pytest.approx(machine.measure(inline).steps_per_s)


def test_what_is_clearly_slower_is_probed_once():
    machine = Machine(env_s=1e-3, learn_s=5e-5)
    plan, _ = plan_on(machine)
    slower = [each.candidate for each in plan.probed if 1.3 * each.measured < plan.steps_per_s]
    assert slower
    assert len(slower) == len(set(slower))


def test_cheaper_sampling_is_tried_where_learning_takes_longer():
    """Sampling and learning overlap, and yet the shorter of them counts: they slow each other down."""
    machine = Machine(env_s=1e-6, vector_s=4e-4, learn_s=6e-5, contention=0.0, message_s=0.0, in_turns=0.5)
    few, many = (Variant(shards=1, num_envs=num, item_scale=1.0, overlaps=True) for num in (8, 16))
    possible = [Candidate("inline", 0, few), Candidate("processes", 1, few), Candidate("processes", 1, many)]
    assert machine.measure(possible[2]).steps_per_s > 1.1 * machine.measure(possible[1]).steps_per_s
    assert search(possible, machine.measure, num_cores=2).best == possible[2]


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
