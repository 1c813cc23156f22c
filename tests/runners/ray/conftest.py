"""A cluster for the tests of a module."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """One node with room for six actors, which all runs of a module join."""
    from support.ray.cluster import one_node  # imports Ray, which the tests beside this file may lack

    with one_node(num_cpus=6, labels={"pool": "cheap"}, resources={"accelerator_type:T4": 1}):
        yield
