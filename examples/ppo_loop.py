"""PPO as a plain loop: the pieces of `levada/algorithms/ppo.py` without a flow and without a runner.

    python examples/ppo_loop.py [--updates 300] [--seed 1]

It prints the mean return of the last 100 episodes, which rises to about 450 in 300 updates. Then it trains with `lv.train`, the
same as `levada train ppo --env CartPole-v1`, for as many updates, and compares the parameters: they are equal, bit by bit.

Each piece is opened with a seed, as the runner does it: a sampler per shard, and one learner.
"""

import argparse
from collections import deque
from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import NamedTuple

import numpy as np
import torch
from threadpoolctl import threadpool_limits

import levada as lv
from levada.algorithms.gae import GAE
from levada.algorithms.ppo import PPO, PPOLoss
from levada.flow import derive_seed

CARTPOLE = PPO(
    num_envs=8, num_steps=32, num_epochs=10, minibatch_size=256, learning_rate=1.5e-3, anneal_steps=100_000,
    anneal_clip_range=True, value_coef=1.0, discount=0.98, gae_lambda=0.8,
)  # fmt: skip
"""The settings that `levada train ppo --env CartPole-v1` uses."""


class Progress(NamedTuple):
    """State of the loop after an update."""

    num_env_steps: int
    returns: deque[float]
    """Returns of the last 100 episodes."""
    weights: Mapping[str, np.ndarray]


def ppo(hp: PPO, task: lv.Task, seed: int) -> Iterator[Progress]:
    """Sample, estimate advantages, learn; yield after each update."""
    policy = hp.policy(task)
    make_sampler = hp.sampler(task, policy)
    gae = GAE(discount=hp.discount, lambda_=hp.gae_lambda)
    recipe = hp.learner(
        policy, PPOLoss(hp), num_epochs=hp.num_epochs, minibatch_size=hp.resolved_minibatch_size,
        num_microbatches=hp.num_microbatches, sequence_length=hp.num_steps,
        stop_above=None if hp.target_kl is None else ("approx_kl", 1.5 * hp.target_kl),
    )  # fmt: skip

    shards = (lv.Shard("rollout", i, hp.shards, derive_seed(seed, "rollout", i)) for i in range(hp.shards))
    samplers = [make_sampler(shard) for shard in shards]
    learner = recipe.open(derive_seed(seed, "learn"))
    weights, num_env_steps, returns = learner.weights(), 0, deque[float](maxlen=100)
    try:
        while True:
            rollouts = [sampler(weights) for sampler in samplers]
            for rollout in rollouts:
                num_env_steps += rollout.num_env_steps
                returns.extend(episode.episode_return for episode in rollout.episodes)
            weights = learner.update([gae(rollout) for rollout in rollouts]).weights
            yield Progress(num_env_steps, returns, weights)
    finally:
        for sampler in samplers:
            sampler.close()


def main() -> None:
    """Run the loop, then the flow, and compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--updates", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)  # as `levada train` does: sums depend on it
    threadpool_limits(1)  # numpy's, too

    loop = ppo(CARTPOLE, lv.Task("CartPole-v1"), args.seed)
    for update in range(1, args.updates + 1):
        progress = next(loop)
        if update % 20 == 0 or update == args.updates:
            print(f"update {update}: {progress.num_env_steps:,} env steps, mean return {fmean(progress.returns):.1f}")

    run = lv.train(CARTPOLE, "CartPole-v1", until=f"updates={args.updates}", seed=args.seed, display="quiet")
    flow = run.policy.weights
    assert progress.weights.keys() == flow.keys()
    equal = all(np.array_equal(progress.weights[name], flow[name]) for name in flow)
    print(f"the loop and the flow have {'equal' if equal else 'DIFFERENT'} parameters")


if __name__ == "__main__":
    main()
