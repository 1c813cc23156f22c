"""The evaluator of a run: a node that measures every n-th version of the policy in environments of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from levada.algorithms.checks import ConfigError
from levada.api.options import EvaluationOptions
from levada.flow import Flow
from levada.rl.acting.evaluation import PolicyEvaluation
from levada.rl.envs.agents.agents_task import AgentsTask
from levada.rl.envs.rendering import check_recordable
from levada.rl.envs.task import Task
from levada.rl.policies.policy import Policy
from levada.run.until import Until

NODE = "eval"
"""Name of the node, and of its metrics."""


def add_evaluator(flow: Flow, task: Task, options: EvaluationOptions) -> None:
    """Add an evaluator to the flow of a run, if the options ask for one.

    Raises:
        ConfigError: the run has several agents or learners, or the environments of the evaluator do not fit the policy.
        TaskError: they are to be recorded, and cannot be.
        Exception: any error of these environments when their spaces are read.
    """
    if options.eval_every is None:
        usual = EvaluationOptions()
        for name in (field.name for field in dataclasses.fields(usual)):
            if getattr(options, name) != getattr(usual, name):
                msg = f"{name} is of evaluations, and there are none: add --eval-every 10, in Python eval_every=10"
                raise ConfigError(msg)
        return
    policy, register = policy_of(flow, task)
    if NODE in flow.nodes:
        msg = f"eval_every: flow {flow.name!r} has a node {NODE!r}; rename it"
        raise ConfigError(msg)
    task = otherwise(task, policy, options.eval_env_kwargs, "eval_env_kwargs")
    if options.eval_video:
        check_recordable(task)
    evaluation = PolicyEvaluation(
        task=task,
        policy=dataclasses.replace(policy, device="cpu"),
        num_episodes=options.eval_episodes,
        deterministic=not options.eval_stochastic,
    )
    flow.evaluate(NODE, evaluation, reads=flow.registers[register], every=options.eval_every)


def check_conditions(until: Until, options: EvaluationOptions) -> None:
    """Check that the stopping conditions are about evaluations only if there are some.

    Raises:
        ConfigError: they are, and there are none.
    """
    if until.needs_evaluations and options.eval_every is None:
        msg = (
            f"until={str(until)!r} is about evaluations, and there are none: train with --eval-every 10 (eval_every=10)"
        )
        raise ConfigError(msg)


def otherwise(task: Task, policy: Policy, env_kwargs: Mapping[str, Any], option: str) -> Task:
    """Return the task with other keyword arguments, which must not change its spaces. `option`: where they are from.

    Raises:
        ConfigError: they do.
    """
    if not env_kwargs:
        return task
    other = dataclasses.replace(task, env_kwargs={**task.env_kwargs, **env_kwargs})
    for kind, space, own in (
        ("observations", other.observation_space, policy.env_observation_space),
        ("actions", other.action_space, policy.env_action_space),
    ):
        if space != own:
            msg = f"{option} {dict(env_kwargs)} make other {kind} than the policy was trained for: {space}, expected {own}"
            raise ConfigError(msg)
    return other


def policy_of(flow: Flow, task: Task) -> tuple[Policy, str]:
    """Return the policy that the flow trains, and the register with its weights."""
    learners = flow.learners()
    policies = [getattr(recipe, "policy", None) for recipe in learners.values()]
    if isinstance(task, AgentsTask) or len(policies) != 1 or not isinstance(policies[0], Policy):
        what = "several agents" if isinstance(task, AgentsTask) else f"the learners {', '.join(learners) or '(none)'}"
        msg = f"eval_every: this run has {what}, and only runs that train a single policy of levada are evaluated; leave it out"
        raise ConfigError(msg)
    [recipe] = learners.values()
    registers = [name for name, register in flow.registers.items() if register.policy == recipe.policy_name]
    if not registers:
        msg = f"eval_every: flow {flow.name!r} has no weights to read"
        raise ConfigError(msg)
    return policies[0], registers[0]
