"""RLlib's PPO for two policies in an environment of four CartPoles, timed as a peer of levada.

    python rllib_two_policies.py --preset runners --steps 20480 --seed 0 --threads 1

It is RLlib's example `multi_agent_cartpole.py` with two policies: agents 0 and 2 are played by one, agents 1 and 3 by the other.
PPO's settings are RLlib's defaults. The network is 64-64, tanh, a stack each for policy and value, as levada's. With `--preset
runners` there are two env runners, each a process; with `--preset local` none, and one process does it all. Steps are those of
the environment.
"""

from __future__ import annotations

import argparse
from contextlib import closing

from _progress import Progress
from _rllib import cluster
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole

NUM_AGENTS = 4
PRESETS = {"local": 0, "runners": 2}
"""Number of env runners."""


def _policy_of(agent: int, episode: object, **others: object) -> str:
    return f"p{agent % 2}"


def _config(num_runners: int, seed: int) -> PPOConfig:
    network = DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False)
    return (
        PPOConfig()
        .environment(MultiAgentCartPole, env_config={"num_agents": NUM_AGENTS})
        .env_runners(num_env_runners=num_runners)
        .learners(num_learners=0)
        .multi_agent(policies={"p0", "p1"}, policy_mapping_fn=_policy_of)
        .rl_module(model_config=network)
        .debugging(seed=seed, log_level="ERROR")
    )


def main() -> None:
    """Train once."""
    parser = argparse.ArgumentParser(description="RLlib's PPO for two policies")
    parser.add_argument("--preset", choices=list(PRESETS), default="runners")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="of the learner, by OMP_NUM_THREADS")
    args = parser.parse_args()

    progress, env_steps = Progress(stop_return=None), 0
    num_runners = PRESETS[args.preset]
    with cluster(num_runners + 2, threads=args.threads):
        algorithm = _config(num_runners, args.seed).build_algo()
        with closing(_Stopped(algorithm)):
            while env_steps < args.steps:
                env_steps = int(algorithm.train()["env_runners"]["num_env_steps_sampled_lifetime"])
                progress.update(env_steps)
            progress.end(env_steps)


class _Stopped:
    """Stops an algorithm in the end."""

    def __init__(self, algorithm: object) -> None:
        self.close = algorithm.stop  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
