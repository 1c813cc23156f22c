"""The policy: a recipe for a network with an action head, and the module made from it.

    >>> policy = Policy(observation_space=spaces.Box(-1.0, 1.0, (4,)), action_space=spaces.Discrete(2))
    >>> module = policy.module(seed=0)
    >>> distribution, value = module(torch.zeros(8, 4))
    >>> distribution.mode().shape, value.shape
    (torch.Size([8]), torch.Size([8]))

A learner trains the module. Samplers act with its weights, a mapping of plain arrays:

    >>> from levada.rl.acting.actor import Actor
    >>> actor = Actor(policy)
    >>> actor.load(policy.weights(module))
    >>> noise = actor.head.draw(np.random.default_rng(0), num_steps=10, num_envs=8)
    >>> actor.sample(np.zeros((8, 4), np.float32), noise[0]).shape
    (8,)

The recipe is plain data, so it can be sent to any process. Equal recipes and seeds make equal modules.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from levada.rl.compute.device import find_device
from levada.rl.compute.seeding import seeded
from levada.rl.data.images import has_large_images
from levada.rl.data.normalize import Moments, check_moments, normalized_leaves
from levada.rl.data.spaces import (
    OBS,
    Array,
    canonical_action_space,
    canonical_observation_space,
    check_action_space,
    check_observation_space,
    has_action_mask,
)
from levada.rl.policies.heads.make import ActionHead, action_head
from levada.rl.policies.heads.q_values import ValueHead
from levada.rl.policies.layers import Activation
from levada.rl.policies.module import PolicyModule, dry_run, state_size_of
from levada.rl.policies.networks import default_network, is_default
from levada.rl.policies.precision import Precision
from levada.rl.policies.q_distributions import ValueKind
from levada.rl.policies.user_networks import ModelError, make_network
from levada.rl.policies.weight_noise import add_deviations
from levada.validation import FiniteFloat, NonNegativeFloat, PositiveInt, Text, check_fields

__all__ = ["ModelError", "Policy", "PolicyModule", "Weights"]

Weights: TypeAlias = Mapping[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Recipe of a policy: its observation space, its action space, and its network.

    Raises:
        ValueError: a setting is invalid, or contradicts another one.
        SpaceError: a space is not supported.
    """

    name: Text = "policy"
    """Name in versions, metrics and checkpoints; must be unique among the policies of a flow."""
    observation_space: Space[Any]
    """Observation space of one environment, stored in canonical form; a Dict of "obs" and "action_mask" masks actions."""
    action_space: Space[Any]
    """Action space of one environment, stored in canonical form."""
    network: Callable[[Space[Any], int], nn.Module] | None = None
    """Factory of the network, called with the observation space (without the mask) and the number of parameters per action.
    Must be picklable, such as a class or a function of a module. None: a default that suits the space."""
    hidden_sizes: tuple[PositiveInt, ...] = (64, 64)
    """Widths of the default network's hidden layers. Wider layers can represent more and are slower."""
    activation: Activation = "tanh"
    """Activation function of the default network: "tanh" keeps features bounded, "relu" is the cheapest in wide layers; "elu",
    "gelu" and "silu" are smooth, and cost up to twice as much per step as "tanh"."""
    normalize_obs: bool = False
    """Normalize float observations by their running mean and standard deviation, clipped at 10."""
    normalize_reward: bool = False
    """Divide rewards by the running standard deviation of the discounted return."""
    standardize_reward: bool = False
    """The learner subtracts the running mean of the sampled rewards, and divides by their running standard deviation."""
    normalize_value: bool = False
    """The network outputs values in units of the running standard deviation of their targets, around the running mean. The
    policy's values are those of the rewards as they are."""
    output: Literal["distribution", "q_values"] = "distribution"
    """Meaning of the network's outputs: parameters of the action distribution, or action values, of which the largest is
    chosen."""
    values: ValueKind | None = None
    """Representation of the return with `output="q_values"`: a return distribution; None: its expectation."""
    dueling: bool = False
    """Dueling network: it outputs advantages of the actions and a state value in place of action values."""
    weight_noise: NonNegativeFloat = 0.0
    """Initial standard deviation of learned noise on the weights of linear layers, times the square root of their number of
    inputs. The noise replaces random actions as exploration. 0: no noise. Requires `output="q_values"`."""
    tanh_squash: bool = False
    """Squash the actions of a Box into its bounds with tanh, instead of clipping them."""
    state_dependent_std: bool = False
    """The network outputs the standard deviation of each action of a squashed Box; otherwise it is the same in all states."""
    precision: Precision = field(default="float32", compare=False)
    """Compute dtype of the network's layers; parameters are always float32. See `levada.rl.policies.precision`."""
    device: str = field(default="cpu", compare=False)
    """Device of the network if it runs in PyTorch: "cpu", "cuda", "cuda:1". See `levada.rl.compute.device`."""
    log_std_init: FiniteFloat = 0.0
    """Initial log standard deviation of a Box's actions. Larger values explore more widely at first."""
    env_observation_space: Space[Any] = field(init=False, repr=False, compare=False)
    """`observation_space` as passed, which `Actor.act` reads."""
    env_action_space: Space[Any] = field(init=False, repr=False, compare=False)
    """`action_space` as passed, in which `Actor.act` returns actions."""

    def __post_init__(self) -> None:
        """Check the fields and convert the spaces to canonical form."""
        check_observation_space(self.observation_space, self.action_space)
        check_action_space(self.action_space)
        check_fields(self, ValueError)
        find_device(self.device)
        object.__setattr__(self, "hidden_sizes", tuple(self.hidden_sizes))
        object.__setattr__(self, "env_observation_space", self.observation_space)
        object.__setattr__(self, "env_action_space", self.action_space)
        object.__setattr__(self, "observation_space", canonical_observation_space(self.observation_space))
        object.__setattr__(self, "action_space", canonical_action_space(self.action_space))
        if self.weight_noise and self.output != "q_values":
            msg = f"Policy: weight_noise is {self.weight_noise}, expected 0 with output='distribution', which explores by itself"
            raise ValueError(msg)
        if self.normalize_reward and self.standardize_reward:
            msg = "Policy: normalize_reward and standardize_reward are both True, expected one of them: both divide rewards"
            raise ValueError(msg)
        _ = self.head  # rejects spaces that cannot be squashed or have no action values
        for setting, reason in self._idle_settings():
            warnings.warn(f"Policy: {setting} has no effect: {reason}", UserWarning, stacklevel=3)

    @property
    def head(self) -> ActionHead:
        """Action head: makes actions from the network's parameters."""
        if self.output == "q_values":
            return ValueHead(self.action_space, self.values, dueling=self.dueling)
        return action_head(self.action_space, self.tanh_squash, self.state_dependent_std)

    @cached_property
    def state_size(self) -> int:
        """Size of the network's recurrent state per environment, 0 without one. A custom network is built, or raises
        ModelError.
        """
        return 0 if self.network is None else state_size_of(self.module(seed=0).network)

    @property
    def acting_precision(self) -> Precision:
        """Compute dtype of the layers where the policy acts. Default networks of vectors act in float32, by NumPy: the few rows
        of a step would gain nothing.
        """
        sees_vectors = is_default(self.network) and not has_large_images(self.observation_space)
        return "float32" if sees_vectors else self.precision

    @property
    def inner_space(self) -> Space[Any]:
        """The observation space as the network sees it, without the action mask."""
        space = self.observation_space
        return cast("spaces.Dict", space)[OBS] if has_action_mask(space) else space

    def module(self, seed: int) -> PolicyModule:
        """Make the module; the seed alone determines its parameters, and no global random state changes. ModelError: the
        network does not return parameters ``[N, num_params]`` and values ``[N]``.
        """
        with seeded(seed):
            space, num_params = self.inner_space, self.head.num_params
            if self.network is None:
                network = default_network(space, num_params, self.hidden_sizes, self.activation)
            else:
                network = make_network(self.network, space, num_params)
            module = PolicyModule(self, network)
            dry_run(module)
            if self.weight_noise:
                add_deviations(network, self.weight_noise)
        return module

    def weights(self, module: nn.Module) -> Weights:
        """Copy the module's parameters and buffers into arrays, keyed by their dotted names.

        >>> policy = Policy(observation_space=spaces.Box(-1.0, 1.0, (4,)), action_space=spaces.Discrete(2))
        >>> policy.weights(policy.module(seed=0))["network.policy.0.weight"].shape
        (64, 4)
        """
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return {name: _to_array(tensor) for name, tensor in tensors.items()}

    def by_name(self, weights: Weights) -> Mapping[str, tuple[Policy, Weights]]:
        """Return the policies that this one consists of, and their weights, by name: itself."""
        return {self.name: (self, weights)}

    def moments_of(self, buffers: Weights) -> dict[str, Moments]:
        """Read the running moments from the normalization buffers of some weights, keyed by "obs...", "return", "reward" and
        "value".

        >>> spaces_ = {"observation_space": spaces.Box(-1.0, 1.0, (4,)), "action_space": spaces.Discrete(2)}
        >>> policy = Policy(normalize_obs=True, **spaces_)
        >>> policy.moments_of(policy.weights(policy.module(seed=0)))["obs"].count
        0.0
        """
        found = {}
        for key, prefix in self._normalizer_names().items():
            count, mean, var = (buffers[f"{prefix}.{field}"].astype(np.float64) for field in ("count", "mean", "var"))
            found[key] = Moments(float(count), mean, var)
        return found

    def buffers_of(self, running: Mapping[str, Moments]) -> dict[str, Array]:
        """Return float32 normalization buffers for some running moments: the inverse of `moments_of`.

        Raises:
            ValueError: the policy does not normalize one of the keys.
            StatisticsError: a moment is not finite or exceeds float32.

        >>> from levada.rl.data.normalize import observation_moments
        >>> spaces_ = {"observation_space": spaces.Box(-1.0, 1.0, (4,)), "action_space": spaces.Discrete(2)}
        >>> policy = Policy(normalize_obs=True, **spaces_)
        >>> batch = observation_moments(policy.observation_space, np.ones((5, 2, 4), np.float32))
        >>> float(policy.buffers_of(batch)["normalizers.0.count"])
        10.0
        """
        prefixes = self._normalizer_names()
        buffers: dict[str, Array] = {}
        for key, total in running.items():
            if key not in prefixes:
                msg = f"buffers_of: got moments of {key!r}, policy {self.name!r} normalizes {list(prefixes)}"
                raise ValueError(msg)
            check_moments(key, total)
            for name, value in (("count", total.count), ("mean", total.mean), ("var", total.var)):
                buffers[f"{prefixes[key]}.{name}"] = np.asarray(value, np.float32)
        return buffers

    def _normalizer_names(self) -> dict[str, str]:
        leaves = normalized_leaves(self.observation_space) if self.normalize_obs else {}
        names = {key: f"normalizers.{index}" for index, key in enumerate(leaves)}
        scalars = {
            "return": ("returns", self.normalize_reward),
            "reward": ("rewards", self.standardize_reward),
            "value": ("values", self.normalize_value),
        }
        return names | {key: prefix for key, (prefix, normalizes) in scalars.items() if normalizes}

    def _idle_settings(self) -> list[tuple[str, str]]:
        defaults = {setting.name: setting.default for setting in fields(self)}
        changed = [name for name in ("hidden_sizes", "activation") if getattr(self, name) != defaults[name]]
        idle = [(name, "the policy has a network of its own") for name in changed if self.network is not None]
        if self.output != "q_values":
            changed = [name for name in ("values", "dueling") if getattr(self, name) != defaults[name]]
            idle += [(name, "the policy does not act by values") for name in changed]
        if self.normalize_obs and not normalized_leaves(self.observation_space):
            idle.append(("normalize_obs", "no observation is floating"))
        if self.log_std_init != 0.0 and not isinstance(self.action_space, spaces.Box):
            idle.append(("log_std_init", "the action space is no Box"))
        return idle


def _to_array(tensor: Tensor) -> Array:
    tensor = tensor.detach()
    if tensor.dtype in (torch.bfloat16, torch.float16):
        tensor = tensor.float()
    # Always a copy: .numpy() of a tensor in main memory is a view that changes with training.
    return np.array(tensor.cpu().numpy(), order="C")
