"""Time levada beside other libraries on this machine.

    python benchmarks/peers.py ppo-cartpole --json peers.json     # 10 minutes
    python benchmarks/peers.py ppo-cartpole --quick               # does it work? 1 minute
    python benchmarks/peers.py ppo-cartpole --only-peers          # without levada
    python benchmarks/peers.py ppo-cartpole --compare-threads     # the figures beside `_PRESETS`

Every peer has a virtual environment of its own in `.bench/`, made anew when its pins in
`peers/requirements-<peer>.txt` change; levada is the one installed beside the interpreter that runs this
file. The processes run one at a time, in turn (A B A B ...), with a new seed in each turn, after a short run
of each that is not counted. All see the CPU only. A ratio is levada's median divided by the peer's.

**steps/s**: equal hyper-parameters, the peer's own; one shard of environments in levada.

- *training*: `(steps at the end - steps at A) / (seconds from A to the end)`, where A is the first line of
  progress by which the first update was finished and another 10 % of all steps were taken. No imports, no
  tracing, no compilation are in it, and only whole iterations of rollout and update.
- *whole process*: all steps / seconds from the start of the process to its exit. Levada's compile cache is
  warm here, as it is from a user's second run on.

**seconds to a return of 475**: what each library makes of the task, with SB3's and CleanRL's tuned settings
and levada's defaults. From the start of the process to its exit, which follows as soon as the mean return of
the last 100 episodes has reached 475; levada goes on to the end of its run, and that rest is subtracted.
Levada runs cold, with an empty compile cache, then warm, with the cache that the cold run has left.

The lines of progress, from which all this is computed, stay in `.bench/runs/`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_SCRIPTS = Path(__file__).resolve().parent / "peers"
_CACHE = _SCRIPTS.parent.parent / ".bench"
_COMPILE_CACHE = _CACHE / "compile-cache"
_TARGET_RETURN = 475.0
_RUN_LIMIT_S = 900.0
_POLL_S = 0.2
_LINE_EVERY_S = 10.0
_DISTURBED_CORES = 0.15
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class BenchmarkError(Exception):
    """The benchmark cannot go on; the message says what to do."""


# ---- What is compared


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A peer with one of its settings, and the same settings in levada's words."""

    name: str
    peer: str
    script: str
    arguments: tuple[str, ...] = ()
    threads: int
    num_env_steps: int
    solve_steps: int | None = None
    """Steps within which it should reach the target; none: it is not asked to."""
    levada: Mapping[str, object]


_SAME_IN_ALL: dict[str, object] = {
    "shards": 1,
    "clip": 0.2,
    "value_coef": 0.5,
    "max_grad_norm": 0.5,
    "adam_eps": 1e-5,
    "normalise_advantage": True,
}

