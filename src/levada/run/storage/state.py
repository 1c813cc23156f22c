"""State of a run in a checkpoint: arrays by name, and the rest as JSON.

learners/learn/weights/network.policy.0.weight
shards/rollout/0/rng
registers/weights/12/network.policy.0.weight
replays/replay/0/rows/obs
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np

from levada.flow.graph import Flow
from levada.flow.state import Arrays, PrefixView, RunState
from levada.run.storage.checkpoint import MAX_COUNT, REPLAYS
from levada.run.storage.strict_json import JSON
from levada.runners.saving import restore_hub
from levada.runners.tables import Tables
from levada.schedule import Begin, Hub, Snapshot

Flat: TypeAlias = dict[str, np.ndarray]
_Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
_RETURN = "episode_return"
"""Field of the episodes that headers have."""


class _Meta(msgspec.Struct, frozen=True):
    """Output of `pack` beside the arrays."""

    schedule: Snapshot
    shards: list[tuple[str, _Count]]
    generations: list[tuple[str, _Count, _Count]]
    registers: dict[str, list[_Count]]
    learners: list[str]
    is_exact: bool
    unsaved: list[tuple[str, _Count, str]]
    replays: dict[str, _Count]
    unsaved_replays: dict[str, str]
    evaluations: list[tuple[str, _Count]] = []


def pack(state: RunState) -> tuple[Flat, dict[str, JSON]]:
    """Split a state into arrays and JSON data."""
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
    for node, version, weights in state.evaluations:
        arrays |= {f"evaluations/{node}/{version}/{key}": array for key, array in weights.items()}
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
        "evaluations": [[node, version] for node, version, _ in state.evaluations],
    }
    return arrays, meta


def unpack(arrays: Arrays, meta: Mapping[str, Any], replays: Arrays, flow: Flow | None = None) -> RunState:
    """Restore a state from the output of `pack`, with the contents of replays passed separately.

    Raises:
        ValueError: an entry is missing, has another type or size, or does not match `flow`: the checkpoint belongs to
            something else.
    """
    try:
        known = msgspec.convert(meta, _Meta)
        _check_counts(meta["schedule"])
    except (msgspec.ValidationError, RecursionError) as error:
        msg = f"not the state of a run: {error}"
        raise ValueError(msg) from error
    if flow is not None:
        _check_names(flow, known)
    return RunState(
        learners={name: _below(arrays, learner_prefix(name)) for name in known.learners},
        shards={(source, index): _below(arrays, f"shards/{source}/{index}/") for source, index in known.shards},
        generations={(source, index): count for source, index, count in known.generations},
        registers={
            register: {version: _below(arrays, f"registers/{register}/{version}/") for version in versions}
            for register, versions in known.registers.items()
            if versions
        },
        schedule=meta["schedule"],
        is_exact=known.is_exact,
        unsaved={(source, index): why for source, index, why in known.unsaved},
        replays={
            replay: tuple(PrefixView(replays, f"{REPLAYS}{replay}/{number}/") for number in range(num_tables))
            for replay, num_tables in known.replays.items()
        },
        unsaved_replays=known.unsaved_replays,
        evaluations=tuple(
            (node, version, _below(arrays, f"evaluations/{node}/{version}/")) for node, version in known.evaluations
        ),
    )


def check_fits(flow: Flow, state: RunState, seed: int, *, tables: bool) -> None:
    """Check that a state fits a flow, by loading it into a temporary schedule, learners and, if `tables`, tables.

    Custom learners are skipped, because the format of their state is unknown.

    Raises:
        ValueError: it does not fit.
    """
    hub = Hub(flow)
    snapshot = restore_hub(hub, state)
    hub.handle(Begin())
    if empty := [name for name, versions in snapshot.registers.items() if not versions]:
        msg = f"register {empty[0]!r} has no version"
        raise ValueError(msg)
    for name, account in snapshot.replays.items():
        if not account.refilled <= account.lost_entries <= account.inserted:
            msg = f"replay {name!r} has lost more than it ever held"
            raise ValueError(msg)
    if tables:
        Tables(flow, seed, state).close()
    for name, recipe in flow.learners().items():
        if name not in state.learners or type(recipe).__module__.partition(".")[0] != __name__.partition(".")[0]:
            continue
        live: Any = recipe.open(seed)
        _check_arrays(f"learner {name!r}", live.state_dict(), state.learners[name])
        live.load_state_dict(state.learners[name])
        if live.num_updates != snapshot.versions[recipe.policy_name]:
            msg = f"learner {name!r} has had another number of updates than its policy, {snapshot.versions[recipe.policy_name]}"
            raise ValueError(msg)
        for register, named in flow.registers.items():
            if named.policy == recipe.policy_name:
                for version, old in state.registers.get(register, {}).items():
                    _check_arrays(f"version {version} of register {register!r}", live.weights(), old)
        for node, version, weights in state.evaluations:
            if flow.registers[flow.nodes[node].reads[0][1]].policy == recipe.policy_name:
                _check_arrays(f"version {version} that {node!r} evaluates", live.weights(), weights)


def with_fresh_episodes(flow: Flow, state: RunState, why: str) -> RunState:
    """State without those of shards and contents of replays, which start from scratch; learners and counts are kept."""
    shards = [(n.name, index) for n in flow.nodes.values() if n.kind == "source" for index in range(n.shards)]
    generations = {key: state.generations.get(key, 0) + (key not in state.unsaved) for key in shards}
    return replace(
        state, shards={}, generations=generations, is_exact=False, unsaved=dict.fromkeys(shards, why), replays={},
        unsaved_replays=dict.fromkeys(flow.replays, why),
    )  # fmt: skip


def check_numbers(what: str, arrays: Arrays) -> None:
    """Reject weights with NaN or infinity; minus infinity may be a mask.

    Raises:
        ValueError: there is such a value.
    """
    for name, array in arrays.items():
        if array.dtype.kind in "fc" and bool((np.isnan(array) | (array == np.inf)).any()):
            msg = f"{what}: {name} has numbers that are not finite"
            raise ValueError(msg)


def _check_names(flow: Flow, meta: _Meta) -> None:
    """Reject names that the flow does not have, and an exact state that lacks one of the flow's learners."""
    sources = {node.name: node.shards for node in flow.nodes.values() if node.kind == "source"}
    shards = {(source, index) for source, num_shards in sources.items() for index in range(num_shards)}
    learners, snapshot = set(flow.learners()), meta.schedule
    policies = {recipe.policy_name for recipe in flow.learners().values()}
    evaluators = {node.name for node in flow.nodes.values() if node.kind == "evaluate"}
    tables = {name: replay.tables for name, replay in flow.replays.items()}
    for what, found, known in (
        ("learners", set(meta.learners), learners),
        ("shards", set(meta.shards), shards),
        ("shards", {(source, index) for source, index, _ in meta.generations}, shards),
        ("shards", {(source, index) for source, index, _ in meta.unsaved}, shards),
        ("registers", set(meta.registers), set(flow.registers)),
        ("replays", set(meta.unsaved_replays), set(tables)),
        ("tables", set(meta.replays.items()), set(tables.items())),
        ("evaluators", {node for node, _ in meta.evaluations}, evaluators),
    ):
        if odd := sorted(found - known, key=str):
            msg = f"of another flow: it has {what} {', '.join(map(str, odd[:3]))}, which this one has not"
            raise ValueError(msg)
    for what, found, known in (
        ("learners", set(meta.learners) if meta.is_exact else learners, learners),
        ("policies", set(snapshot.versions), policies),
        ("registers", set(snapshot.registers), set(flow.registers)),
        ("sources", set(snapshot.tickets), set(sources)),
        ("replays", set(snapshot.replays), set(tables)),
        ("replays", set(meta.replays) | set(meta.unsaved_replays), set(tables)),
    ):
        if found != known:
            odd = sorted(found ^ known, key=str)
            msg = f"of another flow, or not whole: {what} differ in {', '.join(map(str, odd[:3]))}"
            raise ValueError(msg)


