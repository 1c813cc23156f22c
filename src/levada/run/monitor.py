"""Counts of a run: env steps, episodes, returns, updates, time.

An item received by two consumers counts once. Items of a replay count from the first update whose draw could include them,
and items of a queue from the update that learned from them, so counts at an update do not depend on the progress of other
nodes. Only the reported times depend on the clock.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain, repeat
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from levada.flow.events import (
    Dropped,
    Emptied,
    Evaluated,
    Evaluating,
    Event,
    Failed,
    Fired,
    GoalReached,
    LearnerStopped,
    Reported,
    Used,
)
from levada.flow.items import Episode, Header, mean_unshaped
from levada.run.evaluations import Evaluations, EvaluationsState
from levada.run.returns import RETURN_WINDOW, ReturnHistory
from levada.run.storage.strict_json import finite
from levada.run.until import Until

_REMEMBERED: Final = 1 << 13
"""Minimum number of tickets remembered to recognize repeated items; queues hold far fewer at once."""


_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
_Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e12)]


class SavedEpisode(msgspec.Struct, frozen=True, array_like=True):
    """An episode in a checkpoint, without its policy. None: not a number, or there is none."""

    episode_return: float | None
    length: _Count
    unshaped_return: float | None = None

    @classmethod
    def of(cls, episode: Episode) -> SavedEpisode:
        """Return what is saved of an episode."""
        return cls(finite(episode.episode_return), episode.length, finite(episode.unshaped_return))

    def episode(self, policy: str = "") -> Episode:
        """Return the episode."""
        episode_return = math.nan if self.episode_return is None else self.episode_return
        return Episode(episode_return, self.length, policy, self.unshaped_return)


class MonitorState(msgspec.Struct, frozen=True, kw_only=True):
    """State from which a resumed run continues."""

    env_steps: _Count
    updates: _Count
    episodes: _Count
    elapsed_s: _Seconds
    startup_s: _Seconds
    solved_at_s: _Seconds | None
    solved_at_steps: _Count | None
    last_episodes: Annotated[list[SavedEpisode], msgspec.Meta(max_length=RETURN_WINDOW)]
    """The last episodes, oldest first."""
    returns: list[tuple[int, float, float, int]] = []
    """Returns of all episodes; see `ReturnHistory`."""
    notes: list[str] = []
    num_started_from_scratch: int = 0
    beyond: list[tuple[int, list[SavedEpisode]]] = []
    """Env steps and episodes of each item beyond the end of a run that ended before its first update."""
    beyond_policies: list[list[str]] = []
    """The policies of these episodes, if there are several."""
    policies: dict[str, Annotated[list[SavedEpisode], msgspec.Meta(max_length=RETURN_WINDOW)]] = {}
    """The last episodes of each policy, if there are several."""
    evaluations: EvaluationsState = EvaluationsState()


class Monitor:
    """Instrument that counts the events of a run without affecting it."""

    event_types: Final = frozenset(
        {
            Fired, Used, Dropped, Failed, Emptied, LearnerStopped, GoalReached, Evaluating, Evaluated, Reported,
        }
    )  # fmt: skip

    def __init__(
        self,
        *,
        target_return: float | None = None,
        learners: Collection[str] = (),
        clock: Callable[[], float] = time.perf_counter,
        began_s: float | None = None,
    ) -> None:
        """Start to measure time.

        Args:
            target_return: mean return that counts as solved, for `solved_at_s`.
            learners: names of nodes whose firings are updates, counted even if they do not report.
            clock: seconds; replaced in tests.
            began_s: start time of the run by that clock, if it was earlier: start-up is part of the run.
        """
        self.env_steps: int = 0
        self.updates: int = 0
        self.episodes: int = 0
        self.num_started_from_scratch: int = 0
        """Number of restarts of a shard or a replay table. Above 0, the result is not that of an undisturbed run."""
        self.solved_at_s: float | None = None
        self.solved_at_steps: int | None = None
        self.reported: dict[str, float] = {}
        """Last values reported by learners, by name; values that are not finite are ignored."""
        self.returns: ReturnHistory = ReturnHistory()
        """Returns of all episodes."""
        self.stopped: dict[str, str] = {}
        """Policies whose learner has failed while the others went on, with the reason."""
        self.has_goal: bool = False
        """Whether each learner has its own end, by env steps or updates (`levada.flow.Goal`)."""
        self.versions: dict[str, int] = {}
        """Policy -> number of updates, at the last report."""
        self.reached_goal: str | None = None
        """The condition by which all learners have ended."""
        self.notes: list[str] = []
        """Notes shown to the user, each text once."""
        self.evaluations: Evaluations = Evaluations()
        """Results of evaluators."""
        self._target_return = target_return
        self._learners = frozenset(learners)
        self._clock = clock
        self._began_s = clock() if began_s is None else began_s
        self._elapsed_before_s = 0.0
        self._startup_before_s = 0.0
        self._startup_s: float | None = None
        self._until: Until | None = None
        self._begun_with = -1  # updates when `ends_with` was called
        self._is_over = False
        self._beyond: list[Header] = []
        self._last_episodes: deque[Episode] = deque(maxlen=RETURN_WINDOW)
        self._by_policy: dict[str, deque[Episode]] = {}
        self._learning: tuple[str, ...] = ()
        self._means: _Means | None = None  # None until requested
        self._steps_counted = _Recent()
        self._episodes_counted = _Recent()

    def ends_with(self, until: Until, *, learning: Sequence[str] = (), has_goal: bool = False) -> None:
        """Set the condition that ends the run, even before its next update while a replay is being filled. Items beyond the
        end are not counted, even if they already exist.

        Args:
            until: the condition.
            learning: names of the policies that learn.
            has_goal: whether each learner has its own end.
        """
        self.has_goal, self._learning = has_goal, tuple(learning)
        self._means = None
        self._until, self._begun_with = until, self.updates
        self._is_over = until.met(self) is not None
        self._count_again()

    def on_event(self, event: Event) -> None:
        """Count one event."""
        if self._startup_s is None:
            self._startup_s = self._since_beginning(event)
        if isinstance(event, Fired):  # the most frequent one
            if event.node in self._learners:
                self._update(event.firing)
        elif isinstance(event, Used):
            for header in event.headers:
                are_steps_new = self._steps_counted.is_new(event.node, header)
                are_episodes_new = bool(header.episodes) and self._episodes_counted.is_new(event.node, header)
                self._count(header, are_steps_new, are_episodes_new)
        elif isinstance(event, Dropped):  # it was sampled, although it is not learned from
            self._count(event.header, self._steps_counted.is_new(event.channel, event.header), are_episodes_new=False)
        elif isinstance(event, Failed):
            self.num_started_from_scratch += event.starts_from_scratch
        elif isinstance(event, Emptied):
            self.num_started_from_scratch += event.num_entries > 0
        elif isinstance(event, LearnerStopped):
            self.stopped[event.policy] = event.reason
        elif isinstance(event, GoalReached):
            self.reached_goal = event.part
        elif isinstance(event, Evaluating):
            self.evaluations.begin(event, self.env_steps, self._state_at(event.version))
        elif isinstance(event, Evaluated):
            self.evaluations.add(event)
        elif isinstance(event, Reported):
            self.reported.update((name, x) for name, x in event.report.scoped_values.items() if math.isfinite(x))
            self.versions.update(event.report.versions)
            self._update(max(event.report.versions.values(), default=0))
            self.evaluations.count(event.report.versions)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run started, including those before a resumption."""
        return self._elapsed_before_s + (self._clock() - self._began_s)

    @property
    def startup_s(self) -> float:
        """Seconds until the first item was started; seconds so far if none was."""
        startup_s = self._clock() - self._began_s if self._startup_s is None else self._startup_s
        return self._startup_before_s + startup_s

    @property
    def steps_per_s(self) -> float | None:
        """Env steps per second since the start-up; None before that."""
        sampling_s = self.elapsed_s - self.startup_s
        return self.env_steps / sampling_s if sampling_s > 0 else None

    @property
    def return_mean_100(self) -> float | None:
        """Mean return of the last 100 finished episodes, of all if there are fewer, None without any. Of several policies that
        learn, that of the one that has the lowest.
        """
        return self._known_means.episode_return

    @property
    def length_mean_100(self) -> float | None:
        """Mean length of the same episodes, in env steps."""
        return self._known_means.length

    @property
    def unshaped_return_mean_100(self) -> float | None:
        """Mean return of the same episodes as the environment reports it; None unless it does for each of them."""
        return self._known_means.unshaped_return

    @property
    def return_means_100(self) -> dict[str, float]:
        """The same mean for each policy, where several act in the environments."""
        return {name: _mean_return(last) for name, last in sorted(self._by_policy.items())}

    @property
    def length_means_100(self) -> dict[str, float]:
        """Mean length of these episodes for each policy, in steps of an agent."""
        return {name: sum(e.length for e in last) / len(last) for name, last in sorted(self._by_policy.items())}

    @property
    def reached_return(self) -> float | None:
        """Mean return that a stopping condition is compared with: of several policies that learn, that of the one that has the
        lowest. None until the last 100 episodes have finished, of each of them.
        """
        return None if any(len(last) < RETURN_WINDOW for last in self._of_learners()) else self.return_mean_100

    def state(self) -> dict[str, Any]:
        """Return the state for `restore`, as plain data for a checkpoint."""
        state = MonitorState(
            env_steps=self.env_steps,
            updates=self.updates,
            episodes=self.episodes,
            elapsed_s=self.elapsed_s,
            startup_s=self.startup_s,
            solved_at_s=self.solved_at_s,
            solved_at_steps=self.solved_at_steps,
            returns=self.returns.state(),
            notes=list(self.notes),
            last_episodes=[SavedEpisode.of(episode) for episode in self._last_episodes],
            num_started_from_scratch=self.num_started_from_scratch,
            beyond=[(header.num_env_steps, [*map(SavedEpisode.of, header.episodes)]) for header in self._beyond],
            beyond_policies=[[e.policy for e in header.episodes] for header in self._beyond] if self._by_policy else [],
            policies={name: [*map(SavedEpisode.of, last)] for name, last in self._by_policy.items()},
            evaluations=self.evaluations.state(),
        )
        plain: dict[str, Any] = msgspec.to_builtins(state)
        return plain

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint with its counts, last episodes and times.

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
        self.notes = list(was.notes)
        self.returns.restore(was.returns)
        self.num_started_from_scratch = was.num_started_from_scratch
        self.evaluations.restore(was.evaluations)
        self._means = None
        self._last_episodes.clear()
        self._last_episodes.extend(each.episode() for each in was.last_episodes)
        self._by_policy = {
            name: deque((each.episode(name) for each in last), maxlen=RETURN_WINDOW)
            for name, last in was.policies.items()
        }
        policies = was.beyond_policies or repeat(())
        self._beyond = []
        for (steps, saved), names in zip(was.beyond, policies, strict=False):
            pairs = zip(saved, chain(names, repeat("")), strict=False)
            self._beyond.append(Header({}, "", 0, 0, steps, tuple(each.episode(name) for each, name in pairs)))

    def _of_learners(self) -> list[Collection[Episode]]:
        """Last episodes of each policy that learns; of each policy, if none is known to learn."""
        if not self._by_policy:
            return [self._last_episodes]
        names = self._learning if self._by_policy.keys() & set(self._learning) else tuple(self._by_policy)
        return [self._by_policy.get(name, ()) for name in names]

    @property
    def _known_means(self) -> _Means:
        """Means over the episodes whose return stands for the run."""
        if self._means is None:
            shown = min((last for last in self._of_learners() if last), key=_mean_return, default=None)
            self._means = _Means() if shown is None else _Means.over(shown)
        return self._means

    def _state_at(self, updates: int) -> dict[str, Any]:
        """Return the state without evaluations, for a checkpoint of the version that is now evaluated."""
        return {**self.state(), "updates": updates, "evaluations": {}}

    def _since_beginning(self, event: Event) -> float:
        """Seconds of start-up, which ends when the first firing starts; its event arrives only when it has ended."""
        firing_s = event.end_s - event.start_s if isinstance(event, Fired) else 0.0
        return max(0.0, self._clock() - self._began_s - firing_s)

    def _update(self, updates: int) -> None:
        if updates > self.updates:
            self.updates = updates
            if self._is_over:  # the run cannot stop between updates, as when the learner has its own process
                self._is_over = False
                self._count_again()

    def _count_again(self) -> None:
        beyond, self._beyond = self._beyond, []
        for header in beyond:
            self._count(header, are_steps_new=True, are_episodes_new=True)

    def _count(self, header: Header, are_steps_new: bool, are_episodes_new: bool) -> None:
        if self._is_over:
            steps, episodes = header.num_env_steps * are_steps_new, header.episodes * are_episodes_new
            self._beyond.append(msgspec.structs.replace(header, num_env_steps=steps, episodes=episodes))
            return
        if are_steps_new:
            self.env_steps += header.num_env_steps
        if are_episodes_new:
            self._count_episodes(header.episodes)
        if self.updates == self._begun_with and self._until is not None:
            self._is_over = self._until.met(self) is not None

    def _count_episodes(self, episodes: Sequence[Episode]) -> None:
        self.episodes += len(episodes)
        self._last_episodes.extend(episodes)
        counted = (
            e.episode_return for e in episodes if not (e.policy and self._learning) or e.policy in self._learning
        )
        self.returns.add(counted, self.env_steps)
        for episode in episodes:
            if episode.policy:
                self._by_policy.setdefault(episode.policy, deque(maxlen=RETURN_WINDOW)).append(episode)
        self._means = None
        if self._target_return is not None and self.solved_at_s is None:
            mean = self.reached_return
            if mean is not None and mean >= self._target_return:
                self.solved_at_s, self.solved_at_steps = self.elapsed_s, self.env_steps


