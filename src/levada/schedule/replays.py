"""The state machine of one replay: tickets for what is stored, the balance with what is drawn, and an account of every item.

To sources it looks like a queue: it issues tickets and takes the items made with them. A ticket comes back when its items are
inserted, and the balance may delay that. In admission order with a tolerance of 0, inserts and draws interleave in only one
way. A ticket then names the version that follows from the draws before it existed: for ticket a, the number of draws when
ticket a - B was settled, where B is the number of tickets in existence. It is issued once that version is published.

>>> from levada.flow.topology import derive
>>> replay = ReplayMachine(_example(), keep=3)       # two tickets; four entries, then two samples per insert; draws of two
>>> for value in "abcdef":
...     number = replay.issue("rollout").number
...     replay.finished(number, [_item(number, value)])
...     print([insert.item.value for insert in replay.inserts()], replay.may_draw(), end=" ")
['a'] False ['b'] False ['c'] False ['d'] False ['e'] True [] True
>>> replay.drawn(replay.draw(2)); [insert.item.value for insert in replay.inserts()]
['f']
>>> replay.issue("rollout").version, replay.may_issue("rollout")     # the other ticket came back after the first draw
(0, False)
>>> replay.published(1); replay.issue("rollout").version
1
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Literal

from levada.flow.channels import Replay
from levada.flow.events import Dropped, Emptied, Ledger, ReplayStatistics, Stored
from levada.flow.items import Draw, Header, Item
from levada.flow.topology import Storage
from levada.schedule.env_steps import EnvStepsAtDraws, EnvStepsAtOnce
from levada.schedule.events import Insert
from levada.schedule.limiter import ReplayLimiter
from levada.schedule.snapshot import ReplayAccount, StepsAccount, Uncounted
from levada.schedule.tickets import Grant, TicketBook
from levada.schedule.turns import Turns


class ReplayMachine(TicketBook):
    """Replay. The caller stores what was inserted, and draws from it."""

    counts_inserts = True

    def __init__(self, storage: Storage, *, keep: int) -> None:
        """`keep`: number of published versions that can be read at a time."""
        replay: Replay[object] = storage.replay
        super().__init__(replay.name, storage.policy, storage.sources, storage.tickets, replay.order)
        self.storage = storage
        self.replay = replay
        self.names_versions: bool = storage.is_exact
        self.is_exact: bool = storage.is_exact
        self._keep = keep
        self._limiter = ReplayLimiter(
            min_size=self.replay.min_size,
            samples_per_insert=self.replay.samples_per_insert,
            tolerance=self.replay.tolerance,
        )
        # otherwise an insert between a draw and its priorities could come before or after them
        self._waits_for_priorities = self.replay.is_exact and storage.is_reprioritized
        # for each ticket that is back: number of draws at that time
        self._room: deque[int] = deque([0] * storage.tickets)
        self._draws_of: dict[int, int] = {}  # the same for each outstanding ticket
        self._unread: list[int] = []  # a heap of the tickets being worked on, and of some that are done
        self._filtered: dict[int, Header | None] = {}  # those of `_waiting` that yielded nothing
        self._published = 0
        self._num_inserts = 0
        self._entries = [0] * storage.replay.tables  # entries inserted into each table since it was empty
        self._given = [0] * storage.replay.tables  # the same, including lost entries
        self._refilling: set[int] = set()  # lost tables, until they hold their fraction of `min_size`
        self._lost_entries = 0
        self._turns = Turns(storage.shares) if storage.shares else None
        self._num_draws = 0
        self._next_draw = 0  # exceeds `_num_draws` if draws were withdrawn
        self._open: set[int] = set()  # draws before which nothing may be inserted
        self._uncounted: deque[tuple[int, Stored | Dropped]] = deque()  # each with the first draw that can see it
        self._at_draw: dict[int, tuple[int, int, int]] = {}  # entries inserted, sampled and held, for each open draw
        self._seen: tuple[int, int, int] | None = None  # the same for the last draw that was learned from
        self._at_once = EnvStepsAtOnce()
        self._at_draws = EnvStepsAtDraws()
        self._env_steps_filling = 0  # env steps before the ticket that made it full
        self.events: list[Stored] = []
        """Events since the caller last emptied the list."""
        self.counted: list[Stored | Dropped] = []
        """Items counted since the caller last emptied the list: everything visible to the draws that were learned from, and
        nothing inserted later, so that counts do not depend on timing. During filling, everything counts at once."""

    # ---- tickets

    @property
    def withheld_for(self) -> Literal["room", "weights"]:
        """Tickets come back when there is room; exact ones name a version, which may have to be published."""
        return "weights" if self._room else "room"

    def issue(self, source: str) -> Grant:
        """Issue a ticket."""
        grant = super().issue(source)
        if self.policy is not None:
            heappush(self._unread, grant.number)
        return grant

    def finished(self, number: int, items: Sequence[Item], header: Header | None = None) -> None:
        """Take the items made with a ticket. An empty result also waits for its turn, when its ticket comes back."""
        del self._making[number]
        items = self._unused(number, items)
        self._produced += max(0, len(items) - 1)
        self._waiting[number] = deque(items)
        if not items:
            self._filtered[number] = header
        if self._last_version is not None:
            self._discard_all()

    def stop(self, version: int) -> None:
        """Drop every item from now on, for the learner of the replay has stopped. `version`: that of its weights."""
        self._last_version = version
        self._discard_all()

    def _discard_all(self) -> None:
        """Drop the items that wait, and let their tickets come back."""
        for number, items in list(self._waiting.items()):
            if number in self._filtered:
                del self._waiting[number]
                self._settle(number)
                self._drop(self._filtered.pop(number))
            for _ in range(len(items)):
                self._drop_item(self._pop(number))

    def published(self, version: int) -> None:
        """Record that a version of the policy can be read."""
        self._published = version

    # ---- inserting and drawing

    def inserts(self) -> Iterator[Insert]:
        """Insert what may be inserted now."""
        while (number := self._next_to_insert()) is not None:
            if number in self._filtered:
                del self._waiting[number]
                self._settle(number)
                self._drop(self._filtered.pop(number))
            else:
                item = self._pop(number)
                is_filling = not self._limiter.is_full
                if is_filling:
                    self._env_steps_filling = self._env_steps_inserted
                self._limiter.insert(_num_entries(item))
                yield self._insert(item, is_filling)

    def inserts_at_once(self, number: int) -> bool:
        """Whether what is made with a ticket can be inserted as soon as the ticket is back."""
        is_next = self.is_ordered and number == self._oldest
        return is_next and not self._open and self._limiter.may_insert and not self.is_stopped

    def insert_at_once(self, item: Item) -> Insert:
        """Insert an item made behind a queue or from samples, without a ticket. It still counts in the balance."""
        self._produced += 1
        is_filling = not self._limiter.is_full
        if is_filling:
            self._env_steps_filling = self._env_steps_inserted
        self._at_once.add(item)
        self._limiter.inserted += _num_entries(item)
        return self._insert(item, is_filling)

    def may_draw(self, sample: str | None = None) -> bool:
        """Whether a batch may be drawn now. `sample`: the node that draws.

        With shares, the learners take turns: the next draw waits until the last was learned from. Its priorities, and whether a
        saved run can continue from there, then do not depend on which learner takes longer.
        """
        if self._turns is not None and (self._at_draw or self._turns.of(self._num_draws) != sample):
            return False
        return self._limiter.may_sample and self._can_be_read_after(self._num_draws + 1)

    def draw(self, size: int, minibatch_size: int | None = None, sample: str | None = None) -> Draw:
        """Draw a batch; see `Draw`.

        Args:
            size: number of entries.
            minibatch_size: of which minibatches it consists. None: it is one.
            sample: the node that draws.
        """
        assert self.may_draw(sample), f"{self.name}: drawn while it has to be filled, or read, or out of turn"
        self._limiter.sample(size)
        number, some = self._next_draw, [table for table, num in enumerate(self._entries) if num]
        filled = [table for table in some if table not in self._refilling] or some
        table = filled[self._num_draws % len(filled)]
        self._next_draw += 1
        self._num_draws += 1
        self._open.add(number)
        self._at_draw[number] = (self._limiter.inserted, self._limiter.sampled, self.num_entries)
        self._at_draws.drawn(number, self._env_steps_inserted)
        return Draw(self.name, table, size, minibatch_size or size, number)

    def drawn(self, draw: Draw) -> None:
        """Record that a batch has been drawn."""
        if not self._waits_for_priorities:
            self._open.discard(draw.number)

    def learned(self, draw: Draw) -> None:
        """Count what a draw could see: an update has learned from it, or never will. Its priorities are on their way."""
        self._open.discard(draw.number)
        self._seen = self._at_draw.pop(draw.number, self._seen)
        self._at_draws.learned(draw.number)
        while self._uncounted and self._uncounted[0][0] <= draw.number:
            self.counted.append(self._uncounted.popleft()[1])

    # ---- losing

    def lose(self, shards: Collection[tuple[str, int]]) -> list[tuple[int, Header]]:
        """Handle the loss of the waiting items of these shards; see `TicketBook`."""
        lost = super().lose(shards)
        for number, _ in lost:
            self._filtered.pop(number, None)
        return lost

    def emptied(self, table: int) -> Emptied:
        """Handle the loss of a table. If too few entries remain, they must be replaced before the next draw."""
        num_lost = min(self._entries[table], self.replay.capacity_per_table)
        self._entries[table] = 0
        self._refilling.add(table)
        self._lost_entries += num_lost
        self._seen = None
        self._at_draw.clear()
        missing = self.replay.min_size - self.num_entries
        if missing > 0:
            self._limiter.refill(missing)
        return Emptied(self.name, table, num_lost)

    def withdraw(self, draw: Draw) -> None:
        """Withdraw a draw that leads to no update: its table was lost, or the learner has stopped."""
        self._limiter.sampled -= draw.size
        self._num_draws -= 1
        self._open.discard(draw.number)
        self._at_draw.pop(draw.number, None)
        self._at_draws.withdraw(draw.number)
        # no ticket may wait for the version that this draw would have led to, since that version may need the ticket first
        self._room = deque(min(draws, self._num_draws) for draws in self._room)
        self._draws_of = {number: min(draws, self._num_draws) for number, draws in self._draws_of.items()}

    # ---- saving

    def first_unused(self, versions: Mapping[str, int]) -> int:
        """Return the first ticket that is not inserted, or only in part."""
        return self._oldest

    def resume_at(self, first: int, num_used: int, end: int) -> None:
        """Resume after `restore`; see `TicketBook`."""
        super().resume_at(first, num_used, end)
        self._draws_of = {number: self._room.popleft() for number in range(first, end)}

    def first_uncounted(self, source: str) -> int | None:
        """Return the ticket of the oldest item of a source that is used but will be counted later, if any."""
        return next((event.header.ticket for _, event in self._uncounted if event.header.source == source), None)

    def filtered(self) -> list[Header]:
        """Headers of the tickets that yielded nothing and wait for their turn."""
        return [header for header in self._filtered.values() if header is not None]

    def is_between_draws(self, undone: Sequence[Draw]) -> bool:
        """Whether what was drawn was learned from, apart from draws never carried out, and no ticket is inserted out of turn."""
        return {*self._open, *self._at_draw} <= {draw.number for draw in undone} and not self._settled

    def account(self, undone: Sequence[Draw], *, are_made_again: bool) -> ReplayAccount:
        """Account for the items before a snapshot; items in progress are made again or lost.

        Args:
            undone: draws that were not carried out.
            are_made_again: whether the items in progress are made again.
        """
        again = [self._draws_of[number] for number in sorted(self._draws_of)]
        lost = 0 if are_made_again else self._num_in_flight
        uncounted = tuple(Uncounted(event.header, getattr(event, "reason", None)) for _, event in self._uncounted)
        return ReplayAccount(
            self._limiter.inserted, self._limiter.sampled - sum(draw.size for draw in undone), self._num_inserts,
            self._num_draws - len(undone), (*again, *self._room), dict(self._dropped), self._lost + lost,
            tuple(self._entries), self._limiter.filling - self.replay.min_size, self._lost_entries, tuple(self._given),
            uncounted, self._seen, StepsAccount(self._env_steps_inserted, self._at_draws.seen, self._env_steps_filling),
        )  # fmt: skip

    def restore(self, account: ReplayAccount, *, is_empty: bool, tickets: int, published: int) -> None:
        """Resume from a snapshot, with nothing in progress.

        Args:
            account: account of the replay.
            is_empty: whether its contents were not kept; the balance then restarts.
            tickets: number of settled tickets.
            published: published version of the policy.
        """
        if not is_empty:
            self._limiter.inserted, self._limiter.sampled = account.inserted, account.sampled
            self._entries, self._given = list(account.held), list(account.given)
            self._limiter.filling += account.refilled
            self._limiter.full_at = account.inserted + max(0, self.replay.min_size - self.num_entries)
            self._seen = account.seen
        self._num_inserts, self._num_draws = account.num_inserts, account.num_draws
        self._next_draw, self._lost_entries = account.num_draws, account.lost_entries
        self._room = deque(account.room)
        self._dropped, self._lost = Counter(account.dropped), account.lost
        self._produced = account.num_inserts + sum(account.dropped.values()) + account.lost
        self._uncounted = deque(
            (account.num_draws, Stored(self.name, each.header) if each.reason is None
             else Dropped(self.name, each.header, each.reason)) for each in account.uncounted
        )  # fmt: skip
        self._next = self._oldest = tickets
        self._published = published
        self._env_steps.restore(tickets, account.env_steps.inserted)
        self._at_draws.seen, self._env_steps_filling = account.env_steps.seen, account.env_steps.filling

    def versions(self) -> set[int]:
        """Return the published versions named by tickets whose items are not inserted or that can be issued now."""
        if self.policy is None:
            return set()
        named = {self._version_at(draws) for draws in (*self._draws_of.values(), *self._room)}
        return {version for version in named if version <= self._published}

    # ---- inspection

    @property
    def num_env_steps(self) -> int:
        """Env steps in the replay at the last draw that was learned from; before the first draw, while it was being filled."""
        if self._at_draws.seen is not None:
            return self._at_draws.seen
        return self._env_steps_filling if self._limiter.is_full else self._env_steps_inserted

    @property
    def _env_steps_inserted(self) -> int:
        return self._env_steps.before(self._oldest) + self._at_once.total

    @property
    def num_entries(self) -> int:
        """Number of entries held."""
        return min(sum(min(num, self.replay.capacity_per_table) for num in self._entries), self.replay.capacity)

    def statistics(self) -> ReplayStatistics:
        """Statistics at the last draw that was learned from. The ledger, and all before the first draw, is current."""
        limiter = self._limiter
        ledger = Ledger(self._produced, self._num_inserts, dict(self._dropped), self._lost, self._num_in_flight)
        now = (limiter.inserted, limiter.sampled, self.num_entries)
        inserted, sampled, held = now if self._seen is None else self._seen
        return ReplayStatistics(
            held, self.replay.capacity, inserted, sampled, limiter.samples_per_insert, limiter.reuse_of(inserted, sampled),
            ledger, self._lost_entries,
        )  # fmt: skip

    # ---- internals

    def _may_issue_new(self, source: str) -> bool:
        return bool(self._room) and (self.policy is None or self._version_at(self._room[0]) <= self._published)

    def _issue_new(self, number: int, source: str) -> None:
        self._draws_of[number] = self._room.popleft()

    def _version_of(self, number: int) -> int | None:
        return None if self.policy is None else self._version_at(self._draws_of[number])

    @property
    def _num_in_flight(self) -> int:
        return len(self._making) + sum(map(len, self._waiting.values())) + len(self._filtered)

    def _header_of_nothing(self, number: int) -> Header | None:
        return self._filtered[number]

    def _insert(self, item: Item, is_filling: bool) -> Insert:
        for header in item.headers:
            stored = Stored(self.name, header)
            self.events.append(stored)
            self._count(stored, is_filling)
        table = self._given.index(min(self._given))  # items may differ in size, tables should not
        self._num_inserts += 1
        self._given[table] += _num_entries(item)
        self._entries[table] += _num_entries(item)
        if self._entries[table] * self.replay.tables >= self.replay.min_size:
            self._refilling.discard(table)
        return Insert(self.name, table, item)

    def _drop_item(self, item: Item) -> None:
        self._dropped["stopped"] += 1
        self.counted += [Dropped(self.name, header, "stopped") for header in item.headers]

    def _drop(self, header: Header | None) -> None:
        self._dropped["filtered"] += 1
        if header is not None:
            self._count(Dropped(self.name, header, "filtered"), not self._limiter.is_full)

    def _count(self, what: Stored | Dropped, is_filling: bool) -> None:
        if is_filling:
            self.counted.append(what)
        else:
            self._uncounted.append((self._next_draw, what))

    def _next_to_insert(self) -> int | None:
        if self._open or not self._limiter.may_insert:
            return None
        if self.is_ordered:
            return self._oldest if self._oldest in self._waiting else None
        return next(iter(self._waiting), None)

    def _settle(self, number: int) -> None:
        del self._draws_of[number]
        self._room.append(self._num_draws)
        super()._settle(number)

    def _version_at(self, num_draws: int) -> int:
        """Return the published version after this many draws, each of which leads to one update."""
        num_updates = self._num_updates(num_draws)
        return num_updates - num_updates % self.storage.publish_every

    def _num_updates(self, num_draws: int) -> int:
        """Return how many of these draws lead to an update of the policy: all, unless there are shares."""
        if self._turns is None or self.storage.counted is None:
            return num_draws
        return self._turns.num_before(self.storage.counted, num_draws)

    def _can_be_read_after(self, num_draws: int) -> bool:
        """Whether the versions that tickets name and may still read are kept after learning from this many draws."""
        if self.policy is None:
            return True
        while self._unread and self._unread[0] not in self._making:
            heappop(self._unread)
        # tickets are issued in the order of their draws
        oldest = self._draws_of[self._unread[0]] if self._unread else next(iter(self._room), num_draws)
        every = self.storage.publish_every
        return self._num_updates(num_draws) // every - self._num_updates(oldest) // every < self._keep


def _num_entries(item: Item) -> int:
    """Number of entries in an item."""
    num: int = getattr(item.value, "num_entries", 1)
    return num


def _example() -> Storage:
    replay = Replay("replay", object, 10, 4, 2.0, 0.0, "uniform", "admission", 1, None, "fifo")
    return Storage(replay, ("rollout",), 2, True, "policy", 1, False)


def _item(ticket: int, value: str) -> Item:
    return Item(value, (Header({"policy": 0}, "rollout", 0, ticket, 0, ()),))
