"""Runs of `levada train` in processes of their own, several at a time: `--seeds` and `levada sweep`.

    Jobs(num_parallel=2).execute(plan)     # until the plan has no more jobs, or Ctrl-C has ended all

A run that has begun is resumed, a finished one is kept. A run whose parent process is gone ends after its update.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final, Literal, Protocol, TypeAlias

from levada.cli.errors import tell
from levada.run.storage.checkpoint import FOLDER as CHECKPOINTS
from levada.run.storage.directory import CONFIG, RunDirectory, RunDirectoryError
from levada.run.storage.files import TEMPORARY, short
from levada.run.storage.status import is_locked
from levada.run.summary import Summary

POLL_S: Final = 0.2
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

State: TypeAlias = Literal["waiting", "running", "finished", "failed", "interrupted"]


@dataclass(eq=False)
class Job:
    """A run: settings, a seed, and a directory."""

    name: str
    """What messages call it."""
    words: Sequence[str]
    """Arguments of `levada train`, without seed and directory."""
    seed: int
    path: Path
    """Directory of the run."""
    log: Path
    """File for what it prints on stderr."""

    state: State = "waiting"
    why: str = ""
    """Why it failed."""
    wall_s: float | None = None
    return_mean: float | None = None
    said: dict[str, Any] = field(default_factory=dict)
    """Last line of the run's own progress."""
    process: subprocess.Popen[bytes] | None = None
    is_held: bool = False
    """Whether it waits for another process, which still runs it."""
    _began_s: float = 0.0

    @property
    def is_over(self) -> bool:
        """Whether it will not run any more."""
        return self.state in ("finished", "failed", "interrupted")

    def take_summary(self) -> bool:
        """Read the summary, and return whether the run has ended as its conditions say."""
        try:
            summary = RunDirectory.read(self.path, trust=False).summary()
        except RunDirectoryError:
            return False
        if summary is None:
            return False
        self.return_mean, self.wall_s = summary.return_mean_100, summary.wall_s
        return is_finished(summary)

    def start(self) -> bool:
        """Start or resume the run in a process, and return whether it is resumed."""
        is_begun = (self.path / CONFIG).exists()
        if not is_begun:
            clear_unbegun(self.path)
        out = str(self.path)
        words = ["resume", out] if is_begun else ["train", *self.words, "--seed", str(self.seed), "--out", out]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "levada.cli.child", *words, "--json"],
                stdin=subprocess.PIPE,  # for requests to stop, and so that it notices the end of this process
                stdout=subprocess.PIPE, stderr=log,
                start_new_session=True,  # Ctrl-C reaches it through this process alone, once
            )  # fmt: skip
        self.state, self._began_s = "running", time.perf_counter()
        return is_begun

    def stop(self, reason: str) -> None:
        """Ask the run to end after this update, as if a stopping condition held."""
        if self.process is not None and self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it has just ended
                self.process.stdin.write(f"{reason}\n".encode())
                self.process.stdin.flush()

    def end(self, was_signaled: bool) -> None:
        """Note how the process has ended."""
        assert self.process is not None
        code = self.process.wait()
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # a request that it did not read
                self.process.stdin.close()
        finished = self.take_summary()
        self.wall_s = time.perf_counter() - self._began_s if self.wall_s is None else self.wall_s
        if code == 0 and finished:
            self.state = "finished"
        elif was_signaled and code != 0:
            self.state = "interrupted"
        else:
            self.state, self.why = "failed", f"exit code {code}, see {short(self.log)}"

    @property
    def progress(self) -> str:
        """State and last numbers, in a line."""
        numbers = {"env_steps": "steps", "updates": "updates", "return_mean_100": "return"}
        said = [f"{word} {self.said[key]:,.6g}" for key, word in numbers.items() if is_number(self.said.get(key))]
        return f"{self.name}: {self.state}{', ' if said else ''}{', '.join(said)}"


