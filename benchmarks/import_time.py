"""Time of `import levada` and of `levada --help`: processor time, best of several fresh processes.

    python benchmarks/import_time.py [--tries 10] [--import-limit 0.05] [--help-limit 0.5]

An import is measured alone, the command with the start of Python. Exits with 1 if `import levada` or `levada --help` takes
longer than its limit.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

MEASURE = "import time; t = time.process_time(); import {module}; print(time.process_time() - t)"


def of_import(module: str) -> float:
    """Seconds of importing `module` in a fresh process."""
    code = MEASURE.format(module=module)
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def of_help() -> float:
    """Seconds of `levada --help`, from the start of its process to the end."""
    before = os.times()
    command = [sys.executable, "-c", "from levada.cli import main; main(['--help'])"]
    subprocess.run(command, capture_output=True, check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main() -> int:
    """Measure, and print the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=10)
    parser.add_argument("--import-limit", type=float, default=0.05)
    parser.add_argument("--help-limit", type=float, default=0.5)
    args = parser.parse_args()
    limits = {"import levada": args.import_limit, "levada --help": args.help_limit}
    status = 0
    for name in ("import levada", "levada --help", "import levada.cli", "import levada.flow", "import levada.api"):
        num_tries = 3 if name == "import levada.api" else args.tries
        times = sorted(of_help() if name == "levada --help" else of_import(name.split()[1]) for _ in range(num_tries))
        print(f"{name:<18} best {times[0]:.3f} s, median {times[len(times) // 2]:.3f} s of {len(times)}")
        if times[0] > limits.get(name, float("inf")):
            print(f"{name} takes more than {limits[name]} s", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
