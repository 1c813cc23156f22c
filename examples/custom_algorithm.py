"""An algorithm of your own: REINFORCE with a baseline, which docs/tutorial-algorithm.md explains line by line.

    python examples/custom_algorithm.py [--until return=475]
    levada train examples/custom_algorithm.py:Reinforce --env CartPole-v1 --until return=475 --seed 1

It prints its flow, then solves CartPole-v1 within 320,000 env steps, in a few seconds.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

import levada as lv
from levada.flow import Latest, Stream
from levada.math import discounted_returns
from levada.rl import LossOutput, Networks


@dataclass(frozen=True, kw_only=True)
class Reinforce(lv.PolicyAlgorithm):
    """REINFORCE with a baseline: Sutton and Barto 2018, Reinforcement Learning, section 13.4."""

    num_envs: int = 16
    """Number of environments, stepped together. More environments make updates less noisy and rarer."""
    num_steps: int = 32
    """Length of one rollout, in steps per environment. Longer rollouts rely less on the baseline at their end."""
    learning_rate: float = 3e-3
    """Learning rate of Adam."""
    discount: float = 0.99
    """Discount factor gamma per step. Closer to 1 weighs distant rewards more."""
    value_coef: float = 0.5
    """Coefficient of the baseline's loss."""

    def part(self, task: lv.Task, name: str = "policy") -> lv.Part:
        policy = lv.Policy(name=name, observation_space=task.observation_space, action_space=task.action_space)
        sampler = lv.Sampler(task=task, policy=policy, num_envs=self.num_envs, num_steps=self.num_steps)
        return lv.Part(lv.Learner(policy=policy, loss=partial(loss, self), coefficients=self.coefficients), sampler)

    def updates(self, flow: lv.Flow, part: lv.Part, weights: Latest[Any], rollouts: Stream[lv.Rollout]) -> None:
        returns = flow.map("returns", partial(with_returns, self), rollouts)
        batch = flow.batch("batch", returns.via(lv.Queue(max_lag=0)), size=self.shards)
        update = flow.learn("learn", part.learner, batch)
        flow.publish(update.weights, to=weights)
        flow.report(update.stats)

    def coefficients(self, num_env_steps: int) -> dict[str, float]:
        return {"learning_rate": self.learning_rate}


def with_returns(hp: Reinforce, rollout: lv.Rollout) -> lv.Transitions:
    steps = map(torch.from_numpy, (rollout.reward, rollout.next_value, rollout.terminated, rollout.truncated))
    return rollout.transitions(returns=discounted_returns(*steps, discount=hp.discount).numpy())


def loss(
    hp: Reinforce, networks: Networks, batch: Mapping[str, Tensor], coefficients: Mapping[str, Tensor]
) -> LossOutput:
    distribution, value = networks.policy(batch["obs"])
    advantage = batch["returns"] - value
    policy_loss = -batch["weight"].dot(distribution.log_prob(batch["action"]) * advantage.detach())
    value_loss = batch["weight"].dot(advantage.square())
    stats = {"policy_loss": policy_loss, "value_loss": value_loss}
    return LossOutput(policy_loss + hp.value_coef * value_loss, stats)


def main() -> None:
    """Print the flow, and train."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--until", default="return=475 steps=1_000_000", help="stopping condition")
    args = parser.parse_args()
    print(Reinforce().flow(lv.Task("CartPole-v1")))
    run = lv.train(Reinforce(), "CartPole-v1", until=args.until, seed=1)
    print(f"mean return {run.summary.return_mean_100:.1f} after {run.summary.env_steps:,} env steps")


if __name__ == "__main__":
    main()
