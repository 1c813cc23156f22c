"""A policy whose learner fails: by default it ends the run, isolated it stops alone."""

from collections import Counter
from dataclasses import dataclass, replace

import pytest
from support.envs.multi import CartPoles
from support.flows.two_trainers import CARTPOLES, DQN_SMALL, PPO_SMALL, KillsAtStop, isolated, learned_by_each

import levada as lv
from levada.algorithms.multi_agent import MultiAgent, multi_agent
from levada.flow import Dropped, Flow, LearnerStopped, Queue, Update
from levada.rl.learning.training import NonFiniteError
from levada.run.monitor import Monitor
from levada.run.storage.hashing import params_sha256
from levada.runners.processes import Processes
from levada.runners.threads import Threads
from levada.testing import Recorder, ToyLearner, toy_source


class Boom(Exception):
    """Raised by a learner."""


@dataclass(frozen=True)
class Failing:
    """A learner that fails at its fourth update."""

    policy_name: str
    fails_at: int = 4
    tolerates_staleness: bool = True

    def open(self, seed):
        return _Failing(self)


class _Failing:
    def __init__(self, recipe):
        self.recipe, self.num = recipe, 0

    def weights(self):
        return self.num

    def update(self, batch):
        if self.num + 1 == self.recipe.fails_at:
            msg = "no update 4"
            raise Boom(msg)
        self.num += 1
        return Update(self.num, {"updates": float(self.num)})


def two_parts(*, isolated: bool = True, queue: Queue | None = None, replay: bool = False, fails: int = 4) -> Flow:
    """One source, a learner that fails, and one that does not."""
    flow = Flow("parts")
    learners = {"bad": Failing("bad", fails), "good": ToyLearner("good")}
    weights = {name: flow.latest(f"{name}-weights", of=learner) for name, learner in learners.items()}
    items = flow.source("items", toy_source, reads=weights, shards=3)
    streams = flow.split("split", flow.map("both", both, items), keys=tuple(learners))
    for name, learner in learners.items():
        with flow.scope(name, isolated=isolated):
            if name == "bad" and replay:
                table = flow.replay("replay", of=tuple, capacity=50, min_size=4, samples_per_insert=2.0)
                flow.store(streams[name], to=table)
                batch = flow.sample("batch", table, size=3)
            else:
                batch = flow.batch("batch", streams[name].via((name == "bad" and queue) or Queue(max_lag=0)), size=2)
            update = flow.learn("learn", learner, batch)
            flow.publish(update.weights, to=weights[name])
            flow.report(update.stats)
    return flow


def both(item):
    return {"bad": item, "good": item}


QUEUES = [
    {}, {"queue": Queue(max_lag=2)}, {"queue": Queue(max_lag=1, order="arrival")},
    {"queue": Queue(max_lag=None, capacity=4)}, {"queue": Queue(max_lag=2, on_stale="drop", capacity=6)}, {"replay": True},
]  # fmt: skip


PLACES = [(place, each) for place in (lv.Inline(), lv.Inline(adversary=2), Threads(workers=2)) for each in QUEUES]


@pytest.mark.parametrize(("place", "options"), [*PLACES, (Processes(workers=1), QUEUES[0])], ids=str)
def test_the_others_go_on_and_what_it_would_have_learned_is_dropped(place, options):
    flow, recorder, counts = two_parts(**options), Recorder(), Counter()
    with place.open(flow, seed=1, instruments=[recorder]) as run:
        for report in run:
            counts[report.node] += 1
            if report.versions["good"] == 60:
                break
        statistics = run.statistics()
        assert run.node_state("bad/learn").weights() == 3
    assert counts == {"bad/learn": 3, "good/learn": 60}
    assert report.versions == {"bad": 3, "good": 60}
    [stopped] = recorder.of(LearnerStopped)
    assert stopped == LearnerStopped("bad/learn", "bad", 3, "Boom: no update 4")
    channels = {**statistics.channels, **statistics.replays}
    assert all(channel.ledger.balanced for channel in channels.values())
    [name] = [name for name in channels if name.startswith("bad") or "->bad" in name]
    dropped = [event for event in recorder.of(Dropped) if event.reason == "stopped"]
    assert {event.channel for event in dropped} == {name}
    assert channels[name].ledger.dropped["stopped"] == len(dropped) >= 90
    good = statistics.channels["split.good->good/batch"]
    assert (good.lag["good"].max, "stopped" in good.ledger.dropped) == (0, False)


@pytest.mark.parametrize("options", QUEUES[:2] + QUEUES[-1:], ids=str)
def test_a_run_is_saved_and_resumed_with_a_learner_that_has_stopped(options):
    flow = two_parts(**options)
    with lv.Inline().open(flow, seed=1) as run:
        for report in run:
            if report.versions["good"] == 30:
                state = run.save()
                break
    assert not state.is_exact
    with lv.Inline().open(flow, seed=1, state=state) as run:
        for report in run:
            if report.versions["good"] == 50:
                break
        assert all(channel.ledger.balanced for channel in run.statistics().channels.values())


