"""Main function of the process that makes evaluations: it sleeps until there is one."""

from __future__ import annotations

from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

from levada.flow.strays import StrayError, is_stray
from levada.runners.evaluators.place import Task, measure
from levada.runners.processes.learner.connection import GoneError, Line
from levada.runners.remote_errors import pack_error


def serve(end: Connection, evaluations: Mapping[str, Any]) -> None:
    """Make evaluations until the run is gone. `evaluations`: by node."""
    line = Line(end)
    try:
        while True:
            task = Task(*line.receive())
            try:
                line.send("done", measure(evaluations[task.node], task))
            except GoneError:
                raise
            except BaseException as error:
                line.send("error", pack_error(StrayError.of(error) if is_stray(error) else error))
    except GoneError:
        return
