"""Calls the command line inside this process, and keeps what it printed.

shell = Shell(capfd)
done = shell("train ppo --env CartPole-v1 --until updates=1")
done.code, done.out, done.err
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import levada.cli

TINY = "--num-envs 2 --num-steps 16 --minibatch-size 16 --num-epochs 1 --hidden-sizes 8 --compile false"
"""PPO that updates in milliseconds."""
TINY_FIELDS = {
    "num_envs": 2,
    "num_steps": 16,
    "minibatch_size": 16,
    "num_epochs": 1,
    "hidden_sizes": (8,),
    "compile": False,
}
"""The same from Python."""


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def message(self) -> str:
        """What stands on stderr in one line, without the parser's box."""
        return " ".join(re.sub("[│╭╮╰╯─]", " ", self.err).split())


class Shell:
    def __init__(self, capsys):
        self._capsys = capsys

    def __call__(self, command: str) -> Done:
        self._capsys.readouterr()
        path = list(sys.path)
        try:
            code = levada.cli.main(shlex.split(command))
        finally:
            sys.path[:] = path  # to which the directory that we stand in was added
        out, err = self._capsys.readouterr()
        return Done(code, out, err)


def begin(command: str, *, cwd: Path, module: str = "levada.cli", **options) -> subprocess.Popen:
    """Start the command line in a process of its own."""
    here = Path(__file__).parents[2]
    path = os.pathsep.join([str(here), str(Path(levada.__file__).parent.parent)])
    env = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    return subprocess.Popen([sys.executable, "-m", module, *shlex.split(command)], cwd=cwd, env=env, **options)


def in_process(command: str, *, cwd: Path) -> Done:
    """Run the command line in a process of its own, to its end."""
    process = begin(command, cwd=cwd)
    out, err = process.communicate(timeout=600)
    return Done(process.returncode, out, err)


def tree(directory: Path) -> dict[str, bytes | None]:
    """Everything below a directory: bytes of files, None for directories."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
        if "__pycache__" not in path.parts  # Python's own, of the user's modules
    }
