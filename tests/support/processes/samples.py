"""Flows for tests of several processes: at module level, for work crosses into workers by its name.

Each worker imports this module, so that it imports no torch: that takes more than a second of processor time.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np

from levada.flow import Flow, NotSavedError, Queue, Shard, Update
from levada.flow.patience import taking_long
from levada.runners.processes.ipc.wire import Wire

SMALL = {"shards": 4, "num_envs": 2, "num_steps": 16, "minibatch_size": 64, "num_epochs": 2}


def small_ppo(max_lag: int, **more: Any) -> Flow:
    """PPO on CartPole, with four shards."""
    from levada.algorithms.ppo import PPO
    from levada.rl.envs.task import Task

    return PPO(max_lag=max_lag, compile=False, **SMALL, **more).flow(Task("CartPole-v1"))


def arrival_ppo() -> Flow:
    """The same in arrival order, with delays that make timing matter."""
    flow = small_ppo(2)
    batch = flow.nodes["batch"]
    [edge] = batch.inputs
    object.__setattr__(batch, "inputs", (replace(edge, queue=Queue(max_lag=2, order="arrival")),))
    rollout = flow.nodes["rollout"]
    object.__setattr__(rollout, "work", Delayed(rollout.work))
    return flow


@dataclass(frozen=True)
class Delayed:
    """Work that takes a random time more: `what` is a source, a function, or the recipe of a learner."""

    what: Any
    most_s: float = 0.02

    def __call__(self, given: Any) -> Any:
        made = self.what(given)
        if isinstance(given, Shard):
            return Delayed(made, self.most_s)
        self.wait()
        return made

    def wait(self) -> None:
        """A random time; never the same twice."""
        time.sleep(random.SystemRandom().random() * self.most_s)

    def open(self, seed: int) -> Any:
        live = self.what.open(seed)
        update = live.update

        def slow(batch: Any) -> Any:
            self.wait()
            return update(batch)

        live.update = slow
        return live

    def close(self) -> None:
        if hasattr(self.what, "close"):
            self.what.close()

    def state_dict(self) -> Any:
        return self.what.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.what.load_state_dict(state)

    @property
    def policy_name(self) -> str:
        return self.what.policy_name

    @property
    def tolerates_staleness(self) -> bool:
        return self.what.tolerates_staleness


@dataclass(frozen=True)
class Counting:
    """A learner whose weights are the number of its updates, and who keeps what it was given."""

    policy_name: str = "policy"
    tolerates_staleness: bool = True

    def open(self, seed: int) -> "LiveCounting":
        return LiveCounting()


class LiveCounting:
    def __init__(self) -> None:
        self.num_updates = 0
        self.batches: list[Any] = []

    def update(self, batch: Any) -> Update[np.ndarray]:
        self.num_updates += 1
        self.batches.append(tuple(np.array(item) for item in batch))
        return Update(self.weights(), {"updates": float(self.num_updates)})

    def weights(self) -> np.ndarray:
        return np.full(4, self.num_updates, np.float32)


@dataclass(frozen=True)
class SavedCounting(Counting):
    """The same, and it can be saved."""

    def open(self, seed: int) -> "LiveSavedCounting":
        return LiveSavedCounting()


class LiveSavedCounting(LiveCounting):
    def state_dict(self) -> dict[str, np.ndarray]:
        return {"num_updates": np.array(self.num_updates)}

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        self.num_updates = int(state["num_updates"])


@dataclass(frozen=True)
class Harmful(Counting):
    """Does harm in its third update; see `do_harm`."""

    what: str = "kill"

    def open(self, seed: int) -> Any:
        live = LiveCounting()
        update = live.update
        live.update = lambda batch: do_harm(self.what) if live.num_updates == 2 else update(batch)
        return live


@dataclass(frozen=True)
class Hanging(Counting):
    """Hangs in its third update, but only once."""

    marker: Path = Path()

    def open(self, seed: int) -> Any:
        live = LiveCounting()
        update = live.update

        def hang_once(batch: Any) -> Any:
            if live.num_updates == 2 and not self.marker.exists():
                self.marker.touch()
                time.sleep(3600.0)
            return update(batch)

        live.update = hang_once
        return live


@dataclass(frozen=True)
class Raising(Counting):
    """Raises in its first update."""

    def open(self, seed: int) -> Any:
        live = LiveCounting()
        live.update = lambda batch: do_harm("raise")
        return live


@dataclass(frozen=True)
class Unsendable(Counting):
    """Cannot be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle Unsendable")


