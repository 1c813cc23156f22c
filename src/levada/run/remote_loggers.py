"""Loggers of other services: Weights & Biases, MLflow, trackio.

    levada.train("ppo", "CartPole-v1", loggers=[Wandb(project="carts", group="lr-sweep")])

Where they write, and under which account, is configured as in any other program, by their environment variables. A resumed run is
a new run there, whose name tells where it continues.

A service that fails does not end a run of days: the first error becomes a warning, and nothing more is sent. metrics.jsonl has
everything.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import re
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from levada.run.active import ActiveRun
from levada.run.loggers import LogError
from levada.run.summary import Summary

PACKAGES: Final = ("wandb", "mlflow", "trackio")
"""Packages that these loggers need, each with an extra of its name."""
PROJECT: Final = "levada"
"""Project, in MLflow experiment, in which a run appears by default."""
_BATCH = 1_000
"""Maximum number of metrics in a request to MLflow."""
_NOT_IN_MLFLOW: Final = re.compile(r"[^\w\-. :/]")
"""Characters that MLflow rejects in names, such as that of the channel ``gae->batch``."""


class LoggerWarning(UserWarning):
    """A logger has failed; the run goes on without it."""


class RemoteLogger(ABC):
    """Logger whose errors become one warning. Subclasses define `_start`, `_write` and `_close`."""

    def __init__(self) -> None:
        self._is_open = False
        self._has_started = False

    def start(self, run: ActiveRun) -> None:
        """Create a run at the service."""
        self._is_open = True
        self._attempt("start", lambda: self._start(run))
        self._has_started = self._is_open

    def write(self, env_steps: int, values: Mapping[str, float]) -> None:
        """Send the metrics."""
        self._attempt("write", lambda: self._write(env_steps, values))

    def close(self, summary: Summary | None) -> None:
        """Send the rest, and the result."""
        if (
            self._has_started and not self._is_open
        ):  # it has failed; otherwise the run would seem to go on at the service
            with contextlib.suppress(Exception):  # of which a warning was given
                self._close(summary)
        self._attempt("close", lambda: self._close(summary))
        self._is_open = self._has_started = False

    def _attempt(self, what: str, call: Callable[[], None]) -> None:
        if not self._is_open:
            return
        try:
            call()
        except Exception as error:  # of the service's client, which may be any
            self._is_open = False
            name = type(self).__name__
            text = f"{name}.{what} failed: {type(error).__name__}: {error}; the run goes on without {name}"
            warnings.warn(f"{text}, and metrics.jsonl has all metrics", LoggerWarning, stacklevel=4)

    @abstractmethod
    def _start(self, run: ActiveRun) -> None: ...

    @abstractmethod
    def _write(self, env_steps: int, values: Mapping[str, float]) -> None: ...

    @abstractmethod
    def _close(self, summary: Summary | None) -> None: ...


class Wandb(RemoteLogger):
    """Weights & Biases. All metrics have the x-axis `env_steps`."""

    def __init__(self, **options: Any) -> None:
        """`options`: arguments of `wandb.init`, such as project and group."""
        super().__init__()
        self._options = options

    def _start(self, run: ActiveRun) -> None:
        import wandb

        usual = {
            "project": os.environ.get("WANDB_PROJECT", PROJECT),
            "name": _name(run),
            "config": dict(run.settings),
        }
        self._run: Any = wandb.init(**(usual | self._options))
        self._run.define_metric("env_steps", hidden=True)
        self._run.define_metric("*", step_metric="env_steps")

    def _write(self, env_steps: int, values: Mapping[str, float]) -> None:
        self._run.log({"env_steps": env_steps, **values})

    def _close(self, summary: Summary | None) -> None:
        self._run.summary.update(_result(summary))
        self._run.finish(exit_code=1 if summary is None else 0)


class Mlflow(RemoteLogger):
    """MLflow. Metrics are sent at most every five seconds, because each request takes a moment; the step is that of env steps."""

    EVERY_S = 5.0

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, **options: Any) -> None:
        """`options`: arguments of `MlflowClient`, such as tracking_uri; `clock`: seconds; replaced in tests."""
        super().__init__()
        self._options = options
        self._clock = clock
        self._waiting: list[Any] = []

    def _start(self, run: ActiveRun) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = MlflowClient(**self._options)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
        known = self._client.get_experiment_by_name(name)
        experiment_id = self._client.create_experiment(name) if known is None else known.experiment_id
        self._id = self._client.create_run(experiment_id, run_name=_name(run)).info.run_id
        params = [Param(key, str(value)) for key, value in run.settings.items()]
        for part in _parts(params, 100):
            self._client.log_batch(self._id, params=part)
        self._sent_s = self._clock()

    def _write(self, env_steps: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now_ms = time.time_ns() // 1_000_000
        # a store may refuse a number that is not finite
        self._waiting += [
            Metric(_NOT_IN_MLFLOW.sub("_", name), x, now_ms, env_steps)
            for name, x in values.items()
            if math.isfinite(x)
        ]
        if len(self._waiting) >= _BATCH or self._clock() >= self._sent_s + self.EVERY_S:
            self._send()

    def _close(self, summary: Summary | None) -> None:
        self._send()
        for name, value in _result(summary).items():
            self._client.set_tag(self._id, name, value)
        self._client.set_terminated(self._id, "FAILED" if summary is None else "FINISHED")

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, []
        for part in _parts(waiting, _BATCH):
            self._client.log_batch(self._id, metrics=part)
        self._sent_s = self._clock()


class Trackio(RemoteLogger):
    """trackio, whose step is that of env steps."""

    def __init__(self, **options: Any) -> None:
        """`options`: arguments of `trackio.init`, such as project and space_id."""
        super().__init__()
        self._options = options

    def _start(self, run: ActiveRun) -> None:
        import trackio

        usual = {"project": PROJECT, "name": _name(run), "config": dict(run.settings)}
        self._run: Any = trackio.init(**(usual | self._options))

    def _write(self, env_steps: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=env_steps)

    def _close(self, summary: Summary | None) -> None:
        self._run.finish()


def make(name: str) -> RemoteLogger:
    """Make a logger by its name in the option `log`."""
    kinds: dict[str, type[RemoteLogger]] = {"wandb": Wandb, "mlflow": Mlflow, "trackio": Trackio}
    return kinds[name]()


def require_installed(names: Sequence[str]) -> None:
    """Check that the packages of these loggers are installed.

    Raises:
        LogError: one is not.
    """
    for name in names:
        if name in PACKAGES and importlib.util.find_spec(name) is None:
            msg = f"log={name!r}: {name} is not installed; run: pip install 'levada[{name}]'"
            raise LogError(msg)


def _name(run: ActiveRun) -> str:
    return run.path.name if run.resumed_at is None else f"{run.path.name} from {run.resumed_at}"


def _result(summary: Summary | None) -> dict[str, Any]:
    return {} if summary is None else {"stopped_by": summary.stopped_by, "params_sha256": summary.params_sha256}


def _parts(items: list[Any], size: int) -> list[list[Any]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
