"""Off-policy learning: targets that follow, one flat vector for all networks, the same numbers in every mode."""

from functools import partial

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from levada.algorithms.dqn import DQN, DQNLoss
from levada.algorithms.rainbow import Rainbow
from levada.rl.learning.learner import Learner, NonFiniteError
from levada.rl.learning.loss import LossOutput, Networks
from levada.rl.policies.networks import ValueMLP
from levada.rl.policies.policy import Policy
from levada.rl.policies.q_distributions import ActionValues, MeanValues
from levada.rl.replay.transitions import Transitions

OBS = spaces.Box(-9.0, 9.0, (3,))
PLAIN = DQN()


def learner(seed=0, *, hp=PLAIN, **options):
    policy = Policy(
        observation_space=OBS, action_space=spaces.Discrete(4), output="q_values", network=partial(ValueMLP, hidden_sizes=(16,)),
        values=hp.value_kind, dueling=hp.dueling, weight_noise=hp.noisy_std if hp.noisy else 0.0,
    )  # fmt: skip
    fields = {
        "policy": policy, "loss": DQNLoss(hp), "coefficients": lambda num_steps: {"learning_rate": 1e-2},
        "minibatch_size": 8, "shuffle": False, "targets": ("policy",), "compile": "auto",
    }  # fmt: skip
    return Learner(**fields | options).open(seed)


def batch(num_rows=8, seed=0, **more):
    rng = np.random.default_rng(seed)
    obs, after = rng.normal(size=(2, num_rows, 3)).astype(np.float32)
    columns = {
        "obs": obs, "next_obs": after, "action": rng.integers(0, 4, num_rows),
        "reward": rng.normal(size=num_rows).astype(np.float32),
        "discount": (0.9 * rng.integers(0, 2, num_rows)).astype(np.float32),
    }  # fmt: skip
    return [Transitions(columns | more)]


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of torch's own imports
@pytest.mark.parametrize("hp", [DQN(), Rainbow(num_atoms=5)], ids=["dqn", "rainbow"])
def test_eager_recorded_and_compiled_learn_the_same(hp):
    ways = [learner(hp=hp, compile=compile_, target_update_interval=3) for compile_ in (False, "auto", True)]
    for seed in range(4):
        updates = [live.update(batch(24, seed)) for live in ways]
    for update in updates[1:]:
        for name, array in updates[0].weights.items():
            np.testing.assert_allclose(update.weights[name], array, rtol=1e-3, atol=1e-5, err_msg=name)
        assert update.stats.keys() == updates[0].stats.keys()


@pytest.mark.parametrize("num_at_once", [1, 2, 5])
def test_updates_in_one_call_are_those_one_by_one(num_at_once):
    one, many = learner(target_update_interval=4, tau=0.5), learner(target_update_interval=4, tau=0.5)
    for seed in range(3):
        some = batch(8 * num_at_once, seed)[0]
        for start in range(0, 8 * num_at_once, 8):
            one.update([Transitions({name: column[start : start + 8] for name, column in some.columns.items()})])
        many.update([some])
    for name, array in one.state_dict().items():
        if name != "counts":
            np.testing.assert_array_equal(array, many.state_dict()[name], err_msg=name)
    assert many.num_minibatches == one.num_minibatches == 3 * num_at_once


