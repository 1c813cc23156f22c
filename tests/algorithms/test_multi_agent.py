"""Several algorithms in one environment: the sub-flows of single agents, each with its own clock."""

import numpy as np
import pytest
from support.envs.multi import Relay
from support.flows.two_trainers import CARTPOLES, DQN_SMALL, PPO_SMALL, RELAY, learned_by_each, two_trainers
from support.runs.saved import as_read, learned

from levada.algorithms.checks import ConfigError
from levada.algorithms.dqn import DQN
from levada.algorithms.impala import IMPALA
from levada.algorithms.multi_agent import multi_agent
from levada.algorithms.ppo import PPO
from levada.algorithms.r2d2 import R2D2
from levada.algorithms.sac import SAC
from levada.rl.envs.agents.task import MultiAgentTask
from levada.rl.envs.task import Task, TaskError
from levada.run.storage.hashing import params_sha256
from levada.runners import Inline
from levada.runners.processes import Processes


@pytest.mark.parametrize("algorithm", [PPO, DQN, SAC, IMPALA])
def test_a_single_agent_and_several_have_the_same_sub_flow(algorithm, monkeypatch):
    """The very functions, and the nodes that they make."""
    called = []
    for name in ("part", "updates"):
        real = getattr(algorithm, name)
        monkeypatch.setattr(
            algorithm, name, lambda *args, real=real, **kwargs: called.append(real) or real(*args, **kwargs)
        )
    settings = algorithm(num_envs=4, num_steps=64, compile=False)
    single = settings.flow(Task("CartPole-v1"))
    alone, called[:] = list(called), []
    other = (PPO if algorithm is DQN else DQN)(num_envs=4, num_steps=64)
    together = multi_agent(CARTPOLES, {"ppo": settings, "dqn": other})
    assert called == alone
    behind = [name for name, node in single.nodes.items() if node.kind != "source"]
    assert [name for name in together.nodes if name.startswith("ppo/")] == [f"ppo/{name}" for name in behind]


@pytest.mark.parametrize("task", [CARTPOLES, RELAY], ids=["at once", "in turns"])
@pytest.mark.parametrize("kill_after", [None, 3])
def test_processes_make_the_bits_of_inline(task, kill_after):
    flow = two_trainers(task)
    expected, _, _ = learned_by_each(flow, Inline())
    found, _, statistics = learned_by_each(two_trainers(task), Processes(workers=2), kill_after=kill_after)
    assert two_trainers(task).hash() == flow.hash()
    assert found == expected
    assert all(channel.ledger.balanced for channel in statistics.channels.values())


MOMENTS = {
    CARTPOLES: [("ppo", 3), ("dqn", 3), ("ppo", 8), ("dqn", 8)],
    RELAY: [("ppo", 3), ("dqn", 1), ("ppo", 30), ("dqn", 2)],
}
"""Where a run is saved: after which update of which policy."""
END = {CARTPOLES: {"ppo": 20, "dqn": 12}, RELAY: {"ppo": 50, "dqn": 3}}


def saved_after(flow, on, policy, num_updates, state=None):
    """Return what a run saves when it reports an update, as it is read from a file."""
    with on.open(flow, seed=1, state=state) as run:
        for report in run:
            assert report.firing <= 100, "the update was before"
            if (report.node, report.firing) == (f"{policy}/learn", num_updates):
                return as_read(run.save(replays=True), flow)
    raise AssertionError


def ended(flow, on, end, state=None):
    """Return the hash of each policy's weights after an update of each, and the run's statistics there."""
    weights = {}
    with on.open(flow, seed=1, state=state) as run:
        for report in run:
            name = report.node.partition("/")[0]
            if report.firing == end[name]:
                weights[name] = params_sha256(run.node_state(report.node).weights())
                if len(weights) == len(end):
                    return weights, run.statistics()
    raise AssertionError


@pytest.mark.parametrize("task", [CARTPOLES, RELAY], ids=["at once", "in turns"])
@pytest.mark.parametrize("before", [Inline(), Processes(workers=2)], ids=str)
def test_it_is_saved_and_resumed_bit_for_bit(task, before):
    """Each policy continues from its own first item, although one source serves both."""
    flow, end = two_trainers(task), END[task]
    expected, undisturbed = ended(flow, Inline(), end)
    for number, moment in enumerate(MOMENTS[task]):
        state = saved_after(flow, before, *moment)
        assert state.is_exact, (moment, state.unsaved)
        found, statistics = ended(flow, (Inline(), Processes(workers=2))[number % 2], end, state)
        assert found == expected, moment
        assert all(channel.ledger.balanced for channel in statistics.channels.values())
        assert all(replay.ledger.balanced for replay in statistics.replays.values())
        for name, channel in statistics.channels.items():
            assert channel.lag["ppo"].max == undisturbed.channels[name].lag["ppo"].max


def test_it_is_saved_again_and_again():
    flow, end, state = two_trainers(), END[CARTPOLES], None
    expected, _ = ended(flow, Inline(), end)
    for number, moment in enumerate([("ppo", 3), ("dqn", 4), ("ppo", 10), ("dqn", 10)]):
        state = saved_after(flow, (Inline(), Processes(workers=2))[number % 2], *moment, state)
        assert state.is_exact, (moment, state.unsaved)
    assert ended(flow, Inline(), end, state)[0] == expected


