"""Learners in processes of their own: the bits of one learner, for any number, and whichever of them are killed."""

import os
import random
import signal
from threading import Timer

import numpy as np
import pytest
from support.processes import samples

from levada.algorithms.dqn import DQN
from levada.algorithms.impala import IMPALA
from levada.algorithms.ppo import PPO
from levada.flow import DeploymentError, Flow
from levada.flow.strays import StrayError
from levada.rl.envs.task import Task
from levada.run.storage.hashing import params_sha256
from levada.runners import Inline
from levada.runners.firing import IteratorEndedError
from levada.runners.processes import Processes
from levada.runners.workers import WorkerError

CARTPOLE = Task("CartPole-v1")
SMALL = {"hidden_sizes": (16,), "compile": False}


def ppo() -> Flow:
    return PPO(
        shards=4, num_envs=2, num_steps=8, minibatch_size=32, microbatch_size=8, num_epochs=2, max_lag=1, **SMALL
    ).flow(CARTPOLE)


def dqn() -> Flow:
    return DQN(
        shards=2, num_envs=2, num_steps=8, learning_starts=64, batch_size=16, microbatch_size=4, buffer_size=512,
        prioritized=True, **SMALL,
    ).flow(CARTPOLE)  # fmt: skip


def impala() -> Flow:
    return IMPALA(
        shards=4, num_envs=2, num_steps=8, num_rollouts=4, microbatch_size=16, max_lag=3, order="admission", **SMALL
    ).flow(CARTPOLE)


def learned(flow: Flow, on, num_updates: int = 5, state=None, on_report=lambda run, report: None):
    """Return the hash of the weights, the learner's state, and the saved run, after some updates."""
    with on.open(flow, seed=1, state=state) as run:
        for report in run:
            if report.firing == num_updates:
                learner = run.node_state("learn")
                assert all(channel.ledger.balanced for channel in run.statistics().channels.values())
                return params_sha256(learner.weights()), learner.state_dict(), run.save()
            on_report(run, report)
    raise AssertionError


def assert_equal(one, other) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)


@pytest.mark.parametrize("flow", [ppo(), dqn(), impala()], ids=["ppo", "dqn", "impala"])
@pytest.mark.parametrize(
    "on",
    [
        Processes(workers=2, learners=1),
        Processes(workers=2, learners=2, reduce="exact"),
        Processes(workers=1, learners=4, reduce="exact", replays="worker"),
    ],
    ids=str,
)
def test_any_number_of_learners_gives_the_same_bits(flow, on):
    _, state, _ = learned(flow, on)
    assert_equal(state, learned(flow, Inline())[1])


@pytest.mark.parametrize("flow", [ppo(), dqn(), impala()], ids=["ppo", "dqn", "impala"])
def test_with_allreduce_the_result_differs_by_rounding(flow):
    _, state, _ = learned(flow, Processes(workers=2, learners=2), 20)
    _, alone, _ = learned(flow, Inline(), 20)
    for name, array in alone.items():
        np.testing.assert_allclose(state[name], array, rtol=0, atol=1e-5, err_msg=name)


def test_killed_learners_are_replaced_and_every_update_counts_once():
    chance = random.Random(7)

    def kill(run, report):
        if report.firing % 2:
            os.kill(chance.choice(run.learner_place.pids), signal.SIGKILL)

    on = Processes(workers=1, learners=2, reduce="exact")
    _, state, _ = learned(ppo(), on, 16, on_report=kill)
    assert_equal(state, learned(ppo(), Inline(), 16)[1])


def test_a_learner_that_is_killed_in_the_middle_of_an_update():
    """A timer kills it, some time after each second report."""
    chance = random.Random(3)
    timers = []

    def kill_later(run, report):
        if report.firing % 2:
            pid = chance.choice(run.learner_place.pids)
            timers.append(Timer(chance.uniform(0.0, 0.1), os.kill, (pid, signal.SIGKILL)))
            timers[-1].start()
        else:
            timers[-1].join()

    hp = PPO(shards=2, num_envs=4, num_steps=64, minibatch_size=64, microbatch_size=16, num_epochs=4, **SMALL)
    flow = hp.flow(CARTPOLE)
    _, state, _ = learned(flow, Processes(workers=1, learners=2, reduce="exact"), 13, on_report=kill_later)
    assert_equal(state, learned(flow, Inline(), 13)[1])


def test_a_single_learner_that_is_killed_ends_the_run():
    def kill(run, report):
        os.kill(run.learner_place.pids[0], signal.SIGKILL)

    with pytest.raises(WorkerError, match=r"the process of the learner ended by SIGKILL; .* Resume the run"):
        learned(ppo(), Processes(workers=1, learners=1), on_report=kill)


def test_a_saved_run_moves_between_numbers_of_learners():
    flow = ppo()
    _, _, state = learned(flow, Processes(workers=1, learners=2, reduce="exact"), 3)
    assert state.is_exact, state.unsaved
    _, _, state = learned(flow, Inline(), 5, state)
    _, last, _ = learned(flow, Processes(workers=2, learners=4, reduce="exact"), 8, state)
    assert_equal(last, learned(flow, Inline(), 8)[1])


def test_more_learners_than_microbatches_are_refused_before_anything_starts():
    with pytest.raises(
        DeploymentError, match=r"learners=8 share the microbatches .* node 'learn' has 4; set microbatch_size"
    ):
        Processes(workers=1, learners=8).open(ppo())


def test_a_learner_that_cannot_be_divided_is_refused():
    with pytest.raises(
        DeploymentError, match=r"learners=2: the learner of node 'learn', a \w+, cannot share its batches"
    ):
        Processes(workers=1, learners=2).open(samples.counting_flow(samples.Numbers()))
    with Processes(workers=1, learners=1).open(samples.counting_flow(samples.Numbers()), seed=1) as run:
        assert next(iter(run)).firing == 1


@pytest.mark.parametrize(
    ("error", "expected", "words"),
    [
        (ArithmeticError("the third update"), ArithmeticError, "the third update"),
        (StopIteration(), IteratorEndedError, "node 'bad/learn' raised StopIteration"),
        (samples.Rude("at once"), StrayError, "at once"),
    ],
)
def test_an_error_of_one_learner_leaves_the_others_running(error, expected, words):
    """A run that fails is saved, and waits for the updates under way."""
    with Processes(workers=1, learners=1).open(samples.two_learners(error), seed=1) as run:
        with pytest.raises(expected, match=words):
            list(run)
        assert run.save().learners.keys() == {"bad/learn", "good/learn"}


def test_the_learners_error_comes_back_with_its_traceback_and_the_update_can_be_tried_again():
    hp = PPO(shards=4, num_envs=2, num_steps=8, minibatch_size=32, microbatch_size=8, learning_rate=1e30, **SMALL)
    with Processes(workers=1, learners=2, max_restarts=0).open(hp.flow(CARTPOLE), seed=1) as run:
        for _ in range(2):
            with pytest.raises(ArithmeticError, match="update 1 of policy 'policy' gave NaN or infinity") as caught:
                next(iter(run))
            assert any("in node 'learn' of flow 'ppo'" in note for note in caught.value.__notes__)
