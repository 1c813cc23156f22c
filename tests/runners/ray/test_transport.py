"""The transport without a cluster: the weights that go with a call, of which small ones travel as copies, and its errors."""

import sys
from types import SimpleNamespace
from weakref import WeakSet

import numpy as np
import pytest
from support.processes import samples

from levada.flow import DeploymentError
from levada.flow.items import Shard
from levada.runners import Inline
from levada.runners.transport import ShardFailed, ShardOpened, Spent, TicketDone, WorkerBegan, WorkerTimes
from levada.runners.versions import Versions
from levada.schedule import Closed, Ticket

pytest.importorskip("ray")

from ray.exceptions import ActorUnavailableError

from levada.runners.ray import Ray, cluster, sending
from levada.runners.ray import transport as module
from levada.runners.ray.cluster import Cluster
from levada.runners.ray.refs import SMALL_NBYTES, pack
from levada.runners.ray.server import Answer, Orders, ShardActor
from levada.runners.ray.transport import RayTransport, RayWorker

KEEP = 3


@pytest.mark.parametrize("are_named", [True, False])
@pytest.mark.parametrize("every", [1, 2, 5])
def test_a_worker_can_read_what_its_tickets_can_name(are_named: bool, every: int) -> None:
    """However many versions are published between two calls."""
    transport = RayTransport(1, None, None, None, None, 1.0)
    plan = SimpleNamespace(named=frozenset({"weights"} if are_named else ()))
    transport.open(plan, {"weights": (KEEP, {0: "version 0"})})
    worker = RayWorker(None, (), {"weights": 0})
    held = Versions(KEEP, {0: "version 0"})
    for version in range(1, 20):
        transport.publish("weights", version, f"version {version}")
        if version % every == 0:
            sent = list(transport._weights_for(worker))
            for _, number, weights in sent:
                held.publish(number, weights.unpack())
            assert held.read(None) == (version, f"version {version}")
            if are_named:
                for named in range(max(0, version - KEEP + 1), version + 1):
                    assert held.read(named) == (named, f"version {named}")
            else:
                assert len(sent) == 1


@pytest.mark.parametrize("is_mistake", [True, False])
def test_an_error_arrives_with_its_traceback_and_whether_it_is_a_mistake_of_the_users(is_mistake: bool) -> None:
    try:
        raise ZeroDivisionError("no idea")
    except ZeroDivisionError as error:
        sent = sending.prepared(ShardFailed("rollout", 1, False, error, is_mistake))
    found = module._received(sent, ahead_s=0.0)
    assert (found.source, found.shard, found.is_final, found.is_mistake) == ("rollout", 1, False, is_mistake)
    assert str(found.error) == "no idea"
    assert found.error.__traceback__ is not None


