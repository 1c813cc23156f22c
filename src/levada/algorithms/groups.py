"""A group: a whole run of an algorithm, with samplers, replay and learner, as the work of one shard of a source.

An item of the source is the difference that some updates of the group have made to the parameters. Before them, the group's
parameters are set to the global ones, plus what it has sent and is not part of those yet. All else stays in the group: the state
of the optimizer, target networks, replay, environments, and the schedules of learning rate and exploration.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import numpy as np

from levada.algorithms.algorithm import Algorithm
from levada.algorithms.checks import ConfigError
from levada.flow import Episode, Flow, NotSavedError, Shard
from levada.flow.state import PrefixView
from levada.rl.compute.threads import use_threads
from levada.rl.data.normalize import Moments, merge_all
from levada.rl.data.spaces import Array
from levada.rl.envs.task import Task
from levada.rl.learning.averaging import (
    APPLIED,
    COUNTS,
    PARAMS,
    VERSION,
    GroupDelta,
    ParameterLayout,
    load_parameters,
    moments_in,
    new_moments,
)
from levada.rl.learning.compression import Compression, ErrorFeedback, Uncompressed
from levada.rl.learning.learner import Learner, LiveLearner
from levada.rl.policies.policy import Weights
from levada.run.monitor import Monitor
from levada.run.storage.state import pack, unpack
from levada.runners.inline import Inline
from levada.validation import PositiveInt

LARGEST_REPLAY = 1 << 26
"""Largest size in bytes of a group's replay that is saved with the group. A larger one is filled again after a resume."""
_RUN = "run/"
_META = "meta"
_FIELDS = ("count", "mean", "var")

log: logging.Logger = logging.getLogger(__name__)


