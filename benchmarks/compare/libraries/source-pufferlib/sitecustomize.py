"""What it takes to build PufferLib 3.0.0 without its environments in C: Python loads this file before its setup.py.

The switch is NO_OCEAN, but with it setup.py uses a name that it has not defined. And the kernel for advantages is built
for the CPU only, also where there is a CUDA compiler.
"""

import builtins
import os
import shutil

_which = shutil.which


def _which_but_nvcc(program, *args, **kwargs):  # noqa: ANN001, ANN002, ANN003, ANN202
    return None if program == "nvcc" else _which(program, *args, **kwargs)


os.environ["NO_OCEAN"] = "1"
builtins.c_extension_paths = []
shutil.which = _which_but_nvcc
