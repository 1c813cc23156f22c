"""Evaluators of a flow: which versions they measure, under every deployment, and what becomes of a run when one fails."""

import os
import signal
import threading

import pytest
from support.evaluations import Failing, Measure, Results, Unloadable, evaluated_flow
from support.processes.samples import Counting, SavedCounting

from levada.flow import FixedWeights, Flow, FlowError, StreamError, derive_seed
from levada.flow.patience import listening
from levada.runners import Inline, WorkerError
from levada.runners.evaluators.place import EvaluatorThread, Task
from levada.runners.firing import IteratorEndedError, WorkError
from levada.runners.processes import Processes
from levada.runners.threads import Threads

PLACES = [
    Inline(),
    Inline(adversary=3),
    Threads(workers=2),
    Processes(workers=2),
    Processes(workers=1, learner="worker"),
]
SEEDS = {version: float(derive_seed(7, "eval", version)) for version in range(1, 20)}


def results(on, flow, updates, *, state=None):
    """Run until so many updates; return what was heard, the statistics, and the state at the end."""
    heard = Results()
    with on.open(flow, seed=7, instruments=[heard], state=state) as run:
        for report in run:
            if report.firing == updates:
                break
        state = run.save()
        run.finish_evaluations()
        return heard, run.statistics(), state


@pytest.mark.parametrize("on", PLACES, ids=str)
def test_every_nth_version_is_measured_under_every_deployment(on):
    heard, statistics, _ = results(on, evaluated_flow(every=3), 9)
    assert heard.numbers == [(version, float(version), SEEDS[version]) for version in (3, 6, 9)]
    assert [(each.node, each.policy, each.due) for each in heard.found] == [
        ("eval", "policy", due) for due in (6, 9, 12)
    ]
    assert heard.begun == [3, 6, 9]
    assert all(at < each.due for at, each in zip(heard.heard_at, heard.found, strict=True))
    assert statistics.nodes["eval"].firings == 3


def test_training_is_what_it_is_without():
    with_one, without = (results(Inline(), evaluated_flow(every=every), 8)[1] for every in (1, 0))
    assert with_one.versions == without.versions
    assert with_one.channels == without.channels


def test_versions_that_are_not_published_are_measured_too():
    heard, _, _ = results(Inline(), evaluated_flow(every=3, publish_every=2, max_lag=2), 7)
    assert [each.version for each in heard.found] == [3, 6]


@pytest.mark.parametrize("on", PLACES[2:], ids=str)
def test_what_is_in_progress_is_saved_and_made_again(on):
    heard, _, state = results(on, evaluated_flow(), 4)
    assert [(node, version) for node, version, _ in state.evaluations] == [("eval", 4)]
    assert state.is_exact
    again, _, _ = results(Inline(), evaluated_flow(), 6, state=state)
    assert heard.numbers + again.numbers[1:] == [(v, float(v), SEEDS[v]) for v in (2, 4, 6)]
    assert again.begun == [4, 6]


def test_what_has_ended_is_not_made_again():
    _, _, state = results(Inline(), evaluated_flow(), 4)
    assert state.evaluations == ()
    assert results(Inline(), evaluated_flow(), 6, state=state)[0].begun == [6]


@pytest.mark.parametrize("on", PLACES[2:3], ids=str)
def test_weights_that_cannot_be_saved_are_measured_before_a_save(on):
    class Words(Counting):
        def open(self, seed):
            live = super().open(seed)
            live.weights = lambda: [float(live.num_updates)]
            return live

    heard, _, state = results(on, evaluated_flow(learner=Words()), 4)
    assert state.evaluations == ()
    assert [each.version for each in heard.found] == [2, 4]


@pytest.mark.parametrize(
    ("what", "kind", "message"),
    [
        ("raise", RuntimeError, "the sky fell"),
        ("stop", IteratorEndedError, "the work of node 'eval' raised StopIteration"),
        ("text", WorkError, "the evaluation of node 'eval' returned 'return': 'high'.*expected numbers by name"),
        ("number", WorkError, "the evaluation of node 'eval' returned a float, expected numbers by name"),
    ],
)
@pytest.mark.parametrize("on", [Inline(), Threads(workers=1), Processes(workers=1)], ids=str)
def test_an_evaluation_that_fails_ends_the_run_where_it_would_count(on, what, kind, message):
    with on.open(evaluated_flow(Failing(what)), seed=7) as run:
        with pytest.raises(kind, match=message) as caught:
            list(run)
        assert "in node 'eval' of flow 'counted', which evaluates version 4" in caught.value.__notes__
        state = run.save()
        run.finish_evaluations()  # nothing is tried again
    assert state.is_exact
    assert [version for _, version, _ in state.evaluations] == ([4] if on == Inline() else [4, 6])
    assert results(Inline(), evaluated_flow(), 8, state=state)[0].begun == [4, 6, 8]


