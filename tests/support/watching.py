"""The server of the page in a process of its own, and runs to be watched."""

import os
import subprocess
import sys
import textwrap
from contextlib import contextmanager
from pathlib import Path

import levada

_PATH = os.pathsep.join([str(Path(__file__).parents[2]), str(Path(levada.__file__).parent.parent)])
ENV = {**os.environ, "PYTHONPATH": _PATH, "OMP_NUM_THREADS": "1"}


@contextmanager
def served(*runs):
    """Serve runs; yields the address of the page."""
    command = [sys.executable, "-m", "levada.watch", *map(str, runs)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENV) as server:
        yield server.stdout.readline().strip()
        server.stdin.close()
        assert server.wait(120) == 0


@contextmanager
def running(script, folder):
    """Run a Python program until the end of the block."""
    path = folder / "program.py"
    path.write_text(textwrap.dedent(script))
    with subprocess.Popen([sys.executable, str(path)], cwd=folder, env=ENV) as program:
        try:
            yield program
        finally:
            program.terminate()
            program.wait(120)
