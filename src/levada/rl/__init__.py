"""Components of reinforcement learning algorithms: tasks, policies, samplers, learners.

    task        Task: environments of one kind, with their observation and action spaces
    acting      Policy (network and action distribution), Sampler (in a DoubleBufferedSampler) -> Rollout, Shard
    learning    Transitions, Learner (epochs and minibatches over a loss), Adam
    off-policy  StepSampler (EpsilonGreedy, GaussianNoise, PolicySampling) -> NStep, OffPolicyLearner (targets, critics), Frames
    values      CategoricalValues, QuantileValues -> ActionValues
    recurrent   Recurrent, RecurrentNet (LSTM, GRU), Sequences
    evaluation  TrainedPolicy, Evaluation (made by `levada.evaluate`)
    networks    MLP, NatureCNN, MultiInput, default_network

    >>> from levada.rl import Policy, Task
    >>> task = Task("CartPole-v1")
    >>> policy = Policy(observation_space=task.observation_space, action_space=task.action_space)
    >>> policy.action_space
    Discrete(2)

Names are imported on first use, so code that only needs spaces does not wait for PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from levada._lazy import lazy

if TYPE_CHECKING:
    from levada.rl.action_values import ActionValues as ActionValues
    from levada.rl.action_values import CategoricalValues as CategoricalValues
    from levada.rl.action_values import QuantileValues as QuantileValues
    from levada.rl.critic import Critic as Critic
    from levada.rl.critic import DiscreteCritic as DiscreteCritic
    from levada.rl.double_buffered import DoubleBufferedSampler as DoubleBufferedSampler
    from levada.rl.env_batch import EnvError as EnvError
    from levada.rl.evaluate import Evaluation as Evaluation
    from levada.rl.evaluate import TrainedPolicy as TrainedPolicy
    from levada.rl.explore import EpsilonGreedy as EpsilonGreedy
    from levada.rl.explore import GaussianNoise as GaussianNoise
    from levada.rl.explore import PolicySampling as PolicySampling
    from levada.rl.frames import Frames as Frames
    from levada.rl.learner import Learner as Learner
    from levada.rl.learner import NonFiniteError as NonFiniteError
    from levada.rl.models import MLP as MLP
    from levada.rl.models import MultiInput as MultiInput
    from levada.rl.models import NatureCNN as NatureCNN
    from levada.rl.models import ValueMLP as ValueMLP
    from levada.rl.models import default_network as default_network
    from levada.rl.off_policy import LossOutput as LossOutput
    from levada.rl.off_policy import OffPolicyLearner as OffPolicyLearner
    from levada.rl.optimize import Adam as Adam
    from levada.rl.policy import Policy as Policy
    from levada.rl.recurrent import Recurrent as Recurrent
    from levada.rl.recurrent import RecurrentNet as RecurrentNet
    from levada.rl.rollout import Rollout as Rollout
    from levada.rl.sampler import Sampler as Sampler
    from levada.rl.sequences import Sequences as Sequences
    from levada.rl.spaces import SpaceError as SpaceError
    from levada.rl.step import Apply as Apply
    from levada.rl.step_sampler import NStep as NStep
    from levada.rl.step_sampler import StepSampler as StepSampler
    from levada.rl.task import Task as Task
    from levada.rl.transitions import Transitions as Transitions
    from levada.rl.transitions import concatenate as concatenate

_HOME = {
    "ActionValues": "levada.rl.action_values",
    "Adam": "levada.rl.optimize",
    "Apply": "levada.rl.step",
    "CategoricalValues": "levada.rl.action_values",
    "DiscreteCritic": "levada.rl.critic",
    "Critic": "levada.rl.critic",
    "EnvError": "levada.rl.env_batch",
    "EpsilonGreedy": "levada.rl.explore",
    "Evaluation": "levada.rl.evaluate",
    "Frames": "levada.rl.frames",
    "GaussianNoise": "levada.rl.explore",
    "Learner": "levada.rl.learner",
    "MLP": "levada.rl.models",
    "MultiInput": "levada.rl.models",
    "NStep": "levada.rl.step_sampler",
    "NatureCNN": "levada.rl.models",
    "NonFiniteError": "levada.rl.learner",
    "OffPolicyLearner": "levada.rl.off_policy",
    "LossOutput": "levada.rl.off_policy",
    "PolicySampling": "levada.rl.explore",
    "Policy": "levada.rl.policy",
    "QuantileValues": "levada.rl.action_values",
    "Recurrent": "levada.rl.recurrent",
    "RecurrentNet": "levada.rl.recurrent",
    "DoubleBufferedSampler": "levada.rl.double_buffered",
    "Rollout": "levada.rl.rollout",
    "Sampler": "levada.rl.sampler",
    "Sequences": "levada.rl.sequences",
    "SpaceError": "levada.rl.spaces",
    "StepSampler": "levada.rl.step_sampler",
    "Task": "levada.rl.task",
    "TrainedPolicy": "levada.rl.evaluate",
    "Transitions": "levada.rl.transitions",
    "ValueMLP": "levada.rl.models",
    "concatenate": "levada.rl.transitions",
    "default_network": "levada.rl.models",
}

__all__ = [*_HOME]

if not TYPE_CHECKING:  # type checkers use the imports above, which lets them find misspelled names
    __getattr__, __dir__ = lazy(__name__, _HOME)
