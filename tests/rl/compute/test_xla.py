"""How JAX is set up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")

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
    print(jax.config.jax_platforms, os.environ["NPROC"], "intra_op_parallelism_threads=1" in os.environ["XLA_FLAGS"])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["cpu", "1", "True"]
