"""Saving a run between two updates, and opening its shards again; shared by all runners."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import msgspec
import numpy as np

from levada.flow.channels import Fixed
from levada.flow.errors import NotSavedError
from levada.flow.graph import Flow
from levada.flow.items import Shard, derive_seed
from levada.flow.nodes import Node
from levada.flow.protocols import Stateful, close
from levada.flow.state import Arrays, RunState
from levada.flow.strays import StrayError, is_stray
from levada.runners.snapshots import History, SaveRule, last_ticket
from levada.schedule import Hub, Snapshot, restore_snapshot, take_snapshot
from levada.schedule.saving import is_ahead_when_saved, num_ahead, tickets_per_update

ShardKey: TypeAlias = tuple[str, int]
"""Source and index of a shard."""


def collect(
    flow: Flow,
    snapshot: Snapshot,
    *,
    tables: tuple[Mapping[str, tuple[Arrays, ...]], Mapping[str, str]],
    learners: Mapping[str, Any],
    weights: Mapping[str, Mapping[int, Any]],
    histories: Mapping[ShardKey, History],
    generations: Mapping[ShardKey, int],
    why_not: Callable[[ShardKey], str],
    evaluations: tuple[tuple[str, int, Arrays], ...] = (),
) -> RunState:
    """Assemble the state that a run resumes from.

    Args:
        flow: the flow that is executed.
        snapshot: state of the schedule.
        tables: contents of the replays, and the reasons why some have none.
        learners: by learn node.
        weights: by register and version; at least those that the snapshot names.
        histories: histories of all shards.
        generations: generations of the shards that were restarted.
        why_not: returns why a shard has no state.
        evaluations: node, version and weights of the evaluations that have not ended.
    """
    shards: dict[ShardKey, Arrays] = {}
    unsaved: dict[ShardKey, str] = {}
    generations = dict(generations)
    for source, index in _shards(flow):
        history = histories[source, index]
        state = history.newest()
        if snapshot.is_exact:
            ticket = last_ticket(snapshot.tickets[source], index, flow.nodes[source].shards)
            if ticket is None:
                continue  # it has done nothing yet
            state = history.after(ticket)
        if state is None:
            unsaved[source, index] = (
                why_not((source, index)) or "it has not acted yet, or takes too long to be saved often"
            )
            generations[source, index] = generations.get((source, index), 0) + 1
        else:
            shards[source, index] = state
    registers, has_old_weights = _old_weights(flow, snapshot, weights)
    saved = {name: live.state_dict() for name, live in learners.items() if isinstance(live, Stateful)}
    return RunState(
        learners=saved, shards=shards, generations=generations, registers=registers,
        schedule=msgspec.to_builtins(snapshot), unsaved=unsaved, replays=tables[0], unsaved_replays=tables[1],
        evaluations=evaluations,
        is_exact=snapshot.is_exact and not unsaved and has_old_weights and len(saved) == len(learners) and not tables[1],
    )  # fmt: skip


def cannot_go_back(hub: Hub, snapshot: Snapshot, histories: Mapping[ShardKey, History]) -> bool:
    """Whether an exact snapshot needs a state of a shard that was not taken, while there is a later one.

    Only where several channels receive the items of a source: how far back its shards go then depends on the channels' pace, so
    planned saves cannot see to it that the states are there.
    """
    return snapshot.is_exact and any(
        hub.sources[source].is_remembered
        and (ticket := last_ticket(snapshot.tickets[source], index, hub.flow.nodes[source].shards)) is not None
        and history.after(ticket) is None
        and history.newest() is not None
        for (source, index), history in histories.items()
    )


def begun_with(flow: Flow, learners: Mapping[str, Arrays]) -> RunState:
    """Return the state of a run that has done nothing yet, with the given learners."""
    snapshot = take_snapshot(Hub(flow), ())
    return RunState(
        learners=learners,
        shards={},
        generations={},
        registers={},
        schedule=msgspec.to_builtins(snapshot),
        is_exact=True,
    )


def restore_hub(hub: Hub, state: RunState) -> Snapshot:
    """Restore a hub to the schedule of a saved run."""
    snapshot = msgspec.convert(dict(state.schedule), Snapshot)
    restore_snapshot(hub, snapshot, emptied=state.unsaved_replays)
    return snapshot


def restore_learner(live: Any, name: str, state: RunState | None) -> None:
    """Restore a learner, if it was saved."""
    if state is not None and name in state.learners and isinstance(live, Stateful):
        live.load_state_dict(state.learners[name])


def first_weights(
    flow: Flow, learners: Mapping[str, Any], snapshot: Snapshot | None, state: RunState | None
) -> dict[str, dict[int, Any]]:
    """Return the weights that each register begins with, by version, oldest first. `learners`: by policy."""
    found: dict[str, dict[int, Any]] = {}
    for name, register in flow.registers.items():
        newest = register.weights if isinstance(register, Fixed) else learners[register.policy].weights()
        if snapshot is None or state is None:
            found[name] = {0: newest}
        else:
            old = state.registers.get(name, {})
            versions = snapshot.registers[name]
            found[name] = {version: from_arrays(old[version]) if version in old else newest for version in versions}
    return found


def plan_shards(flow: Flow, seed: int, state: RunState | None) -> list[tuple[Shard, Arrays | None]]:
    """Return every shard of a flow, with the state to resume from, if any."""
    found: list[tuple[Shard, Arrays | None]] = []
    for source, index in _shards(flow):
        generation = 0 if state is None else state.generations.get((source, index), 0)
        own = derive_seed(seed, source, index, generation)
        saved = None if state is None else state.shards.get((source, index))
        num_shards = flow.nodes[source].shards
        num_items = 0 if state is None else state.schedule["tickets"][source] // num_shards
        found.append((Shard(source, index, num_shards, own, generation, num_items), saved))
    return found


def first_history(hub: Hub, shard: Shard, snapshot: Snapshot | None, saved: Arrays | None) -> History:
    """Return the history of a shard that starts, or resumes from a saved state."""
    history = History(num_ahead(hub, shard.node) + 1)
    if snapshot is not None and saved is not None:
        base = snapshot.tickets[shard.node]
        ticket = last_ticket(base, shard.index, shard.num_shards) if snapshot.is_exact else base - 1
        history.add(-1 if ticket is None else ticket, saved)
    return history


def save_rule(hub: Hub, source: str, save_every: int | None) -> SaveRule:
    """Return which states a planned save needs."""
    num_tickets = tickets_per_update(hub, source)
    num_shards = hub.flow.nodes[source].shards
    every = None if save_every is None or num_tickets is None else save_every * num_tickets
    return SaveRule(num_shards, every, hub.items_can_be_lost or is_ahead_when_saved(hub, source))


def renewed(shard: Shard, seed: int, num_items: int) -> Shard:
    """Return the same shard in its next generation, to restart after `num_items` items."""
    generation = shard.generation + 1
    own = derive_seed(seed, shard.node, shard.index, generation)
    return replace(shard, seed=own, generation=generation, num_items=num_items)


def open_shard(node: Node, shard: Shard, state: Arrays | None, *, flow: str, seed: int) -> tuple[Shard, Any, str]:
    """Open the work of a source and restore its state. If that is impossible, the shard restarts.

    Returns:
        The opened shard, of the next generation if it restarted; its work; why it restarted, or an empty string.
    """
    why_from_scratch = ""
    try:
        work = node.work(shard)
        if state is None or not isinstance(work, Stateful):
            return shard, work, why_from_scratch
        try:
            work.load_state_dict(state)
        except NotSavedError as error:
            close(work)
            why_from_scratch = str(error) or type(error).__name__
            shard = renewed(shard, seed, shard.num_items)
            work = node.work(shard)
    except BaseException as error:
        error.add_note(f"while opening node {node.name!r} of flow {flow!r}, shard {shard.index}")
        if is_stray(error):
            raise StrayError.of(error) from error
        raise
    return shard, work, why_from_scratch


def _shards(flow: Flow) -> list[ShardKey]:
    return [(n.name, index) for n in flow.nodes.values() if n.kind == "source" for index in range(n.shards)]


def _old_weights(
    flow: Flow, snapshot: Snapshot, weights: Mapping[str, Mapping[int, Any]]
) -> tuple[dict[str, dict[int, Arrays]], bool]:
    """Return the weights that are not the learner's current ones, fixed ones included, and whether all older ones are arrays."""
    found: dict[str, dict[int, Arrays]] = {}
    whole = True
    for name, versions in snapshot.registers.items():
        register = flow.registers[name]
        if isinstance(register, Fixed):  # where they came from may have others when the run is resumed
            arrays = as_arrays(register.weights)
            found[name] = {} if arrays is None else dict.fromkeys(versions, arrays)
            continue
        found[name] = {}
        for version in versions:
            if version != snapshot.versions[register.policy]:
                arrays = as_arrays(weights[name][version])
                if arrays is None:
                    whole = False
                else:
                    found[name][version] = arrays
    return found, whole


def as_arrays(weights: Any) -> Arrays | None:
    """Return weights as arrays by name; None if they are something else."""
    if isinstance(weights, np.ndarray):
        return {"": weights}
    if isinstance(weights, Mapping) and all(isinstance(value, np.ndarray) for value in weights.values()):
        return dict(weights)
    return None


def from_arrays(arrays: Arrays) -> Any:
    """Return the weights that were saved as these arrays."""
    return arrays[""] if set(arrays) == {""} else dict(arrays)
