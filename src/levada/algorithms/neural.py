"""Base of the algorithms that train networks by gradient: their settings, and the policy and learner made from them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal, Self

from levada.algorithms.algorithm import Algorithm
from levada.algorithms.checks import ConfigError, require_anneal_steps
from levada.algorithms.optimizer import SCHEDULES, Schedule, make_optimizer
from levada.algorithms.user_classes import NetworkField, find_network
from levada.flow import Flow, Latest, Stream
from levada.rl.compute.device import choose_device
from levada.rl.compute.xla import missing_for_xla, prepare_jax
from levada.rl.data.images import has_large_images
from levada.rl.envs.task import Task
from levada.rl.learning.learner import Learner
from levada.rl.policies.layers import Activation
from levada.rl.policies.networks import is_default
from levada.rl.policies.policy import Policy, Weights
from levada.rl.policies.precision import choose_precision
from levada.validation import PositiveFloat, PositiveInt, Text, UnitFloat


@dataclass(frozen=True)
class Part:
    """The recipes of an algorithm for one policy. A flow may have parts of several algorithms; one source can serve them all."""

    learner: Learner
    """Recipe of the learner, which names the policy."""
    sampler: Any
    """Recipe of the source, for a single-agent environment."""


@dataclass(frozen=True, kw_only=True)
class PolicyAlgorithm(Algorithm):
    """Base configuration of the algorithms that train one policy: a source, and everything behind it.

    Its flow consists of both. In an environment of several agents, one source serves several algorithms, and what is behind it
    stays as it is; see `levada.algorithms.multi_agent`.
    """

    shards: PositiveInt = 1
    """Number of samplers, called shards. Each has its own environments. More shards can use more cores."""

    SOURCE: ClassVar[str] = "rollout"
    """Name of the source in the flow."""
    COUNTS_COPIES: ClassVar[bool] = False
    """Whether `num_envs` of its part counts copies of an environment of several agents. False: an agent in each copy."""

    SEES_STATE: ClassVar[bool] = False
    """Whether its agents are shown the state of an environment of several agents beside their own observations."""

    @abstractmethod
    def part(self, task: Task, name: str = "policy") -> Part:
        """Make the recipes of the learner and of the sampler. `name`: name of the policy."""

    @abstractmethod
    def updates(self, flow: Flow, part: Any, weights: Latest[Weights], items: Stream[Any]) -> None:
        """Add everything behind the source to a flow: from the sampler's items to new weights."""

    def flow(self, task: Task) -> Flow:
        """Build the flow: a source, and the updates from its items."""
        part = self.part(task)
        flow = Flow(type(self).__name__.lower())
        weights = flow.latest("weights", of=part.learner)
        items = flow.source(self.SOURCE, part.sampler, reads=weights, shards=self.shards)
        self.updates(flow, part, weights, items)
        return flow


