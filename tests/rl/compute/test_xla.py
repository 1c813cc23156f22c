"""How JAX is set up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from levada.rl.compute.xla import ImpureError, as_jax, missing_for_xla

# Not imported: `torch.compile` fails in a process that has imported torchax by itself, and other tests follow in this one.
if missing_for_xla() is not None:
    pytest.skip(f"{missing_for_xla()} is not installed: pip install 'levada[jax]'", allow_module_level=True)

PROGRAM = """
from levada.rl.compute.xla import prepare_jax
prepare_jax()
import jax, jax.numpy as jnp
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
run = jax.jit(lambda x: jax.lax.fori_loop(0, 100, lambda _, x: jnp.tanh(x @ x), x))
print(jax.config.read("jax_cpu_enable_async_dispatch"), float(run(jnp.ones((8, 8))).sum()))
"""


def execute(**variables: str) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")} | variables
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True)
    assert not done.stderr
    return done.stdout


def test_compiled_code_is_kept_and_calls_return_when_they_are_done(tmp_path: Path) -> None:
    said = execute(XDG_CACHE_HOME=str(tmp_path))
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "levada" / "xla").glob("*-cache")}
    assert kept
    assert said.split()[0] == "False"
    assert execute(XDG_CACHE_HOME=str(tmp_path)) == said
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "levada" / "xla").glob("*-cache")} == kept


def test_a_directory_of_the_users_is_used(tmp_path: Path) -> None:
    execute(XDG_CACHE_HOME=str(tmp_path / "cache"), JAX_COMPILATION_CACHE_DIR=str(tmp_path / "own"))
    assert [*(tmp_path / "own").glob("*-cache")]
    assert not [*(tmp_path / "cache").rglob("*-cache")]


def test_nothing_is_kept_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    execute(XDG_CACHE_HOME=str(tmp_path / "file"))


def test_a_learner_sets_jax_up_before_it_computes() -> None:
    """Also where no environment in JAX has done so."""
    program = """
import os
os.environ.pop("NPROC", None); os.environ.pop("XLA_FLAGS", None); os.environ.pop("JAX_PLATFORMS", None)
import levada as lv
hp = lv.PPO(num_envs=2, num_steps=8, minibatch_size=8, compile="xla")
with lv.Inline().open(hp.flow(lv.Task("CartPole-v1")), seed=1):
    import jax
    print(jax.config.jax_platforms, os.environ["NPROC"], "xla_cpu_multi_thread_eigen=false" in os.environ["XLA_FLAGS"])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["cpu", "1", "True"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    ("platforms", "devices", "reason"),
    [
        ("", ["cpu", "cuda"], "choose the device before this process makes an environment in JAX"),
        ("", ["cuda"], "pip install 'jax[cuda13]'"),
        ("cpu", ["cuda"], "JAX_PLATFORMS=cpu leaves it out"),
    ],
)
def test_a_device_that_jax_does_not_find_is_explained(platforms: str, devices: list[str], reason: str) -> None:
    program = f"""
from levada.rl.compute.xla import missing_in_jax, prepare_jax
for device in {devices}:
    prepare_jax(device)
    missing_in_jax("cpu")
print(missing_in_jax("cuda"))
"""
    env = os.environ | {"JAX_PLATFORMS": platforms}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("JAX finds no device cuda (")
    assert done.stdout.strip().endswith(reason)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_xla_reads_the_flags(tmp_path: Path, device: str) -> None:
    """Also those that come later, and if a word of the user's ends what it reads."""
    program = f"from levada.rl.compute.xla import prepare_jax; prepare_jax({device!r}); import jax; jax.jit(abs)(1.0)"
    flags = f"--xla_gpu_graph_min_graph_size=7 --xla_dump_to={tmp_path} intra_op_parallelism_threads=1"
    env = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", program], env=env, check=True)
    (options,) = {path.read_text() for path in tmp_path.glob("*jit_abs*.debug_options")}
    assert {"xla_cpu_multi_thread_eigen: false", "xla_gpu_graph_min_graph_size: 7"} <= set(options.splitlines())


