"""One instruction set on every x86-64 processor, so that the same run gives the same bits on more than one machine.

numpy, its BLAS, torch and MKL each choose code for the processor they find, and code for AVX-512 sums in another order than
code for AVX2. Each reads an environment variable when it is loaded. `fix` sets these to AVX2, which processors without
AVX-512 use anyway; `import levada` and the command line call it first. There are three modes:

- `auto`: AVX2 for numpy, its BLAS, torch and MKL. Convolutions, bfloat16 products and large products in recordings
  (`levada.rl.compute.matmul`) use everything that the processor has, because AVX2 would slow them down a lot.
- `on`: AVX2 for oneDNN too, and so for these as well.
- `off`: nothing is set.

In Python the mode is the environment variable LEVADA_PORTABLE, or `auto`. Libraries loaded before levada keep their setting;
`machine` reports those in use. MKL uses other code on AMD's processors than on Intel's, so bits differ between the two in any
mode.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Collection, Mapping
from functools import cache
from typing import Literal, TypeAlias, cast, get_args

Mode: TypeAlias = Literal["auto", "on", "off"]

VARIABLE = "LEVADA_PORTABLE"
"""Environment variable of the mode."""
_LIBRARIES = {
    "OPENBLAS_CORETYPE": "numpy",
    "NPY_DISABLE_CPU_FEATURES": "numpy",
    "ATEN_CPU_CAPABILITY": "torch",
    "MKL_CBWR": "torch",
    "ONEDNN_MAX_CPU_ISA": "torch",
}
"""Variable -> the package that reads it, once, on loading or on its first computation."""

_BEFORE = "LEVADA_PORTABLE_BEFORE_"
"""Prefix of variables that store the original values changed by `fix`, for child processes."""
_DECIDED = "LEVADA_PORTABLE_DECIDED"
"""Environment variable of child processes of one that has called `fix`: they use the same setting."""


def fix_once() -> None:
    """Set the variables for the mode in the environment, unless a parent process has done so."""
    if _DECIDED not in os.environ:
        mode = os.environ.get(VARIABLE, "auto")
        fix(cast("Mode", mode) if is_mode(mode) else "auto")


def is_mode(word: object) -> bool:
    """Whether the argument is a mode."""
    return word in get_args(Mode)


def fix(mode: Mode) -> None:
    """Set the variables for a mode, and restore those changed by another mode. Loaded packages keep their setting."""
    values = {} if mode == "off" or not _has("avx2", "fma") else _values(mode)
    os.environ[_DECIDED] = mode
    for name, package in _LIBRARIES.items():
        kept = _BEFORE + name
        if package in sys.modules:
            continue
        if name in values:
            os.environ.setdefault(kept, os.environ.get(name, ""))
            os.environ[name] = values[name]
            if not values[name]:
                del os.environ[name]
        elif kept in os.environ:
            os.environ[name] = os.environ.pop(kept)
            if not os.environ[name]:
                del os.environ[name]


def variables() -> dict[str, str]:
    """Return the environment variables with which a new process on another machine uses the same setting as this one."""
    names = (VARIABLE, _DECIDED, *_LIBRARIES, *(_BEFORE + name for name in _LIBRARIES))
    return {name: os.environ[name] for name in names if name in os.environ}


def is_fixed() -> bool:
    """Whether a library is prevented from using the processor's AVX-512."""
    return has_avx512() and any(_BEFORE + name in os.environ for name in _LIBRARIES)


def limits_onednn() -> bool:
    """Whether oneDNN is limited to AVX2, and so does not support bfloat16 natively."""
    return os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() == "AVX2"


def has_avx512() -> bool:
    """Whether the processor has AVX-512, used or not."""
    return _has("avx512f")


def is_amd() -> bool:
    """Whether the processor is AMD's or of a compatible kind."""
    return _processor().get("vendor_id") in ("AuthenticAMD", "HygonGenuine")


