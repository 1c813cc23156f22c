"""The tables of a flow's replays, in the process of the run."""

from __future__ import annotations

from typing import Any

from levada.flow.graph import Flow
from levada.flow.payload import derive_seed
from levada.flow.protocols import Table
from levada.runners.work import WorkError
from levada.schedule import Insert, Reprioritise
from levada.tables import ItemTable


class Tables:
    """All tables, by replay and number."""

    def __init__(self, flow: Flow, seed: int) -> None:
        self._tables: dict[str, list[Table]] = {}
        for replay in flow.replays.values():
            opens: Any = getattr(replay.of, "open_table", ItemTable)  # that of a Storable
            capacity = -(-replay.capacity // replay.tables)
            self._tables[replay.name] = [
                opens(replay, capacity=capacity, seed=derive_seed(seed, replay.name, number))
                for number in range(replay.tables)
            ]

    def of(self, replay: str) -> list[Table]:
        """Those of one replay."""
        return self._tables[replay]

    def insert(self, instruction: Insert) -> None:
        """Insert an item."""
        try:
            self._tables[instruction.replay][instruction.table].insert(instruction.item.value)
        except Exception as error:
            [header, *_] = instruction.item.headers
            error.add_note(
                f"while inserting an item of {header.source!r}, shard {header.shard}, into {instruction.replay!r}"
            )
            raise

    def reprioritise(self, instruction: Reprioritise) -> None:
        """Give entries new priorities."""
        draw = instruction.draw
        if instruction.priorities is None:
            msg = f"the replay {draw.replay!r} waits for priorities: expected one for each sample from its learner, got None"
            raise WorkError(msg)
        try:
            self._tables[draw.replay][draw.table].reprioritise(draw.entries, instruction.priorities)
        except Exception as error:
            error.add_note(f"while giving samples of {draw.replay!r} new priorities")
            raise
