"""The transport without a cluster: the weights that go with a call, of which small ones travel as copies, and its errors."""

from types import SimpleNamespace

import pytest

from levada.flow import DeploymentError
from levada.flow.items import Shard
from levada.runners.transport import Spent, TicketDone
from levada.runners.versions import Versions
from levada.schedule import Closed, Ticket

pytest.importorskip("ray")

from levada.runners.ray import transport as module
from levada.runners.ray.cluster import Cluster
from levada.runners.ray.server import Answer
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


@pytest.mark.parametrize(("ticket_s", "expected"), [(1.0, 4), (0.01, 4), (0.005, 8), (0.001, 16)])
def test_shards_have_more_tickets_at_hand_the_shorter_their_work(ticket_s: float, expected: int) -> None:
    transport = RayTransport(1, None, None, None, SimpleNamespace(replays={}), 1.0)
    assert transport.tickets_at_hand == 4
    worker = RayWorker(None, (), {})
    for number in range(200):
        closed = Closed(Ticket("rollout", 0, number, {}), {}, None)
        spent = (Spent("rollout", number, 5.0, 5.0 + ticket_s / 4, 0.0), Spent("gae", number, 6.0, 5.0 + ticket_s, 0.0))
        transport._take(worker, Answer(1, 7.0, (TicketDone(closed, spent, None),)))
    assert transport.tickets_at_hand == expected


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
    ],
)
def test_addresses_of_no_cluster(address, words):
    with pytest.raises(DeploymentError, match=words):
        Cluster(address, 1.0)
