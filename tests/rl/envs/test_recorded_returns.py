"""Returns without shaping, which environments report by Gymnasium's RecordEpisodeStatistics."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics
from gymnasium.wrappers.vector import RecordEpisodeStatistics as RecordVectorStatistics

import levada as lv
from levada.algorithms.ppo import PPO
from levada.cli import main
from levada.flow.events import Used
from levada.flow.items import Episode, Header
from levada.rl.envs.batch import EnvBatch
from levada.rl.envs.making import Vectorization
from levada.rl.envs.rewards_and_dones import recorded_returns
from levada.rl.envs.serial import SerialVectorEnv
from levada.rl.envs.task import Task
from levada.run.monitor import Monitor
from levada.run.until import Until


class Shaped(gymnasium.RewardWrapper[Any, Any]):
    """Three points more in each step."""

    def reward(self, reward: SupportsFloat) -> SupportsFloat:
        return float(reward) + 3.0


def make_shaped(env_id: str = "CartPole-v1") -> gymnasium.Env[Any, Any]:
    return Shaped(RecordEpisodeStatistics(gymnasium.make(env_id, disable_env_checker=True)))


def make_plain() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1", disable_env_checker=True)


def sync(mode: AutoresetMode) -> Callable[[], Any]:
    return lambda: SyncVectorEnv([make_shaped] * 3, autoreset_mode=mode)


KINDS: dict[str, Callable[[], Any]] = {
    "serial": lambda: SerialVectorEnv([make_shaped() for _ in range(3)]),
    "async": lambda: AsyncVectorEnv([make_shaped] * 3, autoreset_mode=AutoresetMode.SAME_STEP),
    **{mode.name: sync(mode) for mode in AutoresetMode},
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_returns_of_the_inner_environment_are_reported_where_episodes_end(kind: str) -> None:
    raw, num_ended = np.zeros(3), 0
    with EnvBatch(KINDS[kind]()) as envs:
        envs.reset(seed=1)
        for step in range(120):
            result = envs.step(np.array([0, 1, step % 2]))
            raw += np.where(result.is_reset, 0.0, result.reward - 3.0)
            if not result.is_over.any():
                assert result.recorded_return is None
                continue
            np.testing.assert_array_equal(result.recorded_return, np.where(result.is_over, raw, np.nan))
            num_ended += int(result.is_over.sum())
            raw[result.is_over] = 0.0
    assert num_ended > 20


def test_those_of_a_vector_environment_too() -> None:
    inner = gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="vector_entry_point")
    with EnvBatch(RecordVectorStatistics(inner)) as envs:
        envs.reset(seed=1)
        raw, num_ended = np.zeros(3), 0
        for _ in range(60):
            result = envs.step(np.array([0, 1, 0]))
            raw += np.where(result.is_reset, 0.0, result.reward)
            if result.is_over.any():
                np.testing.assert_array_equal(result.recorded_return, np.where(result.is_over, raw, np.nan))
                num_ended += 1
                raw[result.is_over] = 0.0
    assert num_ended > 10


def test_what_environments_report_comes_before_a_wrapper_around_all_of_them() -> None:
    with EnvBatch(RecordVectorStatistics(sync(AutoresetMode.SAME_STEP)())) as envs:
        envs.reset(seed=1)
        results = [envs.step(np.array([0, 0, 0])) for _ in range(20)]
    reported = np.concatenate([r.recorded_return for r in results if r.recorded_return is not None])
    assert np.isfinite(reported).any()
    assert np.nanmax(reported) <= 10.0  # the shaped ones are four times as high


def test_each_ended_episode_is_looked_up_where_it_is_reported() -> None:
    info = {
        "episode": {"r": np.array([5.0, 0.0])}, "_episode": np.array([True, False]),
        "final_info": {"episode": {"r": np.array([0.0, 7.0])}, "_episode": np.array([False, True])},
    }  # fmt: skip
    np.testing.assert_array_equal(recorded_returns(info, np.array([False, True])), [np.nan, 7.0])
    np.testing.assert_array_equal(recorded_returns(info, np.array([True, False])), [5.0, np.nan])
    assert recorded_returns(info, np.array([False, False])) is None


ODD = [3.0, None, {}, {"r": None}, {"r": "3"}, {"l": 3.0}, [1.0], {"r": 10**400}, {"r": True}, {"r": float("nan")},
       {"r": -np.inf}, {"r": np.ones(2)}, {"r": np.array("x")}]  # fmt: skip


class Odd(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Has something else in that place."""

    def __init__(self, env: gymnasium.Env[Any, Any], episode: object) -> None:
        super().__init__(env)
        self.episode = episode

    def step(self, action: Any) -> Any:
        *result, info = super().step(action)
        return *result, {**info, "episode": self.episode}


