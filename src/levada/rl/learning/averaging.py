"""Averaging of groups that learn by themselves: a learner whose batches are differences of parameters.

A group starts from the global parameters, makes some updates of its own, and sends the difference, a `GroupDelta`. The averaging
learner treats the mean of several differences as a gradient, and takes a step of SGD with Nesterov momentum (DiLoCo: Douillard
et al. 2023, arXiv 2311.08105, algorithm 1):

    mean = sum_i (1 + lag_i)^-a delta_i / K,    v = momentum v + mean,    params += learning_rate (mean + momentum v)

With learning_rate=1 and momentum=0 this is federated averaging (McMahan et al. 2016, arXiv 1602.05629), also known as local SGD:
the new parameters are the mean of those of the groups. The weight of late differences is that of FedBuff (Nguyen et al. 2021,
arXiv 2106.06639, section 5.1), there with a = 0.5.

Statistics that normalize observations and rewards are not averaged but merged: each group sends those of its new data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from levada.flow import Episode, LevadaInternalError, Update
from levada.rl.data.normalize import Moments, merge_all, unmerge
from levada.rl.data.spaces import Array
from levada.rl.learning.compression import Compression, Message, Uncompressed, num_bytes
from levada.rl.learning.learner import Learner, LiveLearner
from levada.rl.learning.loss import POLICY
from levada.rl.learning.step import Layout
from levada.rl.learning.training import NonFiniteError
from levada.rl.policies.policy import Policy, Weights
from levada.validation import NonNegativeFloat, PositiveFloat, PositiveInt, check_fields

PARAMS = "step/params"
TARGET = "step/target"
COUNTS = "counts"
VERSION = "averaging/version"
"""Name of the number of rounds so far, among the global weights."""
APPLIED = "averaging/applied"
"""Name of the number of each group's last difference that is part of the global weights ``[num_groups]``; 0: none."""
VELOCITY = "averaging/velocity"
OTHERS = "averaging/networks/"
"""Prefix of the parameters of networks other than the policy's, among the global weights."""
_FIELDS = ("count", "mean", "var")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class GroupDelta:
    """What a group has learned in one item."""

    group: int
    """Index of the group."""
    number: int
    """Number of the item among those of the group, from 1."""
    version: int
    """Version of the global weights that it started from."""
    message: Message
    """Difference of the parameters of all networks ``[P]``, compressed."""
    moments: Mapping[str, Moments]
    """Statistics of the observations and rewards that are new since the start, by key."""
    stats: Mapping[str, float]
    """Means of what its learner reported."""
    num_updates: int
    """Number of its updates."""
    num_transitions: int
    """Number of transitions that it has trained on in them."""
    num_env_steps: int
    episodes: tuple[Episode, ...]


class ParameterLayout:
    """Places of all parameters of a learner in its flat vector ``[P]``, by the names that global weights have for them."""

    def __init__(self, learner: Learner) -> None:
        layout = Layout.of(learner.modules(seed=0))
        prefix = f"{POLICY}."
        self._shapes: dict[str, tuple[int, ...]] = {
            name.removeprefix(prefix) if name.startswith(prefix) else OTHERS + name: tuple(shape)
            for name, shape in zip(layout.names, layout.shapes, strict=True)
        }
        self.size: int = sum(layout.sizes)
        """P: number of parameters."""

    @property
    def names(self) -> frozenset[str]:
        """Names of the parameters."""
        return frozenset(self._shapes)

    def flatten(self, weights: Weights) -> Array:
        """Copy the parameters among some weights into one vector, float32."""
        found: Array = np.concatenate([weights[name].reshape(-1) for name in self._shapes]).astype(
            np.float32, copy=False
        )
        return found

    def views(self, params: Array) -> dict[str, Array]:
        """Return the parameters by name, as views of a vector."""
        ends = np.cumsum([np.prod(shape, dtype=np.int64) for shape in self._shapes.values()])
        parts = np.split(params, ends[:-1])
        return {name: part.reshape(shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)}


def moments_in(state: Mapping[str, Array]) -> dict[str, Moments]:
    """Return the normalization statistics in the `state_dict` of a learner."""
    keys = [name.removeprefix("moments/").removesuffix("/count") for name in state if name.startswith("moments/")]
    found = {}
    for key in dict.fromkeys(key for key in keys if f"moments/{key}/count" in state):
        count, mean, var = (state[f"moments/{key}/{name}"] for name in _FIELDS)
        found[key] = Moments(float(count), mean, var)
    return found


def load_parameters(
    live: LiveLearner,
    params: Array,
    moments: Mapping[str, Moments],
    *,
    with_target: bool,
    counts: Sequence[int] = (0, 0, 0),
) -> None:
    """Replace the parameters of a learner between two updates; the optimizer's state stays.

    Args:
        live: the learner.
        params: parameters of all its networks ``[P]``, float32.
        moments: its normalization statistics, by key.
        with_target: whether to set the target networks to the same parameters.
        counts: numbers of updates, gradient steps and transitions to add to its own.
    """
    state = live.state_dict()
    state[PARAMS] = params
    if with_target:
        state[TARGET] = params[: len(state[TARGET])].copy()
    state[COUNTS] = state[COUNTS] + np.array(counts, np.int64)
    for name, array in live.recipe.policy.buffers_of(moments).items():
        for place in state:
            is_policys = place == f"weights/{name}"
            if is_policys or (place.startswith("buffers/") and place.partition(".")[2] == name):
                state[place] = array
    for key, total in moments.items():
        state |= {f"moments/{key}/{name}": np.asarray(getattr(total, name)) for name in _FIELDS}
    live.load_state_dict(state)


