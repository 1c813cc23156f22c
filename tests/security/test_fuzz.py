"""A small share of what benchmarks/fuzz_run.py does: harmed runs are opened, and each time it ends well."""

import os
import subprocess
import sys
from pathlib import Path

import levada

ROOT = Path(__file__).parent.parent.parent


def test_harmed_runs_end_well():
    """In a process of its own, which forks one for each case: most of its time are the imports, and three small trainings."""
    path = os.pathsep.join([str(Path(levada.__file__).parent.parent), str(ROOT)])
    command = [sys.executable, str(ROOT / "benchmarks" / "fuzz_run.py"), "--cases", "16", "--seed", "5000"]
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "16 cases: " in done.stdout
    assert "0 not well" in done.stdout
