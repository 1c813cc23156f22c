"""One queue: tickets, versions, order, staleness, losses, and the account of every item (design, section 2, point 4)."""

import random

import pytest
from support.schedule.channels import toy_channel, toy_item

from levada.flow import Consumed, Dropped, Header, Item, Queue
from levada.schedule import QueueMachine


def issue_all(queue: QueueMachine, source: str = "rollout") -> list[int]:
    numbers = []
    while queue.may_issue(source):
        numbers.append(queue.issue(source).number)
    return numbers


def take_tickets(queue: QueueMachine, version: int = 0) -> list[int]:
    tickets = []
    while queue.ready:
        tickets.append(queue.take(version).headers[0].ticket)
    return tickets


# ---- how many tickets, with which version


@pytest.mark.parametrize(
    ("max_lag", "per_update", "window", "tickets"),
    [
        (0, 8, 1, 8),
        (1, 8, 1, 16),
        (1, 8, 5, 12),
        (1, 8, 9, 8),
        (3, 8, 1, 32),
        (3, 8, 13, 20),
        (3, 8, None, 20),
        (4, 1, 5, 1),
    ],
)
def test_tickets_are_the_most_that_the_bound_allows(max_lag: int, per_update: int, window: int | None, tickets: int):
    channel = toy_channel(Queue(max_lag=max_lag, order="arrival", window=window), per_update=per_update)
    assert len(issue_all(QueueMachine(channel))) == channel.tickets == tickets
    assert (tickets + channel.window - 2) // per_update == max_lag
    assert (tickets + 1 + channel.window - 2) // per_update > max_lag