@pytest.mark.parametrize("episode", ODD)
def test_other_infos_of_that_name_are_ignored(episode: object) -> None:
    with EnvBatch(SerialVectorEnv([Odd(make_plain(), episode)])) as envs:
        envs.reset(seed=1)
        results = [envs.step(np.array([0])) for _ in range(30)]
    assert any(result.is_over.any() for result in results)
    assert all(result.recorded_return is None for result in results)


@pytest.mark.parametrize("mask", [None, "x", np.ones(3), np.ones(2), [True, True]])
@pytest.mark.parametrize("episode", [*ODD[:8], {"r": np.full(2, np.inf)}, {"r": np.array(["a", "b"])}])
def test_also_those_of_vector_environments(episode: object, mask: object) -> None:
    for info in ({"episode": episode, "_episode": mask}, {"final_info": {"episode": episode, "_episode": mask}}):
        assert recorded_returns(info, np.array([True, True])) is None
    assert recorded_returns({"final_info": 3}, np.array([True])) is None


@pytest.mark.parametrize("mask", [None, "x", np.ones(3), [True, False]])
def test_a_mask_of_another_form_is_ignored(mask: object) -> None:
    info = {"episode": {"r": np.array([1.0, 2.0])}, "_episode": mask}
    np.testing.assert_array_equal(recorded_returns(info, np.array([True, False])), [1.0, np.nan])


