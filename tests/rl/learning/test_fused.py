"""Fused updates: all gradient steps in one call of XLA learn what the recorded steps learn."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import levada as lv
from levada.algorithms.ppo import PPO
from levada.flow.replicas import Replica
from levada.rl.compute.tracing import RecordError
from levada.rl.envs.task import Task
from levada.rl.learning.learner import LiveLearner
from levada.rl.learning.replicas import Replicas
from levada.rl.learning.training import NonFiniteError
from levada.rl.replay.transitions import Transitions

if importlib.util.find_spec("torchax") is None:
    pytest.skip("torchax is not installed: pip install 'levada[jax]'", allow_module_level=True)

SMALL = {"hidden_sizes": (16, 16)}
ON_POLICY = SMALL | {"num_envs": 4, "num_steps": 16}
FRAMES = {"num_envs": 2, "num_steps": 8, "precision": "float32"}
REPLAYED = SMALL | {"learning_starts": 64, "buffer_size": 1000, "batch_size": 16}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ppo": ("ppo", "CartPole-v1", ON_POLICY | {"num_minibatches": 4}),
    "ppo, continuous": ("ppo", "Pendulum-v1", ON_POLICY | {"num_minibatches": 2, "normalize_obs": True}),
    "ppo, one minibatch": ("ppo", "CartPole-v1", ON_POLICY | {"num_minibatches": 1, "num_epochs": 3}),
    "ppo, frames, one minibatch": ("ppo", "ALE/Pong-v5", FRAMES | {"num_minibatches": 1, "num_epochs": 3}),
    "ppo, dict": ("ppo", "Blackjack-v1", ON_POLICY | {"num_minibatches": 2}),
    "ppo, masks": ("ppo", "Taxi-v4", ON_POLICY | {"num_minibatches": 2}),
    "ppo, microbatches": ("ppo", "CartPole-v1", ON_POLICY | {"minibatch_size": 32, "microbatch_size": 16}),
    "a2c": ("a2c", "CartPole-v1", ON_POLICY),
    "impala": ("impala", "CartPole-v1", ON_POLICY),
    "impala, microbatches": ("impala", "CartPole-v1", ON_POLICY | {"microbatch_size": 32}),
    "appo": ("appo", "CartPole-v1", ON_POLICY),
    "appo, minibatches": ("appo", "CartPole-v1", ON_POLICY | {"minibatch_size": 32, "num_epochs": 2}),
    "appo, targets": ("appo", "CartPole-v1", ON_POLICY | {"target_update_interval": 2, "num_epochs": 3}),
    "dqn": ("dqn", "CartPole-v1", REPLAYED | {"target_update_interval": 7, "num_gradient_steps": 4}),
    "dqn, prioritized": ("dqn", "CartPole-v1", REPLAYED | {"prioritized": True, "num_gradient_steps": 2}),
    "sac": ("sac", "Pendulum-v1", REPLAYED | {"num_gradient_steps": 4}),
    "sac, microbatches": ("sac", "Pendulum-v1", REPLAYED | {"num_gradient_steps": 4, "microbatch_size": 8}),
    "td3": ("td3", "Pendulum-v1", REPLAYED | {"num_gradient_steps": 4}),
}


def learned(tmp_path: Any, case: str, mode: Any, num_updates: int = 5) -> tuple[Mapping[str, Any], Any]:
    algorithm, env, fields = CASES[case]
    run = lv.train(
        algorithm, env, until=f"updates={num_updates}", on="inline", seed=1, threads=1, display="quiet", log="none",
        out=tmp_path / f"{mode}", compile=mode, **fields,
    )  # fmt: skip
    return run.policy.weights, run


@pytest.mark.parametrize("case", CASES)
def test_the_weights_are_those_of_recorded_steps(tmp_path: Any, case: str, caplog: pytest.LogCaptureFixture) -> None:
    num_updates = 1 if case == "ppo, masks" else 5  # in Taxi, rounding soon changes an action
    with caplog.at_level(logging.WARNING):
        (ours, one), (theirs, other) = (learned(tmp_path, case, mode, num_updates) for mode in ("xla", "auto"))
    assert not [record for record in caplog.records if "no effect" in record.getMessage()]
    assert one.summary.params_sha256 != other.summary.params_sha256  # other sums, so it did something else
    for name, array in theirs.items():
        # Adam divides by the size of a gradient, so that of an input which hardly occurred is mostly rounding
        is_close = np.isclose(ours[name], array, rtol=2e-3, atol=2e-4)
        assert is_close.mean() > (0.99 if case == "ppo, masks" else 0.9999), name


def test_the_reported_statistics_are_those_of_recorded_steps(tmp_path: Any) -> None:
    rows = []
    for mode in ("xla", "auto"):
        _, run = learned(tmp_path, "ppo", mode, num_updates=1)
        rows.append(json.loads((run.path / "metrics.jsonl").read_text().splitlines()[-1]))
    names = [name for name in rows[1] if name.startswith("losses/")]
    assert "losses/grad_norm" in names
    for name in names:
        assert rows[0][name] == pytest.approx(rows[1][name], rel=1e-3, abs=1e-5), name


def test_the_rest_of_an_update_is_skipped_at_the_target_kl(tmp_path: Any) -> None:
    fields = ON_POLICY | {"num_minibatches": 4, "num_epochs": 4, "learning_rate": 0.1, "target_kl": 1e-4}
    steps = []
    for mode in ("xla", "auto"):
        learner = PPO(compile=mode, **fields).part(Task("CartPole-v1")).learner.open(seed=1)
        update = learner.update([transitions(num_rows=64)])
        steps.append((learner.num_minibatches, update.stats["losses/approx_kl"]))
    assert steps[0][0] == steps[1][0] < 16
    assert steps[0][1] == pytest.approx(steps[1][1], rel=1e-2)


HALVES = """
import os
import sys
import levada as lv
run = lv.train(
    "sac", "Pendulum-v1", until="updates=5", on="inline", seed=1, threads=int(sys.argv[1]), compile="xla", display="quiet",
    log="none", out=sys.argv[2], hidden_sizes=(256, 256), batch_size=64, microbatch_size=32, learning_starts=64,
)
print(os.environ["NPROC"], run.summary.params_sha256)
"""


def test_threads_compute_the_same_bits(tmp_path: Any) -> None:
    told, env = [], {name: value for name, value in os.environ.items() if name != "NPROC"}  # set by other tests
    for threads in ("1", "2"):  # in fresh processes, since JAX keeps its threads
        out = str(tmp_path / threads)
        done = subprocess.run(
            [sys.executable, "-c", HALVES, threads, out],
            check=True,
            capture_output=True,
            text=True,
            timeout=300,
            env=env,
        )
        told.append(done.stdout.split())
    assert [threads for threads, _ in told] == ["1", "2"]
    assert told[0][1] == told[1][1]


def transitions(num_rows: int) -> Transitions:
    rng = np.random.default_rng(0)
    floats = {name: rng.standard_normal(num_rows).astype(np.float32) for name in ("value", "advantage", "target")}
    return Transitions({
        "obs": rng.standard_normal((num_rows, 4)).astype(np.float32), "action": rng.integers(0, 2, num_rows),
        "log_prob": np.full(num_rows, -0.69, np.float32), **floats,
    })  # fmt: skip


@pytest.mark.parametrize("sizes", [{"num_minibatches": 2}, {"minibatch_size": 32, "microbatch_size": 8}])
def test_masked_rows_teach_nothing(sizes: dict[str, int]) -> None:
    mask = np.ones(64, np.bool_)
    mask[5:9] = False
    weights = []
    for value in (0.5, np.nan):
        columns = dict(transitions(64).columns) | {"mask": mask}
        for name in ("advantage", "target", "value"):
            columns[name] = np.where(mask, columns[name], np.float32(value))
        learner = PPO(compile="xla", **sizes, **ON_POLICY).part(Task("CartPole-v1")).learner.open(seed=1)
        weights.append(learner.update([Transitions(columns)]).weights)
        assert learner.num_transitions == 60
    for name, array in weights[0].items():
        np.testing.assert_array_equal(weights[1][name], array, err_msg=name)


def test_a_rejected_update_changes_nothing(tmp_path: Any) -> None:
    learner = PPO(compile="xla", num_minibatches=2, **ON_POLICY).part(Task("CartPole-v1")).learner.open(seed=1)
    before = learner.fingerprint()
    bad = transitions(64)
    bad.columns["advantage"][3] = np.nan  # type: ignore[index]
    with pytest.raises(NonFiniteError, match="it was refused"):
        learner.update([bad])
    assert learner.fingerprint() == before


def test_deployments_and_resumed_runs_give_the_same_bits(tmp_path: Any) -> None:
    def train(on: str, until: str) -> Any:
        return lv.train(
            "ppo", "CartPole-v1", until=until, on=on, seed=1, display="quiet", log="none", out=tmp_path / f"{on}{until}",
            compile="xla", num_minibatches=2, **ON_POLICY,
        )  # fmt: skip

    whole = train("inline", "updates=4").summary.params_sha256
    assert train("processes:1", "updates=4").summary.params_sha256 == whole
    half = train("inline", "updates=2")
    assert lv.resume(half.path, until="updates=4", display="quiet").summary.params_sha256 == whole


def test_several_learners_record_their_updates() -> None:
    sizes = {"minibatch_size": 32, "microbatch_size": 16}
    found = [
        lv.train(
            "ppo", "CartPole-v1", until="updates=2", on="processes:1,learners=2,reduce=exact", seed=1, display="quiet",
            compile=mode, **sizes, **ON_POLICY,
        ).summary.params_sha256
        for mode in ("xla", "auto")
    ]  # fmt: skip
    assert found[0] == found[1]


def test_the_first_of_several_learners_says_that_updates_are_recorded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Replicas, "connect", lambda *_: None)
    for rank in (1, 0):
        fields = ON_POLICY | {"minibatch_size": 32, "microbatch_size": 16}
        learner = PPO(compile="xla", **fields).part(Task("CartPole-v1")).learner.open(seed=1)
        assert not caplog.records
        learner.join(Replica(rank, 2, "", "exact", 1.0))
    assert "no effect, updates are recorded: several learners share an update" in caplog.text


class WithDropout(nn.Module):
    """A network that draws numbers."""

    def __init__(self, space: Any, num_params: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(space.shape[0], 8), nn.Dropout(0.5), nn.Linear(8, num_params + 1))

    def forward(self, obs: Any) -> tuple[Any, Any]:
        both = self.layers(obs)
        return both[:, :-1], both[:, -1]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks of this file have a name."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"optimizer": "rmsprop"}, "the optimizer is TorchOptimizer"),
        ({"network": "test_fused:WithDropout"}, "Dropout"),
        ({"network": "levada.rl.policies.recurrent:RecurrentNet"}, "recurrent"),
    ],
)
def test_what_cannot_be_fused_is_recorded_and_told(
    fields: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    fields = {"num_envs": 4, "num_steps": 16, "minibatch_size": 64} | fields
    with caplog.at_level(logging.WARNING):
        learner = PPO(compile="xla", **fields).part(Task("CartPole-v1")).learner.open(seed=1)
    assert learner._fused is None
    assert any("no effect" in record.getMessage() and reason in record.getMessage() for record in caplog.records)


class Plain(nn.Module):
    """A network that can be fused; those below cannot."""

    def __init__(self, space: Any, num_params: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(space.shape[0], 8), nn.Linear(8, num_params + 1)
        self.register_buffer("seen", torch.zeros(()))
        self.norm = nn.InstanceNorm1d(1, track_running_stats=True)
        self.scale = torch.full((8,), 2.0)

    def between(self, x: Tensor) -> Tensor:
        return x

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        both = self.last(self.between(torch.tanh(self.first(obs))))
        return both[:, :-1], both[:, -1]


class Counting(Plain):
    def between(self, x: Tensor) -> Tensor:
        self.seen += 1
        return x


class Largest(Plain):
    """The buffer is changed, but not by the first batch."""

    def between(self, x: Tensor) -> Tensor:
        self.seen.clamp_(min=x.detach().max() - 10.0)
        return x


class Normalized(Plain):
    def between(self, x: Tensor) -> Tensor:
        return self.norm(x[:, None])[:, 0]


class Dropped(Plain):
    def between(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5, training=self.training)


class Noisy(Plain):
    def between(self, x: Tensor) -> Tensor:
        return x + 0.1 * torch.randn_like(x)


class Scaled(Plain):
    """Without the fix, one number is drawn for all steps."""

    def between(self, x: Tensor) -> Tensor:
        return x * torch.rand(())


class Unregistered(Plain):
    """A tensor that is no buffer."""

    def between(self, x: Tensor) -> Tensor:
        return x * self.scale


class Branching(Plain):
    def between(self, x: Tensor) -> Tensor:
        return x * 2.0 if x.mean() > 0.0 else x


class Reading(Plain):
    def between(self, x: Tensor) -> Tensor:
        return x * float(x.abs().max().item())


class Remembering(Plain):
    """Side effects in Python, which do not matter."""

    latest: Tensor | None = None

    def between(self, x: Tensor) -> Tensor:
        np.random.rand()
        self.latest = x
        return x


class Mistaken(Plain):
    def between(self, x: Tensor) -> Tensor:
        return x if not self.training or len(x) == 2 else x @ x


def opened(mode: Any, network: type[Plain], **fields: Any) -> LiveLearner:
    torch.manual_seed(3)
    fields = {
        "num_envs": 4,
        "num_steps": 16,
        "minibatch_size": 32,
        "network": f"test_fused:{network.__name__}",
    } | fields
    return PPO(compile=mode, **fields).part(Task("CartPole-v1")).learner.open(seed=1)


def reasons(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "has no effect" in record.getMessage()]


NOT_FUSED: list[tuple[type[Plain], str]] = [
    (Counting, "a forward pass changes the buffer policy.network.seen"),
    (Largest, "it changes its arguments in place"),
    (Normalized, "a forward pass changes the buffer policy.network.norm.running_mean"),
    (Dropped, "draws random numbers"),
    (Noisy, "draws random numbers"),
    (Scaled, "draws random numbers"),
    (Unregistered, "JAX cannot trace the update (AssertionError: Expect a Tensor"),
]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("network", "reason"), NOT_FUSED)
@pytest.mark.parametrize("microbatch_size", [None, 16])
def test_what_turns_out_not_to_be_fusible_is_recorded_and_told_once(
    network: type[Plain], reason: str, microbatch_size: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    learners = []
    for mode in ("xla", "auto", False):
        learner = opened(mode, network, microbatch_size=microbatch_size)
        for _ in range(3):
            learner.update([transitions(64)])
        learners.append((learner, torch.get_rng_state()))
    (ours, drawn), (recorded, _), (eager, as_drawn) = learners
    (told,) = reasons(caplog)
    assert reason in told
    assert ours.fingerprint() == recorded.fingerprint()
    assert torch.equal(drawn, as_drawn)
    for name, array in eager.weights().items():
        np.testing.assert_allclose(ours.weights()[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("network", [Branching, Reading])
def test_a_network_that_reads_values_is_refused_as_it_is_by_recorded_updates(
    network: type[Plain], caplog: pytest.LogCaptureFixture
) -> None:
    learner = opened("xla", network)
    before = learner.fingerprint()
    for _ in range(2):
        with pytest.raises(RecordError, match="compile=False"):
            learner.update([transitions(64)])
    assert learner.fingerprint() == before
    (told,) = reasons(caplog)
    assert "reads numbers out of tensors" in told
    opened(False, network).update([transitions(64)])
    with pytest.raises(RecordError, match="compile=False"):
        opened("auto", network).update([transitions(64)])


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("network", [Plain, Remembering])
def test_tracing_leaves_nothing_behind(network: type[Plain], caplog: pytest.LogCaptureFixture) -> None:
    learner = opened("xla", network)
    own: Any = learner._modules["policy"].get_submodule("network")
    before, of_torch, of_numpy = dict(vars(own)), torch.get_rng_state(), np.random.get_state()[1].copy()
    learner.update([transitions(64)])
    assert learner._fused is not None
    assert not reasons(caplog)
    told = [record.getMessage() for record in caplog.records if "drawn from NumPy" in record.getMessage()]
    assert len(told) == (network is Remembering)
    assert vars(own) == before
    assert torch.equal(torch.get_rng_state(), of_torch)
    assert np.array_equal(np.random.get_state()[1], of_numpy)


@pytest.mark.usefixtures("here")
def test_gradient_steps_are_counted_beyond_32_bits() -> None:
    few, many = opened("xla", Plain), opened("xla", Plain)
    many.num_minibatches = many.num_updates = 2**40
    for learner in (few, many):
        for _ in range(3):
            learner.update([transitions(64)])
    assert many.num_minibatches > 2**40
    for name, array in few.weights().items():
        np.testing.assert_array_equal(many.weights()[name], array, err_msg=name)


@pytest.mark.usefixtures("here")
def test_a_mistake_in_a_network_is_raised_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        opened("xla", Mistaken).update([transitions(64)])
    assert not reasons(caplog)


def test_the_compiler_of_pytorch_is_not_imported(tmp_path: Path) -> None:
    program = """
import sys
import levada as lv
lv.train(
    "ppo", "CartPole-v1", until="updates=2", on="inline", compile="xla", num_envs=2, num_steps=8, minibatch_size=8,
    display="quiet", log="none", out="run",
)
print("torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of torch's own imports
def test_inductor_works_in_the_same_process() -> None:
    """Torchax adds a device to PyTorch, which torch.compile must not ask for streams."""
    learner = PPO(compile="xla", num_minibatches=2, **ON_POLICY).part(Task("CartPole-v1")).learner.open(seed=1)
    learner.update([transitions(64)])
    other = PPO(compile=True, num_minibatches=2, **ON_POLICY).part(Task("CartPole-v1")).learner.open(seed=1)
    assert other.update([transitions(64)]).stats.keys() >= {"losses/policy_loss"}