@dataclass(frozen=True)
class Numbers:
    """A source of arrays: shard, firing, the version it was made with. `misbehave` is called before each."""

    size: int = 3
    misbehave: Callable[[Shard, int], None] | None = None

    def __call__(self, shard: Shard) -> "LiveNumbers":
        return LiveNumbers(self, shard)


@dataclass
class LiveNumbers:
    recipe: Numbers
    shard: Shard
    num_firings: int = field(default=0)

    def __call__(self, weights: np.ndarray) -> np.ndarray:
        self.num_firings += 1
        if self.recipe.misbehave is not None:
            self.recipe.misbehave(self.shard, self.num_firings)
        made = np.zeros(max(3, self.recipe.size), np.float32)
        made[:3] = self.shard.index, self.num_firings, weights[0]
        return made


class Unclosable(Numbers):
    """Raises when it is closed."""

    def __call__(self, shard: Shard) -> LiveNumbers:
        live: Any = super().__call__(shard)
        live.close = lambda: do_harm("raise")
        return live


class UnclosableCounting(Counting):
    """Raises when it is closed."""

    def open(self, seed: int) -> Any:
        live: Any = super().open(seed)
        live.close = lambda: do_harm("raise")
        return live


class Remembered(Numbers):
    """The same, and where it stands can be saved."""

    def __call__(self, shard: Shard) -> "LiveRemembered":
        return LiveRemembered(self, shard)


class LiveRemembered(LiveNumbers):
    def state_dict(self) -> dict[str, np.ndarray]:
        return {"num_firings": np.array(self.num_firings)}

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        self.num_firings = int(state["num_firings"])


@dataclass(frozen=True)
class Fragile:
    """Random numbers; shard 1 raises at its third firing, and its replacement at the second: the same wherever it runs."""

    def __call__(self, shard: Shard) -> "LiveFragile":
        return LiveFragile(shard)


class LiveFragile:
    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.random = np.random.default_rng(shard.seed)
        self.num_firings, self.num_before = 0, shard.num_items

    def __call__(self, weights: np.ndarray) -> np.ndarray:
        self.num_firings += 1
        if self.shard.index == 1 and (self.shard.generation, self.num_firings) in ((0, 3), (1, 2)):
            do_harm("raise")
        return np.array([self.shard.generation, self.num_before, self.random.random(), weights[0]], np.float32)

    def state_dict(self) -> dict[str, np.ndarray]:
        state = self.random.bit_generator.state["state"]
        words = [state[name] >> 64 * i & (1 << 64) - 1 for name in ("state", "inc") for i in (0, 1)]
        counts = np.array([self.num_firings, self.num_before])
        return {"counts": counts, "random": np.array(words, np.uint64)}

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        self.num_firings, self.num_before = map(int, state["counts"])
        low, high, inc_low, inc_high = map(int, state["random"])
        generator = self.random.bit_generator
        generator.state = {**generator.state, "state": {"state": low | high << 64, "inc": inc_low | inc_high << 64}}


@dataclass(frozen=True)
class Forgetful(Remembered):
    """The same, but where it stands cannot be restored."""

    excuse: str = "it has forgotten"

    def __call__(self, shard: Shard) -> "LiveForgetful":
        return LiveForgetful(self, shard)


class LiveForgetful(LiveRemembered):
    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        raise NotSavedError(self.recipe.excuse)


def die_where_it_stands(shard: Shard, firing: int) -> None:
    """End the worker of shard 1 at its third firing, however often it comes there, unless it has begun anew."""
    if (shard.index, firing, shard.generation) == (1, 3, 0):
        do_harm("kill")


@dataclass(frozen=True)
class Sleeping:
    """A source whose items take a time."""

    seconds: float

    def __call__(self, shard: Shard) -> Any:
        numbers = Numbers()(shard)

        def make(weights: Any) -> Any:
            time.sleep(self.seconds)
            return numbers(weights)

        return make


def counting_flow(source: Any, *, shards: int = 4, queue: Queue | None = None, learner: Counting | None = None) -> Flow:
    """Arrays into batches into a counting learner."""
    flow = Flow("counting")
    learner = learner or Counting()
    weights = flow.latest("weights", of=learner)
    numbers = flow.source("numbers", source, reads=weights, shards=shards)
    update = flow.learn("learn", learner, flow.batch("batch", numbers.via(queue or Queue(max_lag=0)), size=shards))
    flow.publish(update.weights, to=weights)
    flow.report(update.stats)
    return flow


