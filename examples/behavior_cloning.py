"""Behavior cloning, then PPO: a policy first imitates recorded actions, and is improved from there.

    python examples/behavior_cloning.py [--updates 1000]
    levada train examples/behavior_cloning.py:BehaviorCloning --env CartPole-v1 --data expert.npz --until updates=1000

The data are arrays `obs` and `action` in a file of numpy, recorded from a policy that PPO has trained. The network is PPO's.
"""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from torch import Tensor

import levada as lv
from levada.algorithms.ppo import PPO
from levada.flow import Latest, Shard, Stream
from levada.rl import LossOutput, Networks, Transitions


@dataclass(frozen=True)
class Demonstrations:
    """Source of minibatches, drawn from the file at random."""

    path: str
    batch_size: int

    def __call__(self, shard: Shard) -> Callable[[Any], Transitions]:
        with np.load(self.path) as file:
            columns = {"obs": file["obs"], "action": file["action"]}
        rng = np.random.default_rng(shard.seed)

        def draw(weights: Any) -> Transitions:
            rows = rng.integers(len(columns["obs"]), size=self.batch_size)
            return Transitions({name: column[rows] for name, column in columns.items()})

        return draw


@dataclass(frozen=True, kw_only=True)
class BehaviorCloning(lv.PolicyAlgorithm):
    data: str = "expert.npz"
    batch_size: int = 256
    learning_rate: float = 1e-3

    def part(self, task: lv.Task, name: str = "policy") -> lv.Part:
        learner = lv.Learner(policy=PPO().policy(task, name=name), loss=loss, coefficients=self.coefficients)
        return lv.Part(learner, Demonstrations(self.data, self.batch_size))

    def updates(self, flow: lv.Flow, part: lv.Part, weights: Latest[Any], items: Stream[Transitions]) -> None:
        batch = flow.batch("batch", items.via(lv.Queue(max_lag=None, capacity=2)), size=self.shards)
        update = flow.learn("learn", part.learner, batch)
        flow.publish(update.weights, to=weights)
        flow.report(update.stats)

    def coefficients(self, num_env_steps: int) -> dict[str, float]:
        return {"learning_rate": self.learning_rate}


def loss(networks: Networks, batch: Mapping[str, Tensor], coefficients: Mapping[str, Tensor]) -> LossOutput:
    distribution, _ = networks.policy(batch["obs"])
    value = -batch["weight"].dot(distribution.log_prob(batch["action"]))
    return LossOutput(value, {"loss": value})


def record(policy: Any, path: str, num_steps: int) -> None:
    """Write what a policy does."""
    env, obs, action = gymnasium.make("CartPole-v1"), [], []
    observation, _ = env.reset(seed=7)
    for _ in range(num_steps):
        obs.append(observation)
        action.append(policy.act(observation))
        observation, _, terminated, truncated, _ = env.step(action[-1])
        if terminated or truncated:
            observation, _ = env.reset()
    np.savez(path, obs=np.array(obs), action=np.array(action))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--expert", default="return=475", help="condition that ends the training of the expert")
    parser.add_argument("--updates", type=int, default=1000)
    args = parser.parse_args()
    expert = lv.train("ppo", "CartPole-v1", until=args.expert, seed=1, display="quiet")
    record(expert.policy, "expert.npz", num_steps=10_000)
    clone = lv.train(BehaviorCloning(), "CartPole-v1", until=f"updates={args.updates}", seed=1, display="quiet")
    num = args.updates // 4
    tuned = lv.train(
        "ppo", "CartPole-v1", init_from=clone.path, until=f"updates={num}", seed=1, learning_rate=3e-4, display="quiet"
    )
    for name, run in {"the expert": expert, "the clone": clone, f"after {num} updates of PPO": tuned}.items():
        print(f"{name}: {lv.evaluate(run, num_episodes=20).mean:.1f}")


if __name__ == "__main__":
    main()
