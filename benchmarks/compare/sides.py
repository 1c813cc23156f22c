"""The command lines and the files of levada and of its peers."""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.compare.common import REPOSITORY, SCRIPTS, BenchmarkError, tail
from benchmarks.compare.environments import peer_python
from benchmarks.compare.jobs import Job
from benchmarks.compare.processes import THREAD_VARIABLES


@dataclass(frozen=True)
class Point:
    """One line of progress."""

    env_steps: int
    t: float
    """Seconds; only differences mean something."""
    episodic_return: float | None
    """Mean of the last 100 episodes; of fewer, in levada, or none while there are fewer."""
    gradient_steps: int | None = None
    """So far; None where they are not counted."""

    def __str__(self) -> str:
        mean = "" if self.episodic_return is None else f" return {self.episodic_return:.0f}"
        return f"{self.env_steps:,} steps{mean}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the files of a finished process say."""

    env_steps: int
    points: Sequence[Point]
    """The last one is that of the end."""
    solved_env_steps: int | None
    """None: the target was not reached, or there was none."""
    own_words: Mapping[str, object] = field(default_factory=dict)


class Side(ABC):
    """How a process is started, and how what it wrote is read. Each ends by itself when it has reached the target."""

    @abstractmethod
    def command(self, job: Job, seed: int, folder: Path) -> tuple[list[str], dict[str, str]]:
        """The command, and variables that it needs in its environment."""

    @abstractmethod
    def outcome(self, job: Job, folder: Path) -> Outcome:
        """Read everything once the process has ended."""

    @abstractmethod
    def progress_path(self, folder: Path) -> Path:
        """The file with one JSON object per line of progress."""

    @abstractmethod
    def _point(self, job: Job, line: Mapping[str, Any]) -> Point:
        """One of its lines."""

    def points(self, job: Job, folder: Path) -> list[Point]:
        """All progress so far."""
        return [self._read(job, line) for line in _whole_lines(self.progress_path(folder))]

    def last_point(self, job: Job, folder: Path) -> Point | None:
        """The newest progress, if there is any."""
        lines = _whole_lines(self.progress_path(folder))
        return self._read(job, lines[-1]) if lines else None

    def _read(self, job: Job, line: str) -> Point:
        values = json.loads(line)
        try:
            return self._point(job, values)
        except KeyError as error:
            msg = f"a line of progress of {type(self).__name__} lacks {error}; it has {sorted(values)}"
            raise BenchmarkError(msg) from error


class LevadaSide(Side):
    """`levada train`: all that this benchmark knows of its command line and of its files."""

    def executable(self) -> Path:
        """The command beside this interpreter."""
        path = Path(sys.executable).parent / "levada"
        if not path.exists():
            msg = (
                "no command `levada` beside the interpreter that runs this benchmark. Install it there "
                "(`python -m pip install -e .` in the repository), or time the peers alone with --only-peers."
            )
            raise BenchmarkError(msg)
        return path

    def command(self, job: Job, seed: int, folder: Path) -> tuple[list[str], dict[str, str]]:
        """`levada train`, with the fields of the preset if there is one."""
        target = [] if job.target_return is None else [f"return={job.target_return}"]
        until = " ".join([*target, f"steps={job.num_env_steps}"])
        command = [str(self.executable()), "train", job.algorithm, "--env", job.benchmark.env, "--until", until]
        command += ["--seed", str(seed), "--out", str(folder / "out"), "--quiet"]
        if job.form is not None:
            command += ["--on", job.form.on, "--threads", str(job.form.threads)]
        for name, value in job.levada_fields.items():
            command += _as_option(name.replace("_", "-"), value)
        variables = {"PYTHONPATH": str(REPOSITORY)}  # where the networks of peers are found
        if job.is_cold:
            variables |= dict.fromkeys(("XDG_CACHE_HOME", "JAX_COMPILATION_CACHE_DIR"), str(folder / "cache"))
        return command, variables

    def progress_path(self, folder: Path) -> Path:
        """One line per update."""
        return folder / "out" / "metrics.jsonl"

    def _point(self, job: Job, line: Mapping[str, Any]) -> Point:
        each = job.levada_fields.get("num_gradient_steps")
        gradient_steps = int(line["charts/updates"]) * each if isinstance(each, int) else None
        return Point(line["step"], line["charts/wall_s"], line.get("charts/episodic_return"), gradient_steps)

    def outcome(self, job: Job, folder: Path) -> Outcome:
        """From summary.json, provided that the run was the one that was asked for."""
        _check_settings(job, json.loads((folder / "out" / "config.json").read_text())["settings"])
        summary: dict[str, Any] = json.loads((folder / "out" / "summary.json").read_text())
        stopped_by = summary["stopped_by"]
        solved = job.target_return is not None and stopped_by == f"return={job.target_return}"
        if not solved and stopped_by != f"steps={job.num_env_steps}":
            msg = f"{job.title} was stopped by {stopped_by!r}"
            raise BenchmarkError(msg)
        return Outcome(
            env_steps=summary["env_steps"],
            points=self.points(job, folder),
            solved_env_steps=summary["solved_at_steps"] if solved else None,
            own_words=summary,
        )