def test_each_policy_has_its_own_clock():
    """On one register, PPO's items would seem to be as old as DQN has published since."""
    dqn = DQN(**{**vars(DQN_SMALL), "samples_per_insert": 16.0, "batch_size": 4})
    with Inline().open(multi_agent(CARTPOLES, {"ppo": PPO_SMALL, "dqn": dqn}), seed=1) as run:
        for report in run:
            if report.node == "ppo/learn" and report.firing == 12:
                break
        statistics = run.statistics()
        versions = report.versions
    assert versions["dqn"] >= 10 * versions["ppo"]
    assert statistics.channels["ppo/gae->ppo/batch"].lag["ppo"].max == 0


def test_a_policy_learns_the_same_beside_one_that_learns_faster():
    """Targets, gradients and counters of PPO are none of DQN's business, apart from the environment that they share."""
    one, other = (
        multi_agent(CARTPOLES, {"ppo": PPO_SMALL, "dqn": DQN(**{**vars(DQN_SMALL), "learning_starts": start})})
        for start in (64, 512)
    )
    assert learned(one, Inline(), "ppo/learn", 5) == learned(other, Inline(), "ppo/learn", 5)


def test_each_target_network_has_its_own_interval():
    """In RLlib, two of them in one plan share a clock."""
    every = {"ppo": 3, "dqn": 5}
    algorithms = {
        name: DQN(**{**vars(DQN_SMALL), "target_update_interval": interval * DQN_SMALL.num_gradient_steps})
        for name, interval in every.items()
    }
    targets = {name: [] for name in every}
    with Inline().open(multi_agent(CARTPOLES, algorithms), seed=1) as run:
        for report in run:
            name = report.node.partition("/")[0]
            state = run.node_state(report.node).state_dict()
            target = {key: array.copy() for key, array in state.items() if "target" in key}
            assert target
            targets[name].append(params_sha256(target))
            if all(len(each) >= 20 for each in targets.values()):
                break
    for name, interval in every.items():
        changes = [n for n, (one, two) in enumerate(zip(targets[name], targets[name][1:], strict=False)) if one != two]
        assert np.all(np.diff(changes) == interval), (name, changes)


def test_a_failure_names_its_policy():
    flow = multi_agent(CARTPOLES, {"ppo": PPO_SMALL, "dqn": DQN(**{**vars(DQN_SMALL), "learning_rate": 1e38})})
    with pytest.raises(ArithmeticError, match=r"of policy 'dqn' gave NaN or infinity") as caught:
        list(flow.run(on=Inline(), seed=1))
    assert any("in node 'dqn/learn'" in note for note in caught.value.__notes__)


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        (PPO, r"policy 'ppo': got PPO, expected an algorithm .*; did you mean PPO\(\.\.\.\)\?"),
        (
            "ppo",
            r"policy 'ppo': got 'ppo', expected an algorithm that trains one policy, such as levada\.PPO\(\.\.\.\)$",
        ),
        (
            PPO(num_groups=2),
            r"PPO has a source of its own here, in which no other policy acts; expected num_groups=1, got 2",
        ),
    ],
)
def test_what_cannot_be_one_of_several_is_refused(algorithm, said):
    with pytest.raises(ConfigError, match=said):
        multi_agent(CARTPOLES, {"ppo": algorithm, "dqn": DQN_SMALL})


@pytest.mark.parametrize(
    ("algorithm", "what"),
    [
        (R2D2(), "recurrent layers"),
        (DQN(normalize_reward=True), "normalize_reward"),
    ],
)
def test_what_a_replay_lacks_for_agents_in_turns_is_told_before_anything_starts(algorithm, what):
    task = MultiAgentTask(Relay)
    flow = multi_agent(task, {"policy": algorithm.__class__(**{**vars(algorithm), "num_envs": 3})})
    with pytest.raises(
        TaskError, match=f"policy 'policy': the agents of Relay act in turns; expected no {what}, which"
    ):
        flow.check()


@pytest.mark.parametrize(
    ("task", "algorithms", "on_failure", "said"),
    [
        (
            "openspiel:kuhn_poker",
            {"a": PPO()},
            "stop",
            "task is 'openspiel:kuhn_poker', expected a levada.MultiAgentTask",
        ),
        (Task("CartPole-v1"), {"a": PPO()}, "stop", "expected a levada.MultiAgentTask"),
        (CARTPOLES, [PPO()], "stop", "expected one for each policy"),
        (
            CARTPOLES,
            {"a": PPO(), "dqn": DQN()},
            "stop",
            "algorithms of a, dqn; expected one for each policy of the task: ppo, dqn",
        ),
        (CARTPOLES, {"ppo": PPO(num_envs=2), "dqn": DQN()}, "stop", "multi_agent: .*num_"),
        (CARTPOLES, {"a": PPO()}, "isolat", "on_failure is 'isolat', expected 'stop' or 'isolate'"),
    ],
)
def test_arguments_of_another_type_are_refused(task, algorithms, on_failure, said):
    with pytest.raises(ConfigError, match=said):
        multi_agent(task, algorithms, on_failure=on_failure)


def test_policies_with_other_numbers_of_shards_are_refused():
    with pytest.raises(ConfigError, match=r"expected the same shards, got ppo: 2, dqn: 1"):
        multi_agent(CARTPOLES, {"ppo": PPO_SMALL, "dqn": DQN(**{**vars(DQN_SMALL), "shards": 1})})
