r"""Several algorithms in one environment, each for the agents of one policy.

A source acts for all policies, and its items are split by policy. Behind that, each policy has the sub-flow of its algorithm, the
one that trains a single agent, with its own learner, register and clock.

    rollout x shards -> by_policy --(ppo)--> gae -> [queue] -> batch -> learn
       ^    ^                                                             |
       |    +-------------------------- [ppo/weights] <-------------------+
       |                 \--(dqn)--> n_step ==> [replay] -> sample -> learn
       +------------------------------- [dqn/weights] <----------------+
"""

from __future__ import annotations

from collections.abc import Mapping

from levada.algorithms.neural import NeuralAlgorithm
from levada.flow import Flow
from levada.rl.acting.multi_agent import MultiAgentSampler
from levada.rl.envs.agents.task import MultiAgentTask


def multi_agent(task: MultiAgentTask, algorithms: Mapping[str, NeuralAlgorithm]) -> Flow:
    """Train each policy of a task with its algorithm.

    Args:
        task: the environments, and who acts for whom.
        algorithms: policy -> its algorithm. They must have the same `shards` and `num_steps`, and `num_envs` in proportion to the
            number of their agents: it counts an agent in each copy of the environment.
    """
    parts = {name: algorithm.part(task[name], name) for name, algorithm in algorithms.items()}
    flow, weights = Flow("multi_agent"), {}
    for name, part in parts.items():
        with flow.scope(name):
            weights[name] = flow.latest("weights", of=part.learner)
    sampler = MultiAgentSampler(task=task, samplers={name: part.sampler for name, part in parts.items()})
    [shards] = {algorithm.shards for algorithm in algorithms.values()}
    items = flow.source("rollout", sampler, reads=weights, shards=shards)
    streams = flow.split("by_policy", items, keys=tuple(parts))
    for name, algorithm in algorithms.items():
        with flow.scope(name):
            algorithm.updates(flow, parts[name], weights[name], streams[name])
    return flow