@dataclass(frozen=True)
class Failing(SavedCounting):
    """Raises an error in its third update, while another learner's update waits."""

    error: BaseException | None = field(default_factory=lambda: ArithmeticError("the third update"))

    def open(self, seed: int) -> Any:
        live: Any = super().open(seed)
        update = live.update

        def slow(batch: Any) -> Any:
            time.sleep(0.2)
            if self.error is not None and live.num_updates == 2:
                raise self.error
            return update(batch)

        live.update = slow
        return live


class Rude(BaseException):
    """An error that `except Exception` does not catch."""


def two_learners(error: BaseException) -> Flow:
    """Two learners, of which the first fails."""
    flow = Flow("two")
    for name, learner in (("bad", Failing("bad", error=error)), ("good", Failing("good", error=None))):
        with flow.scope(name):
            weights = flow.latest("weights", of=learner)
            numbers = flow.source("numbers", Remembered(), reads=weights, shards=2).via(Queue(max_lag=0))
            update = flow.learn("learn", learner, flow.batch("batch", numbers, size=2))
            flow.publish(update.weights, to=weights)
            flow.report(update.stats)
    return flow


def look(numbers: np.ndarray) -> dict[str, float]:
    """Where an array of `Numbers` comes from."""
    return dict(zip(("shard", "firing", "version"), numbers[:3].tolist(), strict=True))


def watched_flow(source: Any, *, shards: int = 4) -> Flow:
    """A map between a queue and a batch, whose results are also reported."""
    flow = Flow("watched")
    learner = Counting()
    weights = flow.latest("weights", of=learner)
    numbers = flow.source("numbers", source, reads=weights, shards=shards)
    looked = flow.map("look", look, numbers.via(Queue(max_lag=0)))
    update = flow.learn("learn", learner, flow.batch("batch", looked, size=shards))
    flow.publish(update.weights, to=weights)
    flow.report(looked, name="seen")
    flow.report(update.stats)
    return flow


SIZES = (1, 1_000, 1_000_000, 30_000_000)


@dataclass(frozen=True)
class Growing:
    """A source of arrays, each much larger than the one before; the value is the firing."""

    def __call__(self, shard: Shard) -> Callable[[Any], np.ndarray]:
        sizes = chain(enumerate(SIZES), repeat((len(SIZES), 1)))

        def make(weights: Any) -> np.ndarray:
            n, size = next(sizes)
            return np.full(size, n, np.float32)

        return make


class StormError(Exception):
    """A user's own exception."""


@dataclass(frozen=True)
class Once:
    """Does something bad at a shard's firing, once in the life of a directory: what is restarted gets through."""

    directory: str
    what: str
    shard: int = 1
    firing: int = 3

    def __call__(self, shard: Shard, firing: int) -> None:
        if (shard.index, firing) != (self.shard, self.firing):
            return
        try:
            (Path(self.directory) / self.what).touch(exist_ok=False)
        except FileExistsError:
            return
        do_harm(self.what)


@dataclass(frozen=True)
class Asked:
    """Raises as soon as a file is there, once."""

    path: str

    def __call__(self, shard: Shard, firing: int) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self.path)
            do_harm("raise")


@dataclass(frozen=True)
class Always:
    """Does something bad at every firing of a shard from one on."""

    what: str
    shard: int = 1
    firing: int = 3

    def __call__(self, shard: Shard, firing: int) -> None:
        if shard.index == self.shard and firing >= self.firing:
            do_harm(self.what)


def do_harm(what: str) -> None:
    if what == "raise":
        raise StormError("storm")
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "exit":
        os._exit(3)
    if what == "sys.exit":
        sys.exit(0)
    if what == "sleep":
        time.sleep(1000.0)
    if what == "interrupt":
        raise KeyboardInterrupt("why")


def interrupt(shard: Shard, firing: int) -> None:
    """Misbehave always."""
    do_harm("interrupt")


@dataclass(frozen=True)
class DelayedMessages:
    """A source whose worker waits a random time before each message that it sends."""

    what: Any

    def __call__(self, shard: Shard) -> Any:
        delay_messages(Wire, "send")
        return self.what(shard)


def delay_messages(cls: type, method: str) -> None:
    """Have a method wait a random time first; once only, however often it is asked."""
    send = getattr(cls, method)
    if getattr(send, "is_delayed", False):
        return

    def later(*args: Any) -> Any:
        Delayed(None, most_s=0.005).wait()
        return send(*args)

    later.is_delayed = True  # type: ignore[attr-defined]
    setattr(cls, method, later)


