"""Which run this is, and what it was told to do: what its directory, display and summary are headed with."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any, Literal

import msgspec

from levada._version import __version__

Origin = Literal["default", "preset", "argument", "command line", "config", "machine", "measured"]
"""Who chose a setting."""

PACKAGES = ("torch", "numpy", "gymnasium")
"""Packages, beside levada, whose versions may change what a run computes."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What tells one run from another."""

    algorithm: str
    """Name of the algorithm, such as ``ppo``."""
    env: str
    """Name of the task, such as ``CartPole-v1``."""
    seed: int
    """Everything random in the run follows from it."""
    deployment: str
    """Where the nodes ran, such as ``Processes(2)``."""
    threads: int = 1
    """That learning computes with."""
    precision: str = "float32"
    """Numbers that networks compute in."""
    device: str = "cpu"
    """On what they compute."""
    machine: dict[str, str] = {}
    """The processor, and the instructions that numpy, its BLAS, torch, MKL and oneDNN take; see `levada.portable`."""
    flow_hash: str
    """SHA-256 of the flow: equal for the same algorithm and settings under every deployment."""


class Setting(msgspec.Struct, frozen=True):
    """A setting and who chose it."""

    value: Any
    """Plain data; what JSON has no number for (inf) is text."""
    origin: Origin = msgspec.field(name="from")
    """`default`: the algorithm's own; `preset`: tuned for the env; `argument`: given in Python; `command line`;
    `config`: of the run that `--config` names; `machine`: it follows from the processor; `measured`: a run of an older version
    measured it when it began."""


def versions() -> dict[str, str | None]:
    """Versions of Python and of the packages that decide what a run computes; None for those not installed."""
    found: dict[str, str | None] = {"python": platform.python_version(), "levada": __version__}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found
