"""EnvSteps: sums over the first tickets of a channel."""

from __future__ import annotations

from levada.schedule.env_steps import EnvSteps


def test_a_sum_takes_no_longer_the_more_tickets_there_were() -> None:
    """Where nothing is recorded, as with one learner, no ticket is looked up."""
    assert EnvSteps().before(10**15) == 0


def test_sums_are_those_of_the_tickets_below() -> None:
    steps = EnvSteps()
    for number, num in ((2, 4), (0, 1), (5, 32), (1, 2)):
        steps.add(number, num)
    assert [steps.before(number) for number in range(7)] == [0, 1, 3, 7, 7, 7, 39]
    steps.forget_before(2)
    assert [steps.before(number) for number in (2, 3, 6)] == [3, 7, 39]
    steps.add(1, 8)  # a ticket that was passed while it was made
    assert steps.before(3) == 15
