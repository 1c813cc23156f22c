"""One level of instructions, whatever the processor and the environment would have the libraries choose."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.runs.cli import TINY_FIELDS

import levada as lv
from levada import cli, portable
from levada.algorithms.checks import ConfigError
from levada.rl.compute import matmul as _products
from levada.rl.policies import precision
from levada.run.storage.checkpoint import CheckpointWarning
from levada.run.storage.directory import RunDirectory

HAS_AVX2 = portable._has("avx2", "fma")
needs_avx2 = pytest.mark.skipif(not HAS_AVX2, reason="levels are set on x86-64 processors with AVX2 under Linux")
NAMES = tuple(portable._LIBRARIES)

TRAIN_ALL = """
import levada as lv

small = dict(display="quiet", log="none", seed=1, checkpoint_every_updates=None)
for algorithm, env, steps in (("ppo", "CartPole-v1", 600), ("dqn", "CartPole-v1", 1060), ("impala", "CartPole-v1", 600),
                              ("sac", "Pendulum-v1", 60)):
    fields = dict(learning_starts=40) if algorithm == "sac" else {}
    run = lv.train(algorithm, env, until=f"steps={steps}", **small, **fields)
    print(algorithm, run.summary.params_sha256, run.summary.updates > 0)
"""


def environment(**variables: str) -> dict[str, str]:
    """That of this process, but for what levels of instructions depend on."""
    ours = {name for name in os.environ if name in NAMES or name.startswith("LEVADA_PORTABLE")}
    return {name: value for name, value in os.environ.items() if name not in ours} | variables


def python(program: str, cwd: Path, **variables: str) -> str:
    """What a new process prints: levels are fixed when libraries are loaded, so each needs one of its own."""
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(**variables), cwd=cwd, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done.stdout


@needs_avx2
def test_the_default_runs_of_four_algorithms_have_one_result_whatever_the_environment_asks_for(tmp_path: Path) -> None:
    """Code for AVX-512 is asked for on all processors: without AVX-512 it would end the process, with it give other bits.

    Takes some seconds: levels are fixed when libraries are loaded, so each needs a process of its own.
    """
    results = {
        str(variables): python(TRAIN_ALL, tmp_path, **variables)
        for variables in (
            {},
            {"OPENBLAS_CORETYPE": "SkylakeX", "ATEN_CPU_CAPABILITY": "avx512"},
            {"OPENBLAS_CORETYPE": "Cooperlake", "ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"},
        )
    }
    assert len(set(results.values())) == 1, results
    assert [line.split()[2] for line in next(iter(results.values())).splitlines()] == ["True"] * 4


@needs_avx2
def test_what_was_loaded_before_stays_as_it_is_also_in_processes_that_begin_later(tmp_path: Path) -> None:
    """Else workers would compute with other code than the process that they belong to."""
    show = f"import os; print([name for name in {NAMES} if name in os.environ])"
    program = f"""
