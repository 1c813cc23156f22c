"""Freed memory stays with the process."""

import subprocess
import sys

import pytest

CODE = """
import sys
from pathlib import Path
import numpy as np
from levada.runners.malloc import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
arrays = [np.ones(1 << 18) for _ in range(50)]  # 2 MiB each
arrays.clear()
print(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")))
"""


def resident_mb(how: str) -> float:
    done = subprocess.run([sys.executable, "-c", CODE, how], capture_output=True, text=True, check=True)
    return int(done.stdout) / 1024


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of the GNU C library")
def test_the_same_memory_can_be_used_again():
    assert resident_mb("keep") > resident_mb("default") + 80
