"""Two learners over one replay, with an exact ratio between their updates: 50 of a critic to 3 of an actor, as in ArCHer
(Zhou et al. 2024, arXiv 2402.19446).
"""

from collections import Counter

import pytest
from support.processes.replays import Mixer, Rows
from support.runs.saved import as_read

from levada.flow import Flow, Prioritized
from levada.rl.replay.transitions import Transitions
from levada.runners import Inline
from levada.runners.processes import Processes
from levada.schedule.turns import Turns


def actor_and_critic(*, actor: int = 3, critic: int = 50, prioritized: bool = True, every: int = 1) -> Flow:
    """Only the actor's weights are read by the source."""
    flow, learners = Flow("archer"), {"actor": Mixer(policy_name="actor"), "critic": Mixer(policy_name="critic")}
    weights = flow.latest("weights", of=learners["actor"])
    rows = flow.source("rows", Rows(), reads=weights, shards=2)
    replay = flow.replay(
        "replay", of=Transitions, capacity=40, min_size=8, samples_per_insert=12.0,
        sampler=Prioritized() if prioritized else "uniform",
    )  # fmt: skip
    flow.store(rows, to=replay)
    for name, share, size in (("critic", critic, 4), ("actor", actor, 6)):
        with flow.scope(name):
            update = flow.learn("learn", learners[name], flow.sample("sample", replay, size=size, share=share))
            if name == "actor":
                flow.publish(update.weights, to=weights, every=every)
            if prioritized:
                flow.reprioritize(update.priorities, of=replay)
            flow.report(update.stats)
    return flow


def history(flow, on, num_reports, state=None, save_at=None):
    """Return which learner made each update and what its weights were then, and what was saved."""
    found, saved = [], None
    with on.open(flow, seed=1, state=state) as run:
        for report in run:
            found.append((report.node, report.firing, report.values["w"]))
            if len(found) == save_at:
                saved = as_read(run.save())
            if len(found) == num_reports:
                break
        assert all(replay.ledger.balanced for replay in run.statistics().replays.values())
        reuse = run.statistics().replays["replay"].reuse
    return found, saved, reuse


def test_fifty_to_three_is_counted_exactly():
    flow = actor_and_critic()
    assert not flow.check(reproducible=True)
    found, _, reuse = history(flow, Inline(), 4 * 53)
    for start in range(4 * 53 - 53):
        assert Counter(node for node, _, _ in found[start : start + 53]) == {"critic/learn": 50, "actor/learn": 3}
    assert reuse == pytest.approx(12.0, rel=0.05)


@pytest.mark.parametrize("options", [{}, {"prioritized": False, "actor": 2, "critic": 3, "every": 2}], ids=str)
def test_it_is_the_same_under_processes_and_resumed_after_any_update(options):
    flow = actor_and_critic(**options)
    expected, _, _ = history(flow, Inline(), 110)
    assert history(flow, Inline(adversary=3), 110)[0] == expected
    assert history(flow, Processes(workers=2), 110)[0] == expected
    for save_at in (1, 9, 17, 18, 35, 53, 60):
        before, state, _ = history(flow, Inline(), save_at, save_at=save_at)
        assert state.is_exact, (save_at, state.unsaved)
        after, _, _ = history(flow, Inline(), 110 - save_at, state=state)
        assert before + after == expected, save_at


def test_without_shares_timing_decides():
    flow = actor_and_critic(actor=None, critic=None)
    assert [problem.code for problem in flow.problems(reproducible=True)] == ["LV402"]


def test_turns_of_three_are_exact_after_each_round():
    turns = Turns({"a": 10, "b": 4, "c": 6})
    for length in (10, 20, 1000):
        counted = Counter(turns.of(number) for number in range(length))
        assert counted == {"a": length // 2, "b": length // 5, "c": 3 * length // 10}
        assert all(turns.num_before(name, length) == num for name, num in counted.items())


@pytest.mark.parametrize("share", [0, -3, 1.5, True])
def test_a_share_is_a_positive_integer(share):
    with pytest.raises(ValueError, match=r"'sample': share="):
        actor_and_critic(critic=share)
