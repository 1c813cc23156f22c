"""The learner: three ways to run a step agree, nothing non-finite gets in, state can be saved."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from levada.rl.compute.tracing import RecordError, record
from levada.rl.data.normalize import Moments
from levada.rl.data.spaces import allocate, write
from levada.rl.learning import learner as learner_module
from levada.rl.learning.learner import Learner, LiveLearner, NonFiniteError
from levada.rl.learning.loss import LossOutput, Networks
from levada.rl.learning.optimizers import Adam
from levada.rl.policies.policy import Policy
from levada.rl.replay.transitions import Transitions, concatenate

POLICY = Policy(observation_space=spaces.Box(-1.0, 1.0, (3,)), action_space=spaces.Discrete(2), hidden_sizes=(8,))


def loss(networks: Networks, batch: Mapping[str, Any], coefficients: Mapping[str, Tensor]) -> LossOutput:
    distribution, value = networks.policy(batch["obs"])
    policy_loss = -batch["weight"].dot(distribution.log_prob(batch["action"]) * batch["advantage"])
    value_loss = batch["weight"].dot((value - batch["target"]).square())
    return LossOutput(policy_loss + value_loss, {"policy_loss": policy_loss, "value_loss": value_loss})


def make(**options: Any) -> LiveLearner:
    defaults: dict[str, Any] = {
        "policy": POLICY, "loss": loss, "coefficients": lambda n: {"learning_rate": 1e-2}, "num_epochs": 2,
        "minibatch_size": 8, "optimizer": Adam(max_grad_norm=0.5),
    }  # fmt: skip
    return Learner(**{**defaults, **options}).open(seed=1)


def batch(num_rows: int = 32, seed: int = 0) -> list[Transitions]:
    rng = np.random.default_rng(seed)
    return [Transitions({
        "obs": rng.normal(size=(num_rows, 3)).astype(np.float32), "action": rng.integers(0, 2, num_rows),
        "advantage": rng.normal(size=num_rows).astype(np.float32), "target": rng.normal(size=num_rows).astype(np.float32),
        "mask": np.ones(num_rows, bool),
    })]  # fmt: skip


class Layers(nn.Module):
    """A network whose body is given."""

    def __init__(self, num_params: int, *body: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(*body)
        self.policy, self.value = nn.Linear(8, num_params), nn.Linear(8, 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(obs)
        params: Tensor = self.policy(features)
        value: Tensor = self.value(features).squeeze(-1)
        return params, value


def with_layer_norm(space: Any, num_params: int) -> nn.Module:
    return Layers(num_params, nn.Linear(3, 8), nn.LayerNorm(8), nn.LayerNorm(8, elementwise_affine=False), nn.Tanh())


def with_batch_norm(space: Any, num_params: int) -> nn.Module:
    return Layers(num_params, nn.Linear(3, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU())


class Last(nn.Module):
    """What an LSTM says after the last step; torch cannot record its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 8)

    def forward(self, x: Tensor) -> Tensor:
        last: Tensor = self.lstm(x[None])[0][0]
        return last


def with_lstm(space: Any, num_params: int) -> nn.Module:
    return Layers(num_params, Last())


VECTOR = spaces.Box(-1.0, 1.0, (3,))
IMAGE = spaces.Box(0, 255, (36, 36, 3), np.uint8)


@pytest.mark.parametrize(
    ("space", "network"),
    [
        (VECTOR, with_layer_norm),
        (VECTOR, with_batch_norm),
        (VECTOR, with_lstm),
        (IMAGE, None),
        (spaces.Box(0, 255, (84, 84, 4), np.uint8), None),
        (spaces.Dict({"camera": IMAGE, "speed": VECTOR}), None),
    ],
)
def test_a_recording_of_any_layers_learns_the_same(space: spaces.Space[Any], network: Any) -> None:
    policy = Policy(observation_space=space, action_space=spaces.Discrete(2), network=network)
    learned = []
    for compile_ in (False, "auto"):
        live = make(policy=policy, compile=compile_, coefficients=lambda n: {"learning_rate": 1e-3})
        for seed in range(2):
            update = live.update(observed(space, seed))
        learned.append((update.weights, update.stats))
    (eager, eager_stats), (recorded, recorded_stats) = learned
    assert recorded.keys() == eager.keys()
    for name, array in eager.items():
        np.testing.assert_allclose(recorded[name], array, rtol=1e-3, atol=1e-4, err_msg=name)
    assert recorded_stats == pytest.approx(eager_stats, rel=1e-3, abs=1e-4)