def test_flags_that_are_no_name_of_a_file_are_kept() -> None:
    """Not even looking for such a file works: its name is too long."""
    flags = "intra_op_parallelism_threads=1 " + " ".join(f"--xla_cpu_number_{n}=true" for n in range(30))
    program = "import os; from levada.rl.compute.xla import prepare_jax; prepare_jax(); print(os.environ['XLA_FLAGS'])"
    env = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith(flags)


def test_xla_reads_a_file_of_flags(tmp_path: Path) -> None:
    (tmp_path / "flags").write_text(f"--xla_dump_to={tmp_path}\n")
    program = "from levada.rl.compute.xla import prepare_jax; prepare_jax(); import jax; jax.jit(abs)(1.0)"
    subprocess.run([sys.executable, "-c", program], env=os.environ | {"XLA_FLAGS": str(tmp_path / "flags")}, check=True)
    (options,) = {path.read_text() for path in tmp_path.glob("*jit_abs*.debug_options")}
    assert "xla_cpu_multi_thread_eigen: false" in options.splitlines()


def test_the_gradient_of_a_split_is_one_concatenation() -> None:
    import jax

    def loss(x: Tensor) -> Tensor:
        parts = torch.split(x, [1, 2])
        return (parts[0] ** 2).sum() + (parts[1] ** 3).sum()

    gradient = jax.grad(as_jax(loss))
    text = str(jax.make_jaxpr(gradient)(jax.numpy.arange(3.0)))
    assert "concatenate" in text and "pad[" not in text
    assert gradient(jax.numpy.arange(3.0)).tolist() == [0.0, 3.0, 12.0]


@pytest.mark.parametrize(
    ("shape", "sizes", "dim"), [((3,), [1, 2], 0), ((2, 3), [2, 1], -1), ((2, 3), [0, 2], 0), ((0,), [], 0)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bool])
def test_a_split_gives_the_parts_of_pytorchs(
    shape: tuple[int, ...], sizes: list[int], dim: int, dtype: torch.dtype
) -> None:
    tensor = torch.arange(int(np.prod(shape))).reshape(shape).to(dtype)
    parts = as_jax(lambda x: torch.split(x, sizes, dim))(jax_array(tensor))
    assert [np.asarray(part).tolist() for part in parts] == [part.tolist() for part in torch.split(tensor, sizes, dim)]


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(RuntimeError, match="add up to 3, got"):
        as_jax(lambda x: torch.split(x, [1, 1]))(jax_array(torch.zeros(3)))


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (lambda x: F.dropout(x, 0.5), "draws random numbers"),
        (lambda x: x + torch.randn_like(x), "draws random numbers"),
        (lambda x: x + torch.randn(3, device=x.device, generator=torch.Generator()), "draws random numbers"),
        (lambda x: x.add_(1.0), "changes its arguments in place"),
        (lambda x: x[1:].mul_(2.0), "changes its arguments in place"),
    ],
)
def test_functions_that_jax_would_compute_otherwise_are_refused(function: Any, what: str) -> None:
    import jax

    with pytest.raises(ImpureError, match=what):
        jax.jit(as_jax(function))(jax_array(torch.ones(3)))
    assert jax.jit(as_jax(lambda x: (x + 1.0).mul_(2.0)))(jax_array(torch.ones(3))).tolist() == [4.0, 4.0, 4.0]


def test_torchax_by_itself_draws_numbers() -> None:
    as_jax(torch.neg)(jax_array(torch.ones(3)))
    import torchax

    with torchax.default_env():
        one, other = (np.asarray(torch.randn(3, device="jax").jax()) for _ in range(2))
    assert not np.array_equal(one, other)


def jax_array(tensor: Tensor) -> Any:
    import jax.numpy as jnp

    return jnp.asarray(tensor.numpy())
