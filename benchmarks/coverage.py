"""How often the 95 % intervals of `levada compare` contain the interquartile mean of the distribution that runs are drawn from.

    python benchmarks/coverage.py --repetitions 1000

Prints a row for each distribution of returns over seeds, a column for each number of runs. Rows: `levada`, and the plain
percentile interval of the bootstrap for comparison.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from scipy import stats

from levada.comparison.estimates import interquartile_mean, trimmed_mean

Draw = Callable[[np.random.Generator, int], np.ndarray]

DISTRIBUTIONS: dict[str, Draw] = {
    "normal": lambda rng, num: rng.normal(size=num),
    "exponential": lambda rng, num: rng.exponential(size=num),
    "uniform": lambda rng, num: rng.uniform(size=num),
    "Student's t, 3 degrees": lambda rng, num: rng.standard_t(3, size=num),
    "solved 7 times of 10": lambda rng, num: np.where(rng.uniform(size=num) < 0.7, 1.0, 0.0) + rng.normal(0, 0.1, num),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=1000, help="number of intervals for each figure")
    parser.add_argument("--runs", type=int, nargs="+", default=[3, 4, 5, 10, 20], help="numbers of runs")
    options = parser.parse_args()
    print(f"{'distribution':24} {'interval':>11} " + " ".join(f"{num:>4} runs" for num in options.runs))
    for name, draw in DISTRIBUTIONS.items():
        rng = np.random.default_rng(0)
        true = float(trimmed_mean(draw(rng, 4_000_000)))
        ours, percentile = [], []
        for num in options.runs:
            samples = [draw(rng, num) for _ in range(options.repetitions)]
            ours.append(np.mean([_covers(sample, true) for sample in samples]))
            percentile.append(np.mean([_percentile_covers(sample, true) for sample in samples]))
        for kind, shares in (("levada", ours), ("percentile", percentile)):
            print(f"{name:24} {kind:>11} " + " ".join(f"{share:9.1%}" for share in shares), flush=True)


def _covers(sample: np.ndarray, true: float) -> bool:
    found = interquartile_mean([sample])
    assert found.low is not None
    assert found.high is not None
    return found.low <= true <= found.high


def _percentile_covers(sample: np.ndarray, true: float) -> bool:
    found = stats.bootstrap(
        (sample,), trimmed_mean, n_resamples=1_000, vectorized=True, method="percentile", rng=np.random.default_rng(0)
    )
    return bool(found.confidence_interval.low <= true <= found.confidence_interval.high)


if __name__ == "__main__":
    main()
