"""Weights of policies of other runs that play in a run: they are those of its beginning, which its checkpoints keep.

So a run is resumed and evaluated with the opponents that it was trained with, also if their own runs were trained further since.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping

from levada.algorithms.algorithm import Algorithm
from levada.algorithms.multi_agent import MultiAgent
from levada.flow.state import Arrays
from levada.run.storage.checkpoint import Checkpoint, CheckpointWarning
from levada.run.storage.directory import RunDirectory
from levada.run.storage.restore import check_finite, newest_checkpoint
from levada.run.storage.state import fixed_weights


def kept_weights(directory: RunDirectory, config: Algorithm) -> Mapping[str, Arrays]:
    """Return the weights that the newest checkpoint has of policies of other runs, by policy; none without a checkpoint."""
    if not (names := frozen_policies(config)):
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", CheckpointWarning
        )  # what is wrong with checkpoints is told when the run is read
        saved = newest_checkpoint(directory, replays=False, check=lambda found: _check(found, names))
    return {} if saved is None else _kept(saved, names)


def _kept(saved: Checkpoint, names: Iterable[str]) -> dict[str, Arrays]:
    """Return the weights that a checkpoint has of these policies."""
    found = {name: fixed_weights(saved.arrays, f"{name}/weights") for name in names}
    return {name: weights for name, weights in found.items() if weights}


def _check(saved: Checkpoint, names: Iterable[str]) -> None:
    """Raise CheckpointError if weights in a checkpoint are not finite."""
    for name, weights in _kept(saved, names).items():
        check_finite(saved, f"policy {name!r}", weights)


def frozen_policies(config: Algorithm) -> Mapping[str, str]:
    """Return the policies of other runs that play in a run, with the paths of these."""
    if not isinstance(config, MultiAgent):
        return {}
    return {name: policy.run for name, policy in config.policies.items() if policy.kind == "frozen"}


def why_another_flow(directory: RunDirectory, config: Algorithm) -> str:
    """Say that policies of other runs may be why the flow of a run has changed, to append to a message; empty if not."""
    names = frozen_policies(config)
    if not names or kept_weights(directory, config):
        return ""
    told = ", ".join(f"{path} (policy {name!r})" for name, path in names.items())
    return f"; it ended before its first checkpoint, which keeps what plays in it: was {told} trained further since?"
