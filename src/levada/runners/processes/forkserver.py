"""The process that workers are forked from, with everything they need loaded once."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import shutil
from multiprocessing import forkserver, util

CONTEXT = multiprocessing.get_context("forkserver")
_PRELOAD = [__name__, "levada.runners.processes.worker", "levada.rl.sampler"]
_FOLDER = "LEVADA_FORKSERVER_FOLDER"
"""Environment variable of the forkserver: who started it, and the folder with its socket, which that one removes unless it is
killed."""


def prepare() -> None:
    """Begin to load what workers need, while this process does something else."""
    CONTEXT.set_forkserver_preload(_PRELOAD)
    if multiprocessing.parent_process() is not None:  # it has the folder of its parent
        forkserver.ensure_running()
        return
    os.environ[_FOLDER] = f"{os.getpid()} {util.get_temp_dir()}"
    try:
        forkserver.ensure_running()
    finally:
        del os.environ[_FOLDER]


def _remove(folder: str, parent: int) -> None:
    if os.getppid() != parent:  # else that one still uses it, and removes it itself
        shutil.rmtree(folder, ignore_errors=True)


if (_known := os.environ.pop(_FOLDER, None)) is not None:  # this is the forkserver: it ends after all that it serves
    _parent, _, _folder = _known.partition(" ")  # who may have been killed already
    atexit.register(_remove, _folder, int(_parent))