def test_by_default_it_ends_the_run_and_names_its_part():
    with pytest.raises(Boom, match="no update 4") as caught:
        list(two_parts(isolated=False).run(on=lv.Inline(), seed=1))
    assert caught.value.__notes__ == [
        "in node 'bad/learn' of flow 'parts' (bad/learn, firing 4); versions: bad 3, good 3"
    ]


def test_the_last_learner_ends_the_run():
    flow = Flow("alone")
    weights = flow.latest("weights", of=Failing("bad"))
    items = flow.source("items", toy_source, reads=weights)
    with flow.scope("bad", isolated=True):
        update = flow.learn("learn", Failing("bad"), flow.batch("batch", items.via(Queue(max_lag=0)), size=1))
    flow.publish(update.weights, to=weights)
    flow.report(update.stats)
    with pytest.raises(Boom) as caught:
        list(flow.run(on=lv.Inline(), seed=1))
    assert "it is isolated, but no other learner can go on without it" in caught.value.__notes__


def test_a_loss_of_nan_stops_one_policy(tmp_path):
    """Its weights are those from before the update, in the checkpoint too, and the summary and the notes say so."""
    algorithm = MultiAgent(
        policy=("ppo:agent_0,agent_1", "dqn:agent_2,agent_3"), num_envs=2, num_steps=8, on_failure="isolate",
        policy_kwargs={
            "dqn.learning_rate": 1e38, "dqn.learning_starts": 64, "dqn.batch_size": 16, "dqn.hidden_sizes": (8,),
            "dqn.compile": False, "ppo.compile": False, "ppo.minibatch_size": 32, "ppo.hidden_sizes": (8,),
        },
    )  # fmt: skip
    run = lv.train(algorithm, CartPoles, until="updates=40", seed=1, out=tmp_path / "run", display="quiet")
    policies = run.summary.policies
    assert policies["ppo"].stopped is None
    assert policies["ppo"].updates == 40
    assert policies["dqn"].stopped.startswith("NonFiniteError: update 1 of policy 'dqn' gave NaN or infinity")
    [note] = [note for note in run.summary.notes if "stopped" in note]
    assert note.startswith("policy 'dqn' has stopped learning: NonFiniteError")
    assert run.summary.ledger["dqn/replay"].dropped_by_reason["stopped"] > 20
    assert run.summary.env_steps >= 39 * 16
    again = lv.load(run.path, env=CartPoles)
    assert again.policies["dqn"].version == policies["dqn"].updates
    assert params_sha256(again.policies["dqn"].weights) == params_sha256(run.policies["dqn"].weights)


@pytest.mark.parametrize("bad", ["ppo", "dqn"])
def test_episodes_count_on_whichever_policy_stops(bad):
    monitor, algorithms = Monitor(), {"ppo": PPO_SMALL, "dqn": DQN_SMALL}
    algorithms[bad] = replace(algorithms[bad], learning_rate=1e38)
    flow = multi_agent(CARTPOLES, algorithms, on_failure="isolate")
    other = "dqn" if bad == "ppo" else "ppo"
    with lv.Inline().open(flow, seed=1, instruments=[monitor]) as run:
        for report in run:
            if report.versions[other] == 40:
                break
    assert monitor.stopped.keys() == {bad}
    assert monitor.episodes >= 0.5 * 4 * monitor.env_steps / 60
    assert monitor.return_means_100.keys() == {"ppo", "dqn"}


ELSEWHERE = Processes(workers=2, learners=2, reduce="exact")


@pytest.mark.parametrize("good", ["ppo", "dqn"])
def test_the_others_learn_as_before_if_replicas_of_a_learner_fail_and_a_worker_ends_then(good):
    bad = "dqn" if good == "ppo" else "ppo"
    flow = isolated(**{bad: 1e38})
    expected, _, _ = learned_by_each(flow, lv.Inline(), of=(good,))
    found, state, statistics = learned_by_each(flow, ELSEWHERE, of=(good,), kills=KillsAtStop())
    assert found == expected
    assert statistics.versions[bad] == 0
    channels = {**statistics.channels, **statistics.replays}
    assert all(channel.ledger.balanced for channel in channels.values())
    assert all((channel.ledger.dropped.get("stopped", 0) > 0) is (bad in name) for name, channel in channels.items())
    assert not state.is_exact


def test_the_last_learner_that_fails_ends_the_run_wherever_it_is():
    recorder = Recorder()
    with pytest.raises(NonFiniteError, match="update 1 of policy") as caught:
        list(isolated(ppo=1e38, dqn=1e38).run(on=ELSEWHERE, seed=1, instruments=[recorder]))
    assert caught.value.__notes__[-1] == "it is isolated, but no other learner can go on without it"
    [stopped] = recorder.of(LearnerStopped)
    assert f"policy {stopped.policy!r}" not in str(caught.value)
