"""A run's state as a checkpoint holds it: arrays by name, and the rest as JSON.

learners/learn/weights/network.policy.0.weight
shards/rollout/0/rng
registers/weights/12/network.policy.0.weight
replays/replay/0/rows/obs
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from levada.flow.state import Arrays, Below, RunState
from levada.run.checkpoint import REPLAYS
from levada.run.plain import JSON

Flat: TypeAlias = dict[str, np.ndarray]


def pack(state: RunState) -> tuple[Flat, dict[str, JSON]]:
    """Arrays, and what is no array."""
    arrays = {
        f"{learner_prefix(name)}{key}": array for name, own in state.learners.items() for key, array in own.items()
    }
    for (source, index), own in state.shards.items():
        arrays |= {f"shards/{source}/{index}/{key}": array for key, array in own.items()}
    for register, versions in state.registers.items():
        for version, own in versions.items():
            arrays |= {f"registers/{register}/{version}/{key}": array for key, array in own.items()}
    for replay, tables in state.replays.items():
        for number, own in enumerate(tables):
            arrays |= {f"{REPLAYS}{replay}/{number}/{key}": array for key, array in own.items()}
    meta: dict[str, JSON] = {
        "schedule": dict(state.schedule),
        "shards": [[source, index] for source, index in state.shards],
        "generations": [[source, index, count] for (source, index), count in state.generations.items()],
        "registers": {register: sorted(versions) for register, versions in state.registers.items()},
        "learners": sorted(state.learners),
        "is_exact": state.is_exact,
        "unsaved": [[source, index, why] for (source, index), why in state.unsaved.items()],
        "replays": {replay: len(tables) for replay, tables in state.replays.items()},
        "unsaved_replays": dict(state.unsaved_replays),
    }
    return arrays, meta


def unpack(arrays: Arrays, meta: Mapping[str, Any], replays: Arrays) -> RunState:
    """The state; what `pack` made, with those apart that are contents of replays.

    Raises:
        ValueError: something is missing: it is the checkpoint of something else.

    """
    try:
        registers: dict[str, dict[int, Flat]] = defaultdict(dict)
        for register, versions in meta["registers"].items():
            for version in versions:
                registers[register][version] = _below(arrays, f"registers/{register}/{version}/")
        return RunState(
            learners={name: _below(arrays, learner_prefix(name)) for name in meta["learners"]},
            shards={(source, index): _below(arrays, f"shards/{source}/{index}/") for source, index in meta["shards"]},
            generations={(source, index): count for source, index, count in meta["generations"]},
            registers=registers,
            schedule=meta["schedule"],
            is_exact=bool(meta["is_exact"]),
            unsaved={(source, index): why for source, index, why in meta["unsaved"]},
            replays={
                replay: tuple(Below(replays, f"{REPLAYS}{replay}/{number}/") for number in range(num_tables))
                for replay, num_tables in meta["replays"].items()
            },
            unsaved_replays=meta["unsaved_replays"],
        )
    except (KeyError, TypeError, AttributeError) as error:
        msg = f"not the state of a run: {type(error).__name__}: {error}"
        raise ValueError(msg) from error


def learner_prefix(node: str) -> str:
    """What the names of a learner's arrays begin with."""
    return f"learners/{node}/"


def _below(arrays: Arrays, prefix: str) -> Flat:
    return dict(Below(arrays, prefix))
