"""The recorder of a run: writes frames a few times per second, as long as that costs the run next to nothing."""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from levada.flow.deployment import Run
from levada.flow.events import Consumed, Event, Failed
from levada.flow.mistakes import plural
from levada.memory import machine_memory, process_nbytes
from levada.run.bottleneck import Bottleneck, find_bottleneck
from levada.run.display.view import Viewer
from levada.run.frames.file import FrameFile
from levada.run.frames.frame import Frame, advice_of, channel_frames, node_frames, replay_frames, worker_frames
from levada.run.monitor import Monitor
from levada.run.storage.strict_json import finite
from levada.run.trace.recorder import TraceRecorder

log: logging.Logger = logging.getLogger(__name__)

EVERY_S: Final = 0.2
"""Minimum seconds between two frames."""
SHARE: Final = 0.01
"""Maximum fraction of the time spent on frames, however large they are."""
ANALYSIS_EVERY_S: Final = 1.0
"""Minimum seconds between two searches for the bottleneck."""
MOST_EVENTS: Final = 50
"""Number of events that a frame names."""
MOST_LAGS: Final = 64
"""Number of updates from which lags are not told apart."""


class Recorder:
    """Instrument that writes the frames of a run; a file that cannot be written ends the recording, and not the run."""

    event_types: Final = frozenset({Consumed, Failed})

    def __init__(
        self,
        directory: Path,
        num_learners: int,
        trace: TraceRecorder | None = None,
        *,
        clock: Callable[[], float] = time.perf_counter,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`num_learners`: see `find_bottleneck`. `trace`: gets the fill of the channels, and is closed with this.

        `clock`, `now`: seconds, and seconds since 1970; replaced in tests.
        """
        self._directory = directory
        self._num_learners = num_learners
        self._trace = trace
        self._clock = clock
        self._now = now
        self._file: FrameFile | None = None
        self._is_over = False
        self._due_s = self._analysis_due_s = clock()
        self._viewer = Viewer()
        self._bottleneck: Bottleneck | None = None
        self._counts: defaultdict[tuple[str, str], Counter[tuple[int, int]]] = defaultdict(Counter)
        self._num_restarts = 0
        self._failures: deque[str] = deque(maxlen=MOST_EVENTS)
        self._events: deque[tuple[float, str]] = deque(maxlen=MOST_EVENTS)
        self._num_notes = 0

    def on_event(self, event: Event) -> None:
        """Count lags and failures."""
        if isinstance(event, Consumed):
            for policy, lag in event.lag.items():
                key = min(lag - event.waited, MOST_LAGS), min(event.waited, MOST_LAGS)
                self._counts[event.channel, policy][key] += 1
        elif isinstance(event, Failed):
            self._num_restarts += 1
            self._failures.append(f"{event.source} {event.shard}: {event.why}")

    def look(self, run: Run, monitor: Monitor) -> None:
        """Write a frame, if one is due."""
        began_s = self._clock()
        if began_s < self._due_s or self._is_over:
            return
        self.write(run, monitor)
        spent_s = self._clock() - began_s
        self._due_s = began_s + max(EVERY_S, spent_s / SHARE)

    def write(self, run: Run, monitor: Monitor) -> None:
        """Write a frame now."""
        if self._is_over:
            return
        try:
            if self._file is None:
                self._file = FrameFile(self._directory)
            self._file.write(self._frame(run, monitor))
        except OSError as error:
            self._is_over = True
            log.warning("the run goes on, but cannot be watched any more: %s", error)

    def close(self) -> None:
        """Close the file, and that of the trace."""
        self._is_over = True
        if self._trace is not None:
            self._trace.close()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _frame(self, run: Run, monitor: Monitor) -> Frame:
        statistics, workers = run.statistics(), run.attribution()
        if self._trace is not None:
            for name, channel in statistics.channels.items():
                self._trace.fill(name, channel.fill)
        if self._clock() >= self._analysis_due_s:
            self._bottleneck = find_bottleneck(run.flow, statistics, workers, num_learners=self._num_learners)
            self._analysis_due_s = self._clock() + ANALYSIS_EVERY_S
        view = self._viewer.look(monitor, statistics)
        self._tell(monitor, view.elapsed_s)
        counts = {
            key: [(made, waited, num) for (made, waited), num in sorted(found.items())]
            for key, found in self._counts.items()
        }
        memory = machine_memory()
        return Frame(
            at_s=self._now(),
            elapsed_s=view.elapsed_s,
            wall_s=statistics.wall_s,
            env_steps=view.env_steps,
            updates=view.updates,
            episodes=view.episodes,
            steps_per_s=view.steps_per_s,
            updates_per_s=view.updates_per_s,
            return_mean_100=finite(view.return_mean_100),
            return_means_100={name: finite(mean) for name, mean in view.return_means_100.items()},
            nodes=node_frames(run.flow, statistics, workers),
            channels=channel_frames(statistics, counts),
            replays=replay_frames(statistics),
            workers=worker_frames(workers),
            versions=dict(statistics.versions),
            bottleneck=None if self._bottleneck is None else self._bottleneck.words,
            advice=advice_of(self._bottleneck),
            restarts=self._num_restarts,
            events=list(self._events),
            nbytes=process_nbytes(),
            free_nbytes=memory.free_nbytes,
            total_nbytes=memory.total_nbytes,
        )

    def _tell(self, monitor: Monitor, elapsed_s: float) -> None:
        """Add what has happened since the last frame."""
        new = [*self._failures, *monitor.notes[self._num_notes :]]
        if len(new) > MOST_EVENTS:
            new = [f"{plural(len(new) - MOST_EVENTS, 'event')} more", *new[-MOST_EVENTS:]]
        self._events += ((elapsed_s, text[:1000]) for text in new)
        self._failures.clear()
        self._num_notes = len(monitor.notes)