@pytest.mark.parametrize(("ticket_s", "expected"), [(1.0, 4), (0.05, 4), (0.03, 8), (0.015, 16), (0.005, 32)])
def test_shards_have_more_tickets_at_hand_the_shorter_their_work(ticket_s: float, expected: int) -> None:
    transport = RayTransport(1, None, None, None, SimpleNamespace(replays={}), 1.0)
    worker = RayWorker(None, (), {})
    for number in range(200):
        closed = Closed(Ticket("rollout", 0, number, {}), {}, None)
        spent = (Spent("rollout", number, 5.0, 5.0 + ticket_s / 4, 0.0), Spent("gae", number, 6.0, 5.0 + ticket_s, 0.0))
        transport._take(worker, Answer(1, 7.0, (TicketDone(closed, spent, None),)))
    assert transport.tickets_at_hand == expected
    assert transport.tickets_together == (1 if expected == 4 else expected // 2)


def one_shard(source: samples.Numbers) -> ShardActor:
    """Return an actor, in this process, with the only shard of a source."""
    with Inline().open(samples.counting_flow(source, shards=1), seed=1) as run:
        plan = run._plan
    return ShardActor(plan, 1, [(Shard("numbers", 0, 1, 0), None)], {"weights": (2, [(0, pack(np.zeros(1)))])})


def test_calls_are_executed_once_and_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those whose answers were lost, and one that arrives before another."""
    monkeypatch.setattr(sending.ray, "put", lambda value: value)
    actor = one_shard(samples.Numbers())
    orders = [
        Orders(1, 0, (), ()),
        *(order(number) for number in range(3)),
    ]
    assert actor.exchange(orders[2]) is None
    answers = [actor.exchange(each) for each in orders[:3]]
    events = [[type(event) for event in answer.events if not isinstance(event, WorkerTimes)] for answer in answers]
    assert events == [
        [WorkerBegan],
        [ShardOpened, TicketDone],
        [TicketDone],
    ]
    assert [actor.exchange(each) for each in orders[1:3]] == answers[1:]
    assert actor.exchange(orders[3]).events[0].closed.ticket.number == 2
    assert actor.exchange(orders[1]) is None
    actor.close()


def order(number: int) -> Orders:
    """The call with a ticket, while the one before is in progress."""
    return Orders(number + 2, number, ((Ticket("numbers", 0, number, {"weights": 0}), False),), ())


def test_an_actor_keeps_no_items_of_calls_that_will_not_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of calls in progress: those that are not counted as answered."""
    kept = WeakSet[Kept]()

    def put(value: object) -> Kept:
        kept.add(ref := Kept())
        return ref

    monkeypatch.setattr(sending.ray, "put", put)
    actor = one_shard(samples.Numbers())
    actor.exchange(Orders(1, 0, (), ()))
    for number in range(5):
        actor.exchange(order(number))
        assert len(kept) == min(number + 1, 2)
    actor.exchange(Orders(7, 6, (), ()))
    assert not kept
    actor.close()


class Kept:
    """A reference to an object."""


def test_what_ends_the_work_is_told_to_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also to one that waits at the actor, and to one that is repeated because the first answer was lost."""

    def interrupted(shard: Shard, number: int) -> None:
        raise KeyboardInterrupt

    actor = one_shard(samples.Numbers(misbehave=interrupted))
    actor.exchange(Orders(1, 0, (), ()))
    for orders in (order(0), Orders(3, 1, (), ()), order(0)):
        with pytest.raises(RuntimeError, match="the work of the shards ended by KeyboardInterrupt"):
            actor.exchange(orders)
    actor.close()


def test_a_call_is_repeated_until_it_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    answers: list[Answer | Exception | None] = [
        ActorUnavailableError("for a moment", b"0" * 16),
        None,  # the first has not arrived
        Answer(1, 0.0, (WorkerBegan(),)),
        Answer(1, 0.0, ()),
    ]

    def remote(orders: Orders) -> int:
        sent.append(orders.number)
        return len(sent) - 1

    def get(ref: int) -> Answer | None:
        answer = answers[ref]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(module, "ray", SimpleNamespace(get=get))
    transport = RayTransport(1, None, None, None, SimpleNamespace(replays={}), 1.0)
    worker = RayWorker(SimpleNamespace(exchange=SimpleNamespace(remote=remote)), (), {})
    transport._workers = [worker]
    for _ in range(2):
        worker.call((), ())
    assert list(transport._events_of(worker, {worker.awaited})) == []
    transport.flush()
    assert sent == [1, 2]  # it is left alone
    worker.silent_until_s = 0.0
    transport.flush()
    assert list(transport._events_of(worker, {worker.awaited})) == [WorkerBegan()]
    assert list(transport._events_of(worker, {worker.awaited})) == []
    assert worker.is_silent
    transport.flush()
    assert list(transport._events_of(worker, {worker.awaited})) == []
    assert sent == [1, 2, 1, 2]
    assert not worker.calls


def test_a_worker_is_replaced_in_its_own_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the order: with `learners=beside`, the learner of its items is there."""
    bundles: list[int] = []

    class Remote:
        def options(self, *, bundle: int, **options: object) -> "Remote":
            bundles.append(bundle)
            return self

        def remote(self, *args: object) -> None:
            pass

    monkeypatch.setattr(module, "ray", SimpleNamespace(remote=lambda actor: Remote()))
    transport = RayTransport(1, None, SimpleNamespace(options=lambda bundle: {"bundle": bundle}), None, None, 1.0)
    transport.open(SimpleNamespace(named=frozenset()), {})
    shards = [[(Shard("rollout", index, 4, 0), None) for index in (number, number + 2)] for number in range(2)]
    for own in (shards[0], shards[1], shards[1], shards[0]):
        transport.start(own)
    assert bundles == [0, 1, 1, 0]


def test_workers_that_do_not_start_in_time(monkeypatch):
    monkeypatch.setattr(module, "has_started", lambda actors, timeout_s: timeout_s > 1.0)
    transport = RayTransport(1, None, None, None, None, 1.0)
    with pytest.raises(DeploymentError, match=r"a worker has not begun: it did not start within 1 s, although"):
        transport.wait(0.0)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        (
            "Auto",
            r"the cluster at Auto cannot be joined \(Invalid address format: Auto\); an address is auto, host:port or",
        ),
        ("ray://10.0.0.1", r"the address ray://10\.0\.0\.1 names no host and port; expected such as ray://host:10001"),
        ("ray://", r"names no host and port"),
        ("", r"address='' names no cluster; expected auto, "),
    ],
)
def test_addresses_of_no_cluster(address, words):
    with pytest.raises(DeploymentError, match=words):
        Cluster(address, 1.0)


