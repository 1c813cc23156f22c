"""Time of `import levada`: CPU seconds of the import alone, best of several fresh processes.

    python benchmarks/import_time.py [--tries 7] [--limit 0.3]

Exits with 1 if the best time is above the limit.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

MEASURE = "import time; t = time.process_time(); import {module}; print(time.process_time() - t)"


def seconds(module: str) -> float:
    """CPU seconds of importing `module` in a fresh process."""
    code = MEASURE.format(module=module)
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def main() -> int:
    """Measure, and print the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=7)
    parser.add_argument("--limit", type=float, default=0.3)
    args = parser.parse_args()
    found = {}
    for module in ("levada", "levada.cli", "levada.flow", "levada.api"):
        times = sorted(seconds(module) for _ in range(args.tries if module != "levada.api" else 3))
        found[module] = times[0]
        print(f"import {module:<12} best {times[0]:.3f} s, median {times[len(times) // 2]:.3f} s of {len(times)}")
    if found["levada"] > args.limit:
        print(f"import levada takes more than {args.limit} s", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
