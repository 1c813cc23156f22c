"""The parts of reinforcement learning that algorithms are made of: tasks, policies, samplers, learners.

    task        Task: environments of one kind, and what they observe and take
    acting      Policy (its network, its distribution), Sampler (in a Ring) -> Rollout, Shard
    learning    Transitions, Learner (epochs and minibatches over a loss), Adam
    off-policy  StepSampler (EpsilonGreedy, GaussianNoise, OwnNoise) -> NStep, OffPolicyLearner (targets, critics), Frames
    values      CategoricalValues, QuantileValues -> ActionValues
    memory      Recurrent, RecurrentNet (LSTM, GRU), Sequences
    after it    TrainedPolicy, Evaluation (made by `levada.evaluate`)
    networks    MLP, NatureCNN, MultiInput, default_network

    >>> from levada.rl import Policy, Task
    >>> task = Task("CartPole-v1")
    >>> policy = Policy(observation_space=task.observation_space, action_space=task.action_space)
    >>> policy.action_space
    Discrete(2)

Names are looked up on first use: whoever only needs spaces does not wait for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from levada._lazy import lazy

if TYPE_CHECKING:
    from levada.rl.action_values import ActionValues as ActionValues
    from levada.rl.action_values import CategoricalValues as CategoricalValues
    from levada.rl.action_values import QuantileValues as QuantileValues
    from levada.rl.critic import ChoiceCritic as ChoiceCritic
    from levada.rl.critic import Critic as Critic
    from levada.rl.env_batch import EnvError as EnvError
    from levada.rl.evaluate import Evaluation as Evaluation
    from levada.rl.evaluate import TrainedPolicy as TrainedPolicy
    from levada.rl.explore import EpsilonGreedy as EpsilonGreedy
    from levada.rl.explore import GaussianNoise as GaussianNoise
    from levada.rl.explore import OwnNoise as OwnNoise
    from levada.rl.frames import Frames as Frames
    from levada.rl.learner import Learner as Learner
    from levada.rl.learner import NonFiniteError as NonFiniteError
    from levada.rl.models import MLP as MLP
    from levada.rl.models import MultiInput as MultiInput
    from levada.rl.models import NatureCNN as NatureCNN
    from levada.rl.models import ValueMLP as ValueMLP
    from levada.rl.models import default_network as default_network
    from levada.rl.off_policy import OffPolicyLearner as OffPolicyLearner
    from levada.rl.off_policy import Outcome as Outcome
    from levada.rl.optimise import Adam as Adam
    from levada.rl.policy import Policy as Policy
    from levada.rl.recurrent import Recurrent as Recurrent
    from levada.rl.recurrent import RecurrentNet as RecurrentNet
    from levada.rl.ring import Ring as Ring
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
    "Adam": "levada.rl.optimise",
    "Apply": "levada.rl.step",
    "CategoricalValues": "levada.rl.action_values",
    "ChoiceCritic": "levada.rl.critic",
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
    "Outcome": "levada.rl.off_policy",
    "OwnNoise": "levada.rl.explore",
    "Policy": "levada.rl.policy",
    "QuantileValues": "levada.rl.action_values",
    "Recurrent": "levada.rl.recurrent",
    "RecurrentNet": "levada.rl.recurrent",
    "Ring": "levada.rl.ring",
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

if not TYPE_CHECKING:  # a type checker sees the imports above, and so a misspelt name
    __getattr__, __dir__ = lazy(__name__, _HOME)