class Plan(Protocol):
    """What runs are to be made, and what their ends lead to. All methods are called in one thread."""

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to start, once no run goes on."""
        ...

    def next(self) -> Job | None:
        """Return the next run to start; None if there is none now."""
        ...

    def begun(self, job: Job, is_resumed: bool) -> None:
        """Called when a run has started."""
        ...

    def ended(self, job: Job) -> None:
        """Called when a run has ended."""
        ...

    def look(self) -> None:
        """Called several times per second."""
        ...

    def lines(self) -> list[str]:
        """Return what a terminal shows."""
        ...


class Jobs:
    """Executes a plan."""

    def __init__(self, *, num_parallel: int, is_live: bool, is_quiet: bool) -> None:
        """Prepare.

        Args:
            num_parallel: number of runs at a time.
            is_live: whether to show the lines of the plan on stderr.
            is_quiet: whether to show nothing.
        """
        self._num_parallel = num_parallel
        self._is_quiet = is_quiet
        self._is_live = is_live
        self._running: list[Job] = []
        self._held: list[Job] = []
        self._lines: queue.SimpleQueue[tuple[Job, bytes | None]] = queue.SimpleQueue()
        self._num_signals = self._num_forwarded = 0
        self.signal: int | None = None
        """First signal that asked to end."""

    def execute(self, plan: Plan) -> None:
        """Run all jobs of the plan, until it has no more, or until a signal has ended them."""
        with self._forwarding(), self._live(plan) as refresh:
            while True:
                self._start_more(plan)
                if not (self._running or self._held) and (self.signal is not None or plan.is_over):
                    return
                with contextlib.suppress(queue.Empty):
                    self._take(plan, *self._lines.get(timeout=POLL_S))
                    while True:
                        self._take(plan, *self._lines.get_nowait())
                plan.look()
                self._forward()
                refresh()

    def _start_more(self, plan: Plan) -> None:
        if self.signal is not None:
            for job in self._held:
                job.state = "interrupted"
            self._held.clear()
            return
        for job in list(self._held):
            if not is_locked(job.path):
                self._held.remove(job)
                self._start(plan, job)
        while len(self._running) + len(self._held) < self._num_parallel and (new := plan.next()) is not None:
            if is_locked(new.path):  # after this command was killed, its runs need a moment to end
                new.is_held = True
                self._held.append(new)
            else:
                self._start(plan, new)

    def _start(self, plan: Plan, job: Job) -> None:
        job.is_held = False
        try:
            is_resumed = job.start()
        except OSError as error:  # such as a full disk
            where = short(Path(os.fsdecode(error.filename))) if error.filename else "its process"
            job.state, job.why = "failed", f"{where}: {error.strerror or error}"
            plan.ended(job)
            return
        self._running.append(job)
        threading.Thread(target=self._read, args=(job,), name=f"levada {job.name}", daemon=True).start()
        plan.begun(job, is_resumed)

    def _read(self, job: Job) -> None:
        """Pass on the lines of a run; None at its end. Runs in a thread."""
        assert job.process is not None and job.process.stdout is not None
        with job.process.stdout as lines:
            for line in lines:
                self._lines.put((job, line))
        self._lines.put((job, None))

    def _take(self, plan: Plan, job: Job, line: bytes | None) -> None:
        if line is not None:
            take_line(job, line)
            return
        job.end(was_signaled=self.signal is not None)
        self._running.remove(job)
        plan.ended(job)

    @contextlib.contextmanager
    def _forwarding(self) -> Iterator[None]:
        """Collect signals, which are sent on to the runs; a run saves everything at the first and stops at once at the second."""

        def collect(number: int, frame: FrameType | None) -> None:
            self._num_signals += 1
            self.signal = number if self.signal is None else self.signal

        usual = dict.fromkeys(_SIGNALS, signal.SIG_DFL) | {signal.SIGINT: signal.default_int_handler}
        before = {number: how for number, how in usual.items() if signal.getsignal(number) is how}  # not under nohup
        for number in before:
            signal.signal(number, collect)
        try:
            yield
        finally:
            for job in self._running:
                if job.process is not None and job.process.poll() is None:  # after an error of our own
                    job.process.terminate()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _forward(self) -> None:
        if self._num_forwarded == self._num_signals or self.signal is None:
            return
        self._num_forwarded = self._num_signals
        if not self._is_quiet:
            tell("levada: stopping all runs after this update; once more stops at once")
        for job in self._running:
            if job.process is not None and job.process.poll() is None:
                job.process.send_signal(self.signal)

    @contextlib.contextmanager
    def _live(self, plan: Plan) -> Iterator[Callable[[], None]]:
        """In a terminal, show the lines of the plan; yields what refreshes them."""
        if not self._is_live:
            yield lambda: None
            return
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        with Live(console=Console(stderr=True), refresh_per_second=4) as live:
            yield lambda: live.update(Text("\n".join(plan.lines())))


def take_line(job: Job, line: bytes) -> None:
    """Keep a line of a run's progress; others are left out."""
    with contextlib.suppress(ValueError, RecursionError):
        said = json.loads(line)
        job.said = said if isinstance(said, dict) and said.get("type") == "progress" else job.said


def is_finished(summary: Summary) -> bool:
    """Whether a run has ended as its conditions say, or for a reason that was given to `run.stop`."""
    return summary.stopped_by != "interrupted"


def is_number(value: object) -> bool:
    """Whether a value read from JSON is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def clear_unbegun(path: Path) -> None:
    """Remove what a process leaves that is killed while it makes the directory of a run: an empty directory for checkpoints, and
    temporary files. Anything else stays.
    """
    if not path.is_dir() or path.is_symlink():
        return
    names = {entry.name for entry in path.iterdir()}
    temporary = {name for name in names if name.startswith(".") and name.endswith(TEMPORARY)}
    if names - temporary - {CHECKPOINTS}:
        return
    with contextlib.suppress(OSError):  # it holds checkpoints after all, and the run says what is wrong
        if CHECKPOINTS in names:
            (path / CHECKPOINTS).rmdir()
        for name in temporary:
            (path / name).unlink()
