"""Time one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.compare.common import BenchmarkError, tail
from benchmarks.compare.jobs import Job, Part
from benchmarks.compare.processes import Load, Watched, started
from benchmarks.compare.screen import Screen
from benchmarks.compare.sides import LevadaSide, PartsSide, PeerSide, Point, Side

DISTURBED_CORES: Final = 0.15
_RUN_LIMIT_S: Final = 900.0
_LOOK_EVERY_S: Final = 1.0
_LEFT_OUT: Final = 0.1


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one process did."""

    part: Part
    who: str
    settings: str | None
    """The preset; None: levada as it comes."""
    form: str | None
    """How levada ran; None: a peer, or levada as it comes."""
    turn: int
    env_steps: int
    process_s: float
    """From its start to its exit."""
    training_steps_per_s: float | None
    """None if the run is too short to have an A."""
    process_steps_per_s: float
    gradient_steps: int | None
    """None where they are not counted."""
    training_gradient_steps_per_s: float | None
    solved_s: float | None
    """`process_s` if the target was reached."""
    solved_env_steps: int | None
    episodic_return: float | None
    """In the end."""
    cpu_us_per_step: float
    foreign_cores: float | None
    """Cores that other processes kept busy meanwhile; None where the system does not tell."""
    memory_mb: float | None
    """Of all its processes together, their shares of libraries included, at its largest; None where it was not looked at."""
    own_words: Mapping[str, Any]
    """The summary that levada itself gives, or what its parts do alone."""

    @property
    def disturbed(self) -> bool:
        """Whether something else took a good part of the machine."""
        return (self.foreign_cores or 0.0) > DISTURBED_CORES

    def __str__(self) -> str:
        parts = [f"{self.env_steps:,} steps in {self.process_s:.1f} s"]
        if self.part == "solve":
            parts.append("not solved" if self.solved_s is None else "solved")
        elif self.training_gradient_steps_per_s is not None:
            parts.append(f"training {self.training_gradient_steps_per_s:,.0f} gradient steps/s")
        elif self.training_steps_per_s is not None:
            parts.append(f"training {self.training_steps_per_s:,.0f} steps/s")
        if self.disturbed:
            parts.append(f"disturbed: others took {self.foreign_cores:.2f} cores")
        return ", ".join(parts)


def training_rates(points: Sequence[Point]) -> tuple[float | None, float | None]:
    """Env steps/s and gradient steps/s from A to the end, where A is the first point by which the first update was finished
    and another tenth of all env steps were taken. None: too short to have an A, or not counted.

    >>> training_rates([Point(50, 9.0, None, 10), Point(100, 10.0, None, 20), Point(200, 12.0, None, 50)])
    (50.0, 15.0)
    """
    if not points:
        return None, None
    end = points[-1]
    begin = next((p for p in points if p.env_steps >= points[0].env_steps + _LEFT_OUT * end.env_steps), end)
    seconds = end.t - begin.t
    if seconds <= 0.0:
        return None, None
    env_steps_per_s = (end.env_steps - begin.env_steps) / seconds
    if end.gradient_steps is None or begin.gradient_steps is None:
        return env_steps_per_s, None
    return env_steps_per_s, (end.gradient_steps - begin.gradient_steps) / seconds


def execute(job: Job, *, seed: int, folder: Path, screen: Screen) -> Run:
    """Run the process to its end and read what it has done."""
    side = _side(job)
    watched = Watched() if job.benchmark.parts is not None or job.benchmark.is_watched else None
    folder.mkdir(parents=True)
    stderr = folder / "stderr"
    command, variables = side.command(job, seed, folder)
    load = Load()
    with (
        (folder / "stdout").open("wb") as out,
        stderr.open("wb") as err,
        screen.task(job.title, job.num_env_steps) as task,
        started(command, variables, out, err, num_cores=job.num_cores) as process,
    ):
        while not process.ended_within(_LOOK_EVERY_S):
            if process.seconds > _RUN_LIMIT_S:
                msg = f"{job.title} is not finished after {_RUN_LIMIT_S:.0f} s:\n{tail(stderr)}"
                raise BenchmarkError(msg)
            if watched is not None:
                watched.look(process.pid)
            if point := side.last_point(job, folder):
                task.note(str(point), point.env_steps)
        process.reap()
        cpu_s = max(load.children_s(), watched.cpu_s if watched else 0.0)
        foreign_s = load.foreign_s(cpu_s)
    if process.exit_code:
        msg = f"{job.title} failed with exit code {process.exit_code}:\n{tail(stderr)}"
        raise BenchmarkError(msg)

    outcome = side.outcome(job, folder)
    rate, gradient_rate = training_rates(outcome.points)
    if job.benchmark.counts != "gradient steps":
        gradient_rate = None
    if rate is None and job.part in ("steps/s", "threads"):
        msg = f"{job.title}: too short to be timed, {len(outcome.points)} lines of progress"
        raise BenchmarkError(msg)
    return Run(
        part=job.part,
        who=job.who,
        settings=job.preset.name if job.preset else None,
        form=job.form.name if job.form else None,
        turn=job.turn,
        env_steps=outcome.env_steps,
        process_s=process.seconds,
        training_steps_per_s=rate,
        process_steps_per_s=outcome.env_steps / process.seconds,
        gradient_steps=outcome.points[-1].gradient_steps if outcome.points else None,
        training_gradient_steps_per_s=gradient_rate,
        solved_s=None if outcome.solved_env_steps is None else process.seconds,
        solved_env_steps=outcome.solved_env_steps,
        episodic_return=outcome.points[-1].episodic_return if outcome.points else None,
        cpu_us_per_step=1e6 * cpu_s / outcome.env_steps,
        foreign_cores=None if foreign_s is None else foreign_s / process.seconds,
        memory_mb=watched.memory_mb if watched else None,
        own_words=outcome.own_words,
    )


def _side(job: Job) -> Side:
    if job.part == "parts":
        return PartsSide()
    return LevadaSide() if job.is_levada else PeerSide()
