"""Replay tables in actors of a cluster, one per replay. Items go there from where they were made, and batches to the learners.

An item counts as made once the actor holds it. So the end of a worker cannot take with it what the schedule counts as inserted.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

import ray
from msgspec import Struct
from ray.exceptions import RayActorError, RayError

from levada.flow.errors import NotSavedError
from levada.flow.protocols import Stateful, Table
from levada.flow.state import Arrays
from levada.runners.losses import ItemLostError
from levada.runners.malloc import keep_freed_memory
from levada.runners.ray.errors import Refusal, reason_of, result_or_refusal
from levada.runners.ray.refs import RemoteValue, fetched
from levada.runners.remote_errors import pack_error, unpack_error
from levada.runners.tables import TableLostError, TableRecipe, replace_ended

MAX_UNANSWERED = 64
"""Number of calls without an answer after which the answers that have come are taken."""


class Held(Struct, frozen=True, weakref=True):
    """An item that the actor of its replay holds, until it is inserted, or nothing in this process refers to it any more."""

    number: int
    sent: RemoteValue
    """Where it comes from, for another actor if this one is lost."""

    @property
    def num_entries(self) -> int:
        """Number of its entries in a replay."""
        return self.sent.num_entries


class ReplayActor:
    """The tables of one replay. Errors are returned, not raised, so that Ray does not wrap them."""

    def __init__(self, recipes: Sequence[TableRecipe]) -> None:
        keep_freed_memory()
        self._tables = [recipe.open() for recipe in recipes]
        self._held: dict[int, Any] = {}

    def pid(self) -> int:
        """Return the process id."""
        return os.getpid()

    def hold(self, items: Mapping[int, RemoteValue], released: Sequence[int]) -> None:
        """Fetch items, by number, for later inserts, and forget those that will not be inserted."""
        for number in released:
            self._held.pop(number, None)
        self._held |= dict(zip(items, fetched(tuple(items.values())), strict=True))

    def insert(self, table: int, item: Any) -> Any:
        """Insert a copy of an item. If another actor held it, and its worker is gone, too, this one ends: its contents are not
        what the schedule counts, so it is refilled.
        """
        if isinstance(item, Held):
            try:
                item = self._held.pop(item.number) if item.number in self._held else fetched(item.sent)
            except ItemLostError:
                ray.actor.exit_actor()
        return result_or_refusal(self._tables[table].insert, item)

    def sample(self, table: int, size: int, minibatch_size: int) -> tuple[Any, Any]:
        """Draw entries; return the batch as an object of its own, and the handle of the entries."""
        drawn = result_or_refusal(self._tables[table].sample, size, minibatch_size)
        return (None, drawn) if isinstance(drawn, Refusal) else drawn

    def reprioritize(self, table: int, entries: Any, priorities: Any) -> Any:
        """Set new priorities."""
        return result_or_refusal(self._tables[table].reprioritize, entries, priorities)

    def state_dict(self, table: int) -> Any:
        """Return the contents of a table."""
        live = self._tables[table]
        if isinstance(live, Stateful):
            return result_or_refusal(live.state_dict)
        return Refusal(pack_error(NotSavedError(f"{type(live).__name__} has no state_dict")))

    def load_state_dict(self, table: int, state: Arrays) -> Any:
        """Restore the contents of a table."""
        live = self._tables[table]
        assert isinstance(live, Stateful)
        return result_or_refusal(live.load_state_dict, state)


class Holding:
    """Items on their way from a worker into the actor of their replay."""

    def __init__(self, replay: RayReplay, items: Sequence[Held]) -> None:
        self._replay = replay
        self._items = {item.number: item.sent for item in items}
        self._begin()

    def is_done(self) -> bool:
        """Whether the actor holds the items, now that the call is answered. If the actor has ended, the next one is asked.

        Raises:
            RayError: items are gone with their worker.
        """
        if self._generation != self._replay.generation:
            self._begin()
            return False
        try:
            ray.get(self.ref)
        except RayActorError as error:
            self._replay.has_ended(error)
            return False
        return True

    def _begin(self) -> None:
        self._generation = self._replay.generation
        self.ref: Any = self._replay.hold(self._items)
        """Reference to the answer."""


class RayReplay:
    """The actor of a replay, as seen by the process of the run."""

    def __init__(self, recipes: Sequence[TableRecipe], options: Callable[[], Mapping[str, Any]]) -> None:
        """`options`: returns the options of the actor."""
        self.recipes: Sequence[TableRecipe] = recipes
        self.num_failures: int = 0
        """Number of failures since the last draw."""
        self.generation: int = 0
        """Number of actors so far."""
        self._options = options
        self._numbers = count()
        self._waiting: dict[int, weakref.ref[Held]] = {}
        """The items that are held and not inserted yet, by number."""
        self.start()

    def start(self) -> None:
        """Start the actor, with empty tables."""
        self.generation += 1
        self.how_it_ended: str = ""
        """How the actor ended, as text; empty while it runs."""
        self._unanswered: deque[Any] = deque()
        options = {"max_restarts": 0, "max_task_retries": 0, **self._options()}
        self._actor = ray.remote(ReplayActor).options(**options).remote(self.recipes)

    @property
    def name(self) -> str:
        """What it is, for messages."""
        return f"the actor of the replay {self.recipes[0].replay.name!r}"

    @property
    def pid(self) -> int:
        """Process id."""
        pid: int = self.ask("pid")
        return pid

    def numbered(self, item: RemoteValue) -> Held:
        """Return what stands for an item that the actor is to hold."""
        held = Held(next(self._numbers), item)
        self._waiting[held.number] = weakref.ref(held)
        return held

    def hold(self, items: Mapping[int, RemoteValue]) -> Any:
        """Let the actor fetch items, by number; return a reference that is ready once it has."""
        released = [number for number, held in self._waiting.items() if held() is None]
        for number in released:
            del self._waiting[number]
        return self._actor.hold.remote(items, released)

    def insert(self, table: int, item: Any) -> None:
        """Insert a copy of an item into one of the tables."""
        if isinstance(item, Held):
            self._waiting.pop(item.number, None)
        self.tell("insert", table, item)

    def tell(self, method: str, *args: Any) -> None:
        """Call a method without waiting for it, and raise the errors of earlier calls."""
        if self.how_it_ended:
            return
        self._unanswered.append(getattr(self._actor, method).remote(*args))
        if len(self._unanswered) > MAX_UNANSWERED:
            ready, left = ray.wait([*self._unanswered], num_returns=len(self._unanswered), timeout=0)
            self._unanswered = deque(left)
            with suppress(TableLostError):  # `RayTables.lost` will report it
                for answer in ready:
                    self._result(answer)

    def ask(self, method: str, *args: Any) -> Any:
        """Call a method and wait for its result.

        Raises:
            TableLostError: the actor has ended.
        """
        return self._answer(getattr(self._actor, method).remote(*args))

    def sample(self, table: int, size: int, minibatch_size: int) -> tuple[RemoteValue, Any]:
        """Draw entries, and wait until they are drawn; the batch stays in the object store."""
        batch, drawn = self._actor.sample.options(num_returns=2).remote(table, size, minibatch_size)
        entries = self._answer(drawn)
        self.num_failures = 0
        return RemoteValue(batch), entries

    def has_ended(self, error: RayActorError) -> None:
        """Record the end of the actor, which a call has met."""
        self.num_failures += not self.how_it_ended
        self.how_it_ended = reason_of(error)

    def close(self) -> None:
        """End the actor."""
        with suppress(RayError):
            ray.kill(self._actor)

    def _answer(self, ref: Any) -> Any:
        """Wait for an answer, which comes after those of all earlier calls, and raise their errors first."""
        if self.how_it_ended:
            raise TableLostError.of(self.recipes[0])
        earlier, self._unanswered = [*self._unanswered], deque()
        return [self._result(each) for each in (*earlier, ref)][-1]

    def _result(self, ref: Any) -> Any:
        try:
            result = ray.get(ref)
        except RayActorError as error:
            self.has_ended(error)
            raise TableLostError.of(self.recipes[0]) from error
        if isinstance(result, Refusal):
            refused = unpack_error(result.error)
            refused.add_note(f"in the replay {self.recipes[0].replay.name!r}")
            raise refused
        return result


class RayTable:
    """One of the tables of an actor."""

    def __init__(self, replay: RayReplay, number: int) -> None:
        """`number`: its index among the tables of the replay."""
        self._replay = replay
        self._number = number

    def insert(self, item: Any) -> None:
        """Insert a copy of an item."""
        self._replay.insert(self._number, item)

    def sample(self, size: int, minibatch_size: int) -> tuple[Any, Any]:
        """Draw entries; the batch stays in the object store.

        Raises:
            TableLostError: the actor has ended.
        """
        batch, entries = self._replay.sample(self._number, size, minibatch_size)
        return batch, (self._replay.generation, entries)

    def reprioritize(self, entries: Any, priorities: Any) -> None:
        """Set new priorities of drawn entries, unless they are lost."""
        generation, drawn = entries
        if generation == self._replay.generation:
            self._replay.tell("reprioritize", self._number, drawn, priorities)

    def state_dict(self) -> Arrays:
        """Return a copy of the contents.

        Raises:
            NotSavedError: the table cannot be saved.
            TableLostError: the actor has ended.
        """
        contents: Arrays = self._replay.ask("state_dict", self._number)
        return contents

    def load_state_dict(self, state: Arrays) -> None:
        """Resume from the result of `state_dict`."""
        with suppress(TableLostError):  # `RayTables.lost` will report it
            self._replay.ask("load_state_dict", self._number, dict(state))


class RayTables:
    """The tables of each replay in an actor."""

    def __init__(self, options: Callable[[], Mapping[str, Any]], *, max_restarts: int) -> None:
        """`options`: returns those of an actor; `max_restarts`: allowed consecutive failures of one."""
        self._options = options
        self._max_restarts = max_restarts
        self.replays: dict[str, RayReplay] = {}
        """By name."""

    def open(self, recipes: Sequence[TableRecipe]) -> list[Table]:
        """Start the actors."""
        for name in dict.fromkeys(recipe.replay.name for recipe in recipes):
            own = [recipe for recipe in recipes if recipe.replay.name == name]
            self.replays[name] = RayReplay(own, self._options)
        return [RayTable(self.replays[recipe.replay.name], recipe.number) for recipe in recipes]

    def lost(self) -> Sequence[TableRecipe]:
        """Return the tables whose actors have ended; new actors replace them.

        Raises:
            WorkerError: one has ended too often without any draw from it.
        """
        return replace_ended(self.replays.values(), self._max_restarts)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids, for observers."""
        return tuple(replay.pid for replay in self.replays.values())

    def close(self) -> None:
        """End the actors."""
        for replay in self.replays.values():
            replay.close()
        self.replays = {}
