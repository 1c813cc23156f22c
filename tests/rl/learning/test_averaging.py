"""The averaging learner: means, the outer optimizer, late differences, normalization statistics, and its state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from levada.algorithms.dqn import DQN
from levada.algorithms.groups import only_learner
from levada.algorithms.sac import SAC
from levada.flow import LevadaInternalError
from levada.rl.data.normalize import Moments, moments
from levada.rl.envs.task import Task
from levada.rl.learning.averaging import APPLIED, PARAMS, VERSION, Averaging, GroupDelta, ParameterLayout
from levada.rl.learning.compression import Int8
from levada.rl.learning.learner import Learner, NonFiniteError
from levada.rl.learning.starting import StartError


def dqn(**fields: Any) -> Learner:
    return only_learner(DQN(hidden_sizes=(8,), **fields).flow(Task("CartPole-v1")))[1]


def sac(**fields: Any) -> Learner:
    return only_learner(SAC(hidden_sizes=(8,), **fields).flow(Task("Pendulum-v1")))[1]


def delta_of(values: np.ndarray, group: int = 0, **fields: Any) -> GroupDelta:
    known: dict[str, Any] = {
        "number": 1, "version": 0, "message": {"values": values}, "moments": {}, "stats": {}, "num_updates": 1,
        "num_transitions": 8, "num_env_steps": 8, "episodes": (),
    }  # fmt: skip
    return GroupDelta(group=group, **{**known, **fields})


def opened(learner: Learner, **fields: Any) -> tuple[Any, np.ndarray, np.random.Generator]:
    """An open averaging learner, its parameters, and a generator for differences."""
    live = Averaging(learner=learner, num_groups=3, **fields).open(1)
    return live, live.state_dict()[PARAMS], np.random.default_rng(1)


@pytest.mark.parametrize("learner", [dqn(), sac()], ids=["dqn", "sac"])
def test_without_momentum_the_new_parameters_are_the_mean_of_those_of_the_groups(learner: Learner) -> None:
    live, before, rng = opened(learner)
    own = [before + rng.standard_normal(len(before), np.float32) for _ in range(3)]
    update = live.update([delta_of(params - before, group) for group, params in enumerate(own)])
    np.testing.assert_allclose(live.state_dict()[PARAMS], np.mean(own, axis=0), atol=1e-6)
    assert np.array_equal(ParameterLayout(learner).flatten(update.weights), live.state_dict()[PARAMS])
    assert (live.num_updates, int(update.weights[VERSION])) == (1, 1)
    assert update.weights[APPLIED].tolist() == [1, 1, 1]


def test_the_outer_optimizer_is_sgd_with_nesterov_momentum_as_in_pytorch() -> None:
    live, before, rng = opened(dqn(), learning_rate=0.7, momentum=0.9)
    params = torch.nn.Parameter(torch.tensor(before))
    peer = torch.optim.SGD([params], lr=0.7, momentum=0.9, nesterov=True)
    for number in range(1, 6):
        delta = rng.standard_normal(len(before), np.float32)
        live.update([delta_of(delta, number=number, version=number - 1)])
        params.grad = -torch.tensor(delta)
        peer.step()
    np.testing.assert_allclose(live.state_dict()[PARAMS], params.detach().numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("exponent", "weight"), [(0.0, 1.0), (0.5, 3.0**-0.5), (1.0, 1.0 / 3.0)])
def test_late_differences_count_less(exponent: float, weight: float) -> None:
    live, before, rng = opened(dqn(), staleness_exponent=exponent)
    zeros, late = np.zeros_like(before), rng.standard_normal(len(before), np.float32)
    for number in (1, 2):
        live.update([delta_of(zeros, number=number, version=number - 1)])
    live.update([delta_of(zeros, 0, version=2, number=3), delta_of(late, 1, version=0)])
    np.testing.assert_allclose(live.state_dict()[PARAMS] - before, weight * late / 2.0, atol=1e-6)


def test_no_group_counts_twice_in_a_round() -> None:
    live, before, _ = opened(dqn())
    with pytest.raises(LevadaInternalError, match=r"two differences of one group: \[1, 1\]"):
        live.update([delta_of(before, 1), delta_of(before, 1, number=2)])


def test_parameters_that_are_not_finite_are_refused() -> None:
    live, before, _ = opened(dqn())
    with pytest.raises(NonFiniteError, match="round 1 of policy 'policy' gave parameters that are not finite"):
        live.update([delta_of(np.full_like(before, np.inf))])
    assert np.array_equal(live.state_dict()[PARAMS], before)
    assert live.num_updates == 0


@pytest.mark.parametrize("make", [dqn, sac])
def test_normalization_statistics_are_those_of_all_data(make: Any) -> None:
    learner = make(normalize_obs=True, normalize_reward=True)
    live, before, rng = opened(learner)
    size = 4 if make is dqn else 3
    data = [rng.normal(group, 1.0 + group, (50 + 10 * group, size)) for group in range(3)]
    returns = Moments(5.0, np.array(1.0), np.array(2.0))
    update = live.update([
        delta_of(np.zeros_like(before), group, moments={"obs": moments(own, num_leading=1), "return": returns})
        for group, own in enumerate(data)
    ])  # fmt: skip
    everything = np.concatenate(data)
    found = learner.policy.moments_of(update.weights)
    np.testing.assert_allclose(found["obs"].mean, everything.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(found["obs"].var, everything.var(axis=0), rtol=1e-5)
    assert (found["obs"].count, found["return"].count) == (len(everything), 15.0)
    for name, array in live.state_dict().items():  # the critics normalize alike
        if name.startswith("buffers/") and name.endswith("normalizers.0.mean"):
            np.testing.assert_allclose(array, everything.mean(axis=0), rtol=1e-5)


def test_compressed_differences_are_unpacked_and_their_bytes_reported() -> None:
    live, before, rng = opened(dqn(), compression=Int8())
    message = Int8().compress(rng.standard_normal(len(before), np.float32))
    update = live.update(
        [delta_of(before, message=message, stats={"losses/x": 2.0}), delta_of(before, 1, message=message)]
    )
    expected = Int8().decompress(message, len(before))
    np.testing.assert_allclose(live.state_dict()[PARAMS] - before, expected, atol=1e-6)
    blocks = -(-len(before) // 512)
    assert update.stats["averaging/num_bytes"] == 2 * (len(before) + 4 * blocks)
    assert update.stats["averaging/num_bytes_uncompressed"] == 2 * 4 * len(before)
    assert "losses/x" not in update.stats  # not all groups have reported it


@pytest.mark.parametrize("learner", [dqn(normalize_obs=True), sac()], ids=["dqn", "sac"])
def test_its_state_resumes(learner: Learner) -> None:
    live, before, rng = opened(learner, momentum=0.5)
    deltas = [rng.standard_normal(len(before), np.float32) for _ in range(2)]
    live.update([delta_of(deltas[0])])
    other = live.recipe.open(2)
    other.load_state_dict(live.state_dict())
    for one in (live, other):
        one.update([delta_of(deltas[1], number=2, version=1)])
    for name, array in live.state_dict().items():
        assert np.array_equal(other.state_dict()[name], array), name
    assert not any(name.startswith("step/optimizer") for name in live.state_dict())


def test_it_starts_from_a_run_of_the_algorithm_and_the_algorithm_from_it() -> None:
    learner = sac()
    live, _, _ = opened(learner)
    single = learner.open(7)
    live.start_from(single.state_dict())
    assert np.array_equal(live.state_dict()[PARAMS], single.state_dict()[PARAMS])
    fresh = learner.open(8)
    fresh.start_from(live.state_dict())
    assert np.array_equal(fresh.state_dict()[PARAMS], single.state_dict()[PARAMS])
    with pytest.raises(StartError):
        live.start_from(dqn().open(1).state_dict())


def test_settings_out_of_range() -> None:
    with pytest.raises(ValueError, match=r"Averaging\(num_groups=0\): expected an integer >= 1"):
        Averaging(learner=dqn(), num_groups=0)