def test_the_traceback_is_that_of_the_user():
    with Processes(workers=1).open(evaluated_flow(Failing()), seed=7) as run, pytest.raises(RuntimeError) as caught:
        list(run)
    assert caught.traceback[-1].path.name == "evaluations.py"


def test_an_interrupt_leaves_the_evaluation_in_progress(tmp_path):
    flow = evaluated_flow(Failing("interrupt", marker=str(tmp_path / "done")))
    with Inline().open(flow, seed=7) as run:
        with pytest.raises(KeyboardInterrupt):
            list(run)
        assert [(node, version) for node, version, _ in run.save().evaluations] == [("eval", 4)]
        assert run.evaluations.waits_s() == 0.0


def test_a_killed_process_is_replaced_and_nothing_is_lost(tmp_path, caplog):
    flow = evaluated_flow(Failing("kill", marker=str(tmp_path / "killed")))
    heard, _, _ = results(Processes(workers=1), flow, 6)
    assert [each.values["return"] for each in heard.found] == [2.0, 4.0, 6.0]
    assert "the process of the evaluations ended by SIGKILL" in caplog.text
    assert "failure 1 of 3 in a row" in caplog.text


def test_a_process_that_is_killed_while_idle_is_replaced():
    heard = Results()
    with Processes(workers=1).open(evaluated_flow(), seed=7, instruments=[heard]) as run:
        for report in run:
            if report.firing == 3:
                os.kill(run.evaluations.place.pid, signal.SIGKILL)
            if report.firing == 6:
                break
        run.finish_evaluations()
    assert [each.version for each in heard.found] == [2, 4, 6]


@pytest.mark.parametrize(
    ("evaluation", "message"),
    [
        (Failing("kill"), "the process of the evaluations ended 2 times in a row, now by SIGKILL"),
        (Unloadable(), "the process of the evaluations ended .* before it had begun"),
    ],
)
def test_a_process_that_ends_too_often_ends_the_run(evaluation, message):
    on = Processes(workers=1, max_restarts=1)
    with on.open(evaluated_flow(evaluation), seed=7) as run, pytest.raises(WorkerError, match=message):
        list(run)


def test_a_thread_ends_with_the_run():
    place = EvaluatorThread()
    place.open({"eval": Measure()})
    place.begin(Task("eval", [5.0], 1))
    assert place.result(None).values["return"] == 5.0
    place.close()
    assert not place._thread.is_alive()


def test_it_is_said_that_the_run_waits(monkeypatch):
    monkeypatch.setattr("levada.runners.evaluators.evaluations.QUIET_S", 0.0)
    told = []
    gate = threading.Event()

    def evaluation(weights, seed):
        gate.wait()
        return {"return": 1.0}

    def listen(what):
        told.append(what)
        gate.set()

    with listening(listen):
        heard, _, _ = results(Threads(workers=1), evaluated_flow(evaluation), 2)
    assert told == ["evaluating version 2", ""]
    assert [each.version for each in heard.found] == [2]


# ---- the graph


def test_it_is_a_node_of_the_flow():
    flow = evaluated_flow(every=10)
    assert "  [weights] ~~> eval (evaluate every 10 updates)" in str(flow).splitlines()
    assert "evaluate every 10 updates" in flow.svg()
    assert "evaluate every 10 updates" in flow.mermaid()
    assert flow.problems() == []
    assert flow.hash() != evaluated_flow(every=5).hash() != evaluated_flow(every=0).hash()
    node = flow.to_json()["nodes"][0]
    assert "every" not in node


def test_mistakes_are_refused_at_once():
    flow = evaluated_flow(every=0)
    fixed = flow.latest("others", of=FixedWeights("other", 1.0))
    weights = flow.registers["weights"]
    for given, kind, message in (
        (
            {"reads": fixed, "every": 2},
            StreamError,
            "register 'others' holds fixed weights, expected those of a learner",
        ),
        ({"reads": "weights", "every": 2}, StreamError, "expected what flow.latest"),
        ({"reads": evaluated_flow().registers["weights"], "every": 2}, StreamError, "of another flow"),
        ({"reads": weights, "every": 0}, ValueError, "every"),
    ):
        with pytest.raises(kind, match=message):
            flow.evaluate("eval", Measure(), **given)
    with pytest.raises(StreamError, match="eval"):
        flow.evaluate("eval", 3, reads=weights, every=2)


def test_an_evaluation_that_cannot_be_sent_is_refused_for_processes():
    flow: Flow = evaluated_flow(lambda weights, seed: {"return": 1.0})
    with pytest.raises(FlowError, match=r"LV403.*\n?.*eval"):
        Processes(workers=1).open(flow)
    heard, _, _ = results(Inline(), evaluated_flow(lambda weights, seed: {"return": 1.0}, learner=SavedCounting()), 2)
    assert len(heard.found) == 1
