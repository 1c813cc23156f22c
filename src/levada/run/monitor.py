"""Counts what a run does: env steps, episodes, returns, updates, time.

    monitor = Monitor(target_return=until.return_mean, learners=["learn"])
    for report in flow.run(on=deployment, seed=1, instruments=[monitor]):
        if until.met(monitor):
            break

An item that two consumers receive counts once. Nothing here depends on the clock but the times that it tells.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import msgspec

from levada.flow.payload import Episode, Header
from levada.flow.watch import Dropped, Event, Fired, Reported, Used
from levada.run.until import RETURN_WINDOW

_REMEMBERED: Final = 1 << 13
"""Tickets remembered at least, so that the same item is known again: far more than queues hold at once."""


class MonitorState(msgspec.Struct, frozen=True, kw_only=True):
    """What a resumed run goes on from."""

    env_steps: int
    updates: int
    episodes: int
    elapsed_s: float
    startup_s: float
    solved_at_s: float | None
    solved_at_steps: int | None
    last_episodes: list[tuple[float | None, int]]
    """Return (None: not a number) and length of the last episodes, oldest first."""


class Monitor:
    """An instrument that sees the events of a run, counts, and changes nothing."""

    def __init__(
        self,
        *,
        target_return: float | None = None,
        learners: Collection[str] = (),
        clock: Callable[[], float] = time.perf_counter,
        began_s: float | None = None,
    ) -> None:
        """Begin to measure time.

        Args:
            target_return: the mean return that counts as solved, for `solved_at_s`.
            learners: names of nodes whose firings are updates, counted even when they do not report.
            clock: seconds; replaced in tests.
            began_s: when the run began, by that clock, if that was earlier: start-up counts as part of it.

        """
        self.env_steps = 0
        self.updates = 0
        self.episodes = 0
        self.solved_at_s: float | None = None
        self.solved_at_steps: int | None = None
        self._target_return = target_return
        self._learners = frozenset(learners)
        self._clock = clock
        self._began_s = clock() if began_s is None else began_s
        self._elapsed_before_s = 0.0
        self._startup_before_s = 0.0
        self._startup_s: float | None = None
        self._last_episodes: deque[Episode] = deque(maxlen=RETURN_WINDOW)
        self._return_mean: float | None = None  # of `_last_episodes`; None until somebody asks
        self._steps_counted = _Recent()
        self._episodes_counted = _Recent()

    def on_event(self, event: Event) -> None:
        """See one event."""
        if self._startup_s is None:
            self._startup_s = self._since_beginning(event)
        if isinstance(event, Fired):  # the most frequent one
            if event.node in self._learners:
                self.updates = max(self.updates, event.firing)
        elif isinstance(event, Used):
            for header in event.headers:
                self._count_steps(event.node, header)
                self._count_episodes(event.node, header)
        elif isinstance(event, Dropped):
            self._count_steps(event.channel, event.header)  # it was sampled, though nobody learns from it
        elif isinstance(event, Reported):
            self.updates = max(self.updates, *event.report.versions.values(), 0)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run began; of a resumed run together with those before."""
        return self._elapsed_before_s + (self._clock() - self._began_s)

    @property
    def startup_s(self) -> float:
        """Seconds until the first item was being made; so far, if none was."""
        startup_s = self._clock() - self._began_s if self._startup_s is None else self._startup_s
        return self._startup_before_s + startup_s

    @property
    def steps_per_s(self) -> float | None:
        """Env steps per second since the start-up; None before."""
        sampling_s = self.elapsed_s - self.startup_s
        return self.env_steps / sampling_s if sampling_s > 0 else None

    @property
    def return_mean_100(self) -> float | None:
        """Mean return of the last 100 finished episodes, of all while there are fewer, None without any."""
        if self._return_mean is None and self._last_episodes:
            # sum, not fsum: returns that have exploded are to be shown, not to raise OverflowError
            self._return_mean = sum(e.episode_return for e in self._last_episodes) / len(self._last_episodes)
        return self._return_mean

    @property
    def length_mean_100(self) -> float | None:
        """Mean length of the same episodes, in env steps."""
        last = self._last_episodes
        return sum(e.length for e in last) / len(last) if last else None

    def state(self) -> dict[str, Any]:
        """What `restore` needs, as plain data for a checkpoint."""
        state = MonitorState(
            env_steps=self.env_steps,
            updates=self.updates,
            episodes=self.episodes,
            elapsed_s=self.elapsed_s,
            startup_s=self.startup_s,
            solved_at_s=self.solved_at_s,
            solved_at_steps=self.solved_at_steps,
            last_episodes=[(_number(e.episode_return), e.length) for e in self._last_episodes],
        )
        plain: dict[str, Any] = msgspec.to_builtins(state)
        return plain

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint: counts, last episodes and times continue.

        Raises:
            ValueError: it is not the state of a monitor.

        """
        try:
            was = msgspec.convert(dict(state), MonitorState)
        except msgspec.ValidationError as error:
            msg = f"not the state of a Monitor: {error}"
            raise ValueError(msg) from error
        self.env_steps, self.updates, self.episodes = was.env_steps, was.updates, was.episodes
        self.solved_at_s, self.solved_at_steps = was.solved_at_s, was.solved_at_steps
        self._elapsed_before_s, self._startup_before_s = was.elapsed_s, was.startup_s
        self._return_mean = None
        self._last_episodes.clear()
        self._last_episodes.extend(
            Episode(math.nan if mean is None else mean, length) for mean, length in was.last_episodes
        )

    def _since_beginning(self, event: Event) -> float:
        """Start-up ends when the first firing begins, which is only heard of when it has ended."""
        firing_s = event.end_s - event.start_s if isinstance(event, Fired) else 0.0
        return max(0.0, self._clock() - self._began_s - firing_s)

    def _count_steps(self, consumer: str, header: Header) -> None:
        if self._steps_counted.is_new(consumer, header):
            self.env_steps += header.num_env_steps

    def _count_episodes(self, consumer: str, header: Header) -> None:
        if not header.episodes or not self._episodes_counted.is_new(consumer, header):
            return
        self.episodes += len(header.episodes)
        self._last_episodes.extend(header.episodes)
        self._return_mean = None
        if self._target_return is not None and self.solved_at_s is None and self.episodes >= RETURN_WINDOW:
            mean = self.return_mean_100
            if mean is not None and mean >= self._target_return:
                self.solved_at_s, self.solved_at_steps = self.elapsed_s, self.env_steps


class _Recent:
    """Which headers were seen lately, in bounded memory: two generations, the older one forgotten as a whole.

    One ticket may stand for several firings of its source (a batch at the shard), each with a header of its own; and one
    header comes by several times, at several consumers or on several items for one of them (a flat map). So the headers of
    a ticket number as many as the consumer that saw most of them.
    """

    def __init__(self) -> None:
        self._young: dict[tuple[str, int, int], dict[str, list[Header]]] = {}
        self._old: dict[tuple[str, int, int], dict[str, list[Header]]] = {}

    def is_new(self, consumer: str, header: Header) -> bool:
        key = (header.source, header.shard, header.ticket)
        seen = self._young.get(key) or self._old.get(key)
        if seen is None:
            if len(self._young) >= _REMEMBERED:
                self._old, self._young = self._young, {}
            self._young[key] = {consumer: [header]}
            return True
        here = seen.setdefault(consumer, [])
        if any(header is other for other in here):
            return False
        here.append(header)
        return len(here) > max((len(there) for name, there in seen.items() if name != consumer), default=0)


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
