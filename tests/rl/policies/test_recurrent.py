"""Recurrent networks: the cells are torch's, many steps are the same as one after the other, and episodes share nothing."""

from functools import partial

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from benchmarks._hidden import hidden_cartpole
from levada.rl.acting.actor import Actor
from levada.rl.acting.evaluation import evaluate
from levada.rl.acting.trained_policy import TrainedPolicy
from levada.rl.data.spaces import allocate, map_nest
from levada.rl.envs.task import Task
from levada.rl.policies.policy import ModelError, Policy
from levada.rl.policies.recurrent import GRU, LSTM, Recurrent, RecurrentNet

torch.set_num_threads(1)
VECTOR = spaces.Box(-1.0, 1.0, (3,))
NESTED = spaces.Dict({
    "camera": spaces.Box(0, 255, (12, 12, 3), np.uint8),
    "gear": spaces.Discrete(4),
    "speed": spaces.Box(-1.0, 1.0, (2,)),
})  # fmt: skip


def filled(space, *leading):
    """Random observations, as tensors."""
    rng = np.random.default_rng(1)
    return map_nest(
        lambda leaf: torch.from_numpy(rng.integers(0, 4, leaf.shape).astype(leaf.dtype)), allocate(space, *leading)
    )


@pytest.mark.parametrize(("ours", "theirs"), [(LSTM, nn.LSTMCell), (GRU, nn.GRUCell)])
def test_cells_are_those_of_torch(ours, theirs):
    torch.manual_seed(0)
    cell, expected = ours(3, 5), theirs(3, 5)
    with torch.no_grad():
        expected.weight_ih.copy_(cell.inputs.weight)
        expected.weight_hh.copy_(cell.weight.T)
        expected.bias_ih.copy_(cell.inputs.bias.normal_())
        expected.bias_hh.zero_()
    x, state = torch.randn(7, 3), torch.randn(7, cell.state_size)
    output, after = cell(cell.inputs(x), state)
    if ours is LSTM:
        h, c = expected(x, state.chunk(2, dim=1))
        torch.testing.assert_close(after, torch.cat([h, c], dim=1))
    else:
        h = expected(x, state)
        torch.testing.assert_close(after, h)
    torch.testing.assert_close(output, h)


