"""RLlib's IMPALA on several nodes, in environments that sleep: a program of `scaling.py nodes`.

    python rllib_impala_asleep.py --nodes 2 --seconds 5

Samplers, rollouts, batches, network and hyper-parameters are those of levada there; the hyper-parameters are RLlib's defaults.
The learner is an actor on the head, the only one.
"""

from __future__ import annotations

import ray
from _rllib import QUIET, updates
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.tune.registry import register_env

from benchmarks._scaling.asleep import NUM_STEPS, SAMPLER, SAMPLERS_PER_NODE, STEP_S, arguments, cluster, measure, tell
from benchmarks._scaling.envs import Sleepy

ENV = "asleep"


def _config(num_runners: int, seed: int) -> IMPALAConfig:
    network = DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False)
    return (
        IMPALAConfig()
        .environment(ENV)
        .env_runners(
            num_env_runners=num_runners,
            rollout_fragment_length=NUM_STEPS,
            custom_resources_per_env_runner={SAMPLER: 1},
        )
        .learners(num_learners=1, num_gpus_per_learner=0)
        .training(train_batch_size_per_learner=num_runners * NUM_STEPS)
        .rl_module(model_config=network)
        .debugging(seed=seed, log_level="ERROR")
    )


def main() -> None:
    """Train for a while."""
    args = arguments("RLlib's IMPALA on some nodes")
    register_env(ENV, lambda _config: Sleepy(STEP_S))
    with cluster(args.nodes) as address:
        ray.init(address, **QUIET)
        try:
            training = updates(_config(SAMPLERS_PER_NODE * args.nodes, args.seed))
            begin, end = measure(training, warm_s=args.warm, seconds=args.seconds)
            tell(begin.rates_until(end))
            training.close()
        finally:
            ray.shutdown()


if __name__ == "__main__":
    main()
