"""OffPolicyLearner: trains networks on sampled transitions, with target networks.

One firing is one update of the flow: `batch / batch_size` gradient steps, each on its own rows. All networks are stored in one
flat vector with one Adam, so a step is one recorded gradient, one pass of Adam, and one update of the targets.

    learner = OffPolicyLearner(
        policy=policy, loss=loss, targets=("policy",), target_update_interval=500,
        coefficients=lambda num_steps: {"learning_rate": 1e-3},
    )
    update = flow.learn("learn", learner, flow.sample("sample", replay, size=8 * 64, minibatch_size=64))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from levada.flow import Update
from levada.flow.rng import rng_array, set_rng
from levada.rl.compute.functional import Net
from levada.rl.compute.matmul import has_faster_products
from levada.rl.compute.seeding import seeded
from levada.rl.compute.tensors import flatten, rebuild
from levada.rl.compute.threads import use_threads
from levada.rl.data.frames import as_array
from levada.rl.data.spaces import Array, map_nest
from levada.rl.learning.adam import Adam, AdamPart, adam_step
from levada.rl.learning.learner import MINIBATCHES_THAT_EARN_COMPILING, Compile, NonFiniteError, all_finite
from levada.rl.learning.starting import check_fits, weights_in
from levada.rl.learning.step import Layout, Mode, by_autograd, by_func, has_compiler, in_mode, num_weights
from levada.rl.policies.policy import Policy, Weights
from levada.rl.policies.weight_noise import WeightNoise
from levada.rl.replay.transitions import IMPORTANCE, Transitions, concatenate

POLICY = "policy"
"""Name of the network that acts."""
_WEIGHT_NOISE = "weight_noise"
"""Key of a step's weight noise, ``[2, size]``: for the policy and for its target."""


class LossOutput(NamedTuple):
    """Result of a loss."""

    loss: Tensor
    """Scalar to minimize."""
    stats: Mapping[str, Tensor]
    """Scalars to report, by name."""
    priorities: Tensor | None = None
    """``[N]``, nonnegative: new priorities of the rows, for prioritized replay."""


def apply_importance_weights(losses: Tensor, batch: Mapping[str, Any]) -> Tensor:
    """Weight losses ``[..., N]`` by the importance-sampling weights of their rows, if a prioritized replay provides them."""
    return losses * batch[IMPORTANCE] if IMPORTANCE in batch else losses


OffPolicyLoss: TypeAlias = Callable[
    [Mapping[str, Net], Mapping[str, Net], Mapping[str, Any], Mapping[str, Tensor]], LossOutput
]
"""(networks, their targets, batch of tensors ``[N, ...]``, coefficients) -> `LossOutput`. Targets have no gradient."""