import subprocess, sys
import numpy
import levada
{show}
print(subprocess.run([sys.executable, "-c", "import levada; {show}"], capture_output=True, text=True).stdout, end="")
"""
    here, below = python(program, tmp_path).splitlines()
    assert here == below == str(["ATEN_CPU_CAPABILITY", *([] if portable.is_amd() else ["MKL_CBWR"])])


@needs_avx2
@pytest.mark.parametrize(("mode", "level"), [("on", "AVX2"), ("off", "SSE41"), ("auto", "SSE41"), ("none", "SSE41")])
def test_the_environment_chooses_the_mode_of_an_import(tmp_path: Path, mode: str, level: str) -> None:
    told = python(
        "import levada, os; print(os.environ['ONEDNN_MAX_CPU_ISA'], os.environ.get('OPENBLAS_CORETYPE'))",
        tmp_path, LEVADA_PORTABLE=mode, ONEDNN_MAX_CPU_ISA="SSE41", OPENBLAS_CORETYPE="Nehalem",
    )  # fmt: skip
    assert told.split() == [level, "Nehalem" if mode == "off" else "Haswell"]


@pytest.fixture
def not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process, on a processor with AVX2."""
    for name in [name for name in os.environ if name in NAMES or name.startswith("LEVADA_PORTABLE")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(portable, "_LIBRARIES", dict.fromkeys(NAMES, "a package that is not loaded"))
    monkeypatch.setattr(portable, "_has", lambda *flags: True)
    monkeypatch.setattr(portable, "is_amd", lambda: False)
    monkeypatch.setattr(os, "environ", os.environ.copy())


@pytest.mark.usefixtures("not_loaded")
def test_mkl_is_left_alone_on_processors_of_amd(monkeypatch: pytest.MonkeyPatch) -> None:
    """There it never uses AVX-512; its level for reproducible results would be other code."""
    monkeypatch.setattr(portable, "is_amd", lambda: True)
    os.environ["MKL_CBWR"] = "COMPATIBLE"
    portable.fix("auto")
    assert "MKL_CBWR" not in os.environ
    portable.fix("off")
    assert os.environ["MKL_CBWR"] == "COMPATIBLE"


@pytest.mark.usefixtures("not_loaded")
def test_a_mode_takes_back_what_another_has_set() -> None:
    os.environ["OPENBLAS_CORETYPE"] = "SkylakeX"
    portable.fix_once()
    assert (os.environ["OPENBLAS_CORETYPE"], os.environ["MKL_CBWR"]) == ("Haswell", "AVX2")
    assert not portable.limits_onednn()
    assert portable.is_fixed()
    portable.fix("on")
    assert portable.limits_onednn()
    portable.fix("off")
    portable.fix_once()  # it is decided
    assert not portable.is_fixed()
    assert {name: os.environ[name] for name in NAMES if name in os.environ} == {"OPENBLAS_CORETYPE": "SkylakeX"}


@pytest.mark.usefixtures("not_loaded")
@pytest.mark.parametrize(
    ("version", "names"),
    [("2.4.6", "X86_V4 AVX512_ICL AVX512_SPR"), ("2.3.5", "AVX512F AVX512CD AVX512_KNL AVX512_KNM AVX512_SKX")],
)
def test_numpy_is_told_by_the_names_that_it_knows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, names: str
) -> None:
    (tmp_path / "version.py").write_text(f'"""Of numpy."""\n\nversion = "{version}"\n__version__ = version\n')

    class Spec:
        submodule_search_locations = (str(tmp_path),)

    monkeypatch.setattr("importlib.util.find_spec", lambda name: Spec)
    portable.fix("auto")
    assert os.environ["NPY_DISABLE_CPU_FEATURES"].startswith(names)
    del os.environ["NPY_DISABLE_CPU_FEATURES"]
    monkeypatch.setitem(os.environ, "NPY_ENABLE_CPU_FEATURES", "AVX2")  # numpy refuses both together
    portable.fix("auto")
    assert "NPY_DISABLE_CPU_FEATURES" not in os.environ


def config(mode: Any) -> str:
    return json.dumps({"settings": {"portable": {"value": mode, "from": "default"}}})


@pytest.mark.parametrize(
    ("verb", "words", "variable", "mode"),
    [
        ("train", "ppo --env X --portable off", "on", "off"),
        ("train", "ppo --portable=on --env X", "auto", "on"),
        ("train", "ppo --env X", "on", "on"),
        ("train", "ppo --env X --portable", "off", "auto"),
        ("train", "ppo --env X --portable fast", "off", "auto"),
        ("show", "ppo --env X", "auto", "auto"),
        ("resume", "run-off", "on", "off"),
        ("resume", "--until steps=9 run-on", "auto", "on"),
        ("resume", "run-before", "auto", "off"),
        ("resume", "run-[]", "auto", "auto"),
        ("resume", "run-torn", "auto", "off"),
        ("resume", "nowhere", "auto", "off"),
    ],
)
def test_a_command_knows_its_mode_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verb: str, words: str, variable: str, mode: str
) -> None:
    texts = {"off": config("off"), "on": config("on"), "before": '{"settings": {}}', "torn": '{"set', "[]": config([])}
    for name, text in texts.items():
        (tmp_path / f"run-{name}").mkdir()
        (tmp_path / f"run-{name}" / "config.json").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEVADA_PORTABLE", variable)
    assert cli._mode(verb, words.split()) == mode


