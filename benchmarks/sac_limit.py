"""Speed that the processor allows for `compare.py sac-halfcheetah`: the matrix products of a gradient step of SAC, alone.

    python benchmarks/sac_limit.py

A gradient step of SAC with two critics is mostly products of float32 matrices, whose shapes follow from the sizes of the networks
and of the batch. Here PyTorch computes them into memory that is already there, and nothing else: no activation functions, no
noise, no optimizer, no environment. No library whose layers are float32 takes more gradient steps/s, unless its products are
faster than those of MKL.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Final

import torch
from rich.console import Console
from rich.table import Table

BATCH_SIZE: Final = 256
OBS_SIZE: Final = 17
"""HalfCheetah-v5."""
ACTION_SIZE: Final = 6
HIDDEN_SIZES: Final = (256, 256)
NUM_CRITICS: Final = 2
NUM_TURNS: Final = 5
DURATION_S: Final = 3.0

Shape = tuple[int, int, int]
"""Rows, inner size and columns of a product."""


def products() -> list[Shape]:
    """The products of a gradient step."""
    actor = list(pairwise((OBS_SIZE, *HIDDEN_SIZES, 2 * ACTION_SIZE)))
    critic = list(pairwise((OBS_SIZE + ACTION_SIZE, *HIDDEN_SIZES, 1)))
    # the gradient of the actor's loss reaches the action alone among the inputs of a critic
    to_action = [(ACTION_SIZE, HIDDEN_SIZES[0]), *critic[1:]]
    targets = [*_forward(actor), *NUM_CRITICS * _forward(critic)]
    of_critics = NUM_CRITICS * [*_forward(critic), *_of_weights(critic), *_of_inputs(critic[1:])]
    of_actor = [
        *_forward(actor), *NUM_CRITICS * [*_forward(critic), *_of_inputs(to_action)], *_of_weights(actor), *_of_inputs(actor[1:])
    ]  # fmt: skip
    return [*targets, *of_critics, *of_actor]


def _forward(layers: list[tuple[int, int]]) -> list[Shape]:
    return [(BATCH_SIZE, size, out) for size, out in layers]


def _of_weights(layers: list[tuple[int, int]]) -> list[Shape]:
    return [(out, BATCH_SIZE, size) for size, out in layers]


def _of_inputs(layers: list[tuple[int, int]]) -> list[Shape]:
    return [(BATCH_SIZE, out, size) for size, out in layers]


def gradient_steps_per_s(shapes: list[Shape]) -> float:
    """Gradient steps whose products are computed in a second."""
    calls = [_product(*shape) for shape in shapes]
    num, start_s = 0, time.perf_counter()
    while time.perf_counter() < start_s + DURATION_S:
        for call in calls:
            call()
        num += 1
    return num / (time.perf_counter() - start_s)


def _product(rows: int, inner: int, columns: int) -> Callable[[], object]:
    a, b, out = torch.randn(rows, inner), torch.randn(inner, columns), torch.empty(rows, columns)
    return lambda: torch.mm(a, b, out=out)


def main() -> None:
    """Measure with one thread and with two, in turns."""
    shapes = products()
    num_multiplications = sum(rows * inner * columns for rows, inner, columns in shapes)
    found: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(NUM_TURNS):
        for num_threads, rates in found.items():
            torch.set_num_threads(num_threads)
            rates.append(gradient_steps_per_s(shapes))
    table = Table("threads", "at most, gradient steps/s, median (min - max)", "GFLOP/s")
    for num_threads, rates in found.items():
        rate = statistics.median(rates)
        spread = f"{rate:,.0f} ({min(rates):,.0f} - {max(rates):,.0f})"
        table.add_row(str(num_threads), spread, f"{2e-9 * rate * num_multiplications:,.0f}")
    console = Console()
    console.print(f"{len(shapes)} products, {num_multiplications / 1e6:,.0f} million multiplications")
    console.print(table)


if __name__ == "__main__":
    main()