def observed(space: spaces.Space[Any], seed: int, num_rows: int = 16) -> list[Transitions]:
    """A batch whose observations are drawn from the space."""
    space = deepcopy(space)
    space.seed(seed)
    obs = allocate(space, num_rows)
    for row in range(num_rows):
        write(obs, row, space.sample())
    return [Transitions({**batch(num_rows, seed)[0].columns, "obs": obs})]


def test_what_cannot_be_recorded_is_said_and_run_as_ordinary_torch(caplog: pytest.LogCaptureFixture) -> None:
    policy = Policy(observation_space=VECTOR, action_space=spaces.Discrete(2), network=with_lstm)
    live = make(policy=policy)
    live.update(batch())
    live.update(batch(seed=1))
    (said,) = [record.getMessage() for record in caplog.records]
    assert "cannot be recorded" in said
    assert "updates run as with compile=False" in said


@pytest.mark.parametrize("compile_", [False, "auto"])
def test_numbers_from_numpy_that_a_recording_repeats_are_told_once(
    caplog: pytest.LogCaptureFixture, compile_: bool | str
) -> None:
    def noisy(networks: Networks, batch: Any, coefficients: Any) -> LossOutput:
        made = loss(networks, batch, coefficients)
        return LossOutput(made.loss, made.stats | {"noise": made.loss.detach() * 0.0 + np.random.rand()})

    live = make(loss=noisy, compile=compile_)
    noises = [live.update(batch(rows)).stats["losses/noise"] for rows in (32, 32, 16)]
    told = [record.getMessage() for record in caplog.records]
    if compile_ is False:
        assert len(set(noises)) == 3
        assert not told
    else:
        assert noises[0] == noises[1]
        assert [text.startswith("numbers were drawn from NumPy's global generator") for text in told] == [True]


def test_a_loss_that_fails_while_it_is_recorded_fails_with_its_own_error(caplog: pytest.LogCaptureFixture) -> None:
    def misshapen(networks: Networks, batch: Any, coefficients: Any) -> LossOutput:
        return LossOutput(networks.policy(batch["obs"])[1].reshape(3, 7), {})

    with pytest.raises(RuntimeError, match="shape '\\[3, 7\\]' is invalid"):
        make(loss=misshapen).update(batch())
    assert not caplog.records


@pytest.mark.parametrize("network", [None, with_batch_norm])
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of torch's own imports
def test_eager_recorded_and_compiled_learn_the_same(network: Any) -> None:
    policy = Policy(observation_space=VECTOR, action_space=spaces.Discrete(2), network=network)
    learned = {}
    for compile_ in (False, "auto", True):
        live = make(policy=policy, compile=compile_)
        for seed in range(3):
            update = live.update(batch(seed=seed))
        learned[compile_] = update.weights, update.stats
    eager, stats = learned[False]
    for other, other_stats in (learned["auto"], learned[True]):
        for name, array in eager.items():
            np.testing.assert_allclose(other[name], array, atol=2e-6 if network is None else 1e-4, err_msg=name)
        assert other_stats == pytest.approx(stats, abs=1e-5 if network is None else 1e-4)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_any_number_of_learners_compile_in_one_process() -> None:
    """PyTorch limits how often one code object is compiled: to 8 by default."""

    def weighted(value_coef: float) -> Any:
        def sum_of_both(networks: Networks, batch: Any, coefficients: Mapping[str, Tensor]) -> LossOutput:
            both = loss(networks, batch, coefficients).stats
            return LossOutput(both["policy_loss"] + value_coef * both["value_loss"], both)

        return sum_of_both

    with torch._dynamo.config.patch(recompile_limit=1):
        for value_coef in (0.25, 0.5, 1.0):
            compiled, eager = (make(loss=weighted(value_coef), compile=c).update(batch()) for c in (True, False))
            for name, array in eager.weights.items():
                np.testing.assert_allclose(compiled.weights[name], array, atol=2e-6, err_msg=name)


def test_the_same_seed_gives_the_same_bits() -> None:
    one, two = make(), make()
    for seed in range(3):
        a, b = one.update(batch(seed=seed)), two.update(batch(seed=seed))
    assert all(np.array_equal(a.weights[name], b.weights[name]) for name in a.weights)
    assert a.stats == b.stats


