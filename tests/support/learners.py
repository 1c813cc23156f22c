"""Learners that are replicas of one another, in processes and in threads, and batches for them to learn from."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import levada as lv
from levada.algorithms.dqn import DQN
from levada.algorithms.impala import IMPALA
from levada.algorithms.ppo import PPO
from levada.algorithms.sac import SAC
from levada.flow import Replica, Shard, derive_seed
from levada.rl.compute.threads import set_threads
from levada.rl.learning.batches import Cut, take
from levada.rl.learning.learner import Learner, LiveLearner
from levada.rl.replay.transitions import MASK, Transitions, concatenate

TIMEOUT_S = 60.0
NUM_PARTS = 4
REPLAYED: dict[str, Any] = {
    "hidden_sizes": (8,), "batch_size": 16, "microbatch_size": 4, "num_gradient_steps": 2, "learning_starts": 10,
}  # fmt: skip
REPLAYED_CUT = Cut(num_rows=32, minibatch_size=16, num_parts=NUM_PARTS, shuffle=False)
ROLLOUTS: dict[str, Any] = {"num_envs": 2, "num_steps": 8, "hidden_sizes": (8,), "microbatch_size": 16}
PPO_FIELDS = ROLLOUTS | {"shards": 4, "num_epochs": 2, "minibatch_size": 32, "microbatch_size": 8}
CARTPOLE = lv.Task("CartPole-v1")
ALGORITHMS: dict[str, tuple[Any, lv.Task]] = {
    "ppo": (PPO(**PPO_FIELDS, normalize_obs=True, normalize_reward=True), CARTPOLE),
    "gru": (PPO(**PPO_FIELDS, rnn_type="gru", rnn_size=4), CARTPOLE),
    "frames": (PPO(**PPO_FIELDS), lv.Task("support.envs.pixels:Pixels-v0", frame_stack=3)),
    "impala": (IMPALA(**ROLLOUTS, num_rollouts=4, order="admission"), CARTPOLE),
    "dqn": (DQN(**REPLAYED, prioritized=True, noisy=True, target_update_interval=3), CARTPOLE),
    "sac": (SAC(**REPLAYED, normalize_obs=True, normalize_reward=True), lv.Task("Pendulum-v1")),
}
"""Algorithms with 4 microbatches per minibatch, and a task."""


def recipe(name: str, **fields: Any) -> Learner:
    """The learner of an algorithm; `fields` replace its own."""
    hp, task = ALGORITHMS[name]
    return replace(hp.flow(task).learners()["learn"], **fields)


def batches(name: str, num: int) -> list[list[Transitions]]:
    """Batches for the learner, of one item for each part. Some rows of rollouts are masked."""
    hp, task = ALGORITHMS[name]
    if isinstance(hp, DQN | SAC):
        some = [_sample(task, REPLAYED_CUT.num_rows, seed) for seed in range(num)]
        return [[take(batch, REPLAYED_CUT.rows_of(part)) for part in range(NUM_PARTS)] for batch in some]
    policy = hp.policy(task)
    shards = [Shard("rollout", i, 4, derive_seed(0, "rollout", i)) for i in range(4)]
    make, weights = hp.sampler(task, policy), recipe(name).open(0).weights()
    samplers = [make(shard) for shard in shards]
    prepare = hp.prepare() if isinstance(hp, PPO) else lambda rollout: rollout.sequences()
    try:
        rng = np.random.default_rng(0)
        return [[_masked(prepare(sampler(weights)), rng) for sampler in samplers] for _ in range(num)]
    finally:
        for sampler in samplers:
            sampler.close()


def whole(name: str, batch: Sequence[Transitions]) -> list[Transitions]:
    """The items of a batch that is not divided: the rows of a replay are one item."""
    if not isinstance(ALGORITHMS[name][0], DQN | SAC):
        return list(batch)
    return [take(concatenate(batch), np.argsort(REPLAYED_CUT.rows_by_part()))]


def _masked(item: Transitions, rng: np.random.Generator) -> Transitions:
    mask = np.asarray(item.columns[MASK])
    return Transitions({**item.columns, MASK: mask & (rng.random(mask.shape) < 0.8)}, item.moments)


def _sample(task: lv.Task, num_rows: int, seed: int) -> Transitions:
    rng = np.random.default_rng(seed)
    (num_obs,) = task.observation_space.shape
    obs, after = rng.normal(size=(2, num_rows, num_obs)).astype(np.float32)
    reward, share, returns = rng.normal(size=(3, num_rows)).astype(np.float32)
    is_discrete = task.action_space.shape == ()
    action = rng.integers(0, 2, num_rows) if is_discrete else rng.uniform(-1, 1, (num_rows, 1)).astype(np.float32)
    more = {"importance": np.abs(share)} if is_discrete else {"discounted_return": returns}
    discount = (0.9 * rng.integers(0, 2, num_rows)).astype(np.float32)
    return Transitions(
        {"obs": obs, "next_obs": after, "action": action, "reward": reward, "discount": discount, **more}
    )


@dataclass
class Told:
    """What a replica says after some updates."""

    fingerprint: str
    params: np.ndarray
    stats: list[Mapping[str, float]] = field(default_factory=list)
    priorities: list[Any] = field(default_factory=list)


def train(live: LiveLearner, some: Sequence[Any], parts: Sequence[int] | None = None) -> Told:
    """Learn from batches: from some of their parts, or from all."""
    made = [live.update(batch if parts is None else [batch[part] for part in parts], parts) for batch in some]
    stats, priorities = [update.stats for update in made], [update.priorities for update in made]
    return Told(live.fingerprint(), live.state_dict()["step/params"], stats, priorities)


# ---- replicas in processes


def _serve(connection: Any) -> None:
    set_threads(1)
    live: Any = None
    while True:
        method, *args = connection.recv()
        try:
            if method == "open":
                live, answer = args[0].open(args[1]), None
            elif method == "train":
                answer = train(live, *args)
            else:
                answer = getattr(live, method)(*args)
        except Exception as error:
            answer = error
        connection.send(answer)


class Worker:
    """A process with one learner."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(there,), daemon=True)
        self._process.start()
        there.close()

    def send(self, method: str, *args: Any) -> None:
        """Begin a call; of the learner, but for `open` and `train`."""
        self._connection.send((method, *args))

    def receive(self) -> Any:
        """What the call returned, or the error that it raised."""
        assert self._connection.poll(3 * TIMEOUT_S), "no answer"
        return self._connection.recv()

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.join()


