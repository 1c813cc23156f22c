"""What every flow promises, whatever takes how long: 10,000 random schedules of random flows, in virtual time."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schedule_flows import Plan, plans
from schedule_harness import Executor

thorough = settings(
    derandomize=True, deadline=None, max_examples=500, database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip


@given(plans(), st.integers(0, 10**6))
@thorough
def test_promises(plan: Plan, seed: int):
    flow = plan.build()
    flow.check()
    for run in range(4):
        Executor(flow, seed + run, losses=(0.0, 0.03)[run % 2], check_every=5).run(updates=3).drain()