NATIVE = {
    "processor": "GenuineIntel Xeon", "numpy": "AVX512", "blas": "openblas SkylakeX", "torch": "AVX512", "mkl": "AVX512",
    "onednn": "AVX512",
}  # fmt: skip


def train(tmp_path: Path, **options: Any) -> lv.Result:
    return lv.train(
        "ppo", "CartPole-v1", until="updates=2", out=tmp_path / "run", display="quiet", log="none",
        **TINY_FIELDS, **options,
    )  # fmt: skip


def test_a_run_writes_down_what_it_computed_with(tmp_path: Path) -> None:
    run = train(tmp_path)
    assert run.summary.machine == RunDirectory.open(run.path).config.identity.machine == portable.machine()
    assert set(run.summary.machine) == set(NATIVE)
    assert run.summary.machine["torch"] == torch.backends.cpu.get_cpu_capability()


def test_a_mode_that_is_not_in_force_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("levada.api.run.machine", lambda: NATIVE)
    monkeypatch.setattr("levada.api.run.is_fixed", lambda: True)
    with pytest.raises(
        ConfigError, match=r"portable='on': numpy is AVX512, expected AVX2.*LEVADA_PORTABLE=on and import"
    ):
        train(tmp_path, portable="on")
    with pytest.raises(ConfigError, match=r"portable='off': numpy and torch were set to AVX2 .*LEVADA_PORTABLE=off"):
        train(tmp_path, portable="off")
    with pytest.raises(ConfigError, match="portable='fast': expected 'auto', 'on' or 'off'"):
        train(tmp_path, portable="fast")
    monkeypatch.setenv("LEVADA_PORTABLE", "yes")
    with pytest.raises(ConfigError, match="LEVADA_PORTABLE is 'yes', expected 'auto', 'on' or 'off'"):
        train(tmp_path)
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_says_that_it_computes_with_other_instructions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = train(tmp_path)
    assert lv.resume(run.path, until="updates=3", display="quiet").summary.machine == portable.machine()
    monkeypatch.setattr(sys.modules["levada.api.resume"], "machine", lambda: NATIVE)
    with pytest.warns(CheckpointWarning, match="other instructions than it began with.*blas .*, now openblas SkylakeX"):
        again = lv.resume(run.path, until="updates=4", display="quiet")
    assert again.summary.machine == NATIVE


def test_a_run_from_before_there_were_levels_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = train(tmp_path)
    path = run.path / "config.json"
    written = json.loads(path.read_text())
    del written["identity"]["machine"], written["settings"]["portable"]
    path.write_text(json.dumps(written))
    monkeypatch.setattr(sys.modules["levada.api.resume"], "machine", lambda: NATIVE)
    assert lv.resume(run.path, until="updates=3", display="quiet").summary.updates == 3


@pytest.mark.parametrize(
    ("dispatch", "off", "level"),
    [
        (["X86_V3", "X86_V4", "AVX512_ICL", "AVX512_SPR"], ["X86_V4", "AVX512_ICL", "AVX512_SPR"], "AVX2"),  # numpy 2.4
        (["X86_V3", "X86_V4", "AVX512_ICL", "AVX512_SPR"], [], "AVX512"),
        (["AVX2", "FMA3", "AVX512F", "AVX512_SKX"], ["AVX512F", "AVX512_SKX"], "AVX2"),  # numpy 2.0
        (["AVX2", "FMA3", "AVX512F", "AVX512_SKX"], ["AVX512_SKX"], "AVX512"),
        ([], [], "baseline"),
    ],
)
def test_the_level_of_numpy_is_that_of_its_code_and_not_of_the_processor(
    monkeypatch: pytest.MonkeyPatch, dispatch: list[str], off: list[str], level: str
) -> None:
    """On a processor with all of AVX-512, of which numpy tells whether it has code for it or not."""
    from numpy._core import _multiarray_umath as numpy_core  # type: ignore[attr-defined]

    monkeypatch.setattr(numpy_core, "__cpu_baseline__", ["X86_V2"])
    monkeypatch.setattr(numpy_core, "__cpu_dispatch__", dispatch)
    monkeypatch.setattr(
        numpy_core, "__cpu_features__", {name: name not in off for name in ["X86_V2", *portable._LEVELS, "AVX512VL"]}
    )
    assert portable.machine()["numpy"] == level


