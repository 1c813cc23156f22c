"""The end of a run with several learners: each stops at its own update, the same one in every deployment."""

import os
import signal
from dataclasses import replace

import pytest
from support.flows.two_trainers import CARTPOLES, DQN_SMALL, PPO_SMALL, RELAY, SMALL, isolated, two_trainers
from support.runs.saved import as_read

from levada.algorithms.impala import IMPALA
from levada.algorithms.multi_agent import multi_agent
from levada.flow import Goal, GoalReached
from levada.rl.envs.agents.task import MultiAgentTask
from levada.rl.envs.task import Task
from levada.run.storage.hashing import params_sha256
from levada.run.storage.state import check_fits
from levada.runners import Inline
from levada.runners.processes import Processes
from levada.runners.threads import Threads
from levada.testing import Recorder

STEPS = Goal(num_env_steps=500)
UPDATES = Goal(num_updates=9)
OTHERS = [
    Inline(adversary=1),
    Inline(adversary=2),
    Threads(workers=2),
    Processes(workers=2),
    Processes(workers=1, learner="worker"),
    Processes(workers=2, learners=1),
]


def at_end(flow, on, goal, state=None, kill_at=None):
    """Return the version and the hash of each policy's weights where a run ends, what it saves there, and its goal's part.

    `kill_at`: number of the report at which a worker is killed.
    """
    recorder = Recorder()
    with on.open(flow, seed=1, state=state, goal=goal, instruments=[recorder]) as run:
        for number, _ in enumerate(run):
            if number == kill_at:
                os.kill(run.worker_pids[0], signal.SIGKILL)
        found = {
            recipe.policy_name: (
                run.statistics().versions[recipe.policy_name],
                params_sha256(run.node_state(name).weights()),
            )
            for name, recipe in flow.learners().items()
        }
        saved = as_read(run.save(replays=True), flow)
        check_fits(flow, saved, 1, tables=True)
    [reached] = [event for event in recorder.events if isinstance(event, GoalReached)]
    return found, saved, reached.part


def three_trainers():
    """IMPALA with few updates, PPO with many, and DQN."""
    slow = IMPALA(shards=2, num_envs=4, num_steps=8, num_rollouts=10, order="admission", max_lag=0, **SMALL)
    task = MultiAgentTask(
        CARTPOLES.env, policies={"slow": ("agent_0", "agent_1"), "fast": ("agent_2",), "dqn": ("agent_3",)}
    )
    one = {"num_envs": 2}
    return multi_agent(
        task, {"slow": slow, "fast": replace(PPO_SMALL, **one, minibatch_size=16), "dqn": replace(DQN_SMALL, **one)}
    )


FLOWS = {"at once": two_trainers, "in turns": lambda: two_trainers(RELAY), "three": three_trainers}


@pytest.mark.parametrize("goal", [STEPS, UPDATES], ids=["steps", "updates"])
@pytest.mark.parametrize("make", FLOWS.values(), ids=FLOWS.keys())
def test_it_is_the_same_in_every_deployment(make, goal):
    expected, saved, part = at_end(make(), Inline(), goal)
    assert part == ("steps" if goal is STEPS else "updates")
    assert saved.is_exact
    for place in OTHERS if make is two_trainers else OTHERS[::2]:
        assert at_end(make(), place, goal)[0] == expected, place


@pytest.mark.parametrize("kill_at", [3, 20])
def test_it_is_the_same_if_a_worker_is_killed(kill_at):
    expected, _, _ = at_end(two_trainers(), Inline(), STEPS)
    assert at_end(two_trainers(), Processes(workers=2), STEPS, kill_at=kill_at)[0] == expected


def test_each_learner_stops_at_its_own_update():
    """PPO takes two rollouts of 8 x 2 steps for each update, in two environments at each of two shards."""
    found, _, _ = at_end(two_trainers(), Inline(), STEPS)
    alone, _, _ = at_end(two_trainers(), Inline(), replace(STEPS, num_env_steps=480))
    assert (found["ppo"][0], alone["ppo"][0]) == (16, 15)
    assert found["dqn"][0] > alone["dqn"][0]


@pytest.mark.parametrize("make", FLOWS.values(), ids=FLOWS.keys())
@pytest.mark.parametrize("goal", [Goal(num_env_steps=900), Goal(num_updates=15)], ids=["steps", "updates"])
def test_a_run_that_is_trained_on_ends_as_one_that_was_not_stopped(make, goal):
    expected, _, _ = at_end(make(), Inline(), goal)
    first, saved, _ = at_end(make(), Processes(workers=2), STEPS)
    assert saved.is_exact
    again, saved, _ = at_end(make(), Inline(), STEPS, saved)
    assert again == first, "it had ended"
    assert at_end(make(), Threads(workers=2), goal, saved)[0] == expected


def test_a_learner_whose_replay_is_being_filled_ends_without_an_update():
    flow = multi_agent(CARTPOLES, {"ppo": PPO_SMALL, "dqn": replace(DQN_SMALL, learning_starts=4000, buffer_size=4000)})
    for place in (Inline(), Processes(workers=2), Processes(workers=1, learner="worker")):
        found, _, _ = at_end(flow, place, STEPS)
        assert (found["ppo"][0], found["dqn"][0]) == (16, 0)


def test_a_run_of_learners_whose_replays_are_being_filled_ends_without_a_report():
    parts = {name: replace(DQN_SMALL, learning_starts=4000, buffer_size=4000) for name in ("ppo", "dqn")}
    for place in (Inline(), Processes(workers=1, learner="worker")):
        found, _, _ = at_end(multi_agent(CARTPOLES, parts), place, STEPS)
        assert [version for version, _ in found.values()] == [0, 0]


def test_a_single_learner_has_no_goal():
    """Its run ends where the caller says."""
    flow = replace(PPO_SMALL, shards=1).flow(Task("CartPole-v1"))
    with Inline().open(flow, goal=Goal(num_updates=1)) as run:
        assert [report.firing for report, _ in zip(run, range(3), strict=False)] == [1, 2, 3]


def test_a_learner_that_has_failed_does_not_keep_the_run_going():
    found, _, part = at_end(isolated(dqn=1e38), Inline(), STEPS)
    assert (found["ppo"][0], found["dqn"][0], part) == (16, 0, "steps")
