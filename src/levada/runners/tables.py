"""The tables of a flow's replays, in the process of the run."""

from __future__ import annotations

from typing import Any

from levada.flow.errors import NotSavedError
from levada.flow.graph import Flow
from levada.flow.payload import derive_seed
from levada.flow.protocols import Stateful, Table
from levada.flow.state import Arrays, RunState
from levada.runners.work import WorkError
from levada.schedule import Insert, Reprioritise
from levada.tables import ItemTable


class Tables:
    """All tables, by replay and number."""

    def __init__(self, flow: Flow, seed: int, state: RunState | None = None) -> None:
        """`state`: what they are to go on from."""
        self._tables: dict[str, list[Table]] = {}
        for replay in flow.replays.values():
            opens: Any = getattr(replay.of, "open_table", ItemTable)  # that of a Storable
            capacity = -(-replay.capacity // replay.tables)
            self._tables[replay.name] = [
                opens(replay, capacity=capacity, seed=derive_seed(seed, replay.name, number))
                for number in range(replay.tables)
            ]
        if state is not None:
            self.restore(state)

    def of(self, replay: str) -> list[Table]:
        """Those of one replay."""
        return self._tables[replay]

    def contents(self, wanted: bool) -> tuple[dict[str, tuple[Arrays, ...]], dict[str, str]]:
        """What all tables hold, as views, and why some replays have nothing that could be saved."""
        contents: dict[str, tuple[Arrays, ...]] = {}
        why_not: dict[str, str] = {}
        for name, tables in self._tables.items():
            if not wanted:
                why_not[name] = "contents of replays are not saved unless that is asked for"
            elif not all(isinstance(table, Stateful) for table in tables):
                why_not[name] = f"{type(tables[0]).__name__} has no state_dict"
            else:
                try:
                    contents[name] = tuple(table.state_dict() for table in tables if isinstance(table, Stateful))
                except NotSavedError as error:
                    why_not[name] = str(error)
        return contents, why_not

    def restore(self, state: RunState) -> None:
        """Fill the tables with what they held."""
        for name, contents in state.replays.items():
            for table, own in zip(self._tables[name], contents, strict=True):
                assert isinstance(table, Stateful)
                table.load_state_dict(own)

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
