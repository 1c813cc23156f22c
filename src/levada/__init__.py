"""levada: distributed reinforcement learning as one explicit graph, run unchanged in one thread or on all cores.

    import levada as lv

    run = lv.train("ppo", "CartPole-v1", until="return=475", seed=1)
    print(run.summary.return_mean_100, run.policy.act(observation))

Everything public is here or in the subpackages `levada.flow`, `levada.math`, `levada.rl`, `levada.algorithms`, `levada.runners`
and `levada.testing`. Names are imported on first use, so `import levada` is fast and does not load torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from levada._lazy import lazy
from levada._version import __version__
from levada.portable import fix_once as _fix_once

if TYPE_CHECKING:
    from levada.algorithms.algorithm import Algorithm as Algorithm
    from levada.algorithms.multi_agent import multi_agent as multi_agent
    from levada.algorithms.neural import Part as Part
    from levada.algorithms.neural import PolicyAlgorithm as PolicyAlgorithm
    from levada.algorithms.ppo import PPO as PPO
    from levada.api import Result as Result
    from levada.api import cross_play as cross_play
    from levada.api import evaluate as evaluate
    from levada.api import evaluate_policies as evaluate_policies
    from levada.api import load as load
    from levada.api import resume as resume
    from levada.api import settings as settings
    from levada.api import train as train
    from levada.comparison import compare as compare
    from levada.flow import Flow as Flow
    from levada.flow import FlowError as FlowError
    from levada.flow import Instrument as Instrument
    from levada.flow import LevadaError as LevadaError
    from levada.flow import Prioritized as Prioritized
    from levada.flow import Queue as Queue
    from levada.flow import Report as Report
    from levada.flow import Shard as Shard
    from levada.flow import Update as Update
    from levada.hub import push as push
    from levada.onnx import export as export
    from levada.rl.acting.rollout import Rollout as Rollout
    from levada.rl.acting.sampler import Sampler as Sampler
    from levada.rl.envs.agents.task import MultiAgentTask as MultiAgentTask
    from levada.rl.envs.task import Task as Task
    from levada.rl.learning.learner import Learner as Learner
    from levada.rl.policies.policy import Policy as Policy
    from levada.rl.replay.transitions import Transitions as Transitions
    from levada.run.loggers import Logger as Logger
    from levada.runners.inline import Inline as Inline
    from levada.runners.processes import Processes as Processes
    from levada.runners.ray import Ray as Ray
    from levada.runners.threads import Threads as Threads

_HOME = {
    "Algorithm": "levada.algorithms.algorithm",
    "Flow": "levada.flow",
    "FlowError": "levada.flow",
    "Inline": "levada.runners.inline",
    "Instrument": "levada.flow",
    "Learner": "levada.rl.learning.learner",
    "LevadaError": "levada.flow",
    "Logger": "levada.run.loggers",
    "MultiAgentTask": "levada.rl.envs.agents.task",
    "PPO": "levada.algorithms.ppo",
    "Part": "levada.algorithms.neural",
    "Policy": "levada.rl.policies.policy",
    "PolicyAlgorithm": "levada.algorithms.neural",
    "Prioritized": "levada.flow",
    "Processes": "levada.runners.processes",
    "Queue": "levada.flow",
    "Ray": "levada.runners.ray",
    "Report": "levada.flow",
    "Result": "levada.api",
    "Rollout": "levada.rl.acting.rollout",
    "Sampler": "levada.rl.acting.sampler",
    "Shard": "levada.flow",
    "Task": "levada.rl.envs.task",
    "Threads": "levada.runners.threads",
    "Transitions": "levada.rl.replay.transitions",
    "Update": "levada.flow",
    "compare": "levada.comparison",
    "cross_play": "levada.api",
    "evaluate": "levada.api",
    "evaluate_policies": "levada.api",
    "export": "levada.onnx",
    "load": "levada.api",
    "multi_agent": "levada.algorithms.multi_agent",
    "push": "levada.hub",
    "resume": "levada.api",
    "settings": "levada.api",
    "train": "levada.api",
}

__all__ = ["__version__", *_HOME]


def _whereabouts(name: str) -> str:
    """Module of an algorithm that is not exported here."""
    from levada.algorithms.names import ALGORITHMS

    homes = [home.partition(":") for home in ALGORITHMS.values()]
    return next((f": it is in {module}" for module, _, own in homes if own == name), "")


_fix_once()  # before numpy and torch are imported, unless they already are

if not TYPE_CHECKING:  # type checkers see the imports above, and so report misspelled names
    __getattr__, __dir__ = lazy(__name__, _HOME, _whereabouts)