def _check_counts(value: Any) -> None:
    """Refuse numbers that count nothing. Only returns of episodes may be negative."""
    if isinstance(value, Mapping):
        for name, entry in value.items():
            if name == _RETURN:
                _check_return(entry)
            else:
                _check_counts(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            _check_counts(entry)
    elif isinstance(value, int | float) and not 0 <= value <= MAX_COUNT:
        msg = f"it counts to {value if abs(value) <= MAX_COUNT else 'more than anything is counted to'}"
        raise msgspec.ValidationError(msg)


def _check_return(value: Any) -> None:
    if not (isinstance(value, int | float) and math.isfinite(value)):
        msg = f"an episode has the return {value!r}, expected a finite number"
        raise msgspec.ValidationError(msg)


def _check_arrays(what: str, own: Arrays, found: Arrays) -> None:
    if odd := own.keys() ^ found.keys():
        msg = f"{what} has other arrays: {', '.join(sorted(odd)[:3])}"
        raise ValueError(msg)
    for name, array in own.items():
        if (array.shape, array.dtype) != (found[name].shape, found[name].dtype):
            msg = f"{what}: {name} is {found[name].dtype} {found[name].shape}, expected {array.dtype} {array.shape}"
            raise ValueError(msg)


def learner_prefix(node: str) -> str:
    """Prefix of the names of a learner's arrays."""
    return f"learners/{node}/"


def fixed_weights(arrays: Arrays, register: str) -> Flat:
    """Return the weights that a checkpoint has of a register of fixed ones; empty if it has none."""
    return _below(arrays, f"registers/{register}/0/")


def _below(arrays: Arrays, prefix: str) -> Flat:
    return dict(PrefixView(arrays, prefix))
