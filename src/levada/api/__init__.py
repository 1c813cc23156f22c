"""Train, load, resume and evaluate: the commands of the command line as Python functions.

    import levada as lv

    run = lv.train("ppo", "CartPole-v1", until="return=475", seed=1)
    run.summary.return_mean_100
    action = run.policy.act(observation)

    again = lv.load(run.path)
    lv.evaluate(again, num_episodes=20).mean
    lv.resume(run.path, until="return=490")

Invalid arguments raise a `LevadaError` that is a ValueError or a TypeError, before anything starts.
"""

from levada.api.agents import evaluate_policies
from levada.api.cross_play import Encounter, cross_play
from levada.api.evaluation import evaluate
from levada.api.evaluator import add_evaluator
from levada.api.load import LoadError, load
from levada.api.options import EvaluationOptions, Options, configure, deployment
from levada.api.resume import resume
from levada.api.run import Result, build
from levada.api.start import settings
from levada.api.train import launch, train

__all__ = [
    "Encounter", "EvaluationOptions", "LoadError", "Options", "Result", "add_evaluator", "build", "configure", "cross_play",
    "deployment", "evaluate", "evaluate_policies", "launch", "load", "resume", "settings", "train",
]  # fmt: skip