def only_learner(flow: Flow) -> tuple[str, Learner]:
    """Return the name and the recipe of the only learner of a flow.

    Raises:
        ConfigError: there are several, or it is of another kind.
    """
    learners = flow.learners()
    if len(learners) != 1 or not isinstance(next(iter(learners.values())), Learner):
        found = ", ".join(f"{name} ({type(recipe).__name__})" for name, recipe in learners.items()) or "none"
        msg = f"groups of {flow.name!r} cannot be averaged: its learners are {found}, expected one levada.Learner"
        raise ConfigError(msg)
    name, recipe = next(iter(learners.items()))
    return name, cast("Learner", recipe)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Source of `GroupDelta`: opens a run of an algorithm per shard."""

    algorithm: Algorithm
    """The algorithm of each group."""
    task: Task
    num_updates: PositiveInt
    """Number of updates of the group per item."""
    compression: Compression = field(default_factory=Uncompressed)

    def __call__(self, shard: Shard) -> LiveGroup:
        """Open the run of a group."""
        return LiveGroup(self, shard)

    def verify(self) -> None:
        """Refuse an algorithm that cannot run, or cannot be averaged."""
        flow = self.algorithm.flow(self.task)
        flow.check(reports=True)
        only_learner(flow)


class _Part(NamedTuple):
    """A difference that was sent, as the averaging learner sees it."""

    number: int
    delta: Array
    moments: Mapping[str, Moments]


class _Counts(Monitor):
    """Instrument that counts as any run does, and keeps the episodes of an item."""

    def __init__(self) -> None:
        super().__init__()
        self.new_episodes: list[Episode] = []

    def _count_episodes(self, episodes: Sequence[Episode]) -> None:
        super()._count_episodes(episodes)
        self.new_episodes += episodes


class LiveGroup:
    """The running group of a shard, made by `Group`."""

    def __init__(self, recipe: Group, shard: Shard) -> None:
        self._recipe = recipe
        self._shard = shard
        self._flow = recipe.algorithm.flow(recipe.task)
        self._name, learner = only_learner(self._flow)
        self._layout = ParameterLayout(learner)
        self._sender = ErrorFeedback(recipe.compression, self._layout.size)
        self._num_sent = -1
        """Number of the last item; -1: nothing was made yet."""
        self._parts: list[_Part] = []
        self._counts = _Counts()
        self._open(None)

    def _open(self, state: Any) -> None:
        """Open the run, from a state if there is one."""
        use_threads(self._shard.num_threads)  # of the learner too, so that results do not depend on the deployment
        place = Inline(threads=self._shard.num_threads)
        self._run = place.open(self._flow, seed=self._shard.seed, instruments=[self._counts], state=state)
        self._reports = iter(self._run)

    @property
    def learner(self) -> LiveLearner:
        """The learner of the group, for observers."""
        return cast("LiveLearner", self._run.node_state(self._name))

    def __call__(self, weights: Weights) -> GroupDelta:
        """Make the updates of one item, from the global weights of `LiveAveraging.weights`."""
        before = self._start(weights)
        reported: dict[str, list[float]] = {}
        env_steps_before, self._counts.new_episodes = self._counts.env_steps, []
        goal = int(before[COUNTS][0]) + self._recipe.num_updates
        while self.learner.num_updates < goal:
            for name, value in self._next_report().items():
                reported.setdefault(name, []).append(value)
        after = self.learner.state_dict()
        self._check_buffers(before, after)
        sent = self._sender.send(after[PARAMS] - before[PARAMS])
        moments = new_moments(moments_in(after), moments_in(before))
        self._num_sent += 1
        self._parts.append(_Part(self._num_sent, sent.received, moments))
        made = after[COUNTS] - before[COUNTS]
        return GroupDelta(
            group=self._shard.index, number=self._num_sent, version=int(weights[VERSION]), message=sent.message,
            moments=moments, stats={name: float(np.mean(values)) for name, values in reported.items()},
            num_updates=int(made[0]), num_transitions=int(made[2]),
            num_env_steps=self._counts.env_steps - env_steps_before, episodes=tuple(self._counts.new_episodes),
        )  # fmt: skip

    def state_dict(self) -> dict[str, Array]:
        """Return the state of the run, and what was sent. A replay above `LARGEST_REPLAY` is left out."""
        state = self._run.save()
        tables = [table for tables in state.replays.values() for table in tables]
        if sum(array.nbytes for table in tables for array in table.values()) > LARGEST_REPLAY:
            state = self._run.save(replays=False)
        arrays, meta = pack(state)
        found = {f"{_RUN}{name}": np.array(array) for name, array in arrays.items()}
        found[_META] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
        found["num_sent"] = np.array(self._num_sent, np.int64)
        found["residual"] = self._sender.residual
        for number, delta, moments in self._parts:
            found[f"parts/{number}/delta"] = delta
            for key, some in moments.items():
                found |= {f"parts/{number}/{name}/{key}": np.asarray(getattr(some, name)) for name in _FIELDS}
        return found

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Resume from the result of `state_dict`. NotSavedError: the state is that of something else."""
        try:
            arrays = PrefixView(state, _RUN)
            run = unpack(arrays, json.loads(state[_META].tobytes()), arrays, self._flow)
            numbers = dict.fromkeys(int(name.split("/")[1]) for name in state if name.startswith("parts/"))
            self._parts = [_part(number, PrefixView(state, f"parts/{number}/")) for number in numbers]
            self._num_sent = int(state["num_sent"])
            self._sender.residual = np.array(state["residual"])
        except (KeyError, ValueError) as error:
            msg = f"its state is not that of a group of {self._flow.name!r}: {error}"
            raise NotSavedError(msg) from error
        self._run.close()
        self._open(run)
        new = {
            **{f"episodes of {name} {index}": why for (name, index), why in run.unsaved.items()},
            **run.unsaved_replays,
        }
        if new:
            what = "; ".join(f"{name} ({why})" for name, why in new.items())
            log.warning("%s %d goes on, but starts over in: %s", self._shard.node, self._shard.index, what)

    def close(self) -> None:
        """Close the run."""
        self._run.close()

    # ---- internals

    def _start(self, weights: Weights) -> dict[str, Array]:
        """Set the learner to the global parameters, plus what is not part of them yet; return its state."""
        applied = int(weights[APPLIED][self._shard.index])
        is_first = self._num_sent < 0
        if is_first:
            # a group that starts over does not number its items like its predecessor, some of which may not be applied yet
            self._num_sent = max(applied, self._shard.num_items)
        self._parts = [part for part in self._parts if part.number > applied]
        params = self._layout.flatten(weights)
        for part in self._parts:
            params = params + part.delta
        policy = self.learner.recipe.policy
        moments = merge_all([policy.moments_of(weights), *(part.moments for part in self._parts)])
        load_parameters(self.learner, params, moments, with_target=is_first)
        self._run.refresh_weights(self._name)
        return self.learner.state_dict()

    def _next_report(self) -> Mapping[str, float]:
        try:
            return next(self._reports).values
        except BaseException:
            self._reports = iter(self._run)  # an interrupted item is made again
            raise

    def _check_buffers(self, before: Mapping[str, Array], after: Mapping[str, Array]) -> None:
        """Refuse networks that change buffers of their own: those of the groups would drift apart."""
        policy = self.learner.recipe.policy
        normalizing = set(policy.buffers_of(moments_in(after)))
        parameters = self._layout.names
        for name, array in after.items():
            kind, _, place = name.partition("/")
            own = place.partition(".")[2] if kind == "buffers" else place
            if kind not in ("weights", "buffers") or own in normalizing or (kind == "weights" and own in parameters):
                continue
            if not np.array_equal(array, before[name], equal_nan=array.dtype.kind == "f"):
                msg = (
                    f"the network has changed its buffer {own!r} in an update: groups average parameters, and their buffers "
                    "would drift apart; use a layer without running statistics, such as LayerNorm in place of BatchNorm"
                )
                raise ConfigError(msg)


def _part(number: int, arrays: Mapping[str, Array]) -> _Part:
    keys = [name.removeprefix("count/") for name in arrays if name.startswith("count/")]
    moments = {
        key: Moments(float(arrays[f"count/{key}"]), np.array(arrays[f"mean/{key}"]), np.array(arrays[f"var/{key}"]))
        for key in keys
    }
    return _Part(number, np.array(arrays["delta"]), moments)