def test_another_model_of_the_same_maker_is_the_same_machine() -> None:
    assert portable.differences(NATIVE, NATIVE | {"processor": "GenuineIntel Core"}) == []
    assert portable.differences(NATIVE, NATIVE | {"processor": "AuthenticAMD EPYC"}) == [
        "maker GenuineIntel, now AuthenticAMD"
    ]
    assert portable.problems(NATIVE | {"mkl": "AVX2"}) == [
        "numpy is AVX512, expected AVX2", "blas is openblas SkylakeX, expected openblas Haswell",
        "torch is AVX512, expected AVX2", "onednn is AVX512, expected AVX2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("has_avx512", "limited", "capability", "is_amd", "least"),
    [
        (True, False, "AVX512", True, _products.LARGE),
        (True, False, "AVX512", False, math.inf),
        (True, False, "AVX2", True, _products.LARGEST),
        (True, False, "AVX2", False, _products.LARGEST),
        (True, True, "AVX2", True, math.inf),
        (False, False, "AVX2", True, math.inf),
    ],
)
def test_only_the_largest_products_keep_avx512(
    monkeypatch: pytest.MonkeyPatch, has_avx512: bool, limited: bool, capability: str, is_amd: bool, least: float
) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(_products, "has_avx512", lambda: has_avx512)
    monkeypatch.setattr(_products, "limits_onednn", lambda: limited)
    monkeypatch.setattr(_products, "is_amd", lambda: is_amd)
    assert _products._least.__wrapped__() == least


def test_where_onednn_is_limited_there_is_no_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True}, raising=False)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert not precision.has_bfloat16()
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    assert precision.has_bfloat16()


@pytest.mark.parametrize(
    ("found", "is_amd", "expected"),
    [
        ({"amx_bf16": True, "avx512_bf16": True}, False, True),
        ({"amx_bf16": False, "avx512_bf16": True}, False, False),
        ({"avx512_bf16": True}, True, True),
        ({"avx512_bf16": False}, True, False),
        ({"bf16": True}, False, True),
        ({}, False, False),
    ],
)
def test_bfloat16_is_used_where_it_is_faster(
    monkeypatch: pytest.MonkeyPatch, found: dict[str, bool], is_amd: bool, expected: bool
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found, raising=False)
    monkeypatch.setattr(precision, "limits_onednn", lambda: False)
    monkeypatch.setattr(precision, "is_amd", lambda: is_amd)
    assert precision.prefers_bfloat16() is expected
    assert precision.has_bfloat16() is any(found.values())


@needs_avx2
def test_the_command_line_asks_for_a_mode(tmp_path: Path) -> None:
    words = "train ppo --env CartPole-v1 --until updates=1 --num-envs 2 --num-steps 16 --minibatch-size 16 --out run --quiet"
    command = f"from levada.cli import main; raise SystemExit(main({words.split()} + ['--portable', 'on']))"
    assert python(command, tmp_path, OPENBLAS_CORETYPE="SkylakeX") == ""
    written = json.loads((tmp_path / "run" / "config.json").read_text())
    assert written["settings"]["portable"] == {"value": "on", "from": "command line"}
    assert portable.problems(written["identity"]["machine"]) == []
