"""Matrix products by oneDNN: the same numbers as torch's own, only where they are sooner there."""

import math

import pytest
import torch

from levada.rl.compute import matmul as _products
from levada.rl.compute.matmul import LARGE, LARGEST, Product, as_product, faster_products, has_faster_products
from levada.rl.compute.tracing import record

aten = torch.ops.aten
pytestmark = [
    pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN"),
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),  # of torch's own imports
]


@pytest.fixture(autouse=True)
def slow_mkl(monkeypatch):
    """As on a processor where oneDNN is quicker."""
    monkeypatch.setattr(_products, "_least", lambda: LARGE)


def faster_product(operation, args, kwargs):
    """What computes a product alone in a recording, if it is replaced."""
    [product] = faster_products([as_product(operation, args, kwargs)]) or [None]
    return None if product is None else product.call


def numbers(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize(
    ("operation", "args"),
    [
        (aten.mm.default, (numbers(160, 170), numbers(170, 180))),
        (aten.mm.default, (numbers(170, 160).t(), numbers(180, 170).t())),
        (aten.mm.default, (numbers(170, 260).t(), numbers(170, 120))),
        (aten.mm.default, (numbers(300, 340)[1:161, ::2], numbers(1, 180).expand(170, 180))),
        (aten.addmm.default, (numbers(180), numbers(160, 170), numbers(180, 170).t())),
        (aten.bmm.default, (numbers(3, 160, 170), numbers(3, 170, 180))),
        (aten.bmm.default, (numbers(3, 170, 160).transpose(1, 2), numbers(3, 180, 170).transpose(1, 2))),
        (aten.baddbmm.default, (numbers(3, 1, 180), numbers(160, 170).expand(3, 160, 170), numbers(3, 170, 180))),
    ],
)
def test_large_products_are_those_of_torch(operation, args):
    quicker = faster_product(operation, args, {})
    wide = operation(*(arg.double() for arg in args))
    torch.testing.assert_close(quicker(*args).double(), wide, rtol=1e-5, atol=1e-4)

    replay = record(lambda *x: (operation(*x),), args)
    assert torch.equal(replay(*args)[0], quicker(*args))


@pytest.mark.parametrize(
    ("operation", "args", "kwargs"),
    [
        (aten.mm.default, (numbers(64, 64), numbers(64, 64)), {}),
        (aten.bmm.default, (numbers(64, 64, 64), numbers(64, 64, 64)), {}),  # each is small
        (aten.mm.default, (numbers(200, 200).double(), numbers(200, 200).double()), {}),
        (aten.addmm.default, (numbers(200, 200), numbers(200, 200), numbers(200, 200)), {}),
        (aten.addmm.default, (numbers(1), numbers(200, 200), numbers(200, 200)), {}),
        (aten.addmm.default, (numbers(200), numbers(200, 200), numbers(200, 200)), {"beta": 2}),
        (aten.baddbmm.default, (numbers(1, 1, 200), numbers(2, 200, 200), numbers(2, 200, 200)), {}),
        (aten.baddbmm.default, (numbers(2, 200, 200), numbers(2, 200, 200), numbers(2, 200, 200)), {}),
        (aten.mul.Tensor, (numbers(200, 200), numbers(200, 200)), {}),
    ],
)
def test_all_else_stays_as_it_is(operation, args, kwargs):
    assert faster_product(operation, args, kwargs) is None


def test_nothing_changes_where_mkl_is_quick(monkeypatch):
    monkeypatch.setattr(_products, "_least", lambda: math.inf)
    assert faster_product(aten.mm.default, (numbers(200, 200), numbers(200, 200)), {}) is None
    assert not has_faster_products([torch.Size([4096, 4096])], 4096)


def test_beside_the_largest_product_all_large_ones_are_replaced(monkeypatch):
    monkeypatch.setattr(_products, "_least", lambda: LARGEST)
    largest, large, small = (Product("mm", size) for size in (LARGEST, LARGE, LARGE - 1))
    assert faster_products([largest, large, small, None]) == {largest, large}
    assert faster_products([large, small]) == frozenset()


def test_a_tanh_is_part_of_the_product_before_it():
    def layer(bias, x, weight):
        return (torch.addmm(bias, x, weight.t()).tanh(),)

    def both(bias, x, weight):
        before = torch.addmm(bias, x, weight.t())
        return before.tanh(), before

    args = bias, x, weight = numbers(180), numbers(160, 170), numbers(180, 170)
    products = _products.onednn_products()
    (alone,) = record(layer, args)(*args)
    assert torch.equal(alone, products.addmm_tanh(bias, x, weight.t()))
    torch.testing.assert_close(alone.double(), layer(*(arg.double() for arg in args))[0], rtol=1e-5, atol=2e-5)
    tanh, before = record(both, args)(*args)  # the product itself is needed, too
    assert torch.equal(before, products.addmm(bias, x, weight.t()))
    torch.testing.assert_close(tanh, alone, rtol=1e-5, atol=1e-6)


def test_by_the_largest_weight():
    assert has_faster_products([torch.Size([256]), torch.Size([2, 256, 128])], LARGE // (256 * 128))
    assert not has_faster_products([torch.Size([256]), torch.Size([2, 256, 128])], LARGE // (256 * 128) - 1)
    assert not has_faster_products([torch.Size([1 << 30])], 1)