def test_forget_gates_begin_open():
    bias = LSTM(3, 4).inputs.bias
    assert bias.tolist() == [0.0] * 4 + [1.0] * 4 + [0.0] * 8


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize(
    "space", [VECTOR, NESTED, spaces.Discrete(4), spaces.MultiBinary(3)], ids=lambda s: type(s).__name__
)
def test_many_steps_are_the_same_as_one_after_the_other(cell, space):
    torch.manual_seed(0)
    network = RecurrentNet(space, 3, hidden_sizes=(8, 6), rnn_size=5, rnn_type=cell)
    obs, state = filled(space, 6, 4), torch.randn(4, network.state_size)
    is_first = torch.rand(6, 4) < 0.3
    params, value, last = network.unroll(obs, state, is_first)
    assert params.shape == (6, 4, 3) and value.shape == (6, 4)
    for t in range(6):
        state = torch.where(is_first[t][:, None], 0.0, state)
        params_t, value_t, state = network(map_nest(lambda leaf, t=t: leaf[t], obs), state)
        torch.testing.assert_close(params[t], params_t, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(value[t], value_t, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(last, state, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_nothing_passes_from_one_episode_to_the_next(cell):
    """Neither numbers, not even NaN, nor gradients."""
    network = RecurrentNet(VECTOR, 2, rnn_size=4, rnn_type=cell)
    obs, state = torch.randn(5, 1, 3), torch.randn(1, network.state_size)
    is_first = torch.tensor([[False], [False], [True], [False], [False]])
    expected = network.unroll(obs[2:], torch.zeros_like(state))
    obs[:2] = torch.nan
    got = network.unroll(obs, state * torch.nan, is_first)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one[-3:] if len(one) == 5 else one, other)
    obs = torch.randn(5, 1, 3, requires_grad=True)
    [slope] = torch.autograd.grad(network.unroll(obs, state, is_first)[0][3].sum(), obs)
    assert [bool(slope[t].any()) for t in range(5)] == [False, False, True, True, False]


def policy_of(space=VECTOR, **fields):
    fields = {"action_space": spaces.Discrete(2), "network": partial(RecurrentNet, rnn_size=4)} | fields
    return Policy(observation_space=space, **fields)


@pytest.mark.parametrize("fields", [
    {}, {"normalize_obs": True}, {"action_space": spaces.Box(-1.0, 1.0, (2,))}, {"output": "q_values"},
    {"space": spaces.Dict({"obs": VECTOR, "action_mask": spaces.MultiBinary(2)})},
], ids=str)  # fmt: skip
def test_samplers_act_as_the_learner_sees(fields):
    policy = policy_of(**fields)
    assert policy.state_size == 8
    module, actor = policy.module(seed=1), Actor(policy)
    actor.load(policy.weights(module))
    obs = filled(policy.observation_space, 4, 3)
    distribution, value, last = module(obs, torch.zeros(3, 8), None)
    state = actor.initial_state(3)
    for t in range(4):
        row, v_t, state = actor.step(map_nest(lambda leaf, t=t: leaf[t].numpy(), obs), state)
        np.testing.assert_allclose(v_t, value[t].detach(), rtol=1e-5, atol=1e-6)
        mask = actor.mask(map_nest(lambda leaf, t=t: leaf[t].numpy(), obs))
        best = distribution.greedy() if policy.output == "q_values" else distribution.mode()
        np.testing.assert_allclose(actor.head.mode(row, mask), best[t].detach(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(state, last.detach(), rtol=1e-5, atol=1e-6)


def test_policies_that_are_not_recurrent_have_a_state_of_nothing():
    policy = Policy(observation_space=VECTOR, action_space=spaces.Discrete(2))
    actor = Actor(policy)
    actor.load(policy.weights(policy.module(seed=1)))
    obs = np.ones((3, 3), np.float32)
    row, value, state = actor.step(obs, actor.initial_state(3))
    assert (policy.state_size, state.shape, value) == (0, (3, 0), None)
    np.testing.assert_array_equal(row, actor.params(obs))


def strong(task, **fields):
    """A policy whose actions depend on what it remembers."""
    policy = policy_of(task.observation_space, action_space=task.action_space, **fields)
    weights = dict(policy.weights(policy.module(seed=3)))
    return TrainedPolicy(policy, {name: 20.0 * array for name, array in weights.items()}, version=0)


def test_a_trained_policy_remembers_until_it_is_reset():
    task = Task(hidden_cartpole)
    trained, env = strong(task), hidden_cartpole()
    actor = Actor(trained.policy)
    actor.load(trained.weights)
    env.observation_space.seed(1)
    seen = [env.observation_space.sample() for _ in range(60)]
    actions = [int(trained.act(obs)) for obs in seen]
    state, expected = actor.initial_state(1), []
    for obs in seen:
        row, _, state = actor.step(obs[None], state)
        expected.append(int(row.argmax()))
    assert actions == expected
    assert [int(trained.act(obs)) for obs in seen] != actions
    trained.reset()
    assert [int(trained.act(obs)) for obs in seen] == actions


@pytest.mark.parametrize("vectorization", ["sync", "vector_entry_point"])
def test_evaluation_forgets_where_episodes_end(vectorization):
    """It is the same as to play alone, one episode after the other, in environments that reset at once and in the next step."""
    task = Task("CartPole-v1", vectorization=vectorization)
    trained = strong(task)
    found = evaluate(task, trained, num_episodes=16, seed=5)  # each of 8 environments plays twice
    actor = Actor(trained.policy)
    actor.load(trained.weights)
    returns, total, left = [], np.zeros(8), np.full(8, 2)
    with task.make(8) as envs:
        obs, state = envs.reset(5), actor.initial_state(8)
        while left.any():
            row, _, state = actor.step(obs, state)
            step = envs.step(row.argmax(axis=1))
            total += step.reward
            ended = step.terminated | step.truncated
            for b in np.flatnonzero(ended):
                returns += [total[b]] * bool(left[b])
                left[b] = max(0, left[b] - 1)
                total[b] = 0.0
            state[step.is_reset if vectorization == "vector_entry_point" else ended] = 0.0
            obs = step.obs
    assert found.returns.tolist() == returns
    assert len(set(returns)) > 3


class Sum(Recurrent):
    """Gives something else than it should."""

    state_size = 2

    def __init__(self, space, num_params):
        super().__init__()
        self.layer = nn.Linear(3, num_params)

    def encode(self, obs):
        return obs

    def recur(self, features, state):
        return features, state

    def decode(self, outputs):
        return self.layer(outputs), outputs.sum(dim=-1)


class Unsized(Sum):
    state_size = 0


class Grows(Sum):
    def recur(self, features, state):
        return features, torch.cat([state, state], dim=1)


class Forgets(Sum):
    def forward(self, obs, state):
        return self.decode(self.encode(obs))


@pytest.mark.parametrize(("network", "message"), [
    (Unsized, "recurrent network Unsized has state_size 0, expected an integer >= 1"),
    (Grows, r"network Grows of policy 'policy' gives a state \(2, 4\), expected \(2, 2\); is its state_size right"),
    (Forgets, r"Forgets of policy 'policy' gives a tuple of 2, expected \(params \[2, 2\], value \[2\], state \[2, 2\]\)"),
])  # fmt: skip
def test_networks_that_cannot_be_used_are_refused(network, message):
    assert policy_of(network=Sum).state_size == 2
    with pytest.raises(ModelError, match=message):
        _ = policy_of(network=network).state_size