class _Means(NamedTuple):
    """Means over the last episodes. None: there are no episodes, or not all of them have the number."""

    episode_return: float | None = None
    length: float | None = None
    unshaped_return: float | None = None

    @classmethod
    def over(cls, episodes: Collection[Episode]) -> _Means:
        length = sum([episode.length for episode in episodes]) / len(episodes)
        return cls(_mean_return(episodes), length, mean_unshaped(episodes))


def _mean_return(episodes: Collection[Episode]) -> float:
    # sum, not fsum: diverged returns should be shown, not raise OverflowError
    return sum([episode.episode_return for episode in episodes]) / len(episodes)


class _Recent:
    """Set of recent headers in bounded memory: two generations, of which the older one is forgotten as a whole.

    A ticket may represent several firings of its source (a batch at the shard), each with its own header, and a header may
    arrive several times, at several consumers or on several items of one consumer (a flat map). The number of headers of a
    ticket is therefore that at the consumer that received most of them.
    """

    def __init__(self) -> None:
        self._young: dict[tuple[str, int, int], _Seen] = {}
        self._old: dict[tuple[str, int, int], _Seen] = {}

    def is_new(self, consumer: str, header: Header) -> bool:
        key = (header.source, header.shard, header.ticket)
        seen = self._young.get(key) or self._old.get(key)
        if seen is None:
            if len(self._young) >= _REMEMBERED:
                self._old, self._young = self._young, {}
            self._young[key] = _Seen(consumer, header)
            return True
        return seen.add(consumer, header)


class _Seen:
    """The headers of a ticket, by consumer."""

    __slots__ = ("_headers", "_most")

    def __init__(self, consumer: str, header: Header) -> None:
        self._headers: dict[str, list[Header]] = {consumer: [header]}
        self._most = 1
        """Number of headers at the consumer that received most of them."""

    def add(self, consumer: str, header: Header) -> bool:
        """Add a header; return whether there are now more of them."""
        here = self._headers.setdefault(consumer, [])
        if any(header is other for other in here):
            return False
        here.append(header)
        if len(here) <= self._most:
            return False
        self._most = len(here)
        return True
