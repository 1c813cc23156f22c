"""The transport of `processes:1` per item and per megabyte, over the size of a rollout.

A sampler writes observations into shared memory in place, so an item costs the same whatever its size. What is not made in place,
such as the output of a map node, is copied there once: small items then cost what their messages cost, and large ones what
copying them costs, with a plain copy of as many bytes as the limit. The cost is the processor time of both processes, there and
back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from time import clock_gettime, process_time
from typing import Any, Final

import numpy as np

from benchmarks._growth.axis import Axis, Curve, Side
from benchmarks._transport.ours import InPlace, Levada, OneCopy
from benchmarks._transport.payloads import Arrays

SIZES: Final = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
"""Bytes of the observations."""
SMALL: Final = 100_000
"""Bytes up to which the cost per item is compared; above it is that per megabyte."""
NUM_STEPS: Final = 25
IN_PLACE: Final = "in place, us per item"
ONE_COPY: Final = "one copy, us per item"
PER_MB: Final = "one copy, us per MB"
MEMCPY: Final = "memcpy, us per MB"


def _rollout(num_bytes: int) -> Arrays:
    """A rollout of one environment, with observations of so many bytes in all."""
    rng = np.random.default_rng(num_bytes)
    return {
        "stamp": np.zeros(2, np.int64), "obs": rng.integers(0, 256, (NUM_STEPS, num_bytes // NUM_STEPS), np.uint8),
        "action": np.zeros(NUM_STEPS, np.int64), "reward": np.zeros(NUM_STEPS, np.float32),
        "terminated": np.zeros(NUM_STEPS, np.bool_), "truncated": np.zeros(NUM_STEPS, np.bool_),
    }  # fmt: skip


def _cpu_s(writer: Levada) -> float:
    """Processor time of this process and the reader."""
    assert writer.pid is not None
    return process_time() + clock_gettime((~writer.pid << 3) | 2)  # as clock_getcpuclockid(3) does


def _us(writer: Levada, arrays: Arrays, repeat: int) -> float:
    """Processor time of an item, in microseconds."""
    writer.begin("", arrays)
    for _ in range(3):
        writer.send(writer.fresh(arrays))
    start_s = _cpu_s(writer)
    for number in range(repeat):
        arrays["stamp"][0] = number
        if writer.send(writer.fresh(arrays)) != number:
            raise SystemExit("what arrived is not what was sent")
    return 1e6 * (_cpu_s(writer) - start_s) / repeat


def _memcpy_us(arrays: Arrays, repeat: int) -> float:
    source = arrays["obs"]
    target = np.zeros_like(source)
    copy: Callable[[], Any] = partial(np.copyto, target, source)
    copy()
    start_s = process_time()
    for _ in range(repeat):
        copy()
    return 1e6 * (process_time() - start_s) / repeat


def _turn(writers: Mapping[str, Levada], arrays: Arrays, repeat: int) -> dict[str, float]:
    num_bytes = arrays["obs"].nbytes
    costs = {IN_PLACE: _us(writers[IN_PLACE], arrays, repeat)}
    one_copy_us = _us(writers[ONE_COPY], arrays, repeat)
    if num_bytes <= SMALL:
        return costs | {ONE_COPY: one_copy_us}
    num_mb = 1e-6 * num_bytes
    return costs | {PER_MB: one_copy_us / num_mb, MEMCPY: _memcpy_us(arrays, repeat) / num_mb}


@contextmanager
def _sides(quick: bool) -> Iterator[Sequence[Side]]:
    with ExitStack() as closing:
        sides = []
        for num_bytes in (1_000, 1_000_000) if quick else SIZES:
            writers: dict[str, Levada] = {}
            for name, kind in ((IN_PLACE, InPlace), (ONE_COPY, OneCopy)):
                writers[name] = kind()
                closing.callback(writers[name].close)
            repeat = 10 if quick else 300 if num_bytes < 10_000_000 else 60
            sides.append(Side(num_bytes, partial(_turn, writers, _rollout(num_bytes), repeat)))
        yield sides


CURVES: Final = (Curve(IN_PLACE), Curve(ONE_COPY), Curve(PER_MB, MEMCPY))
AXIS = Axis("observations", "bytes", CURVES, _sides, turns=9)