class PartsSide(Side):
    """What the parts of levada do alone."""

    def command(self, job: Job, seed: int, folder: Path) -> tuple[list[str], dict[str, str]]:
        """The script of the benchmark, by the interpreter that runs it."""
        del folder
        assert job.benchmark.parts is not None
        script = Path(__file__).parent / job.benchmark.parts.script
        command = [sys.executable, str(script), "--env", job.benchmark.env, "--seed", str(seed)]
        return command, {"PYTHONPATH": str(REPOSITORY)}

    def progress_path(self, folder: Path) -> Path:
        """What it has printed: one line, in the end."""
        return folder / "stdout"

    def _point(self, job: Job, line: Mapping[str, Any]) -> Point:
        del job
        return Point(line["env_steps"], 0.0, None)

    def outcome(self, job: Job, folder: Path) -> Outcome:
        """Its rates."""
        rates = json.loads(tail(self.progress_path(folder), 1))
        points = self.points(job, folder)
        return Outcome(env_steps=rates["env_steps"], points=points, solved_env_steps=None, own_words=rates)


class PeerSide(Side):
    """The scripts in `libraries/`, each run by the peer's own interpreter."""

    def command(self, job: Job, seed: int, folder: Path) -> tuple[list[str], dict[str, str]]:
        """The script with its preset."""
        del folder  # it writes to its standard output
        assert job.preset is not None
        assert job.preset.script is not None
        command = [str(peer_python(job.preset.peer)), str(SCRIPTS / job.preset.script), *job.preset.arguments]
        command += ["--steps", str(job.num_env_steps), "--seed", str(seed), "--threads", str(job.threads)]
        if job.target_return is not None:
            command += ["--stop-return", str(job.target_return)]
        return command, dict.fromkeys(THREAD_VARIABLES, str(job.threads))

    def progress_path(self, folder: Path) -> Path:
        """What it has printed."""
        return folder / "stdout"

    def _point(self, job: Job, line: Mapping[str, Any]) -> Point:
        del job
        return Point(line["env_steps"], line["t"], line["return_mean_100"], line["gradient_steps"])

    def outcome(self, job: Job, folder: Path) -> Outcome:
        """The last line says it all."""
        last = json.loads(tail(self.progress_path(folder), 1))
        return Outcome(
            env_steps=last["env_steps"], points=self.points(job, folder), solved_env_steps=last["solved_env_steps"]
        )


def _as_option(flag: str, value: object) -> list[str]:
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    if isinstance(value, Mapping):
        value = tuple(f"{name}={_as_word(each)}" for name, each in value.items())
    values = value if isinstance(value, tuple) else (value,)
    return [f"--{flag}", *map(str, values)]


def _as_word(value: object) -> str:
    return json.dumps(value).replace(" ", "") if isinstance(value, tuple | bool) or value is None else str(value)


def _check_settings(job: Job, settings: Mapping[str, Mapping[str, Any]]) -> None:
    """With a peer's settings: levada took them all, and none from a preset of its own."""
    if job.preset is None:
        return
    wanted = json.loads(json.dumps(dict(job.levada_fields)))
    wrong = {name for name, value in wanted.items() if settings[name]["value"] != value}
    wrong |= {name for name, setting in settings.items() if setting["from"] == "preset"}
    if wrong:
        msg = f"{job.title}: {sorted(wrong)} are not those of the peer: {[settings[name] for name in sorted(wrong)]}"
        raise BenchmarkError(msg)


def _whole_lines(path: Path) -> list[str]:
    """The JSON objects, without a last one that is being written. Libraries print lines of their own between them."""
    text = path.read_text() if path.exists() else ""
    return [line for line in text[: text.rfind("\n") + 1].splitlines() if line.startswith("{")]
