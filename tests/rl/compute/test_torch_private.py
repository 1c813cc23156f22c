"""Private functions of PyTorch: all in one module, all there, and none needed."""

import ast
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.optim.adam import adam

import levada
from levada.rl.compute import matmul, torch_private
from levada.rl.compute.tracing import record
from levada.rl.learning.optimizers import Adam, Part
from levada.rl.learning.step import in_mode

SOURCE = Path(levada.__file__).parent
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of torch's own imports


@pytest.fixture
def off(monkeypatch):
    monkeypatch.setenv(torch_private.VARIABLE, "off")


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", torch_private.NAMES)
def test_torch_has_it(name):
    if name == torch_private.LINEAR and not torch.backends.mkldnn.is_available():
        pytest.skip("torch without oneDNN")
    assert torch_private.has(name), (
        f"torch {torch.__version__} has no {name}; levada.rl.compute.torch_private says what it is for"
    )


def test_the_switch_turns_all_off(off):
    assert not any(torch_private.has(name) for name in torch_private.NAMES)


def after_steps_of_adam():
    params, live = normal(1000), Adam(max_grad_norm=0.5).open({"policy": normal(1000)})
    state = live.init()
    for seed in range(5):
        live.step({"policy": Part(params, normal(1000, seed=seed), state["policy"])}, learning_rate=1e-2)
    return params, *state["policy"].values()


def test_adam_has_the_same_bits_without(monkeypatch):
    with_it = after_steps_of_adam()
    monkeypatch.setenv(torch_private.VARIABLE, "off")
    assert isinstance(torch_private.fused_adam(), partial) and torch_private.fused_adam().func is adam
    without = after_steps_of_adam()
    assert with_it[-1].item() == 5.0
    assert all(torch.equal(a, b) for a, b in zip(with_it, without, strict=True))


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")
def test_large_products_agree_without():
    a, b, bias = normal(3, 160, 170), normal(3, 170, 180), normal(180)
    close = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-4)
    products = torch_private.onednn_products()
    close(products.mm(a[0], b[0]), a[0] @ b[0])
    close(products.mm_narrow(a[0].t().contiguous().t(), b[0]), a[0] @ b[0])
    close(products.addmm(bias, a[0], b[0]), torch.addmm(bias, a[0], b[0]))
    close(products.addmm_tanh(bias, a[0], b[0]), torch.addmm(bias, a[0], b[0]).tanh())
    close(products.bmm(a, b), a @ b)
    close(products.baddbmm(bias.expand(3, 1, 180), a, b), torch.baddbmm(bias, a, b))


def test_no_product_is_replaced_without(off, monkeypatch):
    monkeypatch.setattr(matmul, "has_avx512", lambda: True)
    monkeypatch.setattr(matmul, "is_amd", lambda: True)
    monkeypatch.setattr(matmul, "limits_onednn", lambda: False)
    assert matmul._least.__wrapped__() == float("inf")


def slope(x, weight):
    leaf = weight.detach().requires_grad_()
    with torch.enable_grad():
        loss = torch.nn.functional.layer_norm((x @ leaf).tanh(), (16,)).exp().sum()
    return torch.autograd.grad(loss, leaf)


def test_recorded_updates_agree_without(monkeypatch):
    args = normal(8, 4), normal(4, 16, seed=1)
    recorded = in_mode("recorded", lambda is_compiled: slope, args)
    assert not hasattr(recorded, "__wrapped__")
    monkeypatch.setenv(torch_private.VARIABLE, "off")
    plain = in_mode("recorded", lambda is_compiled: slope, args)
    assert plain.__wrapped__ is slope
    torch.testing.assert_close(recorded(*args)[0], plain(*args)[0], rtol=1e-5, atol=1e-5)
    monkeypatch.undo()
    assert torch.equal(record(slope, args)(*args)[0], recorded(*args)[0])


def test_what_torch_lacks_is_said_once(monkeypatch, caplog):
    monkeypatch.delattr(torch, "_fused_adam_")
    torch_private._find.cache_clear()
    try:
        assert torch_private.fused_adam().func is adam
        assert torch_private.fused_adam().func is adam
    finally:
        torch_private._find.cache_clear()
    assert [record.getMessage().partition(" (")[0] for record in caplog.records] == [
        f"torch {torch.__version__} has no torch._fused_adam_"
    ]


def dotted(node):
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def private_names(tree):
    """Names of torch that are private or belong to TorchScript."""
    names = [dotted(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    parts = [name.split(".") for name in names if name.startswith("torch.")]
    return {".".join(name) for name in parts if "jit" in name or any(part.startswith("_") for part in name)}


def test_no_other_module_uses_any():
    found = {path: private_names(ast.parse(path.read_text("utf-8"))) for path in SOURCE.rglob("*.py")}
    home = Path(torch_private.__file__)
    assert "torch._fused_adam_" in found.pop(home)
    assert {path.name: names for path, names in found.items() if names} == {}