@pytest.mark.parametrize(
    ("num_cpus", "words"),
    [([0, 0], "no room"), ([0, 1], "expected at most 4, 4 for each of the 1 cores of the largest")],
)
def test_an_autoscaler_is_asked_for_nodes(monkeypatch: pytest.MonkeyPatch, num_cpus: list[int], words: str) -> None:
    """Before it has started any, no node has a CPU."""

    def reserve(cluster: Cluster, *args: object) -> None:
        raise DeploymentError("no room")

    nodes = [{"Alive": True, "Resources": {"CPU": float(num)} if num else {}} for num in num_cpus]
    ray = {"is_initialized": lambda: True, "nodes": lambda: nodes, "cluster_resources": lambda: {"memory": 1.0}}
    monkeypatch.setattr(cluster, "ray", SimpleNamespace(**ray))
    monkeypatch.setattr(Cluster, "reserve", reserve)
    with pytest.raises(DeploymentError, match=words):
        Ray(workers=1, threads=5).open(samples.small_ppo(0))


@pytest.mark.parametrize("has_joined", [False, True], ids=["", "by the program"])
def test_the_last_of_several_runs_leaves_the_cluster(monkeypatch: pytest.MonkeyPatch, has_joined: bool) -> None:
    """Unless the program has joined it before them."""
    joined = [1] if has_joined else []
    ray = {
        "is_initialized": lambda: bool(joined),
        "init": lambda **options: joined.append(1),
        "shutdown": joined.clear,
        "get_runtime_context": lambda: SimpleNamespace(get_node_id=lambda: "its own"),
    }
    monkeypatch.setattr(Cluster, "_started_node", "")
    monkeypatch.setattr(cluster, "ray", SimpleNamespace(**ray))
    first, second = Cluster("local", 1.0), Cluster("local", 1.0)
    for _ in range(2):
        first.close()
        assert joined
    second.close()
    assert bool(joined) == has_joined


def test_values_of_the_main_module_are_sent_with_their_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process has another main module."""
    main = sys.modules["__main__"]

    class Own:
        size = 3

    Own.__module__, Own.__qualname__ = "__main__", "Own"
    monkeypatch.setattr(main, "Own", Own, raising=False)
    packed = pack(Own())
    monkeypatch.delattr(main, "Own")
    assert packed.unpack().size == 3


def test_large_values_are_not_copied() -> None:
    assert pack(np.zeros(SMALL_NBYTES, np.uint8)) is None
    copied = pack({"rows": np.arange(10)}).unpack()
    assert (copied["rows"] == np.arange(10)).all()
    assert not copied["rows"].flags.writeable
