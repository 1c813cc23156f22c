"""Tools to test what you add to levada: stages, samplers, learners, algorithms and environments (docs/testing.md).

    Executor                            executes the schedule of a flow in virtual time, in any order, with an Audit
    Audit, Token                        accounts that are kept beside the schedule and compared with its bounds and ledgers
    ToyLearner, toy_source, toy_flow    work that costs nothing and keeps what it gets
    Recorder                            an instrument that keeps every event
    check_orders                        runs a flow in adversarial orders: lag within its bound, equal weights where promised
    check_env                           what `levada check` does to an environment

>>> from levada import Queue
>>> from levada.testing import Executor, toy_flow
>>> executor = Executor(toy_flow(Queue(max_lag=2)), seed=3).run(updates=50)
>>> max(executor.audit.lags["policy"])
2

All that fails raises AssertionError with what was expected; nothing here needs pytest. Names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from levada._lazy import lazy

if TYPE_CHECKING:
    from levada.testing.audit import Audit as Audit
    from levada.testing.audit import Token as Token
    from levada.testing.envs import check_env as check_env
    from levada.testing.executor import Executor as Executor
    from levada.testing.orders import check_orders as check_orders
    from levada.testing.toys import Recorder as Recorder
    from levada.testing.toys import ToyLearner as ToyLearner
    from levada.testing.toys import toy_flow as toy_flow
    from levada.testing.toys import toy_source as toy_source

_HOME = {
    "Audit": "levada.testing.audit",
    "Executor": "levada.testing.executor",
    "Recorder": "levada.testing.toys",
    "Token": "levada.testing.audit",
    "ToyLearner": "levada.testing.toys",
    "check_env": "levada.testing.envs",
    "check_orders": "levada.testing.orders",
    "toy_flow": "levada.testing.toys",
    "toy_source": "levada.testing.toys",
}

__all__ = [*_HOME]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(__name__, _HOME)