@dataclass(frozen=True)
class Forking:
    """A source whose shards have forked a process, which holds whatever they hold, and outlives them."""

    def __call__(self, shard: Shard) -> Any:
        if os.fork() == 0:
            time.sleep(5.0)
            os._exit(0)
        return Numbers()(shard)


@dataclass(frozen=True)
class Unpicklable:
    """A source of generators."""

    def __call__(self, shard: Shard) -> Any:
        return lambda weights: (number for number in range(3))


@dataclass(frozen=True)
class BadState:
    """A source whose state can be asked for twice."""

    def __call__(self, shard: Shard) -> Any:
        return LiveBadState()


class LiveBadState:
    def __init__(self) -> None:
        self.num_asked = 0

    def __call__(self, weights: Any) -> np.ndarray:
        return np.zeros(3, np.float32)

    def state_dict(self) -> Any:
        self.num_asked += 1
        if self.num_asked > 2:
            raise StormError("storm in state_dict")
        return {}

    def load_state_dict(self, state: Any) -> None:
        raise AssertionError


@dataclass(frozen=True)
class Slow(Counting):
    """An update takes a time."""

    seconds: float = 0.0

    def open(self, seed: int) -> Any:
        live = LiveCounting()
        update = live.update

        def slow(batch: Any) -> Any:
            live.batches.clear()
            time.sleep(self.seconds)
            return update(batch)

        live.update = slow
        return live


@dataclass(frozen=True)
class Fattening(Counting):
    """Its weights grow with each update."""

    def open(self, seed: int) -> Any:
        live = LiveCounting()
        live.update = lambda batch: Update(np.zeros(1 << 20, np.float32), {})
        return live


@dataclass(frozen=True)
class ExitsAtOnce:
    """A source that ends its process, as an error that nobody catches does."""

    def __call__(self, shard: Shard) -> Any:
        os._exit(1)


@dataclass(frozen=True)
class Unconnected(Counting):
    """Misses something that it would connect to."""

    when: str = "open"

    def open(self, seed: int) -> Any:
        live = LiveCounting()
        live.update = self.connect
        if self.when == "open":
            self.connect(None)
        return live

    def connect(self, batch: Any) -> Any:
        """As a client of some server would."""
        msg = "no licence server"
        raise ConnectionRefusedError(msg)


@dataclass(frozen=True)
class Stuck(Counting):
    """Its second update sits in C, where Python's signal handlers do not run; `marker`: a file that tells when."""

    marker: Path = Path()

    def open(self, seed: int) -> Any:
        live = LiveCounting()
        update = live.update

        def sit(batch: Any) -> Any:
            if live.num_updates == 0:
                return update(batch)
            self.marker.touch()
            return sum(range(10**12))

        live.update = sit
        return live


@dataclass(frozen=True)
class ForkingCarelessly:
    """A source whose shards fork in each firing, and let the child exit, or return from the firing."""

    how: str

    def __call__(self, shard: Shard) -> Any:
        numbers = Numbers()(shard)

        def make(weights: Any) -> Any:
            if os.fork() == 0:
                if self.how == "exit":
                    sys.exit(0)
                if self.how == "return":
                    return None
            return numbers(weights)

        return make


@dataclass(frozen=True)
class Compiling:
    """A source that compiles once."""

    def __call__(self, shard: Shard) -> Any:
        return Numbers(misbehave=self.compile_once)(shard)

    def compile_once(self, shard: Shard, firing: int) -> None:
        """At its second firing."""
        if firing == 2:
            with taking_long("compiling"):
                pass


@dataclass(frozen=True)
class CompilingLearner(Counting):
    """The same for a learner."""

    def open(self, seed: int) -> Any:
        live = LiveCounting()
        update = live.update

        def compile_once(batch: Any) -> Any:
            if live.num_updates == 1:
                with taking_long("compiling"):
                    pass
            return update(batch)

        live.update = compile_once
        return live


BALLAST = 100_000
"""Bytes: more than a pipe holds."""


@dataclass(frozen=True)
class Remembering:
    """A source that counts, and whose state is large; the value is the count."""

    def __call__(self, shard: Shard) -> Any:
        return LiveRemembering(shard)


class LiveRemembering:
    def __init__(self, shard: Shard) -> None:
        self.counted = np.array([shard.index, shard.generation, 0], np.float32)

    def __call__(self, weights: Any) -> np.ndarray:
        self.counted[2] += 1.0
        return self.counted.copy()

    def state_dict(self) -> Any:
        return {"counted": self.counted.copy(), "ballast": np.zeros(BALLAST, np.uint8)}

    def load_state_dict(self, state: Any) -> None:
        self.counted[:] = state["counted"]
