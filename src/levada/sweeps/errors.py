"""Errors of sweeps."""

from levada.flow.errors import LevadaError


class SweepError(LevadaError, ValueError):
    """A sweep is invalid, or its directory holds something else."""
