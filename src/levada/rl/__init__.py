"""Components of reinforcement learning algorithms: tasks, policies, samplers, learners.

    data        Frames, SpaceError: nested observations, frame stacks, running statistics
    compute     devices, threads, seeds, tracing
    envs        Task, EnvError: environments of one kind, stepped together
    policies    Policy, networks (MLP, NatureCNN, SmallCNN, MultiInput, RecurrentNet), Critic, CategoricalValues, QuantileValues
    replay      Transitions, concatenate: rows, and the tables that store them
    acting      Actor, Sampler (in a DoubleBufferedSampler) -> Rollout; StepSampler (EpsilonGreedy, GaussianNoise, PolicySampling)
                -> NStep or Sequences; TrainedPolicy, Evaluation
    learning    Learner (epochs and minibatches over a loss; targets, critics), Adam, Networks -> LossOutput

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
    from levada.rl.acting.actor import Actor as Actor
    from levada.rl.acting.double_buffered import DoubleBufferedSampler as DoubleBufferedSampler
    from levada.rl.acting.evaluation import Evaluation as Evaluation
    from levada.rl.acting.exploration import EpsilonGreedy as EpsilonGreedy
    from levada.rl.acting.exploration import GaussianNoise as GaussianNoise
    from levada.rl.acting.exploration import PolicySampling as PolicySampling
    from levada.rl.acting.rollout import Rollout as Rollout
    from levada.rl.acting.sampler import Sampler as Sampler
    from levada.rl.acting.sequences import Sequences as Sequences
    from levada.rl.acting.step_sampler import NStep as NStep
    from levada.rl.acting.step_sampler import StepSampler as StepSampler
    from levada.rl.acting.trained_policy import TrainedPolicy as TrainedPolicy
    from levada.rl.data.frames import Frames as Frames
    from levada.rl.data.spaces import SpaceError as SpaceError
    from levada.rl.envs.batch import EnvError as EnvError
    from levada.rl.envs.task import Task as Task
    from levada.rl.learning.learner import Learner as Learner
    from levada.rl.learning.loss import LossOutput as LossOutput
    from levada.rl.learning.loss import Networks as Networks
    from levada.rl.learning.optimizers import Adam as Adam
    from levada.rl.learning.training import NonFiniteError as NonFiniteError
    from levada.rl.policies.critic import Critic as Critic
    from levada.rl.policies.critic import DiscreteCritic as DiscreteCritic
    from levada.rl.policies.networks import MLP as MLP
    from levada.rl.policies.networks import MultiInput as MultiInput
    from levada.rl.policies.networks import NatureCNN as NatureCNN
    from levada.rl.policies.networks import SmallCNN as SmallCNN
    from levada.rl.policies.networks import ValueMLP as ValueMLP
    from levada.rl.policies.networks import default_network as default_network
    from levada.rl.policies.policy import Policy as Policy
    from levada.rl.policies.q_distributions import ActionValues as ActionValues
    from levada.rl.policies.q_distributions import CategoricalValues as CategoricalValues
    from levada.rl.policies.q_distributions import QuantileValues as QuantileValues
    from levada.rl.policies.recurrent import Recurrent as Recurrent
    from levada.rl.policies.recurrent import RecurrentNet as RecurrentNet
    from levada.rl.replay.transitions import Transitions as Transitions
    from levada.rl.replay.transitions import concatenate as concatenate

_HOME = {
    "ActionValues": "levada.rl.policies.q_distributions",
    "Actor": "levada.rl.acting.actor",
    "Adam": "levada.rl.learning.optimizers",
    "CategoricalValues": "levada.rl.policies.q_distributions",
    "Critic": "levada.rl.policies.critic",
    "DiscreteCritic": "levada.rl.policies.critic",
    "DoubleBufferedSampler": "levada.rl.acting.double_buffered",
    "EnvError": "levada.rl.envs.batch",
    "EpsilonGreedy": "levada.rl.acting.exploration",
    "Evaluation": "levada.rl.acting.evaluation",
    "Frames": "levada.rl.data.frames",
    "GaussianNoise": "levada.rl.acting.exploration",
    "Learner": "levada.rl.learning.learner",
    "LossOutput": "levada.rl.learning.loss",
    "MLP": "levada.rl.policies.networks",
    "MultiInput": "levada.rl.policies.networks",
    "NStep": "levada.rl.acting.step_sampler",
    "NatureCNN": "levada.rl.policies.networks",
    "SmallCNN": "levada.rl.policies.networks",
    "Networks": "levada.rl.learning.loss",
    "NonFiniteError": "levada.rl.learning.training",
    "Policy": "levada.rl.policies.policy",
    "PolicySampling": "levada.rl.acting.exploration",
    "QuantileValues": "levada.rl.policies.q_distributions",
    "Recurrent": "levada.rl.policies.recurrent",
    "RecurrentNet": "levada.rl.policies.recurrent",
    "Rollout": "levada.rl.acting.rollout",
    "Sampler": "levada.rl.acting.sampler",
    "Sequences": "levada.rl.acting.sequences",
    "SpaceError": "levada.rl.data.spaces",
    "StepSampler": "levada.rl.acting.step_sampler",
    "Task": "levada.rl.envs.task",
    "TrainedPolicy": "levada.rl.acting.trained_policy",
    "Transitions": "levada.rl.replay.transitions",
    "ValueMLP": "levada.rl.policies.networks",
    "concatenate": "levada.rl.replay.transitions",
    "default_network": "levada.rl.policies.networks",
}

__all__ = [*_HOME]

if not TYPE_CHECKING:  # type checkers use the imports above, which lets them find misspelled names
    __getattr__, __dir__ = lazy(__name__, _HOME)
