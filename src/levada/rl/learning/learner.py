"""Learner: trains networks on batches of transitions. The recipe is plain data; `open` makes the live learner.

One firing is one update, which advances the version by one: passes over the batch in minibatches, each of which is one functional
gradient step (see `levada.rl.learning.step`). All networks are stored in one flat vector, so a step is one recorded gradient, one
pass of the optimizer, and one update of the target networks. The gradient of a minibatch may be computed in several microbatches,
and by several replicas of the learner (see `levada.flow.replicas`).

Off-policy, with a target network, in the order of the samples, which are minibatches already:

    learner = Learner(
        policy=policy, loss=loss, minibatch_size=64, shuffle=False, targets=("policy",), target_update_interval=500,
        coefficients=lambda num_transitions: {"learning_rate": 1e-3}, tolerates_staleness=True,
    )
    update = flow.learn("learn", learner, flow.sample("sample", replay, size=8 * 64, minibatch_size=64))

On-policy there are several passes in random order, `num_epochs` of them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from levada.flow import Replica, Update
from levada.rl.compute.device import Sender
from levada.rl.compute.matmul import has_faster_products
from levada.rl.compute.seeding import seeded
from levada.rl.compute.threads import Concurrent, use_threads
from levada.rl.data.normalize import Moments, merge_all
from levada.rl.data.spaces import Array
from levada.rl.learning.batches import Alone, Cut, Microbatches, MinibatchError, Share, changed
from levada.rl.learning.columns import to_arrays, to_tensors
from levada.rl.learning.loss import POLICY, HasBatchStats, Loss
from levada.rl.learning.optimizers import Adam, Optimizer
from levada.rl.learning.step import Mode, has_compiler
from levada.rl.learning.training import Held, NonFiniteError, Snapshot, Training, fetched
from levada.rl.policies.module import reward_scale, state_size_of
from levada.rl.policies.policy import Policy, Weights
from levada.rl.replay.transitions import REWARD, Transitions
from levada.validation import PositiveInt, PositiveUnitFloat, check_fields

if TYPE_CHECKING:
    from levada.rl.compute.group import Rendezvous
    from levada.rl.learning.fused import FusedSteps

Compile = Literal["auto", "xla"] | bool

MINIBATCHES_THAT_EARN_COMPILING = 100_000
"""Threshold of `auto`: compiling costs 5 to 18 s and saves about 0.1 ms per minibatch compared with replaying the recorded
step. It is counted in minibatches and not in seconds, so that a run always switches at the same point."""

_RETURN, _REWARD = "return", "reward"

log: logging.Logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Learner:
    """Recipe of a learner.

    Raises:
        ValueError: a number or name is invalid.
    """

    policy: Policy
    """Policy to train; its module is the network `policy`, and its weights are published."""
    loss: Loss
    """Loss, differentiated with respect to all networks at once. See `levada.rl.learning.loss`."""
    coefficients: Callable[[int], Mapping[str, float]]
    """Function from the number of transitions trained on so far, each pass over a batch counted once, to the scalars of the next
    update, including `learning_rate`."""
    networks: Mapping[str, Callable[[], nn.Module]] = field(default_factory=dict)
    """Other networks by name, such as critics: functions that make them, called with PyTorch's generator seeded."""
    targets: tuple[str, ...] = ()
    """Names of the networks that have a target network."""
    target_update_interval: PositiveInt = 1
    """Number of gradient steps or updates between updates of the target networks."""
    target_update_unit: Literal["gradient_steps", "updates"] = "gradient_steps"
    """What that interval counts."""
    tau: PositiveUnitFloat = 1.0
    """Polyak factor of these updates: target += tau * (network - target)."""
    update_every: Mapping[str, int] = field(default_factory=dict)
    """Networks that are trained only in every n-th gradient step; all others are trained in every step."""
    noise: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Columns of standard normal noise added to the batch, as the shape of a row; for losses that sample actions."""
    optimizer: Optimizer = field(default_factory=Adam)
    """Optimizer: `Adam`, or a `TorchOptimizer`."""
    num_epochs: PositiveInt = 1
    """Number of passes over each batch. With more passes, the policy moves further from the one that collected
    the batch."""
    minibatch_size: PositiveInt | None = None
    """Number of transitions per gradient step; None: the whole batch. With smaller
    minibatches, gradient steps are more frequent and noisier."""
    sequence_length: PositiveInt = 1
    """Number of transitions in a row of the batch if the policy is recurrent; otherwise a row is one transition."""
    num_agents: PositiveInt = 1
    """Number of agents whose transitions are one row of the batch, where these are steps of a team."""
    shuffle: bool = True
    """Shuffle the batch in each pass. False: minibatches are consecutive rows, as samples of a replay are drawn."""
    num_microbatches: PositiveInt = 1
    """Gradient accumulation: number of microbatches M per minibatch, whose gradients are computed separately and averaged. Only
    the activations of a microbatch need to be in memory, and up to M threads or replicas can share the work. Each comes
    from its own part of the batch, an M-th of the rows; `shuffle` shuffles within the parts (stratified)."""
    stop_above: tuple[str, float] | None = None
    """Early stopping: a statistic and its limit. The remaining minibatches of an update are skipped once it exceeds the
    limit."""
    compile: Compile = "auto"
    """False: eager PyTorch, slow; breakpoints in the loss work. True: compile at once. `auto`: record and replay the step, and
    compile it if the run is long enough to be worth it; recurrent networks stay recorded. `xla`: compile all steps of an update
    together, by JAX's compiler; see `levada.rl.learning.fused`."""
    sampled_moments: Callable[[Transitions], Mapping[str, Moments]] | None = None
    """Function from a batch to its moments, which are merged into the running statistics before the update; rewards are scaled
    here. None: moments come with the batch and are merged after the update, since its samples were taken without them."""
    tolerates_staleness: bool = False
    """Whether the loss corrects for the off-policyness of samples, or does not depend on which policy acted."""

    def __post_init__(self) -> None:
        check_fields(self, ValueError)
        unknown = [name for name in (*self.targets, *self.update_every) if name not in (POLICY, *self.networks)]
        if unknown or POLICY in self.networks:
            networks, every = [POLICY, *self.networks], dict(self.update_every)
            msg = f"Learner: networks are {networks}, targets {list(self.targets)}, update_every {every}"
            raise ValueError(msg)
        if self.policy.standardize_reward and self.sampled_moments is None:
            msg = "Learner: the policy has standardize_reward=True; expected sampled_moments, which measure the rewards"
            raise ValueError(msg)
        if "learning_rate" not in self.coefficients(0):
            msg = f"Learner: coefficients(0) gave {sorted(self.coefficients(0))}; expected 'learning_rate' among them"
            raise ValueError(msg)

    def verify(self) -> None:
        """Refuse a network, or a minibatch, that cannot be trained on.

        Raises:
            ModelError: the network has the wrong inputs or outputs.
            MinibatchError: the policy is recurrent, and minibatches are no whole sequences.
        """
        length = self.sequence_length if self.policy.state_size else 1
        size, num = self.minibatch_size or 0, self.num_microbatches
        if size % (length * num):
            what = (
                f"minibatch_size={size}"
                if num == 1
                else f"minibatch_size={size} in {num} microbatches, of {size / num:g}"
            )
            msg = (
                f"{what}: a recurrent policy learns from whole rollouts, so it must be a multiple of num_steps={length}"
            )
            raise MinibatchError(msg)

    @property
    def policy_name(self) -> str:
        """Name of the policy whose version each update advances."""
        return self.policy.name

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the policies that it consists of."""
        return tuple(self.policy.by_name({}))

    @property
    def num_parts(self) -> int:
        """Number of microbatches per minibatch, which as many replicas of the learner can share."""
        return self.num_microbatches

    @property
    def has_consecutive_parts(self) -> bool:
        """Whether each part of a batch is a run of consecutive rows."""
        return self.shuffle or self.minibatch_size is None

    def modules(self, seed: int) -> nn.ModuleDict:
        """Make all networks by name, freshly initialized; those with a target network come first."""
        made: dict[str, nn.Module] = {POLICY: self.policy.module(seed)}
        with seeded(seed):
            made |= {name: make() for name, make in self.networks.items()}
        order = [*self.targets, *(name for name in made if name not in self.targets)]
        return nn.ModuleDict({name: made[name] for name in order})

    def first_mode(self, device: torch.device) -> Mode:
        """Return how gradients are computed initially; `auto` compiles later."""
        if self.compile is False:
            return "eager"
        if self.compile is True and has_compiler():
            return "compiled"
        return "graph" if device.type == "cuda" else "recorded"

    def open(self, seed: int) -> LiveLearner:
        """Start the learner with freshly initialized networks."""
        return LiveLearner(self, seed)


class _SharedStateError(Exception):
    """The result of a microbatch depends on those before it: a forward pass changes a buffer, or draws random numbers."""


class LiveLearner(Training):
    """A running learner, made by `Learner.open`; one of several replicas once it has joined a group (`levada.flow.replicas`)."""

    def __init__(self, recipe: Learner, seed: int) -> None:
        super().__init__(recipe, seed)
        self._is_recurrent = state_size_of(self._modules[POLICY].get_submodule("network")) > 0
        self._sender = Sender(self._device)
        self._replicas = Alone(recipe.num_parts)
        self._rendezvous: Rendezvous | None = None
        self._before: Snapshot | None = None
        self._warned = False
        self._all_threads = torch.get_num_threads()  # acting may use a different number
        self._divide_threads()
        # once, because it takes long to find out whether a class has a protocol
        self._batch_stats = recipe.loss.batch_stats if isinstance(recipe.loss, HasBatchStats) else None
        self._fused = self._fuse() if recipe.compile == "xla" else None

    def update(self, batch: Sequence[Transitions], parts: Sequence[int] | None = None) -> Update[Weights]:
        """Train on one batch, together with the other replicas if there are any; see `levada.flow.Replicable`.

        Raises:
            MinibatchError: the batch does not divide into minibatches and microbatches.
            NonFiniteError: the update was rejected.
            ReplicaLostError: another replica was lost, and the update was not made.
        """
        use_threads(self._num_threads)
        before = self._snapshot()
        try:
            made = self._update(batch, parts, before)
        except BaseException as error:
            self._restore(before)
            if not isinstance(error, MinibatchError | NonFiniteError):  # these are raised by all replicas
                self._replicas.leave()
            raise
        self._before = before if self._replicas.size > 1 else None
        return made

    def listen(self, host: str) -> str:
        """Open a rendezvous of replicas; see `levada.flow.Replicable`."""
        from levada.rl.compute.group import Rendezvous

        self._rendezvous = Rendezvous(host)
        return self._rendezvous.address

    def join(self, replica: Replica) -> None:
        """Become one of several replicas; see `levada.flow.Replicable`."""
        if replica.size == 1:
            self._replicas.leave()
            self._replicas, self._before = Alone(self.recipe.num_parts), None
            self._divide_threads()
            return
        from levada.rl.learning.replicas import Replicas

        joining = Replicas(replica, self.recipe.num_parts, self._modules, self._device)
        if self._is_fused and replica.rank == 0:
            self._tell_not_fused("several learners share an update")
        self._replicas.leave()
        self._replicas = joining
        self._divide_threads()
        joining.connect(self._rendezvous)
        self._rendezvous = None

    def undo(self) -> None:
        """Go back to the state before the last update; see `levada.flow.Replicable`."""
        if self._before is None:
            msg = "there is no update to undo: the state before the last one is kept once, by a learner with several replicas"
            raise RuntimeError(msg)
        self._restore(self._before)
        self._before = None

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Restore the state that `state_dict` returned."""
        super().load_state_dict(state)
        self._before = None

    # ---- inside

    def _fuse(self) -> FusedSteps | None:
        from levada.rl.learning.fused import FusedSteps, Targets
        from levada.rl.learning.fusible import why_not_fused

        recipe = self.recipe
        num_threads = min(self._all_threads, recipe.num_parts)
        reason = why_not_fused(self._modules, recipe.policy, recipe.optimizer, self._device, num_threads)
        if reason is not None:
            self._tell_not_fused(reason)
            return None
        targets = None
        if recipe.targets:
            targets = Targets(recipe.target_update_interval, recipe.target_update_unit, recipe.tau)
        assert isinstance(recipe.optimizer, Adam)
        return FusedSteps(
            self._step, self._spans, recipe.optimizer, targets, recipe.update_every, recipe.stop_above,
            self._batch_stats, recipe.num_parts, num_threads, str(self._device),
        )  # fmt: skip

    def _tell_not_fused(self, reason: object) -> None:
        name = self.recipe.policy.name
        log.warning("policy %r: compile='xla' has no effect, updates are recorded: %s", name, reason)

    @property
    def _is_fused(self) -> bool:
        return self._fused is not None and self._replicas.size == 1

    def _divide_threads(self) -> None:
        """Let several threads compute a microbatch each, if there are no replicas to share the microbatches with."""
        can = self._replicas.size == 1 and self.recipe.first_mode(self._device) in ("recorded", "compiled")
        num = min(self._all_threads, self.recipe.num_microbatches) if can else 1
        self._num_threads = self._all_threads // num
        self._concurrent = None if num == 1 else Concurrent(num_calls=num, num_threads=self._num_threads)

    def _update(self, batch: Sequence[Transitions], parts: Sequence[int] | None, before: Snapshot) -> Update[Weights]:
        """Fuse the gradient steps; record them, from then on, if that cannot be done."""
        if self._is_fused:
            from levada.rl.learning.fusible import NotFusedError

            try:
                return self._trained(batch, parts)
            except NotFusedError as error:
                self._tell_not_fused(error)
                self._fused = None
            self._restore(before)
        return self._in_threads(batch, parts, before)

    def _in_threads(
        self, batch: Sequence[Transitions], parts: Sequence[int] | None, before: Snapshot
    ) -> Update[Weights]:
        """Compute several microbatches at a time; again and one by one, from then on, if they turn out to share state."""
        if self._concurrent is None:
            return self._trained(batch, parts)
        drawn = torch.get_rng_state()
        try:
            return self._trained(batch, parts)
        except _SharedStateError:
            self._concurrent = None
            self._restore(before)
            torch.set_rng_state(drawn)
            return self._trained(batch, parts)

    def _trained(self, batch: Sequence[Transitions], parts: Sequence[int] | None) -> Update[Weights]:
        recipe = self.recipe
        share = self._replicas.share(batch, parts, self._cut, recipe.sampled_moments, self.num_updates)
        # JAX takes arrays as they are, and moves them itself
        is_whole = self._is_fused and share.cut.num_minibatches == share.cut.num_parts == 1  # no rows are selected
        columns = (to_arrays if self._is_fused else to_tensors)(share.data, stacks=recipe.shuffle and not is_whole)
        values = recipe.coefficients(self.num_transitions)
        # A layer may change its buffers in place. Work on copies, so that a rejected update changes nothing.
        buffers = {name: buffer.clone() for name, buffer in self._buffers.items()}
        if recipe.sampled_moments is not None:
            running = merge_all([self._moments, share.moments])
            buffers |= self._normalizing(running)
            if _RETURN in running:
                columns[REWARD] = columns[REWARD] * reward_scale(running[_RETURN].var)
            if _REWARD in running:
                mean, scale = float(running[_REWARD].mean), reward_scale(running[_REWARD].var)
                columns[REWARD] = (columns[REWARD] - mean) * scale
        for name, shape in recipe.noise.items():
            drawn = self._rng.standard_normal((share.cut.num_rows, *shape), np.float32)
            own = drawn if (rows := share.rows()) is None else drawn[rows]
            columns[name] = own if self._is_fused else torch.from_numpy(own)
        if not self._is_fused:
            columns = self._sender.send_all(columns)
        state, stats, priorities, num, others = self._minibatches(columns, buffers, share, values)
        weights, reported = self._finish(state, buffers, stats, values, num, share.num_transitions, share.moments)
        of_batch = {f"losses/{name}": x for name, x in others.items() if math.isfinite(x)}
        return Update(weights, reported | of_batch, priorities)

    def _minibatches(
        self, columns: Mapping[str, Any], buffers: Mapping[str, Tensor], share: Share, values: Mapping[str, float]
    ) -> tuple[Held, Mapping[str, float], Array | None, int, Mapping[str, float]]:
        """Return the state after all gradient steps, the mean statistics, the priorities, the number of steps, and the statistics
        of the whole batch.
        """
        recipe, cut = self.recipe, share.cut
        if self._fused is not None and self._is_fused:
            order, weights = self._fused_rows(share)
            done = self._fused(
                self._held, values, buffers, columns, order, self.num_minibatches, self.num_updates, weights
            )
            return done.state, done.stats, done.priorities, done.num_steps, done.batch_stats
        state = self._state.copy()  # so that a rejected update changes nothing
        collected, priorities = list[Tensor](), list[Tensor]()
        gradient_of = self._step.on(self._mode(cut.microbatch_size * recipe.num_agents), values, buffers, columns)
        if cut.num_parts > 1:
            gradient_of = self._replicas.combined(gradient_of, self._concurrent)
        before = {name: buffer.clone() for name, buffer in buffers.items()}
        drawn = None if self._concurrent is None else torch.get_rng_state()
        noises: Iterator[Tensor | None] = self._noises(recipe.num_epochs * cut.num_minibatches)
        for rows in self._rows(share):
            num = self.num_minibatches + len(collected) + 1
            active = tuple([name for name in self._spans if num % recipe.update_every.get(name, 1) == 0])
            gradient, stats, some = gradient_of(state.params, state.target, rows, active, next(noises))
            norm = self._apply(state, gradient, values["learning_rate"], active)
            collected.append(torch.cat([stats, norm[None]]))
            priorities.append(some.clone() if len(some) else some)  # a graph overwrites it
            self._follow(state, num, "gradient_steps")
            if self._exceeded(stats):
                break
        self._replicas.check_unchanged(before, buffers)
        if drawn is not None and (changed(before, buffers) or not torch.equal(drawn, torch.get_rng_state())):
            raise _SharedStateError
        told = fetched(self._replicas.priorities(priorities)).numpy() if len(priorities[0]) else None
        self._follow(state, self.num_updates + 1, "updates")
        of_batch: Mapping[str, Any] = {}
        if self._batch_stats is not None:
            of_batch = self._batch_stats(self._replicas.whole(columns, share))
        others = {name: float(value) for name, value in of_batch.items()}
        return state, self._means(torch.stack(collected)), told, len(collected), others

    def _means(self, table: Tensor) -> dict[str, float]:
        """Means of the statistics ``[K, S]`` of gradient steps, by name."""
        # losses of networks that a step does not train are NaN
        if len(table) == 1:
            means = table[0].tolist()
        else:
            means = (table.nanmean(0) if self.recipe.update_every else table.mean(0)).tolist()
        return dict(zip((*self._step.stats, "grad_norm"), means, strict=True))

    def _cut(self, num_rows: int) -> Cut:
        """Division of a batch; a row of a recurrent policy is a whole sequence, and one of a team has a step of each agent."""
        recipe = self.recipe
        length = recipe.sequence_length if self._is_recurrent else recipe.num_agents
        size = num_rows if recipe.minibatch_size is None else recipe.minibatch_size // length
        return Cut(num_rows=num_rows, minibatch_size=size, num_parts=recipe.num_microbatches, shuffle=recipe.shuffle)

    def _rows(self, share: Share) -> Iterator[Tensor | slice | Microbatches]:
        """Rows of each gradient step of an update."""
        places = share.places() if share.cut.num_parts > 1 else {}
        for _ in range(self.recipe.num_epochs):
            if share.cut.num_parts > 1:
                yield from share.cut.microbatches(self._rng, self._device, share.steps, places)
            else:
                yield from share.cut.minibatches(self._rng, self._device)

    def _fused_rows(self, share: Share) -> tuple[Array | int, Array | None]:
        """Rows of each gradient step, and weights of its microbatches, as fused steps take them."""
        cut, num_epochs = share.cut, self.recipe.num_epochs
        if cut.num_parts > 1:
            steps = [some for some in self._rows(share) if isinstance(some, Microbatches)]
            rows = np.stack([torch.cat(some.rows).numpy() for some in steps])
            return rows, np.array([some.weights for some in steps], np.float32)
        if cut.num_minibatches == 1:
            return num_epochs, None
        orders = [cut.order(self._rng) for _ in range(num_epochs)]
        return np.concatenate(orders).reshape(-1, cut.minibatch_size), None

    def _noises(self, num: int) -> Iterator[Tensor | None]:
        """Noise on the policy's weights for each gradient step, ``[2, size]``: of the network and of its target."""
        if not self._weight_noise.size:
            return iter([None] * num)
        return iter(torch.from_numpy(self._weight_noise.draw(self._rng, num, 2)).to(self._device))

    def _exceeded(self, stats: Tensor) -> bool:
        if self.recipe.stop_above is None:
            return False
        name, limit = self.recipe.stop_above
        return bool(stats[self._step.stats.index(name)] > limit)

    @cached_property
    def _can_compile(self) -> bool:
        return has_compiler()

    def _mode(self, size: int) -> Mode:
        if self.recipe.compile is False or (self._device.type == "cuda" and self.recipe.compile == "auto"):
            return self.recipe.first_mode(self._device)
        earned = self.recipe.compile is True or (
            self.num_minibatches >= MINIBATCHES_THAT_EARN_COMPILING
            and not self._is_recurrent  # unrolling over its steps takes minutes to compile
            and not has_faster_products(self._step.layout.shapes, size)
        )
        if not earned:
            return "recorded"
        if self._can_compile:
            return "compiled"
        if not self._warned:
            self._warned = True
            log.warning("no C++ compiler was found (c++, g++, clang++, or $CXX): updates go on uncompiled")
        return "recorded"
