"""The tables of a flow's replays: opened, filled, drawn from, saved; in this process, or wherever their place has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from levada.flow.channels import Replay
from levada.flow.errors import LevadaError, NotSavedError
from levada.flow.graph import Flow
from levada.flow.payload import Allocate, derive_seed
from levada.flow.protocols import Stateful, Table
from levada.flow.state import Arrays, RunState
from levada.runners.work import WorkError
from levada.schedule import Insert, Reprioritise
from levada.tables import ItemTable


@dataclass(frozen=True, slots=True)
class TableRecipe:
    """One of the tables of a replay; plain data."""

    replay: Replay[Any]
    number: int
    """Which of them."""
    seed: int

    def open(self, zeros: Allocate = np.zeros) -> Table:
        """Make it; `zeros`: memory for what it keeps."""
        opens: Any = getattr(self.replay.of, "open_table", ItemTable)  # that of a Storable
        table: Table = opens(self.replay, capacity=self.replay.capacity_per_table, seed=self.seed, zeros=zeros)
        return table


class TableLostError(LevadaError):
    """What was to be drawn from, or saved, is gone: `TablePlace.lost` will say which table."""

    @classmethod
    def of(cls, recipe: TableRecipe) -> TableLostError:
        """This one."""
        return cls(f"the process of table {recipe.number} of replay {recipe.replay.name!r} has ended")


class TablePlace(Protocol):
    """Where tables are."""

    def open(self, recipes: Sequence[TableRecipe]) -> list[Table]:
        """Open tables."""
        ...

    def lost(self) -> Sequence[TableRecipe]:
        """The tables that were lost since this was last asked. They are there again, and empty."""
        ...

    def close(self) -> None:
        """Forget the tables."""
        ...


class TablesHere:
    """In this process."""

    def open(self, recipes: Sequence[TableRecipe]) -> list[Table]:
        """Open them."""
        return [recipe.open() for recipe in recipes]

    def lost(self) -> Sequence[TableRecipe]:
        """None ever."""
        return ()

    def close(self) -> None:
        """They go with their owner."""


class Tables:
    """All tables, by replay and number."""

    def __init__(self, flow: Flow, seed: int, state: RunState | None = None, place: TablePlace | None = None) -> None:
        """Open them.

        Args:
            flow: whose replays they are.
            seed: of the run.
            state: what they are to go on from.
            place: where they are; None: here.

        """
        self._place = place or TablesHere()
        recipes = [
            TableRecipe(replay, number, derive_seed(seed, replay.name, number))
            for replay in flow.replays.values()
            for number in range(replay.tables)
        ]
        self._tables: dict[str, list[Table]] = {name: [] for name in flow.replays}
        for recipe, table in zip(recipes, self._place.open(recipes), strict=True):
            self._tables[recipe.replay.name].append(table)
        if state is not None:
            self.restore(state)

    def of(self, replay: str) -> list[Table]:
        """Those of one replay."""
        return self._tables[replay]

    def lost(self) -> Sequence[TableRecipe]:
        """See `TablePlace`."""
        return self._place.lost()

    def close(self) -> None:
        """Forget them."""
        self._place.close()

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
                except (NotSavedError, TableLostError) as error:
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
            if not hasattr(error, "__notes__"):  # else it comes from another process, and may be of another item
                [header, *_] = instruction.item.headers
                who = f"{header.source!r}, shard {header.shard}"
                error.add_note(f"while inserting an item of {who}, into {instruction.replay!r}")
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
            if not hasattr(error, "__notes__"):
                error.add_note(f"while giving samples of {draw.replay!r} new priorities")
            raise
