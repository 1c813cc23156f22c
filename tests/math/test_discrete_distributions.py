"""Categorical, MultiCategorical, Bernoulli against torch.distributions and counts of samples."""

import math

import pytest
import torch
from scipy import stats
from torch import distributions as reference
from torch.fx.experimental.proxy_tensor import make_fx

from levada.math import Bernoulli, Categorical, Distribution, DtypeError, MultiCategorical, ShapeError

SIZES = (2, 4, 3)


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def parts(logits):
    return [reference.Categorical(logits=part) for part in logits.split(SIZES, dim=-1)]


def test_categorical_agrees_with_torch():
    logits, other = 3 * randn(4, 5, 6), randn(4, 5, 6, seed=1)
    mine, theirs = Categorical(logits), reference.Categorical(logits=logits)
    action = theirs.sample()
    torch.testing.assert_close(mine.log_prob(action), theirs.log_prob(action))
    torch.testing.assert_close(mine.log_prob(action.to(torch.uint8)), theirs.log_prob(action))
    torch.testing.assert_close(mine.entropy(), theirs.entropy())
    divergence = reference.kl_divergence(theirs, reference.Categorical(logits=other))
    torch.testing.assert_close(mine.kl(Categorical(other)), divergence)
    assert torch.equal(mine.mode(), logits.argmax(-1))