@pytest.mark.parametrize("vectorization", ["auto", "sync"])
def test_lost_lives_and_stacks_of_frames_change_nothing(vectorization: Vectorization) -> None:
    class Living(gymnasium.Wrapper[Any, Any, Any, Any]):
        """Loses a life in each fifth step."""

        def reset(self, **kwargs: Any) -> Any:
            self.num = 0
            obs, info = super().reset(**kwargs)
            return obs, {**info, "lives": 9}

        def step(self, action: Any) -> Any:
            self.num += 1
            *result, info = super().step(action)
            return *result, {**info, "lives": 9 - self.num // 5}

    raw, num_ended = np.zeros(2), 0
    with Task(lambda: Living(make_shaped()), life_loss=True, frame_stack=2, vectorization=vectorization).make(
        2
    ) as envs:
        envs.reset(seed=1)
        for step in range(120):
            result = envs.step(np.array([0, step % 2]))
            raw += np.where(result.is_reset, 0.0, result.reward - 3.0)
            assert (result.recorded_return is None) == (not result.is_over.any())
            if result.recorded_return is not None:
                np.testing.assert_array_equal(result.recorded_return, np.where(result.is_over, raw, np.nan))
                num_ended += int(result.is_over.sum())
                raw[result.is_over] = 0.0
    assert num_ended > 10


def test_no_mean_is_shown_if_a_wrapper_outside_ends_episodes(tmp_path: Path) -> None:
    """They are not reported, and the others would not stand for all."""

    def make_limited() -> gymnasium.Env[Any, Any]:
        return gymnasium.wrappers.TimeLimit(make_shaped(), 12)

    run = lv.train(
        "ppo", lv.Task(make_limited), until="updates=2", seed=1, on="inline", out=tmp_path / "run", display="quiet"
    )
    assert run.summary.return_mean_100 is not None
    assert run.summary.unshaped_return_mean_100 is None


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
@pytest.mark.parametrize("place", ["inline", "processes:1"])
def test_a_run_reports_both_returns(tmp_path: Path, algorithm: str, place: str) -> None:
    run = lv.train(
        algorithm, lv.Task(make_shaped), until="steps=1_200", seed=1, on=place, out=tmp_path / "run", display="quiet",
        eval_every=1, eval_episodes=2,
    )  # fmt: skip
    shaped, unshaped = run.summary.return_mean_100, run.summary.unshaped_return_mean_100
    assert shaped == 4.0 * unshaped
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    pairs = [
        (row["charts/episodic_return"], row["charts/unshaped_return"])
        for row in rows
        if "charts/unshaped_return" in row
    ]
    assert pairs and all(shaped == 4.0 * unshaped for shaped, unshaped in pairs)
    evaluated = [(row["eval/return"], row["eval/unshaped_return"]) for row in rows if "eval/return" in row]
    assert evaluated and all(shaped == 4.0 * unshaped for shaped, unshaped in evaluated)


def test_nothing_is_reported_without_it(tmp_path: Path) -> None:
    run = lv.train(
        PPO(num_envs=2, num_steps=64),
        lv.Task(make_plain),
        until="updates=4",
        seed=1,
        out=tmp_path / "run",
        display="quiet",
    )
    assert run.summary.unshaped_return_mean_100 is None
    assert "unshaped" not in (tmp_path / "run" / "metrics.jsonl").read_text()


def test_eval_prints_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lv.train("ppo", f"{__file__}:make_shaped", until="updates=1", seed=1, out=tmp_path / "run", display="quiet")
    capsys.readouterr()
    command = ["eval", str(tmp_path / "run"), "--episodes", "3", "--trust"]
    assert main([*command, "--json"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert numbers["return_mean"] == 4.0 * numbers["unshaped_return_mean"]
    assert main(command) == 0
    assert f"; the environment reports {numbers['unshaped_return_mean']:.1f}" in capsys.readouterr().out


def test_a_resumed_run_knows_those_of_its_last_episodes(tmp_path: Path) -> None:
    whole = lv.train(
        "ppo", lv.Task(make_shaped), until="updates=6", seed=1, on="inline", out=tmp_path / "whole", display="quiet"
    )
    lv.train("ppo", lv.Task(make_shaped), until="updates=3", seed=1, on="inline", out=tmp_path / "run", display="quiet")
    resumed = lv.resume(tmp_path / "run", env=make_shaped, until="updates=6", display="quiet")
    assert resumed.summary.unshaped_return_mean_100 == whole.summary.unshaped_return_mean_100


def test_states_of_earlier_versions_have_none() -> None:
    monitor = Monitor()
    monitor.restore(monitor.state() | {"last_episodes": [(3.0, 4)]})
    assert (monitor.return_mean_100, monitor.unshaped_return_mean_100) == (3.0, None)


@pytest.mark.parametrize("policy", ["", "mine"])
def test_a_state_has_them(policy: str) -> None:
    """Also those of episodes beyond the end of a run."""
    monitor = Monitor()
    monitor.ends_with(Until(steps=10), learning=[policy] if policy else [])
    for ticket in range(2):
        episode = Episode(9.0, 5, policy, unshaped_return=4.0 + ticket)
        monitor.on_event(Used("learn", (Header({}, "rollout", 0, ticket, 10, (episode,)),)))
    assert (monitor.episodes, monitor.unshaped_return_mean_100) == (1, 4.0)
    again = Monitor()
    again.restore(json.loads(json.dumps(monitor.state())))
    assert again.unshaped_return_mean_100 == 4.0
    again.ends_with(Until(steps=20), learning=[policy] if policy else [])
    assert (again.episodes, again.unshaped_return_mean_100) == (2, 4.5)
