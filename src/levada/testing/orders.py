"""A flow under an adversary: what timing can change on many cores, found in one thread."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from levada.runners.inline import Inline, InlineRun

if TYPE_CHECKING:
    from levada.flow import Flow


def check_orders(
    flow: Flow, *, updates: int = 10, adversaries: Iterable[int] = range(4), seed: int = 0
) -> dict[str, int]:
    """Run a flow inline in the plain order and under adversaries; return the largest lag of each queue, in versions.

    An adversary delays items as long as the schedule allows (`Inline(adversary=)`), and so shows what a slow sampler or a slow
    learner would do. Every run goes on until each learner has made `updates` updates. `adversaries` are seeds of orders, `seed`
    is that of the run.

    >>> from levada import Queue
    >>> from levada.testing import toy_flow
    >>> check_orders(toy_flow(Queue(max_lag=3, order="arrival")))
    {'rollout->batch': 3}

    Raises:
        AssertionError: a lag above its bound, a ledger that does not add up, or, if the flow promises the same result in every
            order (`flow.check(reproducible=True)`), weights that differ.
    """
    promised = not any(problem.severity == "error" for problem in flow.problems(reproducible=True))
    plain: dict[str, Any] = {}
    largest: dict[str, int] = {}
    for adversary in (None, *adversaries):
        with Inline(adversary=adversary).open(flow, seed=seed) as run:
            found = _weights_after(run, list(flow.learners()), updates)
            statistics = run.statistics()
        order = "the plain order" if adversary is None else f"adversary {adversary}"
        for name, channel in statistics.channels.items():
            if not channel.ledger.balanced:
                msg = f"{name} does not add up under {order}: {channel.ledger}"
                raise AssertionError(msg)
            for lag in channel.lag.values():
                if lag.bound is not None and lag.max > lag.bound:
                    msg = f"{name} has lag {lag.max} under {order}, expected at most {lag.bound}"
                    raise AssertionError(msg)
                largest[name] = max(lag.max, largest.get(name, 0))
        plain = plain or found
        other = [learner for learner, weights in found.items() if not _equal(weights, plain[learner])]
        if promised and other:
            msg = (
                f"flow {flow.name!r}: the weights of {', '.join(other)} after {updates} updates differ between {order} and the "
                "plain order, though the queues are in admission order; does some work share state with another firing?"
            )
            raise AssertionError(msg)
    return largest


def _weights_after(run: InlineRun, learners: list[str], updates: int) -> dict[str, Any]:
    """Weights of each learner after its last update that counts."""
    found: dict[str, Any] = {}
    while len(found) < len(learners):
        firing = run.step()
        if firing.node in learners and firing.number == updates:
            found[firing.node] = copy.deepcopy(run.node_state(firing.node).weights())
    return found


def _equal(one: Any, other: Any) -> bool:
    """Whether two nests of arrays are equal, bit for bit."""
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    first, second = np.asarray(one), np.asarray(other)
    return first.dtype == second.dtype and first.shape == second.shape and first.tobytes() == second.tobytes()