# Threads, set by OMP_NUM_THREADS and torch.set_num_threads: the better of 1 and 2 in --compare-threads, on a
# machine with 2 cores (AMD EPYC, torch 2.13.0+cpu, Python 3.11.7). Training steps/s, median (min - max) of 3:
#                  1 thread                  2 threads
#   SB3 default     2,877 ( 2,770 -  2,927)   1,489 (   278 -  2,748), each disturbed by other processes
#   SB3 tuned       6,899 ( 6,700 -  6,946)   6,947 ( 6,419 -  6,956)
#   CleanRL        10,236 ( 9,819 - 10,375)   9,098 ( 8,945 -  9,295)
# A second thread doubles the processor time for nothing, and stalls where something else needs its core. (SB3
# default undisturbed, one short run each: 2,886 and 2,862.)
_PRESETS = (
    Preset(
        name="SB3 default",
        peer="sb3",
        script="sb3_ppo.py",
        arguments=("--preset", "default"),
        threads=1,
        num_env_steps=51_200,
        levada=_SAME_IN_ALL
        | {
            "num_envs": 1,
            "num_steps": 2048,
            "num_epochs": 10,
            "minibatch_size": 64,
            "learning_rate": 3e-4,
            "anneal_learning_rate": False,
            "anneal_clip": False,
            "discount": 0.99,
            "gae_lambda": 0.95,
            "clip_value": None,
            "entropy_coef": 0.0,
        },
    ),
    Preset(
        name="SB3 tuned",
        peer="sb3",
        script="sb3_ppo.py",
        arguments=("--preset", "tuned"),
        threads=1,
        num_env_steps=100_000,
        solve_steps=100_000,
        levada=_SAME_IN_ALL
        | {
            "num_envs": 8,
            "num_steps": 32,
            "num_epochs": 20,
            "minibatch_size": 256,
            "learning_rate": 1e-3,
            "anneal_steps": 100_000,
            "anneal_learning_rate": True,
            "anneal_clip": True,
            "discount": 0.98,
            "gae_lambda": 0.8,
            "clip_value": None,
            "entropy_coef": 0.0,
        },
    ),
    Preset(
        name="CleanRL",
        peer="cleanrl",
        script="cleanrl_ppo.py",
        threads=1,
        num_env_steps=153_600,
        solve_steps=500_000,
        levada=_SAME_IN_ALL
        | {
            "num_envs": 4,
            "num_steps": 128,
            "num_epochs": 4,
            "minibatch_size": 128,
            "learning_rate": 2.5e-4,
            "anneal_steps": 500_000,
            "anneal_learning_rate": True,
            "anneal_clip": False,
            "discount": 0.99,
            "gae_lambda": 0.95,
            "clip_value": 0.2,
            "entropy_coef": 0.01,
        },
    ),
)
_PEERS = tuple(dict.fromkeys(preset.peer for preset in _PRESETS))
_LEVADA_SOLVE_STEPS = 200_000
_QUICK_STEPS = 20_480
_WARM_UP_STEPS = 4_096


@dataclass(frozen=True, kw_only=True)
class Job:
    """One process to time: a peer's script, or levada with the settings of a peer or with its own."""

    part: str
    """"steps/s", "solve", "threads", or "warm-up", which is not counted."""
    is_levada: bool
    preset: Preset | None
    """None: levada's defaults."""
    run: int
    num_env_steps: int
    threads: int = 1
    """Of a peer. Levada chooses its own."""
    cold: bool = False

    @property
    def who(self) -> str:
        """The name of its row in the tables."""
        if self.preset is None:
            return f"levada, {'cold' if self.cold else 'warm'}"
        if self.is_levada:
            return "levada"
        threads = (
            f", {self.threads} thread{'s' if self.threads > 1 else ''}" if self.part == "threads" else ""
        )
        return self.preset.name + threads

    @property
    def title(self) -> str:
        """What the screen calls it."""
        settings = f" ({self.preset.name} settings)" if self.preset and self.is_levada else ""
        run = "" if self.part == "warm-up" else f", run {self.run + 1}"
        return f"{self.part}: {self.who}{settings}{run}"


@dataclass(frozen=True)
class Point:
    """One line of progress."""

    env_steps: int
    t: float
    return_mean_100: float | None

    @property
    def text(self) -> str:
        """What the screen says of it."""
        return "" if self.return_mean_100 is None else f"return {self.return_mean_100:.0f}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the files of a finished process say."""

    env_steps: int
    points: Sequence[Point]
    solved_s: float | None
    solved_env_steps: int | None
    own_words: Mapping[str, object] = field(default_factory=dict)


