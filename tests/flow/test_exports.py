"""What `levada.flow` gives is exactly what is meant, and importing it costs no torch and no gymnasium."""

from __future__ import annotations

import subprocess
import sys

import pytest

import levada.flow
from levada.flow import (
    ChannelError,
    FlowError,
    LevadaError,
    LevadaInternalError,
    NameInUseError,
    Problem,
    Shard,
    StreamError,
    Update,
    close,
    derive_seed,
)

PUBLIC = {
    "Bound", "ChannelError", "ChannelStatistics", "Consumed", "Deployment", "DeploymentError", "Divisible", "Draw", "Dropped",
    "Edge", "Emptied", "Episode", "Evaluated", "Evaluating", "Evaluation", "Event", "Experience", "Failed",
    "Fired", "FixedWeights", "Flow", "FlowError", "FlowWarning", "Goal", "GoalReached",
    "Header", "Input", "Instrument", "Item", "LagStatistics",
    "Latest", "LearnerRecipe", "LearnerState",
    "LearnerStopped", "Ledger", "LevadaError", "LevadaInternalError", "NameInUseError", "Node",
    "NodeStatistics", "NotSavedError", "Prioritized", "Problem", "Published", "Queue", "Replay", "ReplayStatistics",
    "Replica", "ReplicaLostError", "Replicable", "Report", "Reported", "Requeued", "Run", "RunState",
    "Shard", "Source", "Stateful", "Statistics", "Stored", "Stream", "StreamError", "Table",
    "Update", "Updates", "Used", "close", "derive_seed",
}  # fmt: skip


def test_exactly_what_is_meant_is_exported():
    assert set(levada.flow.__all__) == PUBLIC
    assert len(levada.flow.__all__) == len(PUBLIC)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_exported_name_is_there(name):
    assert hasattr(levada.flow, name)


def test_the_flow_is_imported_without_torch_and_gymnasium():
    code = (
        "import sys, levada.flow as f; from support.flows import samples as s;"
        "flow = s.nested_scopes(); flow.check(); flow.hash(); flow.svg(); flow.mermaid(); str(flow);"
        "print(*{name.split('.')[0] for name in sys.modules} & {'torch', 'gymnasium', 'ray', 'rich', 'tyro'})"
    )
    path = str(next(entry for entry in sys.path if entry.endswith("tests")))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"import sys; sys.path.insert(0, {path!r}); {code}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (done.stdout.split(), done.stderr) == ([], "")


def test_errors_are_a_tree():
    for error in (FlowError, ChannelError, NameInUseError):
        assert issubclass(error, LevadaError)
        assert issubclass(error, ValueError)
    assert issubclass(StreamError, LevadaError)
    assert issubclass(StreamError, TypeError)
    assert not issubclass(LevadaInternalError, LevadaError), "a defect of levada is not caught with the caller's"


def test_a_problem_says_what_where_got_expected_and_the_mistake():
    problem = Problem("LV999", "learn", "this", "that", "Write it so.")
    assert str(problem) == "LV999 learn: this; expected that. Write it so."
    assert str(Problem("LV999", "learn", "this", "that", "Write it so.", "warning")) == (
        "LV999 (warning) learn: this; expected that. Write it so."
    )


def test_every_shard_has_a_seed_of_its_own():
    seeds = {derive_seed(seed, node, index) for seed in range(10) for node in ("a", "b") for index in range(10)}
    assert len(seeds) == 200
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert derive_seed(3, "rollout", 1) == 823106296


def test_what_can_be_closed_is_closed():
    class Env:
        closed = False

        def close(self):
            self.closed = True

    env = Env()
    close(env)
    close(lambda weights: None)
    assert env.closed


def test_payloads_are_frozen_data():
    assert Shard("rollout", 0, 4, 7) == Shard(node="rollout", index=0, num_shards=4, seed=7)
    assert Update(1.0, {}).priorities is None