def machine() -> dict[str, str]:
    """Return the processor and the instruction set of each library. Loads numpy and torch."""
    import torch
    from numpy._core import _multiarray_umath  # type: ignore[attr-defined]
    from threadpoolctl import threadpool_info

    enabled = _multiarray_umath.__cpu_features__
    compiled = {*_multiarray_umath.__cpu_baseline__, *_multiarray_umath.__cpu_dispatch__}
    blas = [info for info in threadpool_info() if info["user_api"] == "blas" and "numpy" in info["filepath"]]
    best = "AVX512" if has_avx512() else "AVX2" if _has("avx2", "fma") else "unknown"
    return {
        "processor": f"{_processor().get('vendor_id', 'unknown')} {_processor().get('model name', '')}".strip(),
        "numpy": _numpy_level({name for name in compiled if enabled.get(name)}),
        "blas": ", ".join(f"{info['internal_api']} {info.get('architecture')}" for info in blas) or "unknown",
        "torch": torch.backends.cpu.get_cpu_capability(),
        "mkl": "AVX2" if os.environ.get("MKL_CBWR") == "AVX2" or is_amd() else best,
        "onednn": "AVX2" if limits_onednn() else best,
    }


def problems(found: Mapping[str, str]) -> list[str]:
    """Deviations of a `machine` from the mode `on`, as text."""
    wanted = {"numpy": "AVX2", "blas": "openblas Haswell", "torch": "AVX2", "mkl": "AVX2", "onednn": "AVX2"}
    return [f"{name} is {found[name]}, expected {level}" for name, level in wanted.items() if found[name] != level]


def differences(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Differences between machines that can change bits, as text. Models of processors of one vendor do not count."""
    makers = {"maker": (then.get("processor", "").split(" ")[0], now["processor"].split(" ")[0])}
    levels = {name: (then.get(name, ""), level) for name, level in now.items() if name != "processor"}
    return [f"{name} {old}, now {new}" for name, (old, new) in (makers | levels).items() if old != new]


_LEVELS = {
    "AVX512_SPR": "AVX512", "AVX512_ICL": "AVX512", "X86_V4": "AVX512", "AVX512_SKX": "AVX512", "AVX512F": "AVX512",
    "X86_V3": "AVX2", "AVX2": "AVX2",
}  # fmt: skip
"""numpy's features -> instruction set, largest first."""


def _values(mode: Mode) -> dict[str, str]:
    values = {
        "OPENBLAS_CORETYPE": "Haswell",  # the same code as for Zen
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_CBWR": "" if is_amd() else "AVX2",  # on AMD, MKL never uses AVX-512, and this would change the bits
    }
    if "NPY_ENABLE_CPU_FEATURES" not in os.environ:  # numpy accepts only one of the two
        values["NPY_DISABLE_CPU_FEATURES"] = _numpy_avx512()
    return values | ({"ONEDNN_MAX_CPU_ISA": "AVX2"} if mode == "on" else {})


def _numpy_avx512() -> str:
    """AVX-512 features by the names of the installed numpy, which warns about others. Does not load numpy."""
    found = importlib.util.find_spec("numpy")
    if found is not None and found.submodule_search_locations:
        with open(os.path.join(found.submodule_search_locations[0], "version.py"), encoding="utf-8") as file:
            version = re.search(r"^version = \"(\d+)\.(\d+)", file.read(), re.MULTILINE)
        if version is not None and tuple(map(int, version.groups())) < (2, 4):
            return "AVX512F AVX512CD AVX512_KNL AVX512_KNM AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL"
    return "X86_V4 AVX512_ICL AVX512_SPR"


def _numpy_level(features: Collection[str]) -> str:
    """Instruction set of the features that numpy has code for and uses; its other features only describe the processor."""
    return next((level for name, level in _LEVELS.items() if name in features), "baseline")


def _has(*flags: str) -> bool:
    return set(flags) <= set(_processor().get("flags", "").split())


@cache
def _processor() -> Mapping[str, str]:
    """Linux's description of the first processor; empty elsewhere, and if it is not x86-64."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        return {}
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            text = file.read(1 << 14).partition("\n\n")[0]  # other cores have the same entries, slow to read
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}