@dataclass(frozen=True, kw_only=True)
class NeuralAlgorithm(PolicyAlgorithm):
    """Base configuration of the algorithms that train networks by gradient."""

    num_envs: PositiveInt = 8
    """Number of environments per shard, stepped together. With more environments, a step costs less and batches are larger."""
    learning_rate: PositiveFloat = 1e-3
    """Learning rate of the optimizer."""
    anneal_steps: PositiveInt | None = None
    """Env steps over which the learning rate falls to zero. None: constant."""
    learning_rate_schedule: Schedule = "linear"
    """Schedule of the learning rate over `anneal_steps`. `cosine` requires `anneal_steps`."""
    discount: UnitFloat = 0.99
    """Discount factor gamma per step. Values closer to 1 give distant rewards more weight."""
    max_grad_norm: PositiveFloat | None = None
    """Maximum norm of the gradient; larger gradients are scaled down to it. None: no limit."""
    adam_eps: PositiveFloat = 1e-8
    """Epsilon of Adam. With a larger epsilon, steps are smaller where gradients are small. Adam's paper has 1e-8 (arXiv
    1412.6980)."""
    optimizer: Text = "adam"
    """Optimizer: `adam`, `adamw`, `rmsprop`, `sgd`, `adagrad`, a class of torch.optim, or a custom one as `module:Class` or
    `path/to/file.py:Class`."""
    optimizer_kwargs: Mapping[str, bool | int | float | tuple[float, float]] = field(default_factory=dict)
    """Keyword arguments of an optimizer other than `adam`, such as alpha=0.99 for `rmsprop`; not the learning rate."""
    normalize_obs: bool = False
    """Normalize observations by their running mean and standard deviation."""
    normalize_reward: bool = False
    """Scale rewards by the running standard deviation of the discounted return."""
    network: NetworkField = None
    """Custom network of the policy as `module:Class`, called with the observation space and the number of outputs: logits,
    or means of Box actions."""
    features_extractor: NetworkField = None
    """Custom feature extractor as `module:Class`, called with the observation space; the default networks are built on its
    features. Each network has an extractor of its own. None: a CNN for images, one-hot encoding of discrete values, and vectors
    unchanged."""
    hidden_sizes: tuple[PositiveInt, ...] = (64, 64)
    """Widths of the hidden layers of the default networks."""
    activation: Activation = "tanh"
    """Activation function between the layers."""
    device: Text = field(default="auto", compare=False)
    """Device of the networks: `cpu`, `cuda`, or one of several GPUs, `cuda:1`. `auto`, decided when a run starts: a GPU for
    images of at least 36 x 36, if there is one, except for environments in JAX. A flow built by hand uses the CPU."""
    precision: Literal["auto", "float32", "bfloat16"] = field(default="auto", compare=False)
    """Floating-point format of the layers. `auto`: bfloat16 for images of at least 64 x 64 with the default network, where
    the processor multiplies bfloat16 faster (AMX, AVX512-BF16 of AMD, bfloat16 of Arm); float32 otherwise. `bfloat16` also speeds
    up gradient steps of wide networks on vectors on such processors, with larger rounding errors."""
    compile: Literal["auto", "xla"] | bool = "auto"
    """Compilation of the update. True: at the first update. False: never. `xla`: all gradient steps of an update in one call, by
    JAX's compiler, which is several times faster for small networks and gives other bits (pip install 'levada[jax]'). `auto`:
    `xla` for environments in JAX; for all others, once the run is long enough to make up for the time that compiling takes. A3C
    takes no `xla`."""
    IS_FOR_XLA: ClassVar[bool] = True
    """Whether XLA can compile its updates."""
    MUTUALLY_EXCLUSIVE: ClassVar[tuple[tuple[str, str], ...]] = (("network", "features_extractor"),)
    """Pairs of fields of which at most one may be set."""

    def __post_init__(self) -> None:
        super().__post_init__()
        make_optimizer(self)
        require_anneal_steps(self, "learning_rate_schedule", "linear", "the learning rate")
        for first, second in self.MUTUALLY_EXCLUSIVE:
            if getattr(self, first) is not None and getattr(self, second) is not None:
                msg = f"{type(self).__name__}({first}={getattr(self, first)!r}, {second}=...): expected at most one of them"
                raise ConfigError(msg)

    @classmethod
    def alternatives(cls) -> tuple[tuple[str, ...], ...]:
        """Pairs that exclude each other."""
        return cls.MUTUALLY_EXCLUSIVE

    @classmethod
    def dependents(cls) -> Mapping[str, tuple[str, ...]]:
        """What is annealed over `anneal_steps`, beside the learning rate."""
        return {"anneal_steps": ("learning_rate_schedule",)}

    @property
    def annealed_over(self) -> Mapping[str, int]:
        """Env steps over which the learning rate is annealed, if it is."""
        return {} if self.anneal_steps is None else {"learning_rate": self.anneal_steps}

    def num_env_steps(self, num_transitions: int) -> float:
        """Number of env steps after training on `num_transitions`."""
        return num_transitions

    def coefficients(self, num_transitions: int) -> dict[str, float]:
        """Scalars of the next update, after training on `num_transitions`: the learning rate."""
        return {"learning_rate": self.scheduled_learning_rate(self.num_env_steps(num_transitions))}

    def scheduled_learning_rate(self, num_env_steps: float) -> float:
        """Learning rate after `num_env_steps`."""
        return self.learning_rate * SCHEDULES[self.learning_rate_schedule](self.remaining_fraction(num_env_steps))

    def remaining_fraction(self, num_env_steps: float) -> float:
        """Fraction of `anneal_steps` that remains."""
        return 1.0 if self.anneal_steps is None else max(0.0, 1.0 - num_env_steps / self.anneal_steps)

    def resolve_task(self, task: Task) -> Task:
        """Decide the settings of the task that depend on its environments; JAX is set up first, since they compute in it."""
        self._prepare_jax(task)
        return super().resolve_task(task)

    def _prepare_jax(self, task: Task) -> None:
        if task.is_functional and missing_for_xla() is None:
            prepare_jax(self.device)

    def resolved(self, task: Task) -> tuple[Self, Mapping[str, str]]:
        """Choose the compiler of updates for environments in JAX, and for large images the device and the precision."""
        space = task.observation_space
        is_for_xla = self.IS_FOR_XLA and task.is_functional and self.precision != "bfloat16"
        if self.compile == "auto" and is_for_xla and missing_for_xla() is None:
            resolved, others = replace(self, compile="xla").resolved(task)
            return resolved, {"compile": "its environments are in JAX", **others}
        if not has_large_images(space):
            return self, {}
        reasons: dict[str, str] = {}
        device, precision = self.device, self.precision
        if device == "auto" and task.is_functional:  # JAX would have been started for the GPU
            device, reasons["device"] = "cpu", "its environments are in JAX, which uses a GPU only if you choose one"
        elif device == "auto":
            device, reasons["device"] = choose_device(space)
        if precision == "auto" and self.compile == "xla":
            precision, reasons["precision"] = "float32", "updates compiled by XLA are in float32"
        elif precision == "auto":
            is_known = is_default(self.make_network(task))
            precision, reasons["precision"] = choose_precision(space, device, is_default_network=is_known)
        return replace(self, device=device, precision=precision), reasons

    def make_network(self, task: Task) -> Callable[..., Any] | None:
        """Factory of the policy's network for a task; None: the default of `Policy`."""
        return find_network(self.network)

    def with_network_settings(self, default: Callable[..., Any]) -> Callable[..., Any]:
        """Factory of one of levada's networks with the sizes and the feature extractor of these settings."""
        features = find_network(self.features_extractor, "features_extractor")
        more = {} if features is None else {"features_extractor": features}
        return partial(default, hidden_sizes=self.hidden_sizes, activation=self.activation, **more)

    def policy(self, task: Task, **fields: Any) -> Policy:
        """Make the policy for the spaces of a task; `fields`: fields of `Policy`."""
        self._prepare_jax(task)
        fields = {"network": self.make_network(task), **fields}
        return Policy(
            observation_space=task.observation_space,
            action_space=task.action_space,
            device="cpu" if self.device == "auto" else self.device,
            precision="float32" if self.precision == "auto" else self.precision,
            normalize_obs=self.normalize_obs,
            normalize_reward=self.normalize_reward,
            **fields,
        )

    def learner(self, policy: Policy, loss: Any, **more: Any) -> Learner:
        """Make the learner; `more`: fields of `Learner`."""
        return Learner(
            policy=policy, loss=loss, coefficients=self.coefficients, compile=self.compile,
            optimizer=make_optimizer(self), **more,
        )  # fmt: skip
