"""Gaussian and SquashedGaussian against torch.distributions, numeric integration and samples."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import distributions as reference
from torch.fx.experimental.proxy_tensor import make_fx

from levada.math import Distribution, DtypeError, Gaussian, RangeError, ShapeError, SquashedGaussian


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(mean, log_std):
    return reference.Independent(reference.Normal(mean, log_std.exp().expand_as(mean)), 1)


def squashed(mean, log_std, low, high):
    transforms = [
        reference.transforms.TanhTransform(cache_size=1),
        reference.transforms.AffineTransform((high + low) / 2, (high - low) / 2),
    ]
    base = reference.Normal(mean, log_std.exp().expand_as(mean))
    return reference.Independent(reference.TransformedDistribution(base, transforms), 1)


def scalar_policy(mean, std, low=-1.0, high=1.0, dtype=torch.float64):
    log_std = torch.tensor([math.log(std)], dtype=dtype)
    return SquashedGaussian(torch.tensor([[mean]], dtype=dtype), log_std, low, high)


@pytest.mark.parametrize("log_std_shape", [(5, 3), (3,)])
def test_gaussian_agrees_with_torch(log_std_shape):
    mean, log_std, other, other_log_std = (
        randn(5, 3),
        randn(*log_std_shape, seed=1),
        randn(5, 3, seed=2),
        randn(3, seed=3),
    )
    mine, theirs = Gaussian(mean, log_std), normal(mean, log_std)
    action = randn(5, 3, seed=4)
    torch.testing.assert_close(mine.log_prob(action), theirs.log_prob(action))
    torch.testing.assert_close(mine.entropy(), theirs.entropy())
    divergence = reference.kl_divergence(theirs, normal(other, other_log_std))
    torch.testing.assert_close(mine.kl(Gaussian(other, other_log_std)), divergence)
    assert torch.equal(mine.mode(), mean)


def test_gaussian_golden_numbers():
    # One dimension, mean 1, standard deviation 2, at 4: -log 2 - log(2 pi) / 2 - (3 / 2)^2 / 2.
    policy = Gaussian(torch.ones(1, 1), torch.full((1,), math.log(2)))
    assert policy.log_prob(torch.full((1, 1), 4.0)).item() == pytest.approx(-2.737085713764618, abs=1e-6)
    assert policy.entropy().item() == pytest.approx(2.112085713764618, abs=1e-6)
    # Against the standard normal: -log 2 + (4 + 1 - 1) / 2.
    assert policy.kl(Gaussian(torch.zeros(1, 1), torch.zeros(1))).item() == pytest.approx(1.3068528194400546, abs=1e-6)


def test_samples_of_a_gaussian_are_normal():
    samples = Gaussian(torch.tensor([1.0, -2.0]).expand(5_000, 2), torch.tensor([0.5, -1.0])).sample(generator())
    for column, mean, log_std in ((0, 1.0, 0.5), (1, -2.0, -1.0)):
        assert stats.kstest(samples[:, column].numpy(), "norm", (mean, math.exp(log_std))).pvalue > 1e-3
    assert abs(np.corrcoef(samples.numpy().T)[0, 1]) < 0.05


def test_samples_of_a_squashed_gaussian_are_squashed_normals():
    policy = SquashedGaussian(torch.full((5_000, 1), 0.3), torch.zeros(1), -1.0, 5.0)
    x = np.arctanh((policy.sample(generator()).double().numpy().ravel() - 2.0) / 3.0)
    assert stats.kstest(x, "norm", (0.3, 1.0)).pvalue > 1e-3


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (-2.0, 6.0), (10.0, 10.5)])
def test_squashed_gaussian_agrees_with_torch(low, high):
    mean, log_std, x = randn(5, 3), 0.5 * randn(3, seed=1), randn(5, 3, seed=2)
    mine, theirs = SquashedGaussian(mean, log_std, low, high), squashed(mean, log_std, low, high)
    action = (high + low) / 2 + (high - low) / 2 * x.tanh()
    torch.testing.assert_close(mine.squash(x), action)
    torch.testing.assert_close(mine.log_prob(action), theirs.log_prob(action))
    torch.testing.assert_close(mine.log_prob_pre_tanh(x), theirs.log_prob(action))


def test_ends_may_differ_between_dimensions():
    mean, log_std, x = randn(5, 2), randn(2, seed=1), randn(5, 2, seed=2)
    low, high = torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 4.0])
    together = SquashedGaussian(mean, log_std, low, high)
    first = SquashedGaussian(mean[:, :1], log_std[:1], -1.0, 1.0)
    second = SquashedGaussian(mean[:, 1:], log_std[1:], 0.0, 4.0)
    torch.testing.assert_close(
        together.log_prob_pre_tanh(x), first.log_prob_pre_tanh(x[:, :1]) + second.log_prob_pre_tanh(x[:, 1:])
    )
    torch.testing.assert_close(together.entropy(), first.entropy() + second.entropy())
    torch.testing.assert_close(together.squash(x), torch.cat((first.squash(x[:, :1]), second.squash(x[:, 1:])), -1))
    assert together.squash(torch.full((1, 2), 40.0)).tolist() == [[1.0, 4.0]]


@pytest.mark.parametrize(("mean", "std"), [(0.0, 0.3), (0.7, 1.0), (-0.5, 1.5)])
@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (0.0, 8.0)])
def test_squashed_density_integrates_to_one_and_gives_the_entropy(mean, std, low, high):
    policy = scalar_policy(mean, std, low, high)

    def log_density(action):
        return policy.log_prob(torch.tensor([[action]], dtype=torch.float64)).item()

    def integral(function):
        return integrate.quad(function, low, high, points=[low + 0.001 * (high - low), high - 0.001 * (high - low)])[0]

    assert integral(lambda a: math.exp(log_density(a))) == pytest.approx(1.0, abs=1e-5)
    entropy = integral(lambda a: -log_density(a) * math.exp(log_density(a)))
    assert policy.entropy().item() == pytest.approx(entropy, abs=1e-4)


@pytest.mark.parametrize(("std", "tolerance"), [(0.01, 1e-5), (1.0, 1e-5), (5.0, 1e-5), (15.0, 1e-2)])
@pytest.mark.parametrize("mean", [0.0, 0.7, 3.0])
def test_squashed_entropy_is_as_precise_as_it_says(mean, std, tolerance):
    def expected_slope(z):
        x = mean + std * z
        return 2 * (math.log(2) - x - np.logaddexp(0, -2 * x)) * stats.norm.pdf(z)

    # In two pieces, since for wide distributions the slope has almost a kink where x is 0.
    kink = max(-9.0, min(9.0, -mean / std))
    halves = [integrate.quad(expected_slope, *ends, epsabs=1e-10, limit=200)[0] for ends in ((-9, kink), (kink, 9))]
    entropy = 0.5 * math.log(2 * math.pi * math.e) + math.log(std) + sum(halves)
    assert scalar_policy(mean, std).entropy().item() == pytest.approx(entropy, abs=tolerance)


def test_squashed_log_prob_is_finite_far_out_in_float32():
    policy = scalar_policy(0.0, 1.0, dtype=torch.float32)
    x = torch.tensor([[30.0]], requires_grad=True)
    # log N(30) - 2 (log 2 - 30), where 1 - tanh(30)^2 is 0 in float32.
    expected = -450.0 - 0.5 * math.log(2 * math.pi) - 2 * math.log(2) + 60.0
    log_prob = policy.log_prob_pre_tanh(x)
    assert log_prob.item() == pytest.approx(expected, rel=1e-6)
    log_prob.backward()
    assert x.grad.item() == pytest.approx(-28.0)
    for action in (1.0, -1.0, 1.5):
        assert policy.log_prob(torch.tensor([[action]])).isfinite().all()


@pytest.mark.parametrize(("low", "high"), [(0.1, 0.7), (-0.3, 0.9), (1e-3, 3.3), (-7.7, -0.1)])
def test_actions_never_leave_the_range(low, high):
    x = torch.cat((torch.linspace(-20, 20, 1001), torch.tensor([-500.0, 500.0]))).unsqueeze(-1)
    actions = SquashedGaussian(torch.zeros(1003, 1), torch.zeros(1), low, high).squash(x)
    assert (actions >= torch.tensor(low)).all()
    assert (actions <= torch.tensor(high)).all()


def test_squashed_divergence_is_that_of_the_gaussians():
    mean, log_std, other, other_log_std = randn(4, 3), randn(3, seed=1), randn(4, 3, seed=2), randn(3, seed=3)
    divergence = SquashedGaussian(mean, log_std, 0.0, 2.0).kl(SquashedGaussian(other, other_log_std, 0.0, 2.0))
    expected = reference.kl_divergence(normal(mean, log_std), normal(other, other_log_std))
    torch.testing.assert_close(divergence, expected)


def test_reparametrised_samples_carry_gradients_and_plain_ones_do_not():
    mean, log_std = torch.zeros(3, 2, requires_grad=True), torch.zeros(2, requires_grad=True)
    gaussian, policy = Gaussian(mean, log_std), SquashedGaussian(mean, log_std, -2.0, 2.0)
    assert not gaussian.sample().requires_grad
    assert not policy.sample().requires_grad

    noise = gaussian.rsample(generator())
    grad_mean, grad_log_std = torch.autograd.grad(noise.sum(), (mean, log_std))
    torch.testing.assert_close(grad_mean, torch.ones(3, 2))
    torch.testing.assert_close(grad_log_std, noise.detach().sum(0))

    action, log_prob = policy.rsample_with_log_prob(generator())
    torch.testing.assert_close(action, policy.squash(noise))
    torch.testing.assert_close(log_prob, policy.log_prob(action), atol=1e-4, rtol=1e-4)
    grads = torch.autograd.grad((log_prob - action.sum(-1)).mean(), (mean, log_std))
    assert all(grad.isfinite().all() and grad.any() for grad in grads)


DISTRIBUTIONS: dict[str, Distribution] = {
    "gaussian": Gaussian(randn(7, 3), randn(3, seed=1)),
    "squashed": SquashedGaussian(randn(7, 3), randn(3, seed=1), -1.0, 1.0),
}


@pytest.mark.parametrize("policy", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
def test_what_all_share(policy):
    action = policy.sample(generator(5))
    assert torch.equal(action, policy.sample(generator(5)))
    assert not torch.equal(action, policy.sample(generator(6)))
    assert policy.mode().shape == action.shape == (7, 3)
    assert policy.mode().dtype == action.dtype
    assert policy.log_prob(action).shape == policy.entropy().shape == policy.kl(policy).shape == (7,)
    assert not policy.kl(policy).any()


@pytest.mark.parametrize(
    "build", [Gaussian, lambda m, s: SquashedGaussian(m, s, -2.0, 2.0)], ids=["gaussian", "squashed"]
)
def test_compiled_traced_and_mapped_agree_with_eager(build):
    def function(mean, log_std, action):
        policy = build(mean, log_std)
        return policy.log_prob(action), policy.entropy(), policy.kl(build(2 * mean, log_std)), policy.mode()

    inputs = randn(6, 3), 0.1 * randn(6, 3, seed=1), randn(6, 3, seed=2)
    expected = function(*inputs)
    torch.testing.assert_close(torch.compile(function, backend="eager", fullgraph=True)(*inputs), expected)
    torch.testing.assert_close(make_fx(function)(*inputs)(*inputs), expected)
    torch.testing.assert_close(torch.func.vmap(function)(*inputs), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_widened(dtype):
    mean = torch.zeros(2, 3, dtype=dtype)
    policy = SquashedGaussian(mean, torch.zeros(3), torch.full((3,), -1.0), torch.ones(3))
    assert policy.sample().dtype == policy.entropy().dtype == torch.float32


ZEROS = torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: Gaussian(ZEROS, torch.zeros(2)),
            ShapeError,
            "Gaussian: log_std has shape (2,), expected (2, 3) as mean (or its last dimension alone)",
        ),
        (
            lambda: Gaussian(ZEROS.double(), torch.zeros(3)),
            DtypeError,
            "Gaussian: log_std is torch.float32, expected torch.float64; did you forget .to(torch.float64)?",
        ),
        (lambda: Gaussian(torch.tensor(0.0), torch.tensor(0.0)), ShapeError, "Gaussian: mean has shape (), expected"),
        (lambda: Gaussian(ZEROS, 0.0), DtypeError, "Gaussian: log_std is float, expected torch.float32 or"),
        (
            lambda: Gaussian(ZEROS, torch.zeros(3)).log_prob(torch.zeros(2, 4)),
            ShapeError,
            "Gaussian.log_prob: action has shape (2, 4), expected (2, 3) as mean",
        ),
        (
            lambda: Gaussian(ZEROS, torch.zeros(3)).kl(Gaussian(ZEROS[:1], torch.zeros(3))),
            ShapeError,
            "Gaussian.kl: other has shape (1, 3), expected (2, 3) as self",
        ),
        (
            lambda: Gaussian(ZEROS, torch.zeros(3)).kl(SquashedGaussian(ZEROS, torch.zeros(3), -1.0, 1.0)),
            DtypeError,
            "Gaussian.kl: other is SquashedGaussian, expected Gaussian: there is no closed form across classes",
        ),
        (
            lambda: SquashedGaussian(ZEROS, torch.zeros(3), 1.0, -1.0),
            RangeError,
            "SquashedGaussian: low is 1.0 and high is -1.0, expected low < high; are they swapped?",
        ),
        (
            lambda: SquashedGaussian(ZEROS, torch.zeros(3), 0.0, math.inf),
            RangeError,
            "SquashedGaussian: high is inf, expected a finite number; an unbounded Box needs Gaussian",
        ),
        (
            lambda: SquashedGaussian(ZEROS, torch.zeros(3), 0.0, torch.ones(3)),
            DtypeError,
            "SquashedGaussian: low is float and high is torch.float32, not alike",
        ),
        (
            lambda: SquashedGaussian(ZEROS, torch.zeros(3), np.zeros(3), np.ones(3)),
            DtypeError,
            "SquashedGaussian: low is float64, expected float or torch.float32; did you forget torch.as_tensor(...)?",
        ),
        (
            lambda: SquashedGaussian(ZEROS, torch.zeros(3), torch.zeros(2), torch.ones(2)),
            ShapeError,
            "SquashedGaussian: low has shape (2,), expected (3,) as the last dimension of mean",
        ),
        (
            lambda: SquashedGaussian(ZEROS, torch.zeros(3), 0.0, 1.0).log_prob(torch.zeros(3)),
            ShapeError,
            "SquashedGaussian.log_prob: action has shape (3,), expected (2, 3) as mean",
        ),
        (
            lambda: SquashedGaussian(ZEROS, torch.zeros(3), 0.0, 1.0).kl(
                SquashedGaussian(ZEROS, torch.zeros(3), 0.0, 2.0)
            ),
            RangeError,
            "SquashedGaussian.kl: other has range (0.0, 2.0), expected (0.0, 1.0) as self",
        ),
    ],
)
def test_refuses(make, error, message):
    with pytest.raises(error) as caught:
        make()
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("dtype", "log_std"), [(torch.float32, -89.0), (torch.float32, -200.0), (torch.float64, -800.0)]
)
def test_a_deviation_too_small_for_its_inverse_gives_a_density(dtype, log_std):
    mean = torch.zeros(1, 2, dtype=dtype, requires_grad=True)
    spread = torch.full((1, 2), log_std, dtype=dtype, requires_grad=True)
    policy = Gaussian(mean, spread)
    log_prob = policy.log_prob(torch.zeros(1, 2, dtype=dtype))
    assert log_prob.item() == pytest.approx(-2.0 * (log_std + 0.5 * math.log(2.0 * math.pi)), rel=1e-6)
    assert policy.kl(policy).item() == 0.0
    assert policy.log_prob(torch.ones(1, 2, dtype=dtype)).item() == -math.inf
    log_prob.sum().backward()
    assert mean.grad.isfinite().all()
    assert spread.grad.tolist() == [[-1.0, -1.0]]


@pytest.mark.parametrize(
    ("dtype", "log_std"), [(torch.float32, 87.0), (torch.float32, 89.0), (torch.float32, 1e4), (torch.float64, 800.0)]
)
def test_a_deviation_too_large_for_a_number_gives_samples_and_gradients(dtype, log_std):
    mean = torch.zeros(1_000, 2, dtype=dtype, requires_grad=True)
    spread = torch.full((2,), log_std, dtype=dtype, requires_grad=True)
    policy = Gaussian(mean, spread)
    sample = policy.rsample(torch.Generator().manual_seed(0))
    assert sample.isfinite().all()
    (1e-38 * sample.sum() + policy.log_prob(sample).mean() + policy.entropy().mean()).backward()
    assert mean.grad.isfinite().all()
    assert spread.grad.isfinite().all()
    assert SquashedGaussian(mean.detach(), spread.detach(), -1.0, 1.0).entropy().isnan().sum() == 0
