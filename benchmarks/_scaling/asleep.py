"""What the programs of `scaling.py nodes` have in common: the sizes, the cluster, and what is measured.

A program starts a cluster, trains on it, and prints one line of JSON. RLlib's runs in an environment without levada.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

from ray.cluster_utils import Cluster

from benchmarks._proc import cpu_s, family, machine_busy_s

STEP_S: Final = 0.02
NUM_STEPS: Final = 20
"""Of a rollout. A batch is one rollout of each sampler."""
SAMPLERS_PER_NODE: Final = 2
SAMPLER: Final = "sampler"
"""A resource that only these nodes have, one for each sampler: learners stay on the head."""
_HEAD: Final = {"num_cpus": 4, "include_dashboard": False, "object_store_memory": 256 << 20}
_NODE: Final = {
    "num_cpus": SAMPLERS_PER_NODE, "resources": {SAMPLER: SAMPLERS_PER_NODE}, "object_store_memory": 100 << 20,
}  # fmt: skip


@contextmanager
def cluster(num_nodes: int) -> Iterator[str]:
    """A head and some nodes with two CPUs each, all on this machine; the address."""
    started = Cluster(initialize_head=True, head_node_args=_HEAD)
    try:
        for _ in range(num_nodes):
            started.add_node(**_NODE)
        yield started.address
    finally:
        started.shutdown()


def arguments(description: str) -> argparse.Namespace:
    """Parse the command line of a program."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=20.0, help="for how long it is measured")
    parser.add_argument("--warm", type=float, default=10.0, help="seconds from the first update that are left out")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


class Mark(NamedTuple):
    """A moment between two updates."""

    env_steps: int
    """Learned from so far."""
    time_s: float
    process_s: float
    """Processor time of this process."""
    family_s: float
    """Processor time of this process and of all that descend from it: the cluster and its actors."""
    machine_s: float
    """Processor time of everything on the machine."""
    seen: Any
    """What else was looked at."""

    def rates_until(self, end: Mark) -> dict[str, float]:
        """Env steps per second, and cores that this process, its family and everything else kept busy."""
        seconds = end.time_s - self.time_s
        return {
            "env_steps_per_s": (end.env_steps - self.env_steps) / seconds,
            "process_cores": (end.process_s - self.process_s) / seconds,
            "family_cores": (family_s := end.family_s - self.family_s) / seconds,
            "foreign_cores": max(0.0, end.machine_s - self.machine_s - family_s) / seconds,
        }


def measure(
    updates: Iterable[int], *, warm_s: float, seconds: float, look: Callable[[], Any] = lambda: None
) -> tuple[Mark, Mark]:
    """Go through updates, each given as the env steps so far; mark the end of the warm-up and the end."""
    first_s: float | None = None
    begin: Mark | None = None
    for env_steps in updates:
        now_s = time.perf_counter()
        first_s = now_s if first_s is None else first_s
        if now_s - (first_s if begin is None else begin.time_s) >= (warm_s if begin is None else seconds):
            mark = Mark(env_steps, now_s, time.process_time(), _family_s(), machine_busy_s(), look())
            if begin is not None:
                return begin, mark
            begin = mark
    raise RuntimeError("training has ended by itself")


def _family_s() -> float:
    total_s = 0.0
    for pid in family(os.getpid()):
        with suppress(OSError):  # it has ended meanwhile
            total_s += cpu_s([pid])
    return total_s


def tell(found: Mapping[str, object]) -> None:
    """Print the line."""
    print(json.dumps(found), flush=True)
