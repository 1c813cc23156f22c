"""What every flow promises, whatever takes how long: thousands of random schedules of random flows, in virtual time.

The harness checks, throughout each run: lag is never above what `flow.bounds()` prints; every ledger adds up, and agrees
with an account that is kept apart; no more tickets are out than exist; no item is used twice; a learner goes on being
updated; what a ticket names can still be read; admission order consumes in ticket order, with exactly the version of the
rule; arrival order overtakes by no more than its window. At the end, every ticket comes back.
"""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.schedule.flows import Plan, plans

from levada.flow import Queue
from levada.schedule import take_snapshot
from levada.testing import Executor, toy_flow

RUNS = 5
"""Schedules of each flow."""

settings.register_profile(
    "schedules", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
schedules = settings.get_profile("schedules")


@given(plans(), st.integers(0, 10**6))
@settings(schedules, max_examples=300)
def test_every_promise_is_kept_under_random_schedules(plan: Plan, seed: int):
    flow = plan.build()
    assert not [problem for problem in flow.problems() if problem.severity == "error"]
    for run in range(RUNS):
        losses, stragglers = (0.03, 0.0) if run % 2 else (0.0, 0.04 if run == 0 else 0.0)
        executor = Executor(flow, seed + run, losses=losses, stragglers=stragglers, check_every=9)
        executor.run(updates=1 if run else 3, firings=32).drain()


@given(plans(), st.integers(0, 10**6))
@settings(schedules, max_examples=120)
def test_every_promise_is_kept_when_finished_items_are_lost(plan: Plan, seed: int):
    flow = plan.build()
    for run, losses in enumerate((0.02, 0.1)):
        executor = Executor(flow, seed + run, losses=0.01, item_losses=losses, check_every=9)
        executor.run(updates=2, firings=32).drain()


@given(plans(), st.integers(0, 10**6), st.integers(1, 20))
@settings(schedules, max_examples=200)
def test_every_promise_is_kept_when_updates_are_prepared_ahead(plan: Plan, seed: int, num_ahead: int):
    flow = plan.build()
    for run, losses in enumerate((0.0, 0.02, 0.1)):
        executor = Executor(flow, seed + run, losses=0.01, item_losses=losses, num_ahead=num_ahead, check_every=9)
        executor.run(updates=3, firings=32).drain()


@given(plans(), st.integers(0, 10**6), st.integers(2, 16), st.sampled_from([0, 8]))
@settings(schedules, max_examples=120)
def test_every_promise_is_kept_when_tickets_are_issued_in_groups(plan: Plan, seed: int, size: int, num_ahead: int):
    flow = plan.build()
    for run, losses in enumerate((0.0, 0.1)):
        executor = Executor(
            flow, seed + run, losses=0.01, item_losses=losses, num_ahead=num_ahead, tickets_together=size, check_every=9
        )
        executor.run(updates=3, firings=32).drain()


@pytest.mark.parametrize("num_ahead", [0, 8])
def test_a_snapshot_counts_as_consumed_what_was_learned_from(num_ahead: int):
    """In arrival order, too, where what was taken for later updates is not kept."""
    executor = Executor(toy_flow(Queue(max_lag=3, order="arrival")), 1, num_ahead=num_ahead, check_every=9)
    for num_updates in range(1, 30):
        executor.run(updates=num_updates)
        hub = executor.schedule.hub
        [account] = take_snapshot(hub, ()).queues.values()
        assert account.consumed == sum(map(len, executor.audit.updates["learn"][: hub.versions["policy"]]))


@given(plans(order="admission"), st.integers(0, 10**6))
@settings(schedules, max_examples=100)
def test_in_admission_order_it_does_not_matter_what_is_lost(plan: Plan, seed: int):
    flow = plan.build()
    told = [
        _consumed(Executor(flow, seed + run, item_losses=run / 20, check_every=7).run(updates=3)) for run in range(3)
    ]
    for learner, first in told[0].items():
        for other in told[1:]:
            common = min(len(first), len(other[learner]))
            assert common >= 3
            assert first[:common] == other[learner][:common]


@given(plans(order="admission"), st.integers(0, 10**6))
@settings(schedules, max_examples=120)
def test_in_admission_order_timing_does_not_matter(plan: Plan, seed: int):
    flow = plan.build()
    told = [
        _consumed(Executor(flow, seed + run, losses=run / 100, num_ahead=3 * run, check_every=7).run(updates=2))
        for run in range(RUNS)
    ]
    for learner, first in told[0].items():
        for other in told[1:]:
            common = min(len(first), len(other[learner]))
            assert common >= 2
            assert first[:common] == other[learner][:common]


def _consumed(executor: Executor) -> dict[str, list[list[tuple[str, int, int, int | None]]]]:
    """For each update of each learner: source, ticket, shard and version of what it was made of."""
    consumed = {}
    for learner, updates in executor.audit.updates.items():
        policy = executor.flow.nodes[learner].work.policy_name
        consumed[learner] = [[(t.source, t.ticket, t.shard, t.versions.get(policy)) for t in used] for used in updates]
    return consumed