def new_moments(after: Mapping[str, Moments], before: Mapping[str, Moments]) -> dict[str, Moments]:
    """Return the statistics of what was merged since `before`."""
    return {key: unmerge(total, before[key]) for key, total in after.items()}


@dataclass(frozen=True, kw_only=True)
class Averaging:
    """Recipe of the averaging learner.

    Raises:
        ValueError: a number is invalid.
    """

    learner: Learner
    """The learner of each group. Its policy is what the averaged parameters belong to."""
    num_groups: PositiveInt
    learning_rate: PositiveFloat = 1.0
    """Step size. 1 without momentum: the mean of the groups' parameters."""
    momentum: NonNegativeFloat = 0.0
    """Nesterov momentum."""
    staleness_exponent: NonNegativeFloat = 0.5
    """Exponent a of the weight (1 + lag)^-a of a difference. 0: late differences count as much as others."""
    compression: Compression = field(default_factory=Uncompressed)
    """How the groups compress differences."""
    tolerates_staleness: bool = True

    def __post_init__(self) -> None:
        check_fields(self, ValueError)

    @property
    def policy(self) -> Policy:
        """The policy."""
        return self.learner.policy

    @property
    def policy_name(self) -> str:
        """Name of the policy whose version each round advances."""
        return self.learner.policy_name

    def verify(self) -> None:
        """Refuse a learner that cannot be opened."""
        self.learner.verify()

    def open(self, seed: int) -> LiveAveraging:
        """Start from freshly initialized networks."""
        return LiveAveraging(self, seed)


class LiveAveraging:
    """A running averaging learner, made by `Averaging.open`.

    The global parameters lie in a learner of the groups' kind that never learns. So its state, but for the optimizer's, is saved
    and read as that of any other learner.
    """

    def __init__(self, recipe: Averaging, seed: int) -> None:
        self.recipe = recipe
        self._live = recipe.learner.open(seed)
        self._layout = ParameterLayout(recipe.learner)
        self._velocity = np.zeros(self._layout.size, np.float32)
        self._applied = np.zeros(recipe.num_groups, np.int64)

    @property
    def num_updates(self) -> int:
        """Number of rounds."""
        return self._live.num_updates

    def update(self, batch: Sequence[GroupDelta]) -> Update[Weights]:
        """Take a step along the mean difference. NonFiniteError: the new parameters are not finite; nothing has changed."""
        recipe, size = self.recipe, self._layout.size
        groups = [delta.group for delta in batch]
        if len(set(groups)) < len(groups):
            msg = f"a round has two differences of one group: {groups}"
            raise LevadaInternalError(msg)
        state = self._live.state_dict()
        with np.errstate(over="ignore", invalid="ignore"):  # the result is checked
            mean = np.zeros(size, np.float32)
            for delta in batch:
                weight = (1.0 + self.num_updates - delta.version) ** -recipe.staleness_exponent / len(batch)
                mean += np.float32(weight) * recipe.compression.decompress(delta.message, size)
            velocity = np.float32(recipe.momentum) * self._velocity + mean
            step = np.float32(recipe.learning_rate) * (mean + np.float32(recipe.momentum) * velocity)
            params = state[PARAMS] + step
        if not np.isfinite(params).all():
            which = f"round {self.num_updates + 1} of policy {recipe.policy_name!r}"
            msg = f"{which} gave parameters that are not finite; it was refused. Likely: an outer learning rate that is too high"
            raise NonFiniteError(msg)
        moments = merge_all([moments_in(state), *(delta.moments for delta in batch)])
        counts = 1, 0, sum(delta.num_transitions for delta in batch)
        load_parameters(self._live, params, moments, with_target=True, counts=counts)
        self._velocity = velocity
        for delta in batch:
            self._applied[delta.group] = max(self._applied[delta.group], delta.number)
        return Update(self.weights(), self._stats(batch, step))

    def _stats(self, batch: Sequence[GroupDelta], step: Array) -> dict[str, float]:
        names = set.intersection(*(set(delta.stats) for delta in batch))
        means = {name: float(np.mean([delta.stats[name] for delta in batch])) for name in sorted(names)}
        return means | {
            "averaging/num_bytes": float(sum(num_bytes(delta.message) for delta in batch)),
            "averaging/num_bytes_uncompressed": float(len(batch) * self._layout.size * np.float32().nbytes),
            "averaging/num_local_updates": float(sum(delta.num_updates for delta in batch)),
            "averaging/step_norm": float(np.linalg.norm(step)),
        }

    def weights(self) -> dict[str, Array]:
        """Return a copy of the global weights: the policy's, the parameters of other networks, and how far all groups are."""
        params = self._layout.views(self._live.state_dict()[PARAMS])
        others = {name: array for name, array in params.items() if name.startswith(OTHERS)}
        return {
            **self._live.weights(), **others, VERSION: np.array(self.num_updates, np.int64), APPLIED: self._applied.copy(),
        }  # fmt: skip

    def state_dict(self) -> dict[str, Array]:
        """Return all state. The policy's weights are stored under `weights/`, as in a `Learner`."""
        state = {
            name: array for name, array in self._live.state_dict().items() if not name.startswith("step/optimizer/")
        }
        return state | {VELOCITY: self._velocity.copy(), APPLIED: self._applied.copy()}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Restore the state that `state_dict` returned."""
        self._live.load_state_dict({**self._live.state_dict(), **state})
        self._velocity, self._applied = state[VELOCITY].copy(), state[APPLIED].copy()

    def start_from(self, state: Mapping[str, Any]) -> None:
        """Load all networks of another run's `state_dict`, and its normalization. StartError: names or shapes differ."""
        self._live.start_from(state)