@pytest.mark.parametrize(("every", "tau"), [(1, 0.25), (3, 1.0)])
def test_targets_follow(every, tau):
    live = learner(target_update_interval=every, tau=tau)
    target = live.state_dict()["step/target"]
    np.testing.assert_array_equal(target, live.state_dict()["step/params"])
    for step in range(1, 8):
        live.update(batch(seed=step))
        state = live.state_dict()
        if step % every == 0:
            target = target + np.float32(tau) * (state["step/params"] - target)
        np.testing.assert_allclose(state["step/target"], target, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("more", [{}, {"double": False}, {"huber_delta": None}], ids=str)
def test_the_loss_by_an_independent_count(more):
    """From the papers' formulas, in numpy."""
    hp = DQN(prioritized=True, **more)
    rng = np.random.default_rng(3)
    q_tm1, q_next, q_slow = (rng.normal(size=(8, 4)) * 2 for _ in range(3))
    rows = batch(seed=1, importance=rng.random(8).astype(np.float32))[0].columns
    tensors = {name: torch.from_numpy(np.asarray(column)) for name, column in rows.items()}

    def net(first, second):
        def call(obs):
            q = first if obs is tensors["obs"] else second
            return ActionValues(MeanValues(), torch.from_numpy(q)[..., None], None), None

        return call

    online, slow = net(q_tm1, q_next), net(None, q_slow)
    outcome = DQNLoss(hp)(Networks({"policy": online}, {"policy": slow}), tensors, {})

    best = (q_next if hp.double else q_slow).argmax(1)
    target = rows["reward"] + rows["discount"] * q_slow[np.arange(8), best]
    error = target - q_tm1[np.arange(8), rows["action"]]
    size = np.abs(error)
    each = 0.5 * error**2 if hp.huber_delta is None else np.where(size < 1.0, 0.5 * error**2, size - 0.5)
    assert float(outcome.loss) == pytest.approx((rows["importance"] * each).mean(), rel=1e-5)
    np.testing.assert_allclose(outcome.priorities.numpy(), size, rtol=1e-5)


def test_actions_that_are_not_allowed_are_no_target():
    rows = {name: torch.from_numpy(np.asarray(column)) for name, column in batch()[0].columns.items()}
    values = torch.arange(32.0).reshape(8, 4)
    mask = torch.ones(8, 4, dtype=torch.bool)
    mask[:, 3] = False
    net = {"policy": lambda obs: (ActionValues(MeanValues(), values[..., None], mask), None)}
    target = rows["reward"] + rows["discount"] * values[:, 2]
    error = target - values.gather(1, rows["action"][:, None])[:, 0]
    outcome = DQNLoss(DQN(prioritized=True))(Networks(net, net), rows, {})
    torch.testing.assert_close(outcome.priorities, error.abs())


def test_several_networks_learn_together_and_only_what_acts_is_published():
    def loss(networks, rows, coefficients):
        critic = networks.critic(rows["obs"])[:, 0]
        slow = networks.target.critic(rows["obs"])[:, 0]
        actions, _ = networks.policy(rows["obs"])
        return LossOutput(
            (critic - rows["reward"]).square().mean() + actions.values.square().mean(), {"gap": (critic - slow).mean()}
        )

    live = learner(loss=loss, networks={"critic": lambda: nn.Linear(3, 1)}, targets=("critic",), tau=0.1)
    before = live.state_dict()
    update = live.update(batch())
    after = live.state_dict()
    assert set(update.weights) == {
        "network.shared.0.weight",
        "network.shared.0.bias",
        "network.policy.weight",
        "network.policy.bias",
    }
    assert len(after["step/target"]) == 4
    assert (before["step/params"] != after["step/params"]).mean() > 0.5
    assert update.priorities is None
    again = learner(loss=loss, networks={"critic": lambda: nn.Linear(3, 1)}, targets=("critic",), tau=0.1)
    np.testing.assert_array_equal(again.state_dict()["step/params"], before["step/params"])


def test_nan_is_refused_and_nothing_changes():
    live = learner()
    live.update(batch())
    before = live.state_dict()
    with pytest.raises(NonFiniteError, match=r"NaN or infinity in policy.*; it was refused"):
        live.update(batch(reward=np.full(8, np.nan, np.float32)))
    for name, array in live.state_dict().items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize("hp", [DQN(), Rainbow(num_atoms=5)], ids=["dqn", "rainbow"])
def test_a_saved_learner_goes_on(hp):
    one, other = learner(hp=hp, target_update_interval=3), learner(seed=5, hp=hp, target_update_interval=3)
    for seed in range(4):
        one.update(batch(seed=seed))
    other.load_state_dict(one.state_dict())
    for seed in range(4, 8):
        a, b = one.update(batch(seed=seed)), other.update(batch(seed=seed))
    assert a.stats == b.stats
    for name, array in one.state_dict().items():
        np.testing.assert_array_equal(array, other.state_dict()[name])


@pytest.mark.parametrize(("options", "match"), [
    ({"minibatch_size": 0}, "minibatch_size=0"), ({"tau": 0.0}, "tau=0.0"), ({"tau": 1.1}, "tau"), ({"target_update_interval": 0},
    "target_update_interval"),
    ({"targets": ("critic",)}, r"networks are \['policy'\], targets \['critic'\], update_every"),
    ({"coefficients": lambda num_steps: {}}, "learning_rate"),
])  # fmt: skip
def test_what_cannot_be_is_refused(options, match):
    with pytest.raises(ValueError, match=match):
        learner(**options)


def test_a_batch_that_does_not_divide():
    with pytest.raises(ValueError, match="20 rows does not divide into minibatches of 8; 4 would be left"):
        learner().update(batch(20))


def test_auto_stays_with_a_recording_that_is_quicker_than_what_can_be_compiled(monkeypatch):
    live = learner()
    live.num_minibatches = 10**9
    for quicker, mode in ((False, "compiled"), (True, "recorded")):
        monkeypatch.setattr("levada.rl.learning.learner.has_faster_products", lambda *_, q=quicker: q)
        monkeypatch.setattr("levada.rl.learning.learner.has_compiler", lambda: True)
        assert live._mode(8) == mode
    live = learner(compile=True)
    assert live._mode(8) == "compiled"


@pytest.mark.parametrize("compile_", [False, "auto"])
def test_microbatches_give_the_gradient_of_the_whole_batch(compile_):
    hp = DQN(prioritized=True)
    whole, parts = (learner(hp=hp, num_microbatches=num, compile=compile_) for num in (1, 4))
    importance = np.random.default_rng(5).random(24).astype(np.float32)
    for seed in range(3):
        a, b = (live.update(batch(24, seed, importance=importance)) for live in (whole, parts))
        np.testing.assert_allclose(b.priorities, a.priorities, rtol=1e-4)
        for name, array in a.weights.items():
            np.testing.assert_allclose(b.weights[name], array, rtol=1e-3, atol=1e-5, err_msg=name)
    assert whole.num_minibatches == parts.num_minibatches == 9


def test_what_does_not_divide_into_microbatches_is_refused():
    with pytest.raises(ValueError, match="a minibatch of 8 rows does not divide into 3 microbatches; 2 would be left"):
        learner(num_microbatches=3).update(batch(8))