@dataclass(frozen=True, kw_only=True)
class OffPolicyLearner:
    """Recipe of a learner.

    Raises:
        ValueError: a number or name is invalid.

    """

    policy: Policy
    """Policy to train; its module is the network `policy`, and its weights are published."""
    loss: OffPolicyLoss
    """Loss, differentiated with respect to all networks at once."""
    coefficients: Callable[[int], Mapping[str, float]]
    """Function from the number of gradient steps so far to the scalars of the next update, including `learning_rate`."""
    batch_size: int
    """Number of rows per gradient step."""
    more: Mapping[str, Callable[[], nn.Module]] = field(default_factory=dict)
    """Other networks by name, such as critics: functions that make them, called with PyTorch's generator seeded."""
    targets: tuple[str, ...] = ()
    """Names of the networks that have a target network."""
    target_update_interval: int = 1
    """Number of gradient steps between updates of the target networks."""
    tau: float = 1.0
    """Polyak factor of these updates: target += tau * (network - target)."""
    every: Mapping[str, int] = field(default_factory=dict)
    """Networks that are trained only in every n-th gradient step; all others are trained in every step."""
    noise: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Columns of standard normal noise added to the batch, as the shape of a row; for losses that sample actions."""
    optimizer: Adam = field(default_factory=Adam)
    """Adam's hyperparameters."""
    compile: Compile = "auto"
    """As in `Learner`; with "auto", recurrent networks stay recorded."""
    corrects_staleness: bool = True
    """True: off-policy losses do not depend on which policy acted."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "target_update_interval"):
            if getattr(self, name) < 1:
                msg = f"OffPolicyLearner({name}={getattr(self, name)}): expected an integer >= 1"
                raise ValueError(msg)
        if not 0.0 < self.tau <= 1.0:
            msg = f"OffPolicyLearner(tau={self.tau}): expected a number above 0, and at most 1"
            raise ValueError(msg)
        unknown = [name for name in (*self.targets, *self.every) if name not in (POLICY, *self.more)]
        if unknown or POLICY in self.more:
            msg = f"OffPolicyLearner: networks are {[POLICY, *self.more]}, targets {list(self.targets)}, every {dict(self.every)}"
            raise ValueError(msg)
        if "learning_rate" not in self.coefficients(0):
            msg = f"OffPolicyLearner: coefficients(0) gave {sorted(self.coefficients(0))}; expected 'learning_rate' among them"
            raise ValueError(msg)

    @property
    def policy_name(self) -> str:
        """Name of the policy whose version each update advances."""
        return self.policy.name

    def modules(self, seed: int) -> dict[str, nn.Module]:
        """Make all networks by name, freshly initialized."""
        made: dict[str, nn.Module] = {POLICY: self.policy.module(seed)}
        with seeded(seed):
            return made | {name: make() for name, make in self.more.items()}

    def open(self, seed: int) -> LiveOffPolicyLearner:
        """Start the learner with freshly initialized networks."""
        return LiveOffPolicyLearner(self, seed)


class _State(NamedTuple):
    """State that a step changes in place."""

    params: Tensor
    """``[P]``."""
    target: Tensor
    """``[Q]``: target parameters. The networks that have a target come first in the parameters."""
    mean: Tensor
    """``[P]``: mean of the gradient."""
    square: Tensor
    """``[P]``: mean square of the gradient."""
    counts: Tensor
    """``[number of networks]``, float32: number of steps of each network."""

    def copy(self) -> _State:
        return _State(*(tensor.clone() for tensor in self))


class LiveOffPolicyLearner:
    """A running learner, made by `OffPolicyLearner.open`."""

    def __init__(self, recipe: OffPolicyLearner, seed: int) -> None:
        self.recipe = recipe
        made = recipe.modules(seed)
        order = [*recipe.targets, *(name for name in made if name not in recipe.targets)]
        self._modules = nn.ModuleDict({name: made[name] for name in order})
        self._layout = Layout.of(self._modules)
        params = self._layout.flatten(dict(self._modules.named_parameters()))
        num_target = sum(num_weights(made[name]) for name in recipe.targets)
        zeros = torch.zeros_like(params)
        self._state = _State(params, params[:num_target].clone(), zeros, zeros.clone(), torch.zeros(len(order)))
        ends = np.cumsum([0, *(num_weights(made[name]) for name in order)]).tolist()
        self._spans = {name: (number, ends[number], ends[number + 1]) for number, name in enumerate(order)}
        self._rng = np.random.default_rng(seed)
        shapes = {name: parameter.shape for name, parameter in made[POLICY].named_parameters()}
        self._weight_noise = WeightNoise.of(shapes if recipe.policy.weight_noise else {})
        self._steps: dict[Any, Callable[..., Any]] = {}
        self._stats: tuple[str, ...] = ()
        self.num_updates = 0
        self.num_steps = 0
        self._num_threads = torch.get_num_threads()  # acting may use a different number

    def update(self, batch: Sequence[Transitions]) -> Update[Weights]:
        """Train on a batch.

        Raises:
            ValueError: the batch size is not a multiple of the rows per gradient step.
            NonFiniteError: the update was rejected.

        """
        use_threads(self._num_threads)
        data, size = concatenate(batch), self.recipe.batch_size
        if data.num_rows % size:
            msg = f"a batch of {data.num_rows} transitions does not divide into steps of {size}: {data.num_rows % size} are left"
            raise ValueError(msg)
        columns = {name: map_nest(_to_tensor, nest) for name, nest in data.columns.items()}
        values = self.recipe.coefficients(self.num_steps)
        coefficients = torch.tensor(list(values.values()), dtype=torch.float32)
        state, num_steps = self._state.copy(), self.num_steps
        before = self._rng.bit_generator.state
        for name, shape in self.recipe.noise.items():
            columns[name] = torch.from_numpy(self._rng.standard_normal((data.num_rows, *shape), np.float32))
        noise = torch.from_numpy(self._weight_noise.draw(self._rng, data.num_rows // size, 2))
        collected, priorities = [], []
        for start in range(0, data.num_rows, size):
            rows = {name: map_nest(lambda leaf, at=start: leaf[at : at + size], nest) for name, nest in columns.items()}
            if self._weight_noise.size:
                rows[_WEIGHT_NOISE] = noise[start // size]
            num_steps += 1
            active = tuple(name for name in self._spans if num_steps % self.recipe.every.get(name, 1) == 0)
            stats, some = self._step(state, rows, coefficients, values["learning_rate"], active)
            collected.append(stats)
            priorities.append(some)
            if num_steps % self.recipe.target_update_interval == 0:
                state.target.lerp_(state.params[: len(state.target)], self.recipe.tau)
        means = dict(zip(self._stats, torch.stack(collected).nanmean(0).tolist(), strict=True))
        try:
            self._refuse_non_finite(state, means)
        except NonFiniteError:
            self._rng.bit_generator.state = before
            raise
        self._state, self.num_steps = state, num_steps
        self.num_updates += 1
        reported = {f"losses/{name}": value for name, value in means.items()}
        reported |= {f"charts/{name}": value for name, value in values.items()}
        told = torch.cat(priorities).numpy() if len(priorities[0]) else None
        return Update(self.weights(), reported, told)

    def weights(self) -> Weights:
        """Return a copy of the policy's current weights."""
        prefix = f"{POLICY}."
        copy = self._state.params.clone()
        named = {n.removeprefix(prefix): v.numpy() for n, v in self._layout.views(copy).items() if n.startswith(prefix)}
        buffers = self._modules[POLICY].named_buffers()
        return named | {name: buffer.numpy().copy() for name, buffer in buffers}

    def state_dict(self) -> dict[str, Array]:
        """Return all state of the next update. The policy's weights are stored under `weights/`."""
        named = {f"weights/{name}": np.asarray(array) for name, array in self.weights().items()}
        counts = np.array([self.num_updates, self.num_steps], np.int64)
        state = {name: tensor.numpy().copy() for name, tensor in self._state._asdict().items()}
        return (
            named
            | {f"step/{name}": array for name, array in state.items()}
            | {"counts": counts, "rng": rng_array(self._rng)}
        )

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Restore the state that `state_dict` returned."""
        self._state = _State(**{name: torch.tensor(state[f"step/{name}"]) for name in _State._fields})
        set_rng(self._rng, state["rng"])
        self.num_updates, self.num_steps = (int(count) for count in state["counts"])

    def start_from(self, state: Mapping[str, Array]) -> None:
        """Load all networks of another run's `state_dict`, including critics and targets; optimizer and counts start fresh.

        Raises:
            StartError: names or shapes differ.

        """
        check_fits(self.weights(), weights_in(state))
        own = {name: getattr(self._state, name).numpy() for name in ("params", "target")}
        given = {name: state[f"step/{name}"] for name in own if f"step/{name}" in state}
        check_fits(own, given)  # the critics are stored without names, as parts of a flat vector
        self._state = self._state._replace(**{name: torch.tensor(array) for name, array in given.items()})

    # ---- inside

    def _step(
        self,
        state: _State,
        rows: Mapping[str, Any],
        coefficients: Tensor,
        learning_rate: float,
        active: tuple[str, ...],
    ) -> tuple[Tensor, Tensor]:
        leaves: list[Tensor] = []
        structure = {name: flatten(nest, leaves) for name, nest in rows.items()}
        args = (state.params, state.target, coefficients, *leaves)
        mode = self._mode()
        key = (mode, active, *((leaf.shape, leaf.dtype) for leaf in leaves))
        gradient_of = self._steps.get(key)
        if gradient_of is None:
            made = in_mode(mode, lambda compiled: self._function(structure, active, compiled), args)
            gradient_of = self._steps[key] = made
        gradient, stats, priorities = gradient_of(*args)
        parts = []
        for number, start, end in (self._spans[name] for name in active):
            span = slice(start, end)
            parts.append(
                AdamPart(state.params[span], gradient[span], state.mean[span], state.square[span], state.counts[number])
            )
        norm = adam_step(self.recipe.optimizer, parts, learning_rate)
        return torch.cat([stats, norm[None]]), priorities

    def _function(
        self, structure: Mapping[str, Any], active: tuple[str, ...], is_compiled: bool
    ) -> Callable[..., tuple[Tensor, ...]]:
        """Return the gradient as a function of tensors only."""
        differentiate = by_func if is_compiled else by_autograd
        names = tuple(self.recipe.coefficients(0))
        target_names = [name for name in self._layout.names if name.partition(".")[0] in self.recipe.targets]

        def step(params: Tensor, target: Tensor, coefficients: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
            batch = {name: rebuild(nest, leaves) for name, nest in structure.items()}
            noise, slow_noise = batch.pop(_WEIGHT_NOISE, (None, None))
            named = dict(zip(names, coefficients.unbind(), strict=True))
            sizes = list(self._layout.sizes[: len(target_names)])
            shapes = self._layout.shapes[: len(target_names)]
            parts = zip(target_names, torch.split(target, sizes) if sizes else (), shapes, strict=True)
            slow_tensors = {name: part.view(shape) for name, part, shape in parts}
            slow = self._nets(slow_tensors, self.recipe.targets, (), slow_noise)

            def objective(flat: Tensor) -> tuple[Tensor, tuple[Tensor, dict[str, Tensor]]]:
                outcome = self.recipe.loss(
                    self._nets(self._layout.views(flat), self._spans, active, noise), slow, batch, named
                )
                self._stats = (*outcome.stats, "grad_norm")
                told = torch.zeros(0) if outcome.priorities is None else outcome.priorities.detach()
                return outcome.loss, (torch.stack([value.detach() for value in outcome.stats.values()]), {"told": told})

            gradient, (stats, aside) = differentiate(objective, params)
            return gradient, stats, aside["told"]

        return step

    def _nets(
        self, tensors: Mapping[str, Tensor], names: Iterable[str], active: Sequence[str], noise: Tensor | None
    ) -> dict[str, Net]:
        """Return the networks by name, with noise on the policy's weights if there is any."""
        own = {name: _below(tensors, f"{name}.") for name in names}
        if noise is not None and POLICY in own:
            own[POLICY] = self._weight_noise.apply(own[POLICY], noise)
        return {name: Net(self._modules[name], some, name in active) for name, some in own.items()}

    def _mode(self) -> Mode:
        if self.recipe.compile is False:
            return "eager"
        # unrolling a recurrent network over its steps takes minutes to compile
        earned = self.recipe.compile is True or (
            self.num_steps >= MINIBATCHES_THAT_EARN_COMPILING
            and not self.recipe.policy.state_size
            and not has_faster_products(self._layout.shapes, self.recipe.batch_size)
        )
        return "compiled" if earned and has_compiler() else "recorded"

    def _refuse_non_finite(self, state: _State, stats: Mapping[str, float]) -> None:
        if all_finite([state.params, state.target, state.mean, state.square]):
            return
        reported = ", ".join(f"{name} {value:g}" for name, value in stats.items())
        views = self._layout.views(state.params)
        views |= {
            "the optimizer's mean": state.mean,
            "the optimizer's mean square": state.square,
            "the targets": state.target,
        }
        bad = ", ".join(name for name, view in views.items() if not all_finite([view]))
        msg = (
            f"update {self.num_updates + 1} of policy {self.recipe.policy.name!r} gave NaN or infinity in {bad}; it was refused. "
            f"Statistics of the update: {reported}. Likely: a learning rate that is too high, or rewards far from 1"
        )
        raise NonFiniteError(msg)


def _to_tensor(leaf: Any) -> Tensor:
    return torch.from_numpy(as_array(leaf))


def _below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