@pytest.mark.parametrize("size", [1e3, 1e20, np.inf, np.nan])
def test_masked_rows_teach_nothing(size: float) -> None:
    whole, masked = batch()[0], batch()[0]
    columns = dict(masked.columns)
    mask = np.ones(32, bool)
    mask[5:9] = False
    for name in ("obs", "advantage", "target"):
        column = np.array(columns[name])
        column[~mask] = size if name != "obs" else 1e3
        columns[name] = column
    one, two = (make(minibatch_size=None, num_epochs=1) for _ in range(2))
    a = one.update([Transitions({**whole.columns, "mask": mask})])
    b = two.update([Transitions({**columns, "mask": mask})])
    for name in a.weights:
        np.testing.assert_allclose(a.weights[name], b.weights[name], atol=1e-6, err_msg=name)
    assert one.num_transitions == 28


@pytest.mark.parametrize("network", [None, with_batch_norm])
def test_nan_is_refused_and_nothing_changes(network: Any) -> None:
    live = make(policy=Policy(observation_space=VECTOR, action_space=spaces.Discrete(2), network=network))
    live.update(batch())
    before = {name: array.copy() for name, array in live.state_dict().items()}
    poisoned = batch()[0]
    target = np.array(poisoned.columns["target"])
    target[3] = np.nan
    with pytest.raises(NonFiniteError, match=r"update 2 of policy 'policy' gave NaN or infinity in policy\.network"):
        live.update([Transitions({**poisoned.columns, "target": target})])
    after = live.state_dict()
    assert all(np.array_equal(after[name], before[name]) for name in before)
    live.update(batch())


def test_a_remainder_is_refused() -> None:
    with pytest.raises(ValueError, match="30 rows does not divide into minibatches of 8; 6 would be left"):
        make().update(batch(30))


def test_published_weights_do_not_change_with_later_updates() -> None:
    live = make()
    first = live.update(batch()).weights
    kept = {name: array.copy() for name, array in first.items()}
    live.update(batch(seed=1))
    assert all(np.array_equal(first[name], kept[name]) for name in kept)


def test_a_saved_learner_goes_on_bit_for_bit() -> None:
    live = make()
    live.update(batch())
    state = live.state_dict()
    expected = live.update(batch(seed=1))
    other = make()
    other.load_state_dict(state)
    again = other.update(batch(seed=1))
    assert all(np.array_equal(expected.weights[name], again.weights[name]) for name in expected.weights)
    assert other.num_updates == live.num_updates == 2


def test_minibatches_are_left_out_once_a_statistic_is_exceeded() -> None:
    live = make(stop_above=("value_loss", 0.0))
    live.update(batch())
    assert live.num_minibatches == 1
    live = make(stop_above=("value_loss", 1e9))
    live.update(batch())
    assert live.num_minibatches == 8


def test_statistics_of_observations_are_merged_after_the_update_that_used_them() -> None:
    from levada.rl.data.normalize import observation_moments

    policy = Policy(observation_space=POLICY.observation_space, action_space=POLICY.action_space, normalize_obs=True)
    live = make(policy=policy)
    data = batch()[0]
    moments = observation_moments(policy.observation_space, np.array(data.columns["obs"])[:, None])
    weights = live.update([Transitions(data.columns, moments)]).weights
    np.testing.assert_allclose(weights["normalizers.0.mean"], moments["obs"].mean, rtol=1e-5)
    assert weights["normalizers.0.count"] == 32


@pytest.mark.parametrize("large", [1e25, 1e200, np.inf, np.nan])
def test_statistics_that_float32_cannot_hold_are_refused_and_nothing_changes(large: float) -> None:
    live = make(policy=normalizing())
    live.update([with_moments(1.0)])
    before = {name: array.copy() for name, array in live.state_dict().items()}
    with pytest.raises(NonFiniteError, match=r"update 2 of policy 'policy' was refused: running statistics of 'obs': "):
        live.update([with_moments(large)])
    after = live.state_dict()
    assert all(np.array_equal(after[name], before[name]) for name in before)
    live.update([with_moments(2.0)])


def test_statistics_are_accumulated_in_float64_and_saved_so() -> None:
    live = make(policy=normalizing())
    live.update([with_moments(1e8, count=2.0**25)])
    live.update([with_moments(1e8 + 1.0, count=1.0)])
    other = make(policy=normalizing())
    other.load_state_dict(live.state_dict())
    for one in (live, other):
        state = one.state_dict()
        assert state["moments/obs/count"] == 2.0**25 + 1.0  # float32 would still say 2 ** 25
        assert state["moments/obs/mean"].dtype == np.float64
        one.update([with_moments(3.0, count=5.0)])
    assert all(np.array_equal(a, other.state_dict()[name]) for name, a in live.state_dict().items())


