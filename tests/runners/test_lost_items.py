"""Workers that take with them what they have finished: it is made again, and the result is that of an undisturbed run."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.processes import samples
from support.runs.lossy import LossyTransport, open_lossy, open_lossy_ahead

from levada.algorithms.dqn import DQN
from levada.algorithms.impala import IMPALA
from levada.flow import Flow, Queue, RunState, Used
from levada.rl.envs.task import Task
from levada.run.monitor import Monitor
from levada.runners import Inline
from levada.runners.flow_run import FlowRun
from levada.runners.snapshots import Snapshots

CARTPOLE = Task("CartPole-v1")


def dqn() -> Flow:
    return DQN(
        shards=3, num_envs=2, num_steps=4, hidden_sizes=(16,), learning_starts=64, batch_size=16, buffer_size=512,
        compile=False,
    ).flow(CARTPOLE)  # fmt: skip


def impala(order: Any = "admission", max_lag: int = 2) -> Flow:
    hp = IMPALA(shards=4, num_envs=2, num_steps=8, num_rollouts=2, max_lag=max_lag, order=order, compile=False)
    return hp.flow(CARTPOLE)


FLOWS: dict[str, tuple[Callable[[], Flow], int]] = {
    "ppo": (lambda: samples.small_ppo(0), 8),
    "ppo, lag 2": (lambda: samples.small_ppo(2), 8),
    "dqn": (dqn, 40),
    "impala": (impala, 25),
}


class UsedOnce:
    """Checks that nothing is learned from twice."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, int]] = set()

    def on_event(self, event: Any) -> None:
        if isinstance(event, Used):
            keys = {(header.source, header.ticket) for header in event.headers}
            assert len(keys) == len(event.headers)
            assert not keys & self.seen
            self.seen |= keys


def result(run: FlowRun, updates: int) -> tuple[dict[str, bytes], int, int]:
    """The learner's state, env steps and episodes after so many updates."""
    [monitor] = [each for each in run._accounts._observers.instruments if isinstance(each, Monitor)]
    next(report for report in run if report.firing == updates)
    assert monitor.num_started_from_scratch == 0
    statistics = run.statistics()
    assert all(channel.ledger.balanced for channel in (*statistics.channels.values(), *statistics.replays.values()))
    state = run.node_state("learn").state_dict()
    return {name: np.asarray(value).tobytes() for name, value in state.items()}, monitor.env_steps, monitor.episodes


def undisturbed(flow: Flow, updates: int, state: RunState | None = None) -> tuple[dict[str, bytes], int, int]:
    with Inline().open(flow, seed=1, instruments=[Monitor()], state=state) as run:
        return result(run, updates)


@pytest.mark.parametrize("delay", [0, 6])
@pytest.mark.parametrize("name", FLOWS)
def test_the_result_is_that_of_an_undisturbed_run(name: str, delay: int):
    make, updates = FLOWS[name]
    expected = undisturbed(make(), updates)
    num_kills = num_noticed = num_lost = 0
    for seed in range(3):
        with open_lossy(make(), seed=seed, kills=0.12, delay=delay, instruments=[Monitor(), UsedOnce()]) as run:
            assert result(run, updates) == expected
            assert isinstance(run.transport, LossyTransport)
            num_kills += run.transport.num_kills
            num_noticed += run.transport.num_noticed
            statistics = run.statistics()
            num_lost += sum(each.ledger.lost for each in (*statistics.channels.values(), *statistics.replays.values()))
    assert num_kills >= 10
    assert num_lost > num_kills  # not only what was in progress
    assert (num_noticed > 0) == (delay > 0 and name != "dqn")  # by a learner, before the run heard of it


@pytest.mark.parametrize("name", ["ppo", "ppo, lag 2", "impala"])
def test_the_result_is_the_same_if_updates_are_prepared_ahead(name: str):
    make, updates = FLOWS[name]
    expected = undisturbed(make(), updates)
    most = num_kills = 0
    for seed in range(3):
        run, process = open_lossy_ahead(
            make(), seed=seed, kills=0.08 * seed, delay=6, instruments=[Monitor(), UsedOnce()]
        )
        with run:
            for report in run:
                assert run.statistics().versions == report.versions == {"policy": report.firing}
                if report.firing % 4 == 1:
                    assert run.node_state("learn").num_updates == report.firing
                if report.firing == updates - 1:
                    break
            assert result(run, updates) == expected
            most = max([most, *process.num_updates_per_call])
            num_kills += run.transport.num_kills
    assert num_kills > 3
    assert most > 1 or name == "ppo"


@pytest.mark.parametrize("kills", [0.0, 0.1])
def test_what_is_prepared_ahead_is_saved_as_if_it_was_not(kills: float):
    make, updates = FLOWS["impala"]
    expected = undisturbed(make(), updates)
    for stop in (5, 12):
        run, process = open_lossy_ahead(make(), seed=stop, kills=kills, delay=6, instruments=[Monitor(), UsedOnce()])
        with run:
            next(report for report in run if report.firing == stop)
            assert process.is_awaited or process.host._num_updates["learn"] > stop
            state = run.save()
            assert process.host._num_updates["learn"] == stop
            assert result(run, updates) == expected
        assert state.is_exact, state.unsaved
        assert undisturbed(make(), updates, state)[0] == expected[0]


