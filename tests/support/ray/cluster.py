"""A Ray cluster of one node, in this process, for the tests of a module."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest


@contextmanager
def one_node(
    num_cpus: int, labels: Mapping[str, str] | None = None, resources: Mapping[str, float] | None = None
) -> Iterator[None]:
    """Start a node, with labels and resources, that all runs join, whose actors find the modules of the tests."""
    import ray

    from levada.runners.ray.cluster import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        Cluster.start(
            num_cpus=num_cpus,
            labels=dict(labels or {}),
            resources=dict(resources or {}),
            log_to_driver=False,
            logging_level="ERROR",
        )
        yield
        ray.shutdown()
