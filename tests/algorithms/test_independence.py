"""What RLlib's multi-agent plans mix up is by policy: gradients, clocks, counters, checkpoints, metrics."""

import ast
import inspect
import json
from collections import Counter, defaultdict

import pytest
from support.envs.multi import CartPoles
from support.flows.two_trainers import CARTPOLES, DQN_SMALL, PPO_SMALL, two_trainers
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import levada as lv
from levada.algorithms.multi_agent import MultiAgent, multi_agent
from levada.flow import Published
from levada.run.storage.hashing import params_sha256
from levada.testing import Recorder


def test_an_update_changes_no_other_policy():
    """Parameters, targets and optimizers of each, before and after each update of the other."""
    hashes, changes = {}, defaultdict(Counter)
    with lv.Inline().open(two_trainers(), seed=1) as run:
        for name in ("ppo/learn", "dqn/learn"):
            hashes[name] = params_sha256(run.node_state(name).state_dict())
        for report in run:
            for name, before in list(hashes.items()):
                hashes[name] = params_sha256(run.node_state(name).state_dict())
                changes[report.node][name] += hashes[name] != before
            if min(changes["ppo/learn"].total(), changes["dqn/learn"].total()) >= 5:
                break
    assert set(changes["ppo/learn"]) == {"ppo/learn", "dqn/learn"}
    assert changes["ppo/learn"]["dqn/learn"] == changes["dqn/learn"]["ppo/learn"] == 0
    assert min(changes["ppo/learn"]["ppo/learn"], changes["dqn/learn"]["dqn/learn"]) >= 5


def test_a_policy_that_publishes_often_makes_no_items_of_another_older():
    """Ten publications of DQN to one of PPO: on one register PPO's lag would be up to 10."""
    ppo, dqn = (
        type(each)(**{**vars(each), "shards": 10, "num_envs": 2, **more})
        for each, more in ((PPO_SMALL, {"minibatch_size": 160}), (DQN_SMALL, {"samples_per_insert": 15.0}))
    )
    recorder = Recorder()
    with lv.Inline().open(multi_agent(CARTPOLES, {"ppo": ppo, "dqn": dqn}), seed=1, instruments=[recorder]) as run:
        for report in run:
            if (report.node, report.firing) == ("ppo/learn", 8):
                break
        statistics = run.statistics()
    published = Counter(event.register for event in recorder.of(Published))
    assert published["dqn/weights"] >= 10 * published["ppo/weights"]
    lag = statistics.channels["ppo/gae->ppo/batch"].lag
    assert lag.keys() == {"ppo"}
    assert (lag["ppo"].max, lag["ppo"].count) == (0, 80)


def test_the_composition_is_short():
    """What is there beyond the two sub-flows, without the signature and the docstring."""
    [function] = ast.parse(inspect.getsource(multi_agent)).body
    assert len(ast.unparse(function.body[1:]).splitlines()) <= 20


TWICE = MultiAgent(
    policy=("one=dqn:agent_0,agent_1", "two=dqn:agent_2,agent_3"), num_envs=2, num_steps=8,
    policy_kwargs={
        f"{name}.{key}": value
        for name, batch_size in (("one", 16), ("two", 32))
        for key, value in {
            "hidden_sizes": (8,), "compile": False, "learning_starts": 64, "batch_size": batch_size,
            "samples_per_insert": 8.0, "target_update_interval": 3,
        }.items()
    },
)  # fmt: skip
"""One algorithm twice, so that every name would be there twice."""


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    path = tmp_path_factory.mktemp("independence") / "run"
    return lv.train(TWICE, CartPoles, until="steps=600", seed=1, out=path, display="quiet")


def test_counters_are_by_policy(twice):
    """Env steps are those of the environment, which both policies share; updates are those of each."""
    summary = twice.summary
    one, two = (summary.policies[name].updates for name in ("one", "two"))
    assert one == pytest.approx(2 * two, abs=4)  # with half its batch size
    assert summary.updates == max(one, two)
    for name, batch_size in (("one", 16), ("two", 32)):
        replay = summary.replays[f"{name}/replay"]
        assert replay.sampled == summary.policies[name].updates * 8 * batch_size
        assert replay.inserted <= 2 * summary.env_steps  # two agents each, until their poles fall
        assert twice.policies[name].version == summary.policies[name].updates


def test_metrics_of_two_learners_never_collide(twice):
    lines = [json.loads(line) for line in (twice.path / "metrics.jsonl").read_text().splitlines()]
    names = {name for line in lines for name in line} - {"step"}
    own = [{name.removeprefix(f"{policy}/") for name in names if name.startswith(policy)} for policy in ("one", "two")]
    assert own[0] == own[1]
    assert {"losses/td_loss", "losses/q_values", "charts/episodic_return", "charts/updates"} <= own[0]
    assert not any("loss" in name for name in names if not name.startswith(("one/", "two/")))
    tags = EventAccumulator(str(twice.path)).Reload().Tags()["scalars"]
    assert set(tags) == names
    assert lines[-1]["one/charts/updates"] != lines[-1]["two/charts/updates"]


def test_checkpoints_hold_every_policy(twice):
    loaded = lv.load(twice.path, env=CartPoles)
    assert loaded.policies.keys() == {"one", "two"}
    found = {name: params_sha256(policy.weights) for name, policy in loaded.policies.items()}
    assert found == {name: params_sha256(policy.weights) for name, policy in twice.policies.items()}
    assert len(set(found.values())) == 2
    evaluated = lv.evaluate_policies(loaded, num_episodes=2)
    assert {name: len(each.returns) for name, each in evaluated.items()} == {"one": 4, "two": 4}