def test_categorical_golden_numbers():
    # p = 1/2, 1/4, 1/4: an entropy of 3/2 bits; against 1/4, 1/4, 1/2 a divergence of 1/4 bit.
    policy = Categorical(torch.tensor([[0.5, 0.25, 0.25]]).log())
    assert policy.entropy().item() == pytest.approx(1.5 * math.log(2), abs=1e-6)
    assert policy.log_prob(torch.tensor([2])).item() == pytest.approx(-2 * math.log(2), abs=1e-6)
    other = Categorical(torch.tensor([[0.25, 0.25, 0.5]]).log())
    assert policy.kl(other).item() == pytest.approx(0.25 * math.log(2), abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_masked_actions_are_never_taken_and_give_no_nan(dtype):
    logits = (4 * randn(300, 5)).to(dtype).requires_grad_()
    mask = torch.rand(300, 5, generator=generator()) < 0.5
    mask[:, 2] = True
    mask[0] = torch.tensor([False, False, True, False, False])
    policy = Categorical(logits, mask)
    allowed = reference.Categorical(logits=logits.detach().double().masked_fill(~mask, -math.inf))

    assert (policy.log_probs[~mask].exp() == 0).all()
    assert policy.log_probs.isfinite().all()
    assert mask.gather(-1, policy.sample(generator()).unsqueeze(-1)).all()
    assert mask.gather(-1, policy.mode().unsqueeze(-1)).all()
    entropy = -torch.special.xlogy(allowed.probs, allowed.probs).sum(-1)
    torch.testing.assert_close(policy.entropy().double(), entropy, atol=1e-5, rtol=1e-5)
    assert policy.entropy()[0] == 0.0
    assert policy.kl(Categorical(torch.zeros(300, 5, dtype=policy.log_probs.dtype), mask)).isfinite().all()

    loss = policy.log_prob(policy.sample(generator())).sum() + policy.entropy().sum() + policy.kl(policy).sum()
    loss.backward()
    assert logits.grad.isfinite().all()
    assert not logits.grad[~mask].any()


def test_an_action_whose_logit_is_minus_infinity_is_masked():
    logits = torch.tensor([[0.0, -math.inf, 1.0], [-math.inf, 3.0, -math.inf]], requires_grad=True)
    policy = Categorical(logits)
    same = Categorical(torch.tensor([[0.0, 0.0, 1.0], [0.0, 3.0, 0.0]]), ~logits.isinf())
    assert torch.equal(policy.log_probs, same.log_probs)
    assert torch.equal(policy.entropy(), same.entropy())
    assert policy.entropy()[1] == 0.0
    (policy.entropy().sum() + policy.kl(Categorical(torch.zeros(2, 3))).sum() + policy.log_probs[:, 1].sum()).backward()
    assert logits.grad.isfinite().all()
    assert logits.grad[0, 0] != 0.0


@pytest.mark.parametrize("scale", [1e9, 3e9, 1e30, -1e30])
def test_a_forbidden_action_is_forbidden_whatever_the_size_of_the_others(scale):
    policy = Categorical(torch.tensor([[-3.0, -2.0, 0.0]]) * scale, torch.tensor([[True, True, False]]))
    allowed = int(torch.tensor([-3.0, -2.0]).mul(scale).argmax())
    assert policy.log_probs.exp().tolist() == [[float(action == allowed) for action in range(3)]]
    assert policy.mode().item() == allowed == policy.sample(generator()).item()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("low", [-9e37, -1e38, -1.5e38, -3e38, -math.inf])
def test_a_forbidden_action_is_forbidden_however_low_the_others_are(low, dtype):
    logits = torch.tensor([[low, 5.0, 1.0, low], [low, 5.0, low, low]], dtype=dtype, requires_grad=True)
    policy = Categorical(logits, torch.tensor([[True, False, False, False], [True, False, False, True]]))
    assert policy.log_probs.exp().tolist() == [[1.0, 0.0, 0.0, 0.0], [0.5, 0.0, 0.0, 0.5]]
    torch.testing.assert_close(policy.entropy().float(), torch.tensor([0.0, math.log(2.0)]))
    (policy.entropy().sum() + policy.log_probs[:, 0].sum() + policy.kl(policy).sum()).backward()
    assert logits.grad.isfinite().all()


def test_a_ratio_of_masked_probabilities_is_finite():
    mask = torch.tensor([[True, False]])
    old, new = Categorical(torch.zeros(1, 2), mask), Categorical(torch.ones(1, 2), mask)
    masked_action = torch.tensor([1])
    assert (new.log_prob(masked_action) - old.log_prob(masked_action)).exp().isfinite()


def test_multi_categorical_is_a_product_of_categoricals():
    logits, other = 2 * randn(5, 9), randn(5, 9, seed=1)
    mine = MultiCategorical(logits, SIZES)
    action = torch.stack([part.sample() for part in parts(logits)], dim=-1)
    log_prob = sum(part.log_prob(action[..., i]) for i, part in enumerate(parts(logits)))
    torch.testing.assert_close(mine.log_prob(action), log_prob)
    torch.testing.assert_close(mine.entropy(), sum(part.entropy() for part in parts(logits)))
    divergence = sum(map(reference.kl_divergence, parts(logits), parts(other)))
    torch.testing.assert_close(mine.kl(MultiCategorical(other, SIZES)), divergence)
    assert mine.mode().tolist() == torch.stack([part.probs.argmax(-1) for part in parts(logits)], -1).tolist()


def test_multi_categorical_masks_each_set():
    mask = torch.tensor([[False, True, True, False, False, False, True, True, False]])
    policy = MultiCategorical(torch.zeros(1, 9), SIZES, mask)
    assert policy.entropy().item() == pytest.approx(math.log(2))
    samples = {tuple(policy.sample(generator(seed))[0].tolist()) for seed in range(30)}
    assert samples == {(1, 0, 0), (1, 0, 1)}


def test_bernoulli_agrees_with_torch():
    logits, other = 4 * randn(3, 5), randn(3, 5, seed=1)
    mine = Bernoulli(logits)
    theirs = reference.Independent(reference.Bernoulli(logits=logits), 1)
    action = theirs.sample()
    for dtype in (torch.float64, torch.int8, torch.bool):
        torch.testing.assert_close(mine.log_prob(action.to(dtype)), theirs.log_prob(action))
    torch.testing.assert_close(mine.entropy(), theirs.entropy())
    divergence = reference.kl_divergence(theirs, reference.Independent(reference.Bernoulli(logits=other), 1))
    torch.testing.assert_close(mine.kl(Bernoulli(other)), divergence)
    assert torch.equal(mine.mode().bool(), logits > 0)


def test_bernoulli_is_finite_for_extreme_logits():
    policy = Bernoulli(torch.tensor([[500.0, -500.0]], requires_grad=True))
    assert policy.log_prob(torch.tensor([[1, 0]])).item() == 0.0
    assert policy.log_prob(torch.tensor([[0, 1]])).item() == -1000.0
    assert policy.entropy().item() == 0.0
    policy.entropy().backward()
    assert policy.logits.grad.isfinite().all()


@pytest.mark.parametrize("masked", [False, True])
def test_samples_of_a_categorical_have_its_frequencies(masked):
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0, 0.5])
    mask = torch.tensor([True, True, True, not masked, True])
    policy = Categorical(logits.expand(20_000, 5), mask.expand(20_000, 5))
    counts = torch.bincount(policy.sample(generator()), minlength=5)
    probabilities = logits.masked_fill(~mask, -math.inf).softmax(-1).double()
    expected = (20_000 * probabilities / probabilities.sum())[mask]
    assert counts[~mask].sum() == 0
    assert stats.chisquare(counts[mask].numpy(), expected.numpy()).pvalue > 1e-3


