"""Values of actions and their distributions: what they are worth, their losses, and acting by them as the learner sees them."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from levada.algorithms.dqn import DQN, DQNLoss, td_loss_of
from levada.rl.acting.actor import Actor
from levada.rl.data.spaces import allocate, map_nest
from levada.rl.learning.loss import Networks
from levada.rl.policies.heads.q_values import ValueHead
from levada.rl.policies.networks import value_network
from levada.rl.policies.policy import Policy
from levada.rl.policies.q_distributions import ActionValues, CategoricalValues, MeanValues, QuantileValues

KINDS = {
    "mean": None,
    "categorical": CategoricalValues(num_atoms=7, v_min=-2.0, v_max=3.0),
    "quantile": QuantileValues(num_atoms=5),
}


def by_hand(kind, atoms):
    """What one action is worth."""
    if isinstance(kind, CategoricalValues):
        odds = [np.exp(x) for x in atoms]
        support = [kind.v_min + i * (kind.v_max - kind.v_min) / (kind.num_atoms - 1) for i in range(kind.num_atoms)]
        return sum(p * z for p, z in zip(odds, support, strict=True)) / sum(odds)
    return sum(atoms) / len(atoms)


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_head_is_that_of_an_independent_count(kind, dueling):
    head = ValueHead(spaces.Discrete(4), kind, dueling=dueling)
    num_atoms = head.kind.num_atoms
    assert head.num_params == (5 if dueling else 4) * num_atoms
    params = np.random.default_rng(0).normal(size=(6, head.num_params)).astype(np.float32)
    expected = np.empty((6, 4))
    for n, row in enumerate(params):
        atoms = [[float(row[a * num_atoms + k]) for k in range(num_atoms)] for a in range(4)]
        if dueling:
            value = row[4 * num_atoms :]
            means = [sum(atoms[a][k] for a in range(4)) / 4 for k in range(num_atoms)]
            atoms = [[value[k] + atoms[a][k] - means[k] for k in range(num_atoms)] for a in range(4)]
        expected[n] = [by_hand(head.kind, some) for some in atoms]
    found = head.distribution(torch.from_numpy(params))
    np.testing.assert_allclose(found.values.numpy(), expected, rtol=1e-4, atol=1e-5)
    assert found.greedy().tolist() == head.mode(params).tolist() == expected.argmax(1).tolist()
    action = torch.tensor([0, 1, 2, 3, 0, 1])
    np.testing.assert_allclose(found.of(action).numpy(), expected[np.arange(6), action], rtol=1e-4, atol=1e-5)
    mask = np.ones((6, 4), np.int8)
    mask[np.arange(6), expected.argmax(1)] = 0
    second = np.where(mask, expected, -np.inf).argmax(1).tolist()
    assert head.mode(params, mask).tolist() == second
    assert head.distribution(torch.from_numpy(params), torch.from_numpy(mask) != 0).greedy().tolist() == second


OBSERVATIONS = {
    "vector": spaces.Box(-1.0, 1.0, (3,)),
    "image": spaces.Box(0, 255, (12, 12, 3), np.uint8),
    "dict": spaces.Dict({"speed": spaces.Box(-1.0, 1.0, (2,)), "gear": spaces.Discrete(3)}),
    "masked": spaces.Dict({"obs": spaces.Discrete(5), "action_mask": spaces.MultiBinary(4)}),
}


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("space", OBSERVATIONS.values(), ids=OBSERVATIONS)
def test_acting_is_what_the_module_says_is_best(space, kind, dueling):
    policy = Policy(
        observation_space=space, action_space=spaces.Discrete(4), output="q_values", network=value_network, values=kind,
        dueling=dueling,
    )  # fmt: skip
    module, generator = policy.module(0).eval(), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    actor, rng = Actor(policy), np.random.default_rng(2)
    actor.load(policy.weights(module))
    obs = map_nest(lambda leaf: (rng.random(leaf.shape) * 3).astype(leaf.dtype), allocate(policy.observation_space, 32))
    if "action_mask" in getattr(space, "spaces", {}):
        obs["action_mask"] = rng.integers(0, 2, (32, 4)).astype(np.int8)
        obs["action_mask"][:, 2] = 1
    with torch.inference_mode():
        found = module(map_nest(torch.from_numpy, obs))[0]
    top = found.values if found.mask is None else found.values.masked_fill(~found.mask, -torch.inf)
    best, second = top.topk(2).values.T
    clear = (best - second > 1e-4).numpy()
    assert clear.sum() > 20
    np.testing.assert_array_equal(actor.mode(obs)[clear], found.greedy().numpy()[clear])


def rows(num=8, seed=0):
    rng = np.random.default_rng(seed)
    columns = {
        "obs": np.zeros((num, 1), np.float32), "next_obs": np.ones((num, 1), np.float32), "action": rng.integers(0, 3, num),
        "reward": rng.normal(size=num).astype(np.float32), "importance": rng.random(num).astype(np.float32),
        "discount": (0.9 * (rng.random(num) < 0.7)).astype(np.float32),
    }  # fmt: skip
    return {name: torch.from_numpy(column) for name, column in columns.items()}


def networks(kind, rng, batch):
    """Online and target network with any atoms, and those."""
    now, then, slow = (rng.normal(size=(8, 3, kind.num_atoms)).astype(np.float32) for _ in range(3))

    def online(obs):
        return ActionValues(kind, torch.from_numpy(now if obs is batch["obs"] else then), None), None

    return (
        {"policy": online},
        {"policy": lambda obs: (ActionValues(kind, torch.from_numpy(slow), None), None)},
        now,
        then,
        slow,
    )


@pytest.mark.parametrize("double", [True, False])
def test_the_categorical_loss_by_an_independent_count(double):
    """Algorithm 1 of arXiv 1707.06887, and the divergence as in arXiv 1710.02298."""
    hp = DQN(distribution="categorical", num_atoms=6, v_min=-1.0, v_max=1.5, double=double, prioritized=True)
    batch, distance = rows(), 0.5
    nets, targets, now, then, slow = networks(hp.value_kind, np.random.default_rng(4), batch)
    outcome = DQNLoss(hp)(Networks(nets, targets), batch, {})
    divergences, expectation = [], []
    for n in range(8):
        chooser = then if double else slow
        best = max(range(3), key=lambda a, n=n, c=chooser: by_hand(hp.value_kind, c[n, a]))
        p = np.exp(slow[n, best]) / np.exp(slow[n, best]).sum()
        target = [0.0] * 6
        for j in range(6):
            moved = float(batch["reward"][n]) + float(batch["discount"][n]) * (-1.0 + j * distance)
            place = (min(max(moved, -1.0), 1.5) + 1.0) / distance
            lower, upper = int(np.floor(place)), int(np.ceil(place))
            if lower == upper:
                target[lower] += p[j]
            else:
                target[lower] += p[j] * (upper - place)
                target[upper] += p[j] * (place - lower)
        logits = now[n, int(batch["action"][n])].astype(np.float64)
        q = np.exp(logits) / np.exp(logits).sum()
        divergences.append(sum(t * np.log(t / some) for t, some in zip(target, q, strict=True) if t > 0.0))
        expectation.append(by_hand(hp.value_kind, logits))
    np.testing.assert_allclose(outcome.priorities.numpy(), divergences, rtol=1e-3, atol=1e-5)
    assert float(outcome.loss) == pytest.approx(np.mean(batch["importance"].numpy() * divergences), rel=1e-3)
    assert float(outcome.stats["q_values"]) == pytest.approx(np.mean(expectation), rel=1e-3)


@pytest.mark.parametrize("huber", [1.0, 0.3, None])
def test_the_quantile_loss_by_an_independent_count(huber):
    """Algorithm 1 of arXiv 1710.10044."""
    hp = DQN(distribution="quantile", num_atoms=4, huber_delta=huber, prioritized=True)
    batch = rows()
    nets, targets, now, then, slow = networks(hp.value_kind, np.random.default_rng(5), batch)
    outcome = DQNLoss(hp)(Networks(nets, targets), batch, {})
    losses = []
    for n in range(8):
        best = max(range(3), key=lambda a, n=n: sum(then[n, a]))
        total = 0.0
        for i in range(4):
            tau, theta = (i + 0.5) / 4, float(now[n, int(batch["action"][n]), i])
            for j in range(4):
                u = float(batch["reward"][n]) + float(batch["discount"][n]) * float(slow[n, best, j]) - theta
                size = abs(u)
                if huber is not None:
                    size = 0.5 * u * u / huber if size <= huber else size - 0.5 * huber
                total += abs(tau - (u < 0)) * size / 4
        losses.append(total)
    np.testing.assert_allclose(outcome.priorities.numpy(), losses, rtol=1e-4)
    assert float(outcome.loss) == pytest.approx(np.mean(batch["importance"].numpy() * losses), rel=1e-4)


def test_what_is_learned_already_is_no_surprise():
    kind = CategoricalValues(num_atoms=11, v_min=0.0, v_max=1.0)
    atoms = torch.randn(64, 11, generator=torch.Generator().manual_seed(0))
    loss, td_error = td_loss_of(kind, atoms, atoms, torch.zeros(64), torch.ones(64), huber_delta=None)
    assert bool((td_error >= 0.0).all())
    torch.testing.assert_close(loss, torch.zeros(64), rtol=0.0, atol=1e-5)


@pytest.mark.parametrize(("make", "match"), [
    (lambda: CategoricalValues(num_atoms=1), r"CategoricalValues\(num_atoms=1\): expected an integer >= 2"),
    (lambda: CategoricalValues(v_min=1.0, v_max=1.0), r"CategoricalValues\(v_min=1.0, v_max=1.0\): expected v_min < v_max"),
    (lambda: CategoricalValues(v_max=float("inf")), "expected a finite number"),
    (lambda: QuantileValues(num_atoms=0), r"QuantileValues\(num_atoms=0\): expected an integer >= 1"),
])  # fmt: skip
def test_what_cannot_be_is_refused(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_a_mean_is_one_atom():
    assert ValueHead(spaces.Discrete(3)).kind == MeanValues()
    assert MeanValues().num_atoms == 1