class LevadaSide:
    """All that this benchmark knows of levada's command line and files; the only place to adjust to them."""

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
        """`levada train ppo`, with the fields of the preset if there is one."""
        command = [
            str(self.executable()),
            "train",
            "ppo",
            "--env",
            "CartPole-v1",
            "--seed",
            str(seed),
            "--quiet",
        ]
        command += ["--until", f"steps={job.num_env_steps}", "--out", str(folder / "out")]
        for name, value in (job.preset.levada if job.preset else {}).items():
            flag = name.replace("_", "-")
            if isinstance(value, bool):
                command.append(f"--{flag}" if value else f"--no-{flag}")
            else:
                command += [f"--{flag}", str(value)]
        return command, {"TORCHINDUCTOR_CACHE_DIR": str(_COMPILE_CACHE)}

    def points(self, folder: Path) -> list[Point]:
        """From metrics.jsonl."""
        return _read_points(folder / "out" / "metrics.jsonl", clock="wall_s")

    def outcome(self, folder: Path, process_s: float) -> Outcome:
        """From summary.json.

        `solved_at_s` and `wall_s` are read as times on one clock: their difference is how long the run went
        on after the target. What lies before that clock and after it (imports, exit) stays in the figure.
        """
        summary: dict[str, Any] = json.loads((folder / "out" / "summary.json").read_text())
        points = self.points(folder)
        solved_at_s = summary["solved_at_s"]
        solved = solved_at_s is not None
        reached = (p.env_steps for p in points if (p.return_mean_100 or 0.0) >= _TARGET_RETURN)
        return Outcome(
            env_steps=int(summary["env_steps"]),
            points=points,
            solved_s=process_s - (float(summary["wall_s"]) - float(solved_at_s)) if solved else None,
            solved_env_steps=next(reached, None) if solved else None,
            own_words=summary,
        )


class PeerSide:
    """The scripts in `peers/`, each run by the peer's own interpreter."""

    def command(self, job: Job, seed: int, folder: Path) -> tuple[list[str], dict[str, str]]:
        """The script with its preset; it stops at the target where that is what is timed."""
        del folder  # it writes to its standard output
        assert job.preset is not None
        command = [
            str(_peer_python(job.preset.peer)),
            str(_SCRIPTS / job.preset.script),
            *job.preset.arguments,
        ]
        command += ["--steps", str(job.num_env_steps), "--seed", str(seed), "--threads", str(job.threads)]
        if job.part == "solve":
            command += ["--stop-return", str(_TARGET_RETURN)]
        return command, dict.fromkeys(_THREAD_VARIABLES, str(job.threads))

    def points(self, folder: Path) -> list[Point]:
        """What it has printed."""
        return _read_points(folder / "stdout", clock="t")

    def outcome(self, folder: Path, process_s: float) -> Outcome:
        """The last line says it all; the script exits when it has reached the target."""
        last = json.loads(_tail(folder / "stdout", 1))
        solved_env_steps = last["solved_env_steps"]
        return Outcome(
            env_steps=last["env_steps"],
            points=self.points(folder),
            solved_s=None if solved_env_steps is None else process_s,
            solved_env_steps=solved_env_steps,
        )


def _read_points(path: Path, *, clock: str) -> list[Point]:
    text = path.read_text() if path.exists() else ""
    points = []
    for line in text[: text.rfind("\n") + 1].splitlines():
        values = json.loads(line)
        if missing := {"env_steps", clock} - values.keys():
            msg = f"a line of {path.name} lacks {sorted(missing)}; it has {sorted(values)}"
            raise BenchmarkError(msg)
        points.append(Point(values["env_steps"], values[clock], values.get("return_mean_100")))
    return points


# ---- The peers' environments


def _peer_python(peer: str) -> Path:
    return _CACHE / f"venv-{peer}" / "bin" / "python"