def test_the_state_of_the_optimizer_stays_finite() -> None:
    """The square of a gradient overflows long before the parameters do."""
    live = make(optimizer=Adam(max_grad_norm=None))
    huge = batch()[0]
    target = np.full_like(np.array(huge.columns["target"]), 1e25)
    with pytest.raises(NonFiniteError, match="in the optimizer's exp_avg_sq of policy"):
        live.update([Transitions({**huge.columns, "target": target})])
    assert all(np.isfinite(array).all() for array in live.state_dict().values())


def normalizing() -> Policy:
    return Policy(observation_space=POLICY.observation_space, action_space=POLICY.action_space, normalize_obs=True)


def with_moments(mean: float, count: float = 32.0) -> Transitions:
    """A batch whose moments say that every observation was `mean`, but for a variance that grows with it."""
    shape = np.shape(np.array(batch()[0].columns["obs"]))[1:]
    with np.errstate(over="ignore"):
        var = np.full(shape, np.square(mean / 10.0))
    return Transitions(batch()[0].columns, {"obs": Moments(count, np.full(shape, mean), var)})


def test_auto_compiles_only_what_earns_it(monkeypatch: pytest.MonkeyPatch) -> None:
    live = make()
    assert live._mode(64) == "recorded"
    live.num_minibatches = learner_module.MINIBATCHES_THAT_EARN_COMPILING
    assert live._mode(64) == "compiled"
    monkeypatch.setattr(learner_module, "has_compiler", lambda: False)
    live = make()
    live.num_minibatches = learner_module.MINIBATCHES_THAT_EARN_COMPILING
    assert live._mode(64) == "recorded"


def test_without_a_compiler_it_says_so_once_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    live = make(compile=True)
    live.update(batch())
    live.update(batch())
    assert [r.getMessage() for r in caplog.records] == [
        "no C++ compiler was found (c++, g++, clang++, or $CXX): updates go on uncompiled"
    ]


def test_a_loss_that_reads_numbers_is_refused_with_a_way_out() -> None:
    def branching(networks: Networks, batch: Any, coefficients: Any) -> LossOutput:
        total, stats, _ = loss(networks, batch, coefficients)
        return LossOutput(total if total.item() > 0 else -total, stats)

    with pytest.raises(RecordError, match="compile=False"):
        make(loss=branching).update(batch())
    make(loss=branching, compile=False).update(batch())


def test_a_recording_gives_the_same_bits_from_its_first_use_on() -> None:
    """TorchScript adds up the products of the steps in another order once it has seen a run."""

    def slope(weight: Tensor, gates: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        leaf = weight.detach().requires_grad_()
        with torch.enable_grad():
            for gates_t in gates.unbind():
                h = torch.addmm(gates_t, h, leaf).sigmoid()
        return torch.autograd.grad(h.square().sum(), leaf)

    generator = torch.Generator().manual_seed(0)
    args = tuple(torch.randn(shape, generator=generator) for shape in ((16, 16), (6, 8, 16), (8, 16)))
    replay = record(slope, args)
    first, second, third = (replay(*args)[0] for _ in range(3))
    assert torch.equal(first, second) and torch.equal(second, third)
    torch.testing.assert_close(first, slope(*args)[0], rtol=1e-4, atol=1e-6)


def test_a_recording_replays_on_other_numbers() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        leaf = x.detach().requires_grad_()
        with torch.enable_grad():
            z = (torch.tanh(leaf) * y).exp().sum()
        return (*torch.autograd.grad(z, leaf), z.detach())

    replay = record(function, (torch.zeros(5), torch.ones(5)))
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        x, y = torch.randn(5, generator=generator), torch.randn(5, generator=generator)
        for ours, theirs in zip(replay(x, y), function(x, y), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_batches_of_different_columns_do_not_mix() -> None:
    with pytest.raises(ValueError, match="the same columns in each part"):
        concatenate([*batch(), Transitions({"obs": np.zeros((4, 3), np.float32)})])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_epochs": 0}, r"Learner\(num_epochs=0\): expected an integer >= 1"),
        ({"minibatch_size": 0}, r"Learner\(minibatch_size=0\)"),
        ({"compile": "always"}, r"Learner\(compile='always'\): expected 'auto', 'xla', True or False"),
        ({"coefficients": lambda n: {"clip": 0.1}}, r"gave \['clip'\]; expected 'learning_rate' among them"),
        (
            {"policy": Policy(observation_space=VECTOR, action_space=spaces.Discrete(2), standardize_reward=True)},
            "standardize_reward=True; expected sampled_moments",
        ),
    ],
)
def test_impossible_recipes_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**options)