def test_samples_of_a_bernoulli_have_its_frequencies():
    logits = torch.tensor([-2.0, 0.0, 1.0])
    on = Bernoulli(logits.expand(20_000, 3)).sample(generator())
    assert on.dtype == torch.int8
    for count, probability in zip(on.sum(0).tolist(), logits.sigmoid().tolist(), strict=True):
        assert stats.binomtest(count, 20_000, probability).pvalue > 1e-3


DISTRIBUTIONS: dict[str, Distribution] = {
    "categorical": Categorical(randn(7, 5)),
    "multi_categorical": MultiCategorical(randn(7, 9), SIZES),
    "bernoulli": Bernoulli(randn(7, 4)),
}


@pytest.mark.parametrize("policy", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
def test_what_all_share(policy):
    action = policy.sample(generator(5))
    assert torch.equal(action, policy.sample(generator(5)))
    assert not torch.equal(action, policy.sample(generator(6)))
    assert policy.mode().shape == action.shape
    assert policy.mode().dtype == action.dtype
    assert policy.log_prob(action).shape == policy.entropy().shape == policy.kl(policy).shape == (7,)
    assert not policy.kl(policy).any()
    assert (policy.log_prob(policy.mode()) >= policy.log_prob(action)).all()


BUILD = {
    "categorical": lambda logits: Categorical(logits, logits < 1),
    "multi_categorical": lambda logits: MultiCategorical(logits, SIZES, logits < 9),
    "bernoulli": Bernoulli,
}


@pytest.mark.parametrize("name", BUILD)
def test_compiled_traced_and_mapped_agree_with_eager(name):
    def function(logits, action):
        policy = BUILD[name](logits)
        return policy.log_prob(action), policy.entropy(), policy.kl(BUILD[name](2 * logits)), policy.mode()

    logits = randn(6, 9)
    action = BUILD[name](logits).sample(generator())
    expected = function(logits, action)
    torch.testing.assert_close(torch.compile(function, backend="eager", fullgraph=True)(logits, action), expected)
    torch.testing.assert_close(make_fx(function)(logits, action)(logits, action), expected)
    torch.testing.assert_close(torch.func.vmap(function)(logits, action), expected)


@pytest.mark.parametrize("name", BUILD)
def test_sampling_compiles(name):
    compiled = torch.compile(lambda logits: BUILD[name](logits).sample(), backend="eager", fullgraph=True)
    logits = randn(6, 9)
    torch.manual_seed(0)
    expected = BUILD[name](logits).sample()
    torch.manual_seed(0)
    assert torch.equal(compiled(logits), expected)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: Categorical(torch.zeros(2, 3, dtype=torch.int64)),
            DtypeError,
            "Categorical: logits is torch.int64, expected torch.float32 or",
        ),
        (
            lambda: Categorical(torch.tensor(0.0)),
            ShapeError,
            "Categorical: logits has shape (), expected (*batch, A), not",
        ),
        (
            lambda: Categorical(torch.zeros(2, 0)),
            ShapeError,
            "Categorical: logits has shape (2, 0), expected (*batch, A)",
        ),
        (
            lambda: Categorical(torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.int8)),
            DtypeError,
            "Categorical: mask is torch.int8, expected torch.bool; did you forget .bool()?",
        ),
        (
            lambda: Categorical(torch.zeros(2, 3), torch.ones(3).bool()),
            ShapeError,
            "Categorical: mask has shape (3,), expected (2, 3) as logits",
        ),
        (
            lambda: Categorical(torch.zeros(2, 3)).log_prob(torch.zeros(2, 1).long()),
            ShapeError,
            (
                "Categorical.log_prob: action has shape (2, 1), expected (2,) as the batch of logits; did you forget "
                ".squeeze(-1)?"
            ),
        ),
        (
            lambda: Categorical(torch.zeros(2, 3)).log_prob(torch.zeros(2)),
            DtypeError,
            "Categorical.log_prob: action is torch.float32, expected torch.int64 or",
        ),
        (
            lambda: Categorical(torch.zeros(2, 3)).kl(Bernoulli(torch.zeros(2, 3))),
            DtypeError,
            "Categorical.kl: other is Bernoulli, expected Categorical",
        ),
        (
            lambda: Categorical(torch.zeros(2, 3)).kl(Categorical(torch.zeros(1, 3))),
            ShapeError,
            "Categorical.kl: other has shape (1, 3), expected (2, 3) as self",
        ),
        (
            lambda: MultiCategorical(torch.zeros(2, 8), SIZES),
            ShapeError,
            (
                "MultiCategorical: logits has shape (2, 8), expected a last dimension of 9 for sizes (2, 4, 3), each at "
                "least 1; does the policy's last layer have sum(sizes) outputs?"
            ),
        ),
        (
            lambda: MultiCategorical(torch.zeros(2, 2), (2, 0)),
            ShapeError,
            "MultiCategorical: logits has shape (2, 2), expected a last dimension of 2 for sizes (2, 0), each",
        ),
        (
            lambda: MultiCategorical(torch.zeros(2, 9), SIZES, torch.ones(2, 8).bool()),
            ShapeError,
            "MultiCategorical: mask has shape (2, 8), expected (2, 9) as logits",
        ),
        (
            lambda: MultiCategorical(torch.zeros(2, 9), SIZES).log_prob(torch.zeros(2, 2).long()),
            ShapeError,
            "MultiCategorical.log_prob: action has shape (2, 2), expected (2, 3) as (*batch, len(sizes))",
        ),
        (
            lambda: MultiCategorical(torch.zeros(2, 4), (2, 2)).kl(MultiCategorical(torch.zeros(2, 4), (4,))),
            ShapeError,
            "MultiCategorical.kl: other has 1 sets, expected 2 as self",
        ),
        (
            lambda: Bernoulli(torch.zeros(2, 3)).log_prob(torch.zeros(3)),
            ShapeError,
            "Bernoulli.log_prob: action has shape (3,), expected (2, 3) as logits",
        ),
        (
            lambda: Bernoulli(torch.zeros(2, 3)).kl(Bernoulli(torch.zeros(3))),
            ShapeError,
            "Bernoulli.kl: other has shape (3,), expected (2, 3) as self",
        ),
    ],
)
def test_refuses(make, error, message):
    with pytest.raises(error) as caught:
        make()
    assert str(caught.value).startswith(message)
