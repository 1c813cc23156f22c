"""Numbers in the state of a run: counts, and returns of episodes that no update has counted yet."""

import json
import math

import msgspec
import pytest

from levada.algorithms.dqn import DQN
from levada.flow import Episode, Flow, Header
from levada.rl.envs.task import Task
from levada.run.storage.state import pack, unpack
from levada.runners import Inline
from levada.schedule.snapshot import Uncounted


@pytest.fixture(scope="module")
def flow() -> Flow:
    hp = DQN(num_envs=2, hidden_sizes=(8,), learning_starts=32, batch_size=16, buffer_size=256, compile=False)
    return hp.flow(Task("CartPole-v1"))


def reopened(flow: Flow, episode: Episode):
    """The state of a run, saved and read, in which an episode is not counted yet."""
    with Inline().open(flow, seed=1) as run:
        next(iter(run))
        arrays, meta = pack(run.save(replays=True))
    header = Header({"policy": 0}, "step", 0, 1, num_env_steps=16, episodes=(episode,))
    meta = json.loads(json.dumps(meta))
    meta["schedule"]["replays"]["replay"]["uncounted"] = [msgspec.to_builtins(Uncounted(header))]
    return unpack(arrays, json.loads(json.dumps(meta)), arrays, flow)


@pytest.mark.parametrize("episode_return", [-1234.5, 0.0, 1e12])
def test_returns_of_uncounted_episodes_may_be_negative(flow, episode_return):
    state = reopened(flow, Episode(episode_return, 200))
    [uncounted] = state.schedule["replays"]["replay"]["uncounted"]
    assert uncounted["header"]["episodes"][0]["episode_return"] == episode_return
    with Inline().open(flow, seed=1, state=state) as run:
        next(iter(run))


@pytest.mark.parametrize(
    ("episode", "words"),
    [
        (Episode(math.nan, 1), "an episode has the return nan, expected a finite number"),
        (Episode(-math.inf, 1), "an episode has the return -inf, expected a finite number"),
        (Episode(1.0, -1), "it counts to -1"),
    ],
)
def test_other_numbers_are_refused(flow, episode, words):
    with pytest.raises(ValueError, match=words):
        reopened(flow, episode)