@pytest.mark.parametrize("delay", [0, 6])
def test_the_ledger_adds_up_if_updates_are_prepared_ahead_in_arrival_order(delay: int):
    for seed in range(3):
        run, process = open_lossy_ahead(
            impala("arrival", 4), seed=seed, kills=0.12, delay=delay, instruments=[Monitor(), UsedOnce()]
        )
        with run:
            result(run, 40)
            [channel] = run.statistics().channels.values()
            assert channel.ledger.lost > 0
            assert channel.ledger.consumed >= 80
            assert channel.lag["policy"].max <= 4
        assert max(process.num_updates_per_call) > 1


def test_a_node_between_a_queue_and_a_batch_goes_back_with_its_items():
    """Its firings take values in place of references; what it has made goes with the items that it was made of."""

    def batches(run: FlowRun) -> list[Any]:
        next(report for report in run if report.node == "learn" and report.firing == 20)
        assert all(len(trail._steps) <= 8 for trail in run._hub.trails.values())  # nothing that was used
        return [[item.item() for item in batch] for batch in run.node_state("learn").batches]

    def flow() -> Flow:
        return samples.watched_flow(samples.Remembered())

    with Inline().open(flow(), seed=1) as run:
        expected = batches(run)
    for seed in range(3):
        with open_lossy(flow(), seed=seed, kills=0.12, delay=6, instruments=[UsedOnce()]) as run:
            assert batches(run) == expected
            assert isinstance(run.transport, LossyTransport)
            assert run.transport.num_kills > 2


@pytest.mark.parametrize("delay", [0, 6])
def test_in_arrival_order_nothing_is_learned_from_twice_and_the_ledger_adds_up(delay: int):
    for seed in range(3):
        with open_lossy(
            impala("arrival"), seed=seed, kills=0.12, delay=delay, instruments=[Monitor(), UsedOnce()]
        ) as run:
            result(run, 25)
            [channel] = run.statistics().channels.values()
            assert channel.ledger.lost > 0
            assert channel.ledger.consumed >= 50
            assert channel.lag["policy"].max <= 2


@pytest.mark.parametrize("name", FLOWS)
def test_a_run_with_losses_is_saved_and_resumed_exactly(name: str):
    make, updates = FLOWS[name]
    expected = undisturbed(make(), updates)
    with open_lossy(make(), seed=1, kills=0.12, delay=6, instruments=[Monitor()]) as run:
        next(report for report in run if report.firing == updates // 2)
        state = run.save()
    assert state.is_exact, state.unsaved
    assert undisturbed(make(), updates, state)[0] == expected[0]
    with open_lossy(make(), seed=2, kills=0.12, delay=6, instruments=[Monitor()], state=state) as run:
        assert result(run, updates)[0] == expected[0]


def test_without_the_state_before_the_oldest_lost_item_a_shard_starts_over(monkeypatch: pytest.MonkeyPatch):
    take, taken = Snapshots.take_if_cheap, []

    def seldom(self: Snapshots, worked_s: float, *, must: bool) -> Any:
        taken.append(self)
        return take(self, worked_s, must=must) if len(taken) % 5 == 0 else None

    monkeypatch.setattr(Snapshots, "take_if_cheap", seldom)
    monitor = Monitor()
    with open_lossy(samples.small_ppo(2), seed=1, kills=0.12, instruments=[monitor, UsedOnce()]) as run:
        next(report for report in run if report.firing == 8)
        assert monitor.num_started_from_scratch > 0
        assert all(channel.ledger.balanced for channel in run.statistics().channels.values())
        assert monitor.env_steps == 8 * 4 * 2 * 16


def ahead_flow(order: Any) -> Flow:
    """A map between a queue and a batch, whose results are also reported; updates are ahead by up to six."""
    flow, learner = Flow("ahead"), samples.SavedCounting()
    weights = flow.latest("weights", of=learner)
    numbers = flow.source("numbers", samples.Remembered(), reads=weights, shards=4)
    looked = flow.map("look", samples.look, numbers.via(Queue(max_lag=12, order=order)))
    update = flow.learn("learn", learner, flow.batch("batch", looked, size=2))
    flow.publish(update.weights, to=weights)
    flow.report(looked, name="seen")
    flow.report(update.stats)
    return flow


@pytest.mark.parametrize("order", ["admission", "arrival"])
def test_reports_find_the_run_behind_their_update_also_if_workers_are_lost(order: str):
    """While another worker is started, no later updates are reported, and lags are those of items that were learned from."""
    num_kills, most = 0, 0
    for seed in range(4):
        run, process = open_lossy_ahead(ahead_flow(order), seed=seed, kills=0.12 if seed else 0.0, delay=6)
        with run:
            firings = []
            for report in run:
                if report.node == "learn":
                    firings.append(report.firing)
                    assert report.versions == {"policy": report.firing}
                    assert report.values["updates"] == report.firing
                    [channel] = run.statistics().channels.values()
                    assert channel.lag["policy"].count == 2 * report.firing
                    if report.firing == 30:
                        break
            assert firings == list(range(1, 31))
            num_kills += run.transport.num_kills
            most = max([most, *process.num_updates_per_call])
    assert num_kills > 3
    assert most > 1
