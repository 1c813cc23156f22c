"""Runs that are written and not made: a directory with a configuration, metrics, and a summary."""

import json

import msgspec
from support.runs.fakes import IDENTITY, SETTINGS

from levada.run.storage.directory import RunDirectory
from levada.run.summary import Summary


def begin_run(path, *, seed=1):
    """Write a run that was cut off at its beginning."""
    return RunDirectory.create(path, msgspec.structs.replace(IDENTITY, seed=seed), SETTINGS)


def write_run(path, returns, *, seed=1, stopped_by="steps=1000", every=100, **metrics):
    """Write a finished run with a return after each `every` env steps; `metrics`: further ones in its last line."""
    directory = RunDirectory.read(path, trust=False) if (path / "config.json").exists() else begin_run(path, seed=seed)
    rows = [{"step": every * n, "charts/episodic_return": value} for n, value in enumerate(returns, 1)]
    rows[-1] |= metrics
    directory.metrics_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    directory.write_summary(
        Summary(
            **msgspec.structs.asdict(msgspec.structs.replace(IDENTITY, seed=seed)),
            stopped_by=stopped_by,
            env_steps=every * len(returns),
            updates=len(returns),
            episodes=1,
            wall_s=1.0,
            startup_s=0.5,
            steps_per_s=1.0,
            return_mean_100=returns[-1],
            solved_at_s=None,
            solved_at_steps=None,
            lag={},
            ledger={},
            bottleneck="",
            params_sha256=None,
        )
    )
    return directory
