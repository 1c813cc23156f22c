"""IMPALA and APPO while their workers are killed and an environment hangs: nothing stops, and the account says what was lost."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium import spaces

from levada.algorithms.appo import APPO
from levada.algorithms.impala import IMPALA
from levada.flow import Event, Failed
from levada.rl.envs.task import Task
from levada.runners.processes import Processes

BOTH = pytest.mark.parametrize("algorithm", [IMPALA, APPO])
SETTINGS: dict[str, Any] = {"shards": 4, "num_envs": 2, "num_steps": 16, "max_lag": 2}


class Failures:
    def __init__(self) -> None:
        self.seen: list[Failed] = []

    def on_event(self, event: Event) -> None:
        if isinstance(event, Failed):
            self.seen.append(event)


class HangsOnce(gymnasium.Env[int, int]):
    """Sleeps forever in its fifth step, but only once in all processes."""

    observation_space, action_space = spaces.Discrete(3), spaces.Discrete(2)

    def __init__(self, folder: str) -> None:
        self.mark = Path(folder) / "hung"
        self.num_steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.num_steps += 1
        if self.num_steps == 5:
            try:
                self.mark.touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                time.sleep(1e6)
        return self.num_steps % 3, float(action), self.num_steps % 10 == 0, False, {}


@BOTH
def test_killed_workers_stop_nothing(algorithm: type[IMPALA]) -> None:
    failures = Failures()
    flow = algorithm(**SETTINGS).flow(Task("CartPole-v1"))
    with Processes(workers=2).open(flow, seed=1, instruments=[failures]) as run:
        for report in run:
            if report.firing % 10 == 0 and report.firing < 50:
                os.kill(run.worker_pids[report.firing // 10 % 2], signal.SIGKILL)
            if report.firing >= 80 and len(failures.seen) >= 3:
                break
        [channel] = run.statistics().channels.values()
    assert channel.ledger.balanced
    assert 0 <= channel.lag["policy"].max <= 2


@BOTH
def test_an_environment_that_hangs_is_replaced_and_reported(
    algorithm: type[IMPALA], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failures = Failures()
    flow = algorithm(**SETTINGS).flow(Task(HangsOnce, env_kwargs={"folder": str(tmp_path)}))
    with Processes(workers=2, hang_timeout_s=3.0).open(flow, seed=1, instruments=[failures]) as run:
        for report in run:
            if failures.seen and report.firing >= 30:
                break
        [channel] = run.statistics().channels.values()
    assert channel.ledger.balanced
    assert channel.ledger.lost >= 1
    assert failures.seen[0].why == "the worker ended after 3 s without a sign of life"
    assert "without a sign of life" in caplog.text
