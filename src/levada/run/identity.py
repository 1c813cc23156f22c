"""Identity and settings of a run, shown in its directory, display and summary."""

from __future__ import annotations

import platform
import re
from importlib import metadata
from typing import Any, Literal

import msgspec

from levada._version import __version__

Origin = Literal["default", "preset", "argument", "command line", "config", "machine", "measured"]
"""Origin of a setting."""

PACKAGES = ("torch", "numpy", "gymnasium")
"""Packages, beside levada, whose versions may change the results of a run."""
OPTIONAL_PACKAGES = ("jax", "jaxlib", "torchax", "gymnax", "craftax", "brax", "playground", "pgx")
"""The same for environments in JAX and updates compiled by XLA. Most runs need none of them."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of a run."""

    algorithm: str
    """Name of the algorithm, such as ``ppo``."""
    env: str
    """Name of the task, such as ``CartPole-v1``."""
    seed: int
    """Random seed of everything in the run."""
    deployment: str
    """Deployment of the nodes, such as ``Processes(2)``."""
    threads: int = 1
    """Number of threads of the learner."""
    precision: str = "float32"
    """Floating-point format of the networks."""
    device: str = "cpu"
    """Device of the networks."""
    machine: dict[str, str] = {}
    """The processor, and the instruction sets used by numpy, its BLAS, torch, MKL and oneDNN; see `levada.portable`."""
    flow_hash: str
    """SHA-256 of the flow: equal for the same algorithm and settings under every deployment."""

    @property
    def num_learners(self) -> int:
        """Number of learners that compute each update together."""
        found = re.search(r"learners=(\d+)", self.deployment)
        return 1 if found is None else int(found[1])


class Setting(msgspec.Struct, frozen=True):
    """A setting and its origin."""

    value: Any
    """Plain data; values that JSON has no number for (inf) are text."""
    origin: Origin = msgspec.field(name="from")
    """`default`: the algorithm's default; `preset`: tuned for the env; `argument`: passed in Python; `command line`;
    `config`: of the run named by `--config`; `machine`: chosen for the processor; `measured`: measured at the start by a run
    of an older version."""


def versions() -> dict[str, str | None]:
    """Versions of Python and of the packages that affect results; None for those not installed, unless they are optional."""
    found: dict[str, str | None] = {"python": platform.python_version(), "levada": __version__}
    found |= {package: _version_of(package) for package in PACKAGES}
    optional = {package: _version_of(package) for package in OPTIONAL_PACKAGES}
    return found | {package: version for package, version in optional.items() if version is not None}


def _version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
