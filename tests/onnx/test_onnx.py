"""Exported policies act as the policies do, for every kind of policy, and without levada."""

import functools
import json
import subprocess
import sys

import gymnasium
import numpy as np
import onnx
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate
from torch import nn

import levada
from levada.onnx import ExportError
from levada.onnx.check import TOLERANCE, largest_difference
from levada.onnx.loader import Policy as Loaded
from levada.onnx.module import ActingModule
from levada.onnx.write import in_float32, to_onnx
from levada.rl.acting.trained_policy import TrainedPolicy
from levada.rl.data.spaces import ACTION_MASK, OBS
from levada.rl.policies.networks import MultiInput
from levada.rl.policies.policy import Policy
from levada.rl.policies.q_distributions import CategoricalValues, MeanValues, QuantileValues
from levada.rl.policies.recurrent import RecurrentNet

VECTOR = spaces.Box(-1.0, 1.0, (5,))
IMAGE = spaces.Box(0, 255, (2, 36, 36), np.uint8)
NESTED = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (1, 16, 16), np.uint8),
        "body": spaces.Tuple((spaces.Box(-2.0, 2.0, (3,), np.float64), spaces.Discrete(4, start=2))),
        "switches": spaces.MultiBinary(3),
        "levels": spaces.MultiDiscrete([3, 4]),
    }
)


def masked(size):
    return spaces.Dict({OBS: VECTOR, ACTION_MASK: spaces.Box(0, 1, (size,), np.int8)})


class Gru(RecurrentNet):
    def __init__(self, space, num_params):
        super().__init__(space, num_params, rnn_type="gru", rnn_size=8)


class Lstm(RecurrentNet):
    def __init__(self, space, num_params):
        super().__init__(space, num_params, rnn_type="lstm", rnn_size=8)


BOX = spaces.Box(-2.0, np.array([0.5, 3.0], np.float32))
KINDS = {
    "discrete": {"action_space": spaces.Discrete(3, start=4)},
    "continuous, clipped": {"action_space": BOX},
    "continuous, float64": {"action_space": spaces.Box(-0.01, 0.01, (2, 2), np.float64)},
    "unbounded": {"action_space": spaces.Box(-np.inf, np.inf, (2,))},
    "squashed": {"action_space": BOX, "tanh_squash": True},
    "squashed, std by state": {"action_space": BOX, "tanh_squash": True, "state_dependent_std": True},
    "multi-discrete": {"action_space": spaces.MultiDiscrete([2, 4, 3])},
    "multi-binary": {"action_space": spaces.MultiBinary(4)},
    "normalized": {"action_space": spaces.Discrete(3), "normalize_obs": True, "normalize_value": True},
    "masked": {"action_space": spaces.Discrete(6), "observation_space": masked(6)},
    "masked, multi-discrete": {"action_space": spaces.MultiDiscrete([2, 3]), "observation_space": masked(5)},
    "images": {"action_space": spaces.Discrete(3), "observation_space": IMAGE},
    "nested": {"action_space": spaces.Discrete(3), "observation_space": NESTED, "normalize_obs": True},
    "keys with slashes": {
        "action_space": spaces.Discrete(3),
        "observation_space": spaces.Dict({"a/b": BOX, "a": spaces.Dict({"c": BOX}), "ab": BOX}),
    },
    "all integers": {
        "action_space": spaces.Discrete(3),
        "observation_space": spaces.Box(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (2,), np.int64),
    },
    "integer": {"action_space": spaces.Discrete(3), "observation_space": spaces.Discrete(7)},
    "GRU": {"action_space": spaces.Discrete(3), "network": Gru},
    "LSTM": {"action_space": BOX, "network": Lstm},
    "masked GRU": {"action_space": spaces.Discrete(3), "observation_space": masked(3), "network": Gru},
    "action values": {"action_space": spaces.Discrete(3), "output": "q_values"},
    "dueling, images": {
        "action_space": spaces.Discrete(3),
        "output": "q_values",
        "dueling": True,
        "observation_space": IMAGE,
    },
    "categorical": {
        "action_space": spaces.Discrete(3),
        "output": "q_values",
        "values": CategoricalValues(v_min=-1.0, v_max=1.0, num_atoms=11),
    },
    "quantiles": {
        "action_space": spaces.Discrete(3),
        "output": "q_values",
        "values": QuantileValues(num_atoms=8),
        "dueling": True,
    },
    "noisy": {"action_space": spaces.Discrete(3), "output": "q_values", "values": MeanValues(), "weight_noise": 0.5},
    "masked values": {"action_space": spaces.Discrete(4), "output": "q_values", "observation_space": masked(4)},
}


