"""A run that is made of a list, and other small stand-ins."""

import errno
import os
from dataclasses import dataclass, field

import numpy as np

from levada.flow import Flow
from levada.flow.events import (
    ChannelStatistics,
    LagStatistics,
    Ledger,
    NodeStatistics,
    Report,
    Reported,
    Statistics,
    Used,
)
from levada.flow.items import Episode, Header
from levada.run.identity import Identity, Setting

IDENTITY = Identity(algorithm="ppo", env="CartPole-v1", seed=1, deployment="inline", flow_hash="ab" * 32)
SETTINGS = {"learning_rate": Setting(3e-4, "preset"), "seed": Setting(1, "command line")}


class Clock:
    """Time that passes only when told to."""

    def __init__(self, now=0.0):
        self.now = now

    def __call__(self):
        return self.now


def header(ticket=0, *, steps=10, returns=(), source="rollout", shard=0, length=5):
    episodes = tuple(Episode(value, length) for value in returns)
    return Header({"policy": 0}, source, shard, ticket, steps, episodes)


def used(ticket=0, *, node="learn", **rest):
    return Used(node, (header(ticket, **rest),))


def report(update, **values):
    return Report("learn", update, {"policy": update}, values or {"losses/policy_loss": 1.0 / update})


def channel(*, fill=3, capacity=8, lag=None, dropped=None, lost=0):
    lag = {"policy": LagStatistics(max=1, mean=0.4, bound=1, count=10)} if lag is None else lag
    dropped = dropped or {}
    produced = 10 + sum(dropped.values()) + lost + fill
    return ChannelStatistics(fill, capacity, lag, Ledger(produced, 10, dropped, lost, fill))


def statistics(*, channels=None, nodes=None, replays=None):
    nodes = nodes or {
        "rollout": NodeStatistics(30, 6.0, 1.0, 3.0, "rollout->learn", cpu_s=5.0),
        "learn": NodeStatistics(10, 4.0, 6.0, 0.0, None, cpu_s=3.0),
    }
    channels = {"rollout->learn": channel()} if channels is None else channels
    return Statistics(10.0, nodes, channels, {"policy": 10}, replays=replays or {})


@dataclass
class FakeRun:
    """Yields `num_reports` reports; each update consumes one item of 10 steps with one episode of return = update."""

    monitor: object = None
    num_reports: int | None = None
    returns: object = float
    raises: dict = field(default_factory=dict)
    clock: Clock = field(default_factory=Clock)
    updates: int = 0
    weights: np.ndarray = field(default_factory=lambda: np.zeros(3, np.float32))

    def __iter__(self):
        while self.num_reports is None or self.updates < self.num_reports:
            update = self.updates + 1
            if update in self.raises:
                raise self.raises.pop(update)
            self.clock.now += 1.0
            self.weights = self.weights + np.float32(0.5)
            self.updates = update
            made = report(update)
            if self.monitor is not None:
                self.monitor.on_event(used(update, returns=[self.returns(update)]))
                self.monitor.on_event(Reported(made))
            yield made

    @property
    def flow(self):
        return Flow("fake")

    def is_hung(self, seconds):
        return False

    def statistics(self):
        return statistics()

    def attribution(self):
        return {}

    def arrays(self):
        return {"weights": self.weights, "moments": self.weights * 2}, {"firing": self.updates}

    def params(self):
        return {"weights": self.weights}


class FullDisk:
    """Lets `num_calls` calls of an os function through, then says that the disk is full."""

    def __init__(self, monkeypatch, name, num_calls=0):
        self._real = getattr(os, name)
        self._left = num_calls
        monkeypatch.setattr(os, name, self)

    def __call__(self, *args, **kwargs):
        if self._left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._left -= 1
        return self._real(*args, **kwargs)


def files_below(path):
    return sorted(str(p.relative_to(path)) for p in path.rglob("*"))