@pytest.mark.parametrize(
    ("max_lag", "versions"),
    [
        (0, [0, 0, 1, 1, 2, 2, 3, 3]),  # synchronous: each update made from the version before it
        (1, [0, 0, 0, 0, 1, 1, 2, 2]),  # one-step overlap, as in HTS-RL
        (2, [0, 0, 0, 0, 0, 0, 1, 1]),
    ],
)
def test_an_admission_ticket_names_its_version(max_lag: int, versions: list[int]):
    queue = QueueMachine(toy_channel(Queue(max_lag=max_lag)))
    named: list[int | None] = []
    for update in range(8):
        while queue.may_issue("rollout"):
            grant = queue.issue("rollout")
            named.append(grant.version)
            queue.finished(grant.number, [toy_item(grant.number, grant.version or 0)])
        assert [queue.take(update).headers[0].ticket for _ in range(2)] == [2 * update, 2 * update + 1]
        queue.learned()
        queue.published()
    assert named[: len(versions)] == versions
    assert named == [max(0, number // 2 - max_lag) for number in range(len(named))]
    lag = queue.statistics().lag["policy"]
    assert (lag.max, lag.bound, lag.count) == (max_lag, max_lag, 16)


def test_a_ticket_names_the_versions_that_are_published():
    queue = QueueMachine(toy_channel(Queue(max_lag=2), every=3))
    grants = [queue.issue("rollout") for _ in range(6)]
    for grant in grants:
        queue.finished(grant.number, [toy_item(grant.number)])
    assert take_tickets(queue) == [0, 1, 2, 3, 4, 5]
    assert not queue.may_issue("rollout")
    queue.published()
    assert [queue.issue("rollout").version for _ in range(6)] == [3] * 6


def test_arrival_order_reads_the_newest_version():
    queue = QueueMachine(toy_channel(Queue(max_lag=1, order="arrival")))
    assert queue.issue("rollout").version is None


# ---- order


def test_admission_order_waits_for_the_oldest_ticket():
    queue = QueueMachine(toy_channel(Queue(max_lag=1)))
    assert issue_all(queue) == [0, 1, 2, 3]
    for ticket in (3, 1, 2):
        queue.finished(ticket, [toy_item(ticket)])
        assert not queue.ready
    queue.finished(0, [toy_item(0)])
    assert take_tickets(queue) == [0, 1, 2, 3]


def test_arrival_order_overtakes_within_its_window():
    queue = QueueMachine(toy_channel(Queue(max_lag=3, order="arrival", window=3)))
    assert issue_all(queue) == [0, 1, 2, 3, 4, 5]
    for ticket in (5, 3, 2, 1):
        queue.finished(ticket, [toy_item(ticket)])
    assert take_tickets(queue) == [2, 1]  # 3 and 5 are beyond 0 + 2
    queue.finished(0, [toy_item(0)])
    assert take_tickets(queue) == [0, 5, 3]  # as they were finished; 3 is the oldest once 0 is gone


def test_a_straggler_stops_the_others_after_the_window():
    """Without one they would go round for ever, and the straggler would lag without bound."""
    queue = QueueMachine(toy_channel(Queue(max_lag=2, order="arrival", window=3)))
    straggler = queue.issue("rollout").number
    version = 0
    for _ in range(10):
        for number in issue_all(queue):
            queue.finished(number, [toy_item(number)])
        if len(take_tickets(queue, version)) == 2:
            version += 1
            queue.published()
    assert version == 1
    queue.finished(straggler, [toy_item(straggler)])
    assert queue.take(version).headers[0].ticket == straggler
    queue.learned()
    assert queue.statistics().lag["policy"].max <= 2


def test_free_running_is_bounded_by_its_capacity_alone():
    queue = QueueMachine(toy_channel(Queue(max_lag=None, capacity=3)))
    assert issue_all(queue) == [0, 1, 2]
    queue.finished(2, [toy_item(2)])
    assert take_tickets(queue, version=50) == [2]
    assert queue.may_issue("rollout")
    queue.learned()
    assert queue.statistics().lag["policy"].max == 50
    assert queue.statistics().lag["policy"].bound is None


# ---- when a ticket comes back


def test_a_blocking_ticket_comes_back_when_its_version_is_published():
    queue = QueueMachine(toy_channel(Queue(max_lag=0)))
    for number in issue_all(queue):
        queue.finished(number, [toy_item(number)])
    assert take_tickets(queue) == [0, 1]
    assert queue.outstanding == 2
    assert not queue.may_issue("rollout")
    queue.published()
    assert queue.outstanding == 0
    assert issue_all(queue) == [2, 3]


def test_a_lost_ticket_is_issued_again_with_its_number_and_version():
    queue = QueueMachine(toy_channel(Queue(max_lag=0)))
    for number in issue_all(queue):
        queue.finished(number, [toy_item(number)])
    take_tickets(queue)
    queue.published()
    assert issue_all(queue) == [2, 3]
    queue.lost(2)
    assert queue.outstanding == 2
    grant = queue.issue("rollout")
    assert (grant.number, grant.version) == (2, 1)
    assert not queue.may_issue("rollout")
    ledger = queue.statistics().ledger
    assert (ledger.produced, ledger.lost, ledger.in_flight) == (5, 1, 2)
    assert ledger.balanced


def test_a_lost_ticket_goes_back_to_the_source_that_lost_it():
    """The shares and the order of two sources must not depend on which of them fails."""
    queue = QueueMachine(toy_channel(Queue(max_lag=0), sources=("a", "b"), proportions=(1.0, 1.0)))
    assert queue.issue("a").number == 0
    assert queue.issue("b").number == 1
    queue.lost(0)
    assert not queue.may_issue("b")
    assert queue.issue("a").number == 0


# ---- dropping


def test_stale_items_are_dropped_and_counted():
    queue = QueueMachine(toy_channel(Queue(max_lag=1, on_stale="drop", capacity=4)))
    for version in (0, 1, 2):
        grant = queue.issue("rollout")
        queue.finished(grant.number, [toy_item(grant.number, version)])
    queue.discard_stale(version=2)
    assert [(event.header.ticket, event.reason) for event in queue.events if isinstance(event, Dropped)] == [
        (0, "stale")
    ]
    assert take_tickets(queue, version=2) == [1, 2]
    queue.learned()
    statistics = queue.statistics()
    assert statistics.lag["policy"].max == 1
    assert statistics.ledger.dropped == {"stale": 1}
    assert statistics.ledger.balanced


def test_a_full_queue_drops_its_oldest_and_samplers_never_wait():
    queue = QueueMachine(toy_channel(Queue(max_lag=5, on_stale="drop", capacity=2)))
    grants = [queue.issue("rollout").number for _ in range(9)]
    for number in reversed(grants):
        queue.finished(number, [toy_item(number)])
        assert queue.may_issue("rollout")
    assert [event.header.ticket for event in queue.events] == [8, 7, 6, 5, 4, 3, 2]  # in the order they were finished
    assert take_tickets(queue) == [1, 0]
    assert queue.statistics().ledger.dropped == {"full": 7}


def test_with_on_full_block_samplers_wait_for_room():
    queue = QueueMachine(toy_channel(Queue(max_lag=5, on_stale="drop", capacity=2, on_full="block")))
    assert issue_all(queue) == [0, 1]
    queue.finished(1, [toy_item(1)])
    assert not queue.may_issue("rollout")
    assert take_tickets(queue) == [1]
    assert issue_all(queue) == [2]


# ---- none or several items from a ticket


def test_what_is_filtered_brings_its_ticket_back():
    queue = QueueMachine(toy_channel(Queue(max_lag=None, capacity=1)))
    header = Header({"policy": 0}, "rollout", 0, 0, 7, ())
    queue.issue("rollout")
    queue.finished(0, [], header)
    assert queue.events == [Dropped("rollout->batch", header, "filtered")]
    assert queue.may_issue("rollout")
    assert queue.statistics().ledger.dropped == {"filtered": 1}
    assert queue.statistics().ledger.balanced


def test_a_ticket_may_yield_several_items():
    queue = QueueMachine(toy_channel(Queue(max_lag=None, capacity=1)))
    queue.issue("rollout")
    queue.finished(0, [toy_item(0, value=part) for part in "abc"])
    assert [queue.take(0).value for _ in range(2)] == ["a", "b"]
    assert not queue.may_issue("rollout")  # the ticket stands for all of them
    ledger = queue.statistics().ledger
    assert (ledger.produced, ledger.consumed, ledger.in_flight) == (3, 2, 1)
    assert queue.take(0).value == "c"
    assert queue.may_issue("rollout")


# ---- several sources


def test_tickets_are_dealt_in_exact_proportions_without_dice():
    queue = QueueMachine(toy_channel(Queue(max_lag=99), sources=("a", "b", "c"), proportions=(3.0, 1.0, 0.5)))
    state = random.getstate()
    dealt = []
    for _ in range(90):
        (source,) = [name for name in "abc" if queue.may_issue(name)]  # exactly one has its turn
        queue.issue(source)
        dealt.append(source)
        for name, share in (("a", 3 / 4.5), ("b", 1 / 4.5), ("c", 0.5 / 4.5)):
            assert abs(dealt.count(name) - share * len(dealt)) < 1
    assert random.getstate() == state
    assert [dealt.count(name) for name in "abc"] == [60, 20, 10]


def test_items_made_without_the_policy_have_no_lag():
    """Demonstrations beside rollouts, say."""
    queue = QueueMachine(toy_channel(Queue(max_lag=0), sources=("rollout", "demonstrations")))
    queue.issue("rollout")
    queue.issue("demonstrations")
    queue.finished(0, [toy_item(0)])
    demonstration = Header({}, "demonstrations", 0, 0, 0, ())
    queue.finished(1, [Item(None, (demonstration,))])
    queue.take(0)
    queue.take(0)
    assert queue.events[-1] == Consumed("rollout->batch", demonstration, {})
    queue.learned()
    assert queue.statistics().lag["policy"].count == 1


def test_a_snapshot_in_arrival_order_counts_what_was_taken_but_not_learned_from_as_lost():
    """Updates that are prepared ahead hold it, and a resumed run makes other items."""
    queue = QueueMachine(toy_channel(Queue(max_lag=3, order="arrival")))
    for number in issue_all(queue)[:6]:
        queue.finished(number, [toy_item(number)])
    taken = [queue.take(0) for _ in range(5)]
    queue.learned([header for item in taken[2:] for header in item.headers])
    account = queue.account({"policy": 1}, are_made_again=False)
    assert (account.consumed, account.lost) == (2, queue.channel.tickets - 2)
    queue.learned()
    assert queue.account({"policy": 2}, are_made_again=False).consumed == 5