def _pins(peer: str) -> dict[str, str]:
    lines = (_SCRIPTS / f"requirements-{peer}.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def prepare_environment(peer: str, screen: Screen) -> None:
    """Make the virtual environment of a peer, unless it is there with these very pins."""
    requirements = _SCRIPTS / f"requirements-{peer}.txt"
    digest = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()
    folder = _CACHE / f"venv-{peer}"
    mark = folder / "requirements.sha256"
    if mark.exists() and mark.read_text() == digest:
        return
    pip = [
        str(_peer_python(peer)),
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--progress-bar=off",
    ]
    commands = [[sys.executable, "-m", "venv", "--clear", str(folder)], [*pip, "-r", str(requirements)]]
    log = _CACHE / f"venv-{peer}.log"
    with log.open("wb") as output, screen.task(f"installing {peer}, once", None) as task:
        for command in commands:
            with _started(command, _environment({}), output, output) as process:
                while process.poll() is None:
                    time.sleep(_POLL_S)
                    task.note(_tail(log, 1)[:60])
            if process.returncode:
                msg = f"cannot install {peer}, exit code {process.returncode}:\n{_tail(log)}"
                raise BenchmarkError(msg)
    mark.write_text(digest)


# ---- Timing


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one process did."""

    part: str
    who: str
    settings: str | None
    run: int
    env_steps: int
    process_s: float
    training_steps_per_s: float | None
    process_steps_per_s: float
    solved_s: float | None
    solved_env_steps: int | None
    return_mean_100: float | None
    cpu_us_per_step: float
    foreign_cores: float | None
    """Cores that other processes kept busy meanwhile; none where the system does not tell."""
    own_words: Mapping[str, object]
    """The summary that levada itself gives."""

    @property
    def disturbed(self) -> bool:
        """Whether something else took a good part of the machine."""
        return (self.foreign_cores or 0.0) > _DISTURBED_CORES


def training_steps_per_s(points: Sequence[Point], num_env_steps: int) -> float | None:
    """Steps/s from A (see the top of this file) to the end; none if the run is too short to have an A."""
    if not points:
        return None
    end = points[-1]
    begin = next((p for p in points if p.env_steps >= points[0].env_steps + 0.1 * num_env_steps), end)
    return (end.env_steps - begin.env_steps) / (end.t - begin.t) if end.t > begin.t else None


def execute(job: Job, *, seed: int, folder: Path, screen: Screen) -> Run:
    """Run the process to its end and read what it has done."""
    side = LevadaSide() if job.is_levada else PeerSide()
    if job.cold:
        shutil.rmtree(_COMPILE_CACHE, ignore_errors=True)
    folder.mkdir(parents=True)
    stderr = folder / "stderr"
    command, variables = side.command(job, seed, folder)
    with (
        (folder / "stdout").open("wb") as out,
        stderr.open("wb") as err,
        screen.task(job.title, job.num_env_steps) as task,
    ):
        busy_s, self_s, children_s = _busy_s(), _cpu_s(resource.RUSAGE_SELF), _cpu_s(resource.RUSAGE_CHILDREN)
        start = time.perf_counter()
        with _started(command, _environment(variables), out, err) as process:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(1.0)
                process_s = time.perf_counter() - start
                if process.returncode is not None:
                    break
                if process_s > _RUN_LIMIT_S:
                    msg = f"{job.title} is not finished after {_RUN_LIMIT_S:.0f} s:\n{_tail(stderr)}"
                    raise BenchmarkError(msg)
                if points := side.points(folder):
                    task.note(points[-1].text, points[-1].env_steps)
        cpu_s = _cpu_s(resource.RUSAGE_CHILDREN) - children_s
        ours_s = cpu_s + _cpu_s(resource.RUSAGE_SELF) - self_s
        foreign_s = None if busy_s is None else (_busy_s() or 0.0) - busy_s - ours_s
    if process.returncode:
        msg = f"{job.title} failed with exit code {process.returncode}:\n{_tail(stderr)}"
        raise BenchmarkError(msg)
    outcome = side.outcome(folder, process_s)
    return Run(
        part=job.part,
        who=job.who,
        settings=job.preset.name if job.preset else None,
        run=job.run,
        env_steps=outcome.env_steps,
        process_s=process_s,
        training_steps_per_s=training_steps_per_s(outcome.points, outcome.env_steps),
        process_steps_per_s=outcome.env_steps / process_s,
        solved_s=outcome.solved_s,
        solved_env_steps=outcome.solved_env_steps,
        return_mean_100=outcome.points[-1].return_mean_100 if outcome.points else None,
        cpu_us_per_step=1e6 * cpu_s / outcome.env_steps,
        foreign_cores=None if foreign_s is None else max(0.0, foreign_s / process_s),
        own_words=outcome.own_words,
    )


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    dropped = {*_THREAD_VARIABLES, "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return {**kept, "CUDA_VISIBLE_DEVICES": "", **variables}


@contextlib.contextmanager
def _started(
    command: Sequence[str], environment: Mapping[str, str], out: IO[bytes], err: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process which, like its children, does not outlive the block."""
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _cpu_s(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def _busy_s() -> float | None:
    """Seconds that the cores of this machine were busy, or stolen from it, where the system tells."""
    try:
        fields = Path("/proc/stat").read_text().split(maxsplit=9)
    except OSError:
        return None
    _, user, nice, system, _idle, _iowait, irq, softirq, steal, _ = fields
    return sum(map(int, (user, nice, system, irq, softirq, steal))) / os.sysconf("SC_CLK_TCK")


def _tail(path: Path, num_lines: int = 15) -> str:
    return "\n".join(path.read_text(errors="replace").strip().splitlines()[-num_lines:])


# ---- The screen


class Task:
    """Something that takes a while."""

    def __init__(self, screen: Screen, title: str, total: int | None) -> None:
        self._screen = screen
        self._title = title
        self._next_line_s = time.perf_counter() + _LINE_EVERY_S
        self._id = screen.bars.add_task(title, total=total, note="")

    def note(self, text: str, env_steps: int | None = None) -> None:
        """Say how far it is; without a terminal in a line every ten seconds."""
        text = text if env_steps is None else f"{env_steps:,} steps {text}"
        self._screen.bars.update(self._id, completed=env_steps, note=text)
        if not self._screen.console.is_terminal and time.perf_counter() >= self._next_line_s:
            self._next_line_s = time.perf_counter() + _LINE_EVERY_S
            self._screen.say(f"    {self._title}: {text}")

    def close(self) -> None:
        """Take its bar away."""
        self._screen.bars.remove_task(self._id)


class Screen:
    """Bars in a terminal, lines elsewhere."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        note = TextColumn("{task.fields[note]}", markup=False)
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(20),
            TimeElapsedColumn(),
            note,
        )
        self.bars = Progress(*columns, console=self.console, disable=not self.console.is_terminal)

    @contextlib.contextmanager
    def task(self, title: str, total: int | None) -> Iterator[Task]:
        """Show it as long as the block lasts."""
        if not self.console.is_terminal:
            self.say(f"    {title} ...")
        task = Task(self, title, total)
        try:
            yield task
        finally:
            task.close()

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


# ---- The tables


@dataclass(frozen=True)
class Spread:
    """A median between the smallest and the largest value; infinite where a run did not get there."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Spread:
        """Count a missing value as infinite."""
        numbers = [math.inf if value is None else value for value in values]
        return cls(statistics.median(numbers), min(numbers), max(numbers))

    def text(self, digits: int = 0) -> str:
        """Write it as the tables have it."""
        numbers = (self.median, self.low, self.high)
        median, low, high = (f"{x:,.{digits}f}" if math.isfinite(x) else "never" for x in numbers)
        return median if low == high else f"{median} ({low} - {high})"

    def divided_by(self, other: Spread) -> str:
        """Write the ratio of the medians."""
        finite = math.isfinite(self.median) and math.isfinite(other.median)
        return f"{self.median / other.median:.2f}" if finite else "-"


def _table(title: str, *headers: str) -> Table:
    table = Table(title=title, title_justify="left")
    for header in headers:
        table.add_column(header, justify="left" if header in {"settings", "over", "who"} else "right")
    return table


def throughput_table(runs: Sequence[Run]) -> Table:
    """Steps/s, two rows for each preset."""
    title = "CartPole-v1: steps/s with the peer's hyper-parameters, median (min - max)"
    table = _table(title, "settings", "over", "peer", "levada", "levada / peer")
    runs = [run for run in runs if run.part == "steps/s"]
    for settings in dict.fromkeys(run.settings for run in runs):
        for over, attribute in (
            ("training", "training_steps_per_s"),
            ("whole process", "process_steps_per_s"),
        ):
            sides: list[list[float | None]] = [
                [getattr(run, attribute) for run in runs if run.settings == settings and run.who in who]
                for who in ({settings}, {"levada"})
            ]
            peer, levada = (Spread.of(values) if values else None for values in sides)
            assert peer is not None
            ratio = [levada.text(), levada.divided_by(peer)] if levada else ["-", "-"]
            table.add_row(settings, over, peer.text(), *ratio)
    return table


def solve_table(runs: Sequence[Run]) -> Table:
    """Seconds to the target, one row for each contestant."""
    runs = [run for run in runs if run.part == "solve"]
    of_who = {who: [run for run in runs if run.who == who] for who in dict.fromkeys(run.who for run in runs)}
    seconds = {who: Spread.of([run.solved_s for run in of]) for who, of in of_who.items()}
    levadas = [who for who in of_who if who.startswith("levada")]
    title = f"CartPole-v1: seconds to a mean return of {_TARGET_RETURN:.0f}, median (min - max)"
    table = _table(
        title, "who", "solved", "seconds", "environment steps", *(f"{who} / this" for who in levadas)
    )
    for who, of in of_who.items():
        ratios = ["" if who in levadas else seconds[levada].divided_by(seconds[who]) for levada in levadas]
        steps = Spread.of([run.solved_env_steps for run in of])
        solved = f"{sum(run.solved_s is not None for run in of)} of {len(of)}"
        table.add_row(who, solved, seconds[who].text(1), steps.text(), *ratios)
    return table


def threads_table(runs: Sequence[Run]) -> Table:
    """Steps/s of training by the number of threads."""
    title = "CartPole-v1: training steps/s by number of threads, median (min - max)"
    table = _table(title, "who", "steps/s", "CPU us/step")
    for who in dict.fromkeys(run.who for run in runs):
        of = [run for run in runs if run.who == who]
        steps_per_s = Spread.of([run.training_steps_per_s for run in of])
        table.add_row(who, steps_per_s.text(), Spread.of([run.cpu_us_per_step for run in of]).text())
    return table


def as_json(runs: Sequence[Run], args: argparse.Namespace) -> str:
    """Every run, and on what it was made."""
    versions: dict[str, object] = {peer: _pins(peer) for peer in args.peers}
    if not args.only_peers:
        names = ("levada", "torch", "gymnasium", "numpy")
        versions["levada"] = {name: importlib.metadata.version(name) for name in names}
    report = {
        "benchmark": args.benchmark,
        "made_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "quick": args.quick,
        "machine": {"cores": os.cpu_count(), "processor": _processor(), "python": platform.python_version()},
        "versions": versions,
        "threads": {preset.name: preset.threads for preset in _PRESETS if preset.peer in args.peers},
        "runs": [dataclasses.asdict(run) for run in runs],
    }
    return json.dumps(report, indent=1)


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


# ---- The command


def make_jobs(args: argparse.Namespace) -> Iterator[Job]:
    """All processes, in the order in which they run."""
    presets = [preset for preset in _PRESETS if preset.peer in args.peers]
    sides = (False,) if args.only_peers else (False, True)

    def steps(num_env_steps: int) -> int:
        return min(num_env_steps, _QUICK_STEPS) if args.quick else num_env_steps

    def job(part: str, run: int, num_env_steps: int, preset: Preset, threads: int, *, is_levada: bool) -> Job:
        return Job(
            part=part,
            run=run,
            num_env_steps=num_env_steps,
            preset=preset,
            threads=threads,
            is_levada=is_levada,
        )

    for preset in presets:
        for is_levada in sides:
            yield job("warm-up", 0, _WARM_UP_STEPS, preset, preset.threads, is_levada=is_levada)
        num_env_steps = steps(preset.num_env_steps)
        for run in range(args.runs):
            if args.compare_threads:
                for threads in (1, 2):
                    yield job("threads", run, num_env_steps, preset, threads, is_levada=False)
            else:
                for is_levada in sides:
                    yield job("steps/s", run, num_env_steps, preset, preset.threads, is_levada=is_levada)
    if args.compare_threads:
        return
    for run in range(args.runs):
        for preset in presets:
            if preset.solve_steps is not None:
                yield job("solve", run, steps(preset.solve_steps), preset, preset.threads, is_levada=False)
        for cold in () if args.only_peers else (True, False):
            num_env_steps = steps(_LEVADA_SOLVE_STEPS)
            yield Job(
                part="solve", run=run, num_env_steps=num_env_steps, preset=None, is_levada=True, cold=cold
            )


def run_all(args: argparse.Namespace, screen: Screen) -> list[Run]:
    """Prepare the peers, then run every process in turn."""
    for peer in args.peers:
        prepare_environment(peer, screen)
    folder = _CACHE / "runs"
    shutil.rmtree(folder, ignore_errors=True)
    runs: list[Run] = []
    jobs = list(make_jobs(args))
    for number, job in enumerate(jobs, 1):
        run = execute(job, seed=args.seed + job.run, folder=folder / f"{number:03d}", screen=screen)
        screen.say(f"[{number}/{len(jobs)}] {job.title}: {_in_short(run)}")
        if job.part != "warm-up":
            runs.append(run)
    return runs


def _in_short(run: Run) -> str:
    parts = [f"{run.env_steps:,} steps in {run.process_s:.1f} s"]
    if run.part == "solve":
        parts.append("not solved" if run.solved_s is None else f"solved after {run.solved_s:.1f} s")
    elif run.training_steps_per_s is not None:
        parts.append(f"training {run.training_steps_per_s:,.0f} steps/s")
    if run.disturbed:
        parts.append(f"disturbed: others took {run.foreign_cores:.2f} cores")
    return ", ".join(parts)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line and check it."""
    parser = argparse.ArgumentParser(description="Time levada and other libraries on this machine, in turn.")
    parser.add_argument("benchmark", choices=["ppo-cartpole"])
    parser.add_argument("--peers", default=",".join(_PEERS), help="comma-separated; default: %(default)s")
    parser.add_argument(
        "--runs", type=int, help="turns, each with its seed: default and least 3, with --quick 1"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the first turn; each further one adds 1")
    parser.add_argument(
        "--quick", action="store_true", help="short runs: does it work? The figures mean little"
    )
    parser.add_argument("--only-peers", action="store_true", help="leave levada out")
    parser.add_argument(
        "--compare-threads", action="store_true", help="time the peers alone with 1 and 2 threads"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run to this file")
    args = parser.parse_args(arguments)

    args.peers = args.peers.split(",")
    if unknown := [peer for peer in args.peers if peer not in _PEERS]:
        parser.error(f"no peer is called {', '.join(unknown)}; there are {', '.join(_PEERS)}")
    least = 1 if args.quick else 3
    args.runs = least if args.runs is None else args.runs
    if args.runs < least:
        parser.error(f"--runs {args.runs}: it takes at least {least} to compare (1 with --quick)")
    args.only_peers |= args.compare_threads
    return args


def main() -> int:
    """Measure, then print the tables."""
    args = parse()
    screen = Screen()
    try:
        if not args.only_peers:
            LevadaSide().executable()
        _CACHE.mkdir(exist_ok=True)
        (_CACHE / ".gitignore").write_text("*\n")
        with screen.bars:
            runs = run_all(args, screen)
    except BenchmarkError as error:
        screen.say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        screen.say("interrupted; no tables, because the turns are not complete")
        return 130

    console = Console()
    console.width = console.width if console.is_terminal else 110
    for table in (
        [threads_table(runs)] if args.compare_threads else [throughput_table(runs), solve_table(runs)]
    ):
        console.print(table)
    if disturbed := sum(run.disturbed for run in runs):
        console.print(
            f"{disturbed} of {len(runs)} runs were disturbed: others took over {_DISTURBED_CORES} cores."
        )
    if args.quick:
        console.print("Quick runs: they show that the benchmark works, nothing else.")
    if args.json is not None:
        args.json.write_text(as_json(runs, args) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
