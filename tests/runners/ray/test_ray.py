"""The same flow on a Ray cluster: the same bits as inline, and nothing left behind."""

import os
import subprocess
import sys
import time
from types import ModuleType

import pytest
from support.envs.multi import Shifts
from support.flows.two_trainers import KillsAtStop, isolated, learned_by_each
from support.processes import samples
from support.ray.runs import learned

from levada.algorithms.maddpg import MADDPG
from levada.flow import DeploymentError, Queue
from levada.rl.envs.agents.task import MultiAgentTask
from levada.runners import Inline
from levada.runners.processes import Processes
from levada.runners.ray import Ray
from levada.runners.workers import WorkerError

ray = pytest.importorskip("ray")

pytestmark = pytest.mark.usefixtures("cluster")


@pytest.mark.parametrize("rates", [{}, {"dqn": 1e38}], ids=["", "one fails"])
def test_policies_with_an_algorithm_each_have_the_bits_of_inline(rates):
    """Also if a worker is killed, in the second case as soon as a learner has stopped."""
    flow, on = isolated(**rates), Ray(workers=1, learners=1 if rates else 2, reduce="exact")
    of = [name for name in ("ppo", "dqn") if name not in rates]
    expected, _, _ = learned_by_each(flow, Inline(), of=of)
    kill = {"kills": KillsAtStop()} if rates else {"kill_after": 3}
    found, _, statistics = learned_by_each(flow, on, of=of, **kill)
    assert found == expected
    assert all(channel.ledger.balanced for channel in (*statistics.channels.values(), *statistics.replays.values()))


def test_several_agents_and_their_joint_learner():
    small = {"shards": 2, "num_envs": 2, "num_steps": 8, "hidden_sizes": (8,), "compile": False}
    hp = MADDPG(learning_starts=32, batch_size=16, buffer_size=512, samples_per_insert=2.0, microbatch_size=8, **small)
    flow = hp.flow(MultiAgentTask(Shifts, {f"agent_{k}": (f"agent_{k}",) for k in range(4)}))
    assert learned(flow, Ray(workers=1, learners=2, reduce="exact"))[0] == learned(flow, Inline())[0]


def test_an_address_where_nothing_listens(monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(DeploymentError, match=r"no cluster answers at 127\.0\.0\.1:1 \(.*refused"):
        Ray(address="127.0.0.1:1").open(samples.small_ppo(0))


def test_a_cluster_that_asks_for_a_token(tmp_path):
    """That of these tests does, as every cluster that a program starts with `ray.init`. A program here has its token; one with
    another home has none.
    """
    code = "import sys; from levada.runners.ray.cluster import Cluster; print(Cluster(sys.argv[1], 60.0).num_cpus)"
    command = [sys.executable, "-c", code, ray.get_runtime_context().gcs_address]

    def joined(**environment: str) -> subprocess.CompletedProcess[str]:
        settings = {**os.environ, "RAY_AUTH_MODE": "token", **environment}
        return subprocess.run(command, env=settings, capture_output=True, text=True, timeout=600, check=False)

    assert joined().stdout.split()[-1:] == ["6"]
    error = joined(HOME=str(tmp_path)).stderr
    assert (
        "cannot be joined (Token authentication is enabled but no authentication token was found); an address" in error
    )
    assert (
        "set RAY_AUTH_MODE=token here, and have the token of its head in ~/.ray/auth_token or RAY_AUTH_TOKEN" in error
    )


def test_a_run_moves_between_deployments():
    flow = samples.small_ppo(2)
    _, state, _ = learned(flow, Processes(workers=2), 3)
    _, state, _ = learned(flow, Ray(workers=2), 6, state)
    assert state.is_exact, state.unsaved
    assert learned(flow, Inline(), 9, state)[0] == learned(flow, Inline(), 9)[0]


def test_the_users_error_comes_back_with_its_traceback():
    source = samples.Numbers(misbehave=samples.Always("raise", firing=1))
    with pytest.raises(samples.StormError, match="storm") as caught:
        list(samples.counting_flow(source).run(on=Ray(workers=1, max_restarts=2)))
    assert caught.traceback[-1].name == "do_harm"


def test_a_module_that_a_host_lacks(monkeypatch: pytest.MonkeyPatch):
    class Own(samples.Numbers):
        pass

    Own.__module__, Own.__qualname__ = "only_here", "Own"
    module = ModuleType("only_here")
    module.Own = Own
    monkeypatch.setitem(sys.modules, "only_here", module)
    with pytest.raises(
        WorkerError,
        match=r"No module named 'only_here'\) before it had begun; .* install it on every host, or let Ray ship",
    ):
        Ray(workers=1).open(samples.counting_flow(Own()))


def test_errors_on_closing_are_told(caplog: pytest.LogCaptureFixture):
    flow = samples.counting_flow(samples.Unclosable(), learner=samples.UnclosableCounting())
    with Ray(workers=2).open(flow, seed=1) as run:
        next(iter(run))
    told = [record.getMessage() for record in caplog.records]
    assert [words for words in told if "environments" in words] == [
        "closing the environments of a worker failed (RayTaskError(StormError): support.processes.samples.StormError: storm)"
    ] * 2
    assert [words for words in told if "learner" in words] == ["closing a learner failed: StormError('storm')"]


def test_lag_is_within_its_bound_in_arrival_order():
    queue = Queue(max_lag=2, order="arrival")
    with Ray(workers=2).open(samples.counting_flow(samples.Numbers(), queue=queue), seed=1) as run:
        for report in run:
            if report.firing == 50:
                break
        [channel] = run.statistics().channels.values()
    assert channel.ledger.balanced
    assert channel.lag["policy"].max <= 2


def test_nothing_is_left_in_the_cluster():
    with Ray(workers=2).open(samples.counting_flow(samples.Numbers()), seed=1) as run:
        next(iter(run))
    deadline_s = time.monotonic() + 120.0
    while ray.available_resources().get("CPU") != 6.0 and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert ray.available_resources()["CPU"] == 6.0


PROGRAM = """
import signal
import ray
from support.processes import samples
from levada.runners.ray import Ray

before = signal.getsignal(signal.SIGTERM)
with Ray(workers=1).open(samples.counting_flow(samples.Numbers()), seed=1) as run:
    next(iter(run))
    assert signal.getsignal(signal.SIGTERM) is before
run.close()
assert not ray.is_initialized()
"""


def test_a_cluster_that_is_started_for_a_run_leaves_signals_alone_and_ends_with_it():
    """A run that is ended by SIGTERM saves itself first; Ray would exit. To close a run again starts no other cluster."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True, timeout=600)
