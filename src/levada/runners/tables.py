"""The tables of a flow's replays: opened, filled, drawn from and saved, in this process or in their table place."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from levada.flow.channels import Replay
from levada.flow.errors import LevadaError, NotSavedError
from levada.flow.graph import Flow
from levada.flow.items import Allocate, derive_seed
from levada.flow.protocols import Stateful, Table
from levada.flow.state import Arrays, RunState
from levada.runners.firing import WorkError
from levada.runners.workers import WorkerError
from levada.schedule import Insert, Reprioritize
from levada.tables import ItemTable

log: logging.Logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TableRecipe:
    """Recipe of one table of a replay, as plain data."""

    replay: Replay[Any]
    number: int
    """Index of the table."""
    seed: int

    def open(self, zeros: Allocate = np.zeros) -> Table:
        """Open the table. `zeros`: allocates memory for its contents."""
        opens: Any = getattr(self.replay.of, "open_table", ItemTable)  # a Storable has its own
        table: Table = opens(self.replay, capacity=self.replay.capacity_per_table, seed=self.seed, zeros=zeros)
        return table


class TableLostError(LevadaError):
    """A table to draw from, or to save, was lost. `TablePlace.lost` reports which one."""

    @classmethod
    def of(cls, recipe: TableRecipe) -> TableLostError:
        """Create the error for a table."""
        return cls(f"the process of table {recipe.number} of replay {recipe.replay.name!r} has ended")


class TablePlace(Protocol):
    """Decides where tables are."""

    def open(self, recipes: Sequence[TableRecipe]) -> list[Table]:
        """Open tables."""
        ...

    def lost(self) -> Sequence[TableRecipe]:
        """Return the tables lost since the last call. They are available again, and empty."""
        ...

    def close(self) -> None:
        """Release the tables."""
        ...


class TableProcess(Protocol):
    """A process or an actor with tables of one replay."""

    how_it_ended: str
    """How it ended, as text; empty while it runs."""
    num_failures: int
    """Number of failures since the last draw."""

    @property
    def name(self) -> str:
        """What it is, for messages."""
        ...

    @property
    def recipes(self) -> Sequence[TableRecipe]:
        """Recipes of its tables."""
        ...

    def start(self) -> None:
        """Start it again, with empty tables."""
        ...


def replace_ended(processes: Iterable[TableProcess], max_restarts: int) -> list[TableRecipe]:
    """Start the processes that have ended again, and return their tables.

    Raises:
        WorkerError: one has ended more often than `max_restarts` without any draw from it.
    """
    lost: list[TableRecipe] = []
    for process in processes:
        if how := process.how_it_ended:
            if process.num_failures > max_restarts:
                msg = f"{process.name} ended {process.num_failures} times in a row, now {how}"
                raise WorkerError(msg)
            log.warning("%s ended %s; its contents are lost, and it is refilled", process.name, how)
            process.start()
            lost += process.recipes
    return lost


class TablesHere:
    """Tables in this process."""

    def open(self, recipes: Sequence[TableRecipe]) -> list[Table]:
        """Open the tables."""
        return [recipe.open() for recipe in recipes]

    def lost(self) -> Sequence[TableRecipe]:
        """Return nothing: tables in this process are never lost."""
        return ()

    def close(self) -> None:
        """Do nothing: the tables are freed with their owner."""


class Tables:
    """All tables, by replay and index."""

    def __init__(self, flow: Flow, seed: int, state: RunState | None = None, place: TablePlace | None = None) -> None:
        """Open the tables.

        Args:
            flow: the flow with the replays.
            seed: seed of the run.
            state: saved state to resume from.
            place: place of the tables. None: this process.
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
        """Return the tables of one replay."""
        return self._tables[replay]

    def lost(self) -> Sequence[TableRecipe]:
        """Return lost tables; see `TablePlace`."""
        return self._place.lost()

    def close(self) -> None:
        """Release the tables."""
        self._place.close()

    def contents(self, wanted: bool) -> tuple[dict[str, tuple[Arrays, ...]], dict[str, str]]:
        """Return the contents of all tables, as views, and the reasons why some replays have none to save."""
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
        """Restore the contents of the tables."""
        for name, contents in state.replays.items():
            for table, own in zip(self._tables[name], contents, strict=True):
                assert isinstance(table, Stateful)
                table.load_state_dict(own)

    def insert(self, instruction: Insert) -> None:
        """Insert an item."""
        try:
            self._tables[instruction.replay][instruction.table].insert(instruction.item.value)
        except Exception as error:
            if not hasattr(error, "__notes__"):  # otherwise it comes from another process, possibly for another item
                [header, *_] = instruction.item.headers
                who = f"{header.source!r}, shard {header.shard}"
                error.add_note(f"while inserting an item of {who}, into {instruction.replay!r}")
            raise

    def reprioritize(self, instruction: Reprioritize) -> None:
        """Set new priorities of entries."""
        draw = instruction.draw
        if instruction.priorities is None:
            msg = f"the replay {draw.replay!r} waits for priorities: expected one for each sample from its learner, got None"
            raise WorkError(msg)
        try:
            self._tables[draw.replay][draw.table].reprioritize(draw.entries, instruction.priorities)
        except Exception as error:
            if not hasattr(error, "__notes__"):
                error.add_note(f"while giving samples of {draw.replay!r} new priorities")
            raise