def together(
    workers: Sequence[Worker], method: str, args: Callable[[int], Sequence[Any]] = lambda rank: ()
) -> list[Any]:
    """The same call in all of them at the same time; raise the first error."""
    for rank, worker in enumerate(workers):
        worker.send(method, *args(rank))
    found = [worker.receive() for worker in workers]
    for answer in found:
        if isinstance(answer, Exception):
            raise answer
    return found


def join(workers: Sequence[Worker], reduce: Any, timeout_s: float = TIMEOUT_S) -> None:
    """Form a group of workers."""
    workers[0].send("listen", "127.0.0.1")
    address = workers[0].receive()
    together(workers, "join", lambda rank: [Replica(rank, len(workers), address, reduce, timeout_s)])


# ---- replicas in threads


def in_threads(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Call functions at the same time; return their results, or the errors that they raised."""
    found: list[Any] = [None] * len(calls)

    def call(number: int) -> None:
        set_threads(1)
        try:
            found[number] = calls[number]()
        except Exception as error:
            found[number] = error

    threads = [threading.Thread(target=call, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@contextmanager
def group_of(lives: Sequence[LiveLearner], reduce: Any = "exact", timeout_s: float = TIMEOUT_S) -> Iterator[None]:
    """Form a group of learners in this process, which leave it in the end."""
    address = lives[0].listen("127.0.0.1")
    replicas = [Replica(rank, len(lives), address, reduce, timeout_s) for rank in range(len(lives))]
    found = in_threads([lambda live=live, one=one: live.join(one) for live, one in zip(lives, replicas, strict=True)])
    for error in found:
        if error is not None:
            raise error
    yield
    for live in lives:
        live.join(Replica(0, 1, "", reduce, timeout_s))
