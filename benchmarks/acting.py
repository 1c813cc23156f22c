"""Time of acting: a policy's network in NumPy, compared with the same network in PyTorch.

    python benchmarks/acting.py [--num-envs 8]

From observations to action parameters, one thread, microseconds of processor time per step of all environments. Both alternate,
and the fastest of many short turns counts, because other programs only make them slower. PyTorch computes values as well, as
always in acting.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import levada as lv  # isort: skip  # before numpy and torch, whose instruction sets it chooses
import numpy as np
from gymnasium import Space, spaces
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from levada.rl.acting.actor import Actor
from levada.rl.compute.threads import set_threads
from levada.rl.policies.layers import NumpyLayers, dense_layers

NUM_TURNS = 100


class Layers(nn.Module):
    """Hidden layers with or without normalization, for a policy alone."""

    def __init__(
        self, observation_space: Space[Any], num_params: int, hidden_sizes: tuple[int, ...], activation: nn.Module,
        normalizes: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        assert observation_space.shape is not None
        sizes = [observation_space.shape[0], *hidden_sizes]
        layers: list[nn.Module] = []
        for size, out in zip(sizes, hidden_sizes, strict=False):
            layers += [nn.Linear(size, out), *([nn.LayerNorm(out)] if normalizes else []), activation]
        self.policy = nn.Sequential(*layers, nn.Linear(sizes[-1], num_params))
        self.value = nn.Sequential(nn.Linear(sizes[0], 1))

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return parameters and values."""
        return self.policy(obs), self.value(obs).squeeze(-1)


class Described(Layers):
    """The same, in NumPy."""

    def numpy_layers(self) -> NumpyLayers:
        """Describe the layers."""
        return NumpyLayers(dense_layers("policy", self.policy), dense_layers("value", self.value))


CASES: dict[str, tuple[tuple[int, ...], nn.Module, bool]] = {
    "64-64 tanh": ((64, 64), nn.Tanh(), False),
    "64-64 relu": ((64, 64), nn.ReLU(), False),
    "64-64 elu": ((64, 64), nn.ELU(), False),
    "64-64 silu": ((64, 64), nn.SiLU(), False),
    "64-64 gelu": ((64, 64), nn.GELU(), False),
    "64-64 gelu (tanh)": ((64, 64), nn.GELU("tanh"), False),
    "64-64 layer norm, tanh": ((64, 64), nn.Tanh(), True),
    "128 gelu": ((128,), nn.GELU(), False),
    "256-256 relu": ((256, 256), nn.ReLU(), False),
    "512-512 elu": ((512, 512), nn.ELU(), False),
}


def forward_of(
    network: type[Layers], case: tuple[tuple[int, ...], nn.Module, bool], num_envs: int
) -> Callable[[], object]:
    """Return a step of acting."""
    box, arguments = spaces.Box(-1.0, 1.0, (8,)), case

    def make(observation_space: Space[Any], num_params: int) -> nn.Module:
        return network(observation_space, num_params, *arguments)

    policy = lv.Policy(observation_space=box, action_space=spaces.Discrete(4), network=make)
    actor = Actor(policy)
    actor.load(policy.weights(policy.module(seed=0)))
    obs = np.random.default_rng(0).standard_normal((num_envs, 8), np.float32)
    assert (actor.network._numpy is not None) == (network is Described)
    return lambda: actor.forward(obs)


def microseconds(step: Callable[[], object], repeat: int = 50) -> float:
    """Return the mean time of a call."""
    begun_s = time.process_time()
    for _ in range(repeat):
        step()
    return 1e6 * (time.process_time() - begun_s) / repeat


def main() -> None:
    """Measure both, in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=8)
    args = parser.parse_args()
    set_threads(1)
    table = Table("network", "NumPy, us", "PyTorch, us", "PyTorch / NumPy", title=f"{args.num_envs} environments")
    for name, case in CASES.items():
        ours, theirs = (forward_of(network, case, args.num_envs) for network in (Described, Layers))
        ours(), theirs()
        turns = [(microseconds(ours), microseconds(theirs)) for _ in range(NUM_TURNS)]
        in_numpy, in_torch = (min(times) for times in zip(*turns, strict=True))
        table.add_row(name, f"{in_numpy:.1f}", f"{in_torch:.1f}", f"{in_torch / in_numpy:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