def trained_policy(fields):
    policy = Policy(
        **{"observation_space": VECTOR, "hidden_sizes": (8,) if "network" not in fields else (64, 64), **fields}
    )
    rng = np.random.default_rng(0)
    weights = {}
    for name, x in policy.weights(policy.module(seed=1)).items():
        noise = rng.normal(0, 0.3 if x.size < 1000 else 0.01, x.shape).astype(x.dtype)
        weights[name] = 0.5 + np.abs(x + noise) if name.endswith((".var", ".count")) else x + noise
    return TrainedPolicy(policy, weights, version=1)


def observations(space, num):
    space.seed(3)
    return [space.sample() for _ in range(num)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_acts_as_the_policy(kind, tmp_path):
    trained = trained_policy(KINDS[kind])
    module = ActingModule(trained)
    data = to_onnx(module, {})
    assert largest_difference(trained, module, data) <= TOLERANCE
    (tmp_path / "policy.onnx").write_bytes(data)
    loaded = Loaded(tmp_path / "policy.onnx")
    has_mask = module.has_mask
    for obs in observations(trained.policy.env_observation_space, 12):
        if has_mask:
            obs[ACTION_MASK][0] = 1
            if isinstance(trained.policy.action_space, spaces.MultiDiscrete):
                obs[ACTION_MASK][2] = 1
        wanted = trained.act(obs)
        action = loaded.act(obs[OBS], obs[ACTION_MASK]) if has_mask else loaded.act(obs)
        assert action.dtype == wanted.dtype
        np.testing.assert_allclose(action, wanted, rtol=TOLERANCE, atol=TOLERANCE)


def test_a_policy_in_bfloat16_is_exported_in_float32(tmp_path):
    trained = trained_policy({**KINDS["images"], "precision": "bfloat16"})
    assert trained.policy.acting_precision == "bfloat16"
    own = in_float32(trained)
    module = ActingModule(own)
    data = to_onnx(module, {})
    assert largest_difference(own, module, data) <= TOLERANCE
    (tmp_path / "policy.onnx").write_bytes(data)
    loaded = Loaded(tmp_path / "policy.onnx")
    batch = np.stack(observations(IMAGE, 50))
    assert (loaded.act(batch) == trained.act_batch(batch)).mean() > 0.8  # others are nearly ties


def test_batches_and_states(tmp_path):
    trained = trained_policy(KINDS["GRU"])
    (tmp_path / "policy.onnx").write_bytes(to_onnx(ActingModule(trained), {}))
    loaded = Loaded(tmp_path / "policy.onnx")
    for num in (3, 3, 5):
        batch = np.stack(observations(VECTOR, num))
        np.testing.assert_array_equal(loaded.act(batch), trained.act_batch(batch))
    loaded.reset()
    trained.reset()
    np.testing.assert_array_equal(loaded.act(batch), trained.act_batch(batch))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    return levada.train(
        "ppo", "Pendulum-v1", until="updates=2", seed=1, out=out, display="quiet", log="none", num_envs=2, num_steps=16,
        minibatch_size=16, num_epochs=1, hidden_sizes=(8,), normalize_obs=True, compile=False,
    )  # fmt: skip


def test_a_run_is_exported_with_what_is_known_of_it(run):
    done = levada.export(run)
    assert done.path == run.path / "policy.onnx"
    assert done.nbytes == done.path.stat().st_size
    assert done.largest_difference <= TOLERANCE
    model = onnx.load(done.path)
    onnx.checker.check_model(model)
    about = {each.key: each.value for each in model.metadata_props}
    assert about["env"] == "Pendulum-v1"
    assert about["params_sha256"] == run.summary.params_sha256
    assert [each.name for each in model.graph.input] == ["obs"]
    assert [each.name for each in model.graph.output] == ["action", "params"]


def test_the_loader_needs_no_levada(run, tmp_path):
    levada.export(run.path, tmp_path / "some policy.onnx", loader=True)
    env = gymnasium.make("Pendulum-v1")
    obs, _ = env.reset(seed=1)
    program = (
        "import sys, json; sys.path[:0] = [sys.argv[1]]\n"
        "from importlib.util import find_spec\n"
        "from policy import Policy\n"
        "policy = Policy(sys.argv[1] + '/some policy.onnx')\n"
        "print(json.dumps([policy.act(json.loads(sys.argv[2])).tolist(), 'levada' in sys.modules, 'torch' in sys.modules]))\n"
    )
    command = [sys.executable, "-I", "-c", program, str(tmp_path), json.dumps(obs.tolist())]
    action, has_levada, has_torch = json.loads(
        subprocess.run(command, capture_output=True, text=True, check=True).stdout
    )
    np.testing.assert_allclose(action, run.policy.act(obs), rtol=1e-5, atol=1e-5)
    assert not has_levada
    assert not has_torch


class Branching(nn.Module):
    features_dim = 5

    def __init__(self, space):
        super().__init__()

    def forward(self, obs):
        return 2 * obs if obs.max() > 2 else obs


def test_a_network_that_cannot_be_traced_is_told_by_its_reason_and_its_line(capfd, caplog):
    network = functools.partial(MultiInput, features_extractor=Branching)
    with pytest.raises(ExportError) as found:
        to_onnx(ActingModule(trained_policy({"action_space": spaces.Discrete(3), "network": network})), {})
    text = str(found.value)
    assert text.startswith(
        "PyTorch cannot export network MultiInput with Branching to ONNX: Could not guard on data-dep"
    )
    assert text.endswith("in forward: return 2 * obs if obs.max() > 2 else obs)")
    assert (text.isprintable(), caplog.records, capfd.readouterr().err) == (True, [], "")


def test_a_file_that_differs_is_not_written(run, tmp_path, monkeypatch):
    monkeypatch.setattr("levada.onnx.write.largest_difference", lambda trained, module, data: 0.5)
    with pytest.raises(ExportError, match=r"differs from the policy by 0\.5, expected at most 1e-05; it is not"):
        levada.export(run, tmp_path / "policy.onnx")
    assert list(tmp_path.iterdir()) == []


def test_an_error_in_what_is_exported_is_found(monkeypatch):
    """It is in the file and in the module that the file is made of, and not in the policy."""
    trained = trained_policy(KINDS["discrete"])
    monkeypatch.setattr("levada.onnx.module._encoded", lambda action, space: action)  # without the start of the space
    module = ActingModule(trained)
    assert largest_difference(trained, module, to_onnx(module, {})) == float("inf")


@pytest.mark.parametrize(("weight", "is_kept"), [(0.0, True), (1.0, False)])
def test_another_action_is_allowed_in_a_tie_alone(weight, is_kept, monkeypatch):
    trained = trained_policy(KINDS["masked values"])
    trained = TrainedPolicy(trained.policy, {name: weight * x for name, x in trained.weights.items()}, version=1)
    act_batch = TrainedPolicy.act_batch

    def other(policy, obs):
        """The first other action that is allowed; the file takes the first of those that tie."""
        best = act_batch(policy, obs)
        left = np.where(np.arange(4) == best[:, None], 0, obs[ACTION_MASK])
        return np.where(left.any(axis=1), left.argmax(axis=1), best)

    monkeypatch.setattr(TrainedPolicy, "act_batch", other)
    module = ActingModule(trained)
    assert (largest_difference(trained, module, to_onnx(module, {})) <= TOLERANCE) == is_kept


@pytest.mark.parametrize(
    "space",
    [VECTOR, NESTED, spaces.Box(100.0, 200.0, (2,)), spaces.Box(-200.0, -100.0, (2,)), spaces.Box(0.0, np.inf, (2,)),
     spaces.Box(-np.inf, np.inf, (2,)), spaces.Box(-3e38, 3e38, (2,)), spaces.Box(2.0, 2.0, (2,))],
    ids=str,
)  # fmt: skip
def test_examples_lie_in_the_space(space):
    module = ActingModule(trained_policy({"action_space": spaces.Discrete(3), "observation_space": space}))
    batch = module.observation(module.examples(20))
    assert all(space.contains(each) for each in iterate(batch_space(space, 20), batch))


def test_mistakes_are_said(run, tmp_path, monkeypatch):
    with pytest.raises(ExportError, match="has one policy, 'policy'; leave out policy='other'"):
        levada.export(run, policy="other")
    monkeypatch.setattr("levada.onnx.write.find_spec", lambda name: None)
    with pytest.raises(ExportError, match="export needs onnx: pip install 'levada\\[export\\]'"):
        levada.export(run)
