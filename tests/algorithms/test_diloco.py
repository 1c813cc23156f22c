"""Groups that average: equal to the mean of parameters, the same under every deployment, exact after a resume; and settings."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest
from torch import nn

import levada as lv
from levada.algorithms.checks import ConfigError
from levada.algorithms.diloco import DiLoCo
from levada.algorithms.dqn import DQN
from levada.algorithms.groups import LARGEST_REPLAY, Group, LiveGroup
from levada.algorithms.impala import IMPALA
from levada.algorithms.ppo import PPO
from levada.algorithms.presets import PRESETS
from levada.algorithms.sac import SAC
from levada.api.memory import estimate
from levada.flow import NotSavedError, Shard
from levada.rl.envs.task import Task
from levada.rl.learning.averaging import APPLIED, PARAMS, Averaging, moments_in
from levada.run.monitor import Monitor
from levada.run.storage.hashing import params_sha256
from levada.runners.inline import Inline
from levada.runners.processes import Processes
from levada.runners.threads import Threads

CARTPOLE, PENDULUM = Task("CartPole-v1"), Task("Pendulum-v1")
REPLAYED: dict[str, Any] = {
    "num_envs": 2, "num_steps": 4, "learning_starts": 40, "batch_size": 8, "num_gradient_steps": 2, "samples_per_insert": 4.0,
    "hidden_sizes": (8,), "buffer_size": 400,
}  # fmt: skip
SMALL_DQN = DQN(**REPLAYED, target_update_interval=3)
SMALL_SAC = SAC(**REPLAYED, normalize_obs=True, normalize_reward=True)
SMALL_PPO = PPO(num_envs=2, num_steps=16, num_epochs=2, minibatch_size=16, hidden_sizes=(8,), normalize_obs=True)
CASES = [(SMALL_DQN, CARTPOLE), (SMALL_SAC, PENDULUM), (SMALL_PPO, CARTPOLE)]


def groups_of(run: Any) -> list[LiveGroup]:
    return run.node_state("group")


def params_of(learner: Any) -> np.ndarray:
    return learner.state_dict()[PARAMS]


def run(
    hp: DiLoCo, task: Task, *, on: Any = None, rounds: int = 4, state: Any = None, kill_at: int | None = None
) -> tuple[Monitor, str, Any]:
    """Counts, hash of the global weights, and the saved state after some rounds."""
    monitor = Monitor()
    with (on or Inline()).open(hp.flow(task), seed=1, instruments=[monitor], state=state, save_every=2) as opened:
        for report in opened:
            if report.firing == kill_at:
                os.kill(opened.worker_pids[0], signal.SIGKILL)
            if report.versions["policy"] == rounds:
                break
        return monitor, params_sha256(opened.node_state("learn").weights()), opened.save()


@pytest.mark.parametrize(("of", "task"), CASES, ids=["dqn", "sac", "ppo"])
def test_with_one_local_update_it_is_the_mean_of_the_parameters(of: Any, task: Task) -> None:
    flow = DiLoCo(of=of, num_groups=3, num_local_updates=1).flow(task)
    with Inline().open(flow, seed=1) as opened:
        for report in opened:
            own = [params_of(group.learner) for group in groups_of(opened)]
            assert len({params.tobytes() for params in own}) == 3  # each has learned from data of its own
            found = params_of(opened.node_state("learn"))
            np.testing.assert_allclose(found, np.mean(own, axis=0), rtol=1e-5, atol=1e-6)
            if report.firing == 5:
                break


@pytest.mark.parametrize(("of", "task"), CASES, ids=["dqn", "sac", "ppo"])
def test_samplers_and_learner_of_a_group_start_from_the_global_weights(of: Any, task: Task) -> None:
    hp = DiLoCo(of=of, num_groups=2, num_local_updates=2)
    averaging = hp.flow(task).learners()["learn"].open(1)
    group = Group(algorithm=of, task=task, num_updates=2)(Shard("group", 0, 2, 5))
    try:
        delta = group(averaging.weights())
        averaging.update([delta])
        weights = averaging.weights()
        state = group._start(weights)
        assert np.array_equal(state[PARAMS], params_of(averaging))
        read = group._run.transport._weights["weights"].read(None)[1]
        assert all(np.array_equal(array, weights[name]) for name, array in read.items())
        assert {key: total.count for key, total in moments_in(state).items()} == {
            key: total.count for key, total in moments_in(averaging.state_dict()).items()
        }
    finally:
        group.close()


def test_progress_that_is_not_yet_global_is_kept() -> None:
    averaging = Averaging(learner=DiLoCo(of=SMALL_DQN).flow(CARTPOLE).learners()["learn"].learner, num_groups=2).open(1)
    first, start = averaging.weights(), params_of(averaging)
    group = Group(algorithm=SMALL_DQN, task=CARTPOLE, num_updates=2)(Shard("group", 1, 2, 5))
    try:
        deltas = [group(first).message["values"] for _ in range(2)]
        np.testing.assert_allclose(params_of(group.learner), start + deltas[0] + deltas[1], atol=1e-5)
        state = group._start({**first, APPLIED: np.array([0, 1])})  # as if the first had been averaged, with no effect
        np.testing.assert_allclose(state[PARAMS], start + deltas[1], atol=1e-6)
    finally:
        group.close()


@pytest.mark.parametrize(
    "hp",
    [
        DiLoCo(of=SMALL_DQN, num_groups=3, num_local_updates=2),
        DiLoCo(of=SMALL_SAC, num_groups=2, num_local_updates=2, compression="int8", outer_momentum=0.5),
        DiLoCo(of=SMALL_PPO, num_groups=3, num_local_updates=1, round_size=2, max_lag=2, compression="top_k"),
    ],
    ids=["dqn", "sac int8", "ppo 2 of 3"],
)
def test_it_is_the_same_under_every_deployment_and_after_a_resume(hp: DiLoCo) -> None:
    task = PENDULUM if hp.of == "sac" else CARTPOLE
    monitor, expected, _ = run(hp, task)
    assert monitor.env_steps > 0
    places = [Threads(workers=2)] if hp.of == "dqn" else [Inline(adversary=3)]
    for place in (*places, Processes(workers=2)):
        other, found, _ = run(hp, task, on=place)
        assert found == expected, place
        assert other.env_steps == monitor.env_steps
    *_, state = run(hp, task, rounds=2, on=None if hp.of == "dqn" else Processes(workers=2))
    assert state.is_exact
    assert run(hp, task, state=state)[1] == expected


def test_a_group_resumes_when_its_worker_is_killed() -> None:
    hp = DiLoCo(of=SMALL_PPO, num_groups=2, num_local_updates=2)
    assert run(hp, CARTPOLE, on=Processes(workers=2), kill_at=2)[1] == run(hp, CARTPOLE)[1]


@pytest.mark.parametrize("adversary", range(4))
def test_in_arrival_order_no_group_counts_twice(adversary: int) -> None:
    """The averaging learner raises an error if one did."""
    hp = DiLoCo(of=SMALL_PPO, num_groups=4, round_size=2, max_lag=3, num_local_updates=1, order="arrival")
    flow = hp.flow(CARTPOLE)
    assert str(flow.bounds()[0]) == "group->batch: 4 tickets, 2 per update, window 5, lag <= 3 of policy"
    with Inline(adversary=adversary).open(flow, seed=1) as opened:
        for report in opened:
            if report.firing == 20:
                break
        [channel] = opened.statistics().channels.values()
    assert 0 < channel.lag["policy"].max <= 3


@pytest.mark.parametrize(("num_items", "number"), [(7, 8), (9, 10)])
def test_a_group_that_starts_over_goes_on_from_the_global_parameters(num_items: int, number: int) -> None:
    """Two of the nine items of its predecessor may not be applied yet; their numbers are not used again."""
    averaging = DiLoCo(of=SMALL_DQN).flow(CARTPOLE).learners()["learn"].open(1)
    weights = {**averaging.weights(), APPLIED: np.array([7, 0])}
    shard = Shard("group", 0, 2, 5, generation=1, num_items=num_items)
    group = Group(algorithm=SMALL_DQN, task=CARTPOLE, num_updates=1)(shard)
    try:
        assert group(weights).number == number
    finally:
        group.close()


def test_a_state_of_something_else_is_refused_and_a_large_replay_left_out(monkeypatch, caplog) -> None:
    weights = DiLoCo(of=SMALL_DQN).flow(CARTPOLE).learners()["learn"].open(1).weights()
    group = Group(algorithm=SMALL_DQN, task=CARTPOLE, num_updates=1)(Shard("group", 0, 2, 5))
    other = Group(algorithm=SMALL_PPO, task=CARTPOLE, num_updates=1)(Shard("group", 0, 2, 5))
    try:
        with pytest.raises(NotSavedError, match="its state is not that of a group of 'ppo'"):
            other.load_state_dict(group.state_dict())
        group(weights)
        assert any("replays/" in name for name in group.state_dict())
        monkeypatch.setattr("levada.algorithms.groups.LARGEST_REPLAY", 10)
        state = group.state_dict()
        assert not any("replays/" in name for name in state)
        group.load_state_dict(state)
        assert "group 0 goes on, but starts over in: replay" in caplog.text
        assert group(weights).num_env_steps >= 40  # the replay is filled again
    finally:
        group.close()
        other.close()
    assert LARGEST_REPLAY == 1 << 26


class BatchNormNet(nn.Module):
    def __init__(self, space: Any, num_params: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(space.shape[0], 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, num_params)
        )
        self.value = nn.Linear(space.shape[0], 1)

    def forward(self, obs: Any) -> Any:
        return self.layers(obs), self.value(obs)[:, 0]


def test_networks_with_running_statistics_are_refused() -> None:
    of = PPO(num_envs=2, num_steps=16, minibatch_size=16, network=BatchNormNet, compile=False)
    with (
        Inline(max_restarts=0).open(DiLoCo(of=of).flow(CARTPOLE), seed=1) as opened,
        pytest.raises(ConfigError, match=r"has changed its buffer '.*running_mean' in an update"),
    ):
        next(iter(opened))


def test_dqn_in_two_groups_learns_cartpole() -> None:
    hp = DiLoCo(of="dqn", num_groups=2, num_local_updates=20, compression="int8").with_presets("CartPole-v1")
    monitor = Monitor(target_return=130.0)  # a random policy has 22
    share = 0.0
    with Inline().open(hp.flow(CARTPOLE), seed=1, instruments=[monitor]) as opened:
        for report in opened:
            share = report.values["averaging/num_bytes"] / report.values["averaging/num_bytes_uncompressed"]
            if monitor.solved_at_s is not None or monitor.env_steps > 80_000:
                break
    assert monitor.solved_at_s is not None
    assert 0.25 < share < 0.26


def test_a_run_is_trained_loaded_evaluated_resumed_and_repeated(tmp_path) -> None:
    fields = {"of": SMALL_SAC, "num_local_updates": 2, "compression": "top_k", "display": "quiet"}
    first = lv.train(DiLoCo, "Pendulum-v1", until="updates=2", out=tmp_path / "run", **fields)
    loaded = lv.load(tmp_path / "run")
    assert all(np.array_equal(first.policy.weights[name], array) for name, array in loaded.policy.weights.items())
    assert len(lv.evaluate(loaded, num_episodes=1).episodes) == 1
    again = lv.resume(tmp_path / "run", until="updates=4", display="quiet")
    told = {**lv.settings(tmp_path / "run"), "until": "updates=4"}
    assert told["algorithm"].algorithm == SMALL_SAC
    repeated = lv.train(**told, out=tmp_path / "again", display="quiet")
    assert repeated.summary.params_sha256 == again.summary.params_sha256
    started = lv.train(
        SMALL_SAC,
        "Pendulum-v1",
        init_from=tmp_path / "run",
        until="updates=1",
        out=tmp_path / "single",
        display="quiet",
    )
    assert started.summary.updates == 1


def test_the_estimate_of_memory_counts_the_replays_of_all_groups() -> None:
    needs = estimate(DiLoCo(of=SMALL_DQN, num_groups=3).flow(CARTPOLE), Inline())
    single = estimate(SMALL_DQN.flow(CARTPOLE), Inline())
    assert needs["400 entries of 'replay' in 3 groups"] == 3 * single["400 entries of 'replay'"] > 0


# ---- settings


def test_an_algorithm_is_given_by_name_or_as_a_configuration() -> None:
    assert DiLoCo(of=SMALL_DQN).algorithm == SMALL_DQN
    by_name = DiLoCo(of="dqn", of_kwargs={"hidden_sizes": [8, 8], "learning_rate": 1})
    assert by_name.algorithm == DQN(hidden_sizes=(8, 8), learning_rate=1.0)
    assert DiLoCo(of=IMPALA(num_envs=3)).of == "impala"


def test_the_preset_of_the_algorithm_sets_what_is_not_given() -> None:
    preset = PRESETS["dqn"]["CartPole-v1"]
    hp = DiLoCo(of="dqn", of_kwargs={"learning_rate": 0.5}).with_presets("CartPole-v1")
    assert hp.algorithm == DQN(**{**preset, "learning_rate": 0.5})
    assert hp.annealed_over == {"learning_rate": 2 * preset["anneal_steps"]}
    assert DiLoCo(of=SMALL_DQN).with_presets("CartPole-v1").algorithm == SMALL_DQN


@pytest.mark.parametrize(("fields", "words"), [
    ({"of": "dqm"}, "no algorithm 'dqm'; did you mean 'dqn'"),
    ({"of": 3}, r"DiLoCo\(of=3\): expected a name"),
    ({"of": "diloco"}, "groups of groups are not supported"),
    ({"of_kwargs": {"gamma": 0.9}}, "DQN has no field 'gamma': here it is 'discount'"),
    ({"of_kwargs": {"batch_size": 0}}, r"DQN\(batch_size=0\): expected an integer >= 1"),
    ({"of_kwargs": {"hidden_sizes": "wide"}}, r"DQN\(hidden_sizes='wide'\)"),
    ({"of_kwargs": 3}, r"DiLoCo\(of_kwargs=3\): expected a mapping"),
    ({"round_size": 3}, r"DiLoCo\(round_size=3\): expected at most num_groups=2"),
    ({"outer_momentum": 1.0}, r"DiLoCo\(outer_momentum=1.0\): expected a number below 1"),
    ({"compression": "int4"}, r"DiLoCo\(compression='int4'\)"),
])  # fmt: skip
def test_settings_that_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        DiLoCo(**fields)
