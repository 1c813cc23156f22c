"""Checks of an environment: the contract of Gymnasium, and the spaces that levada accepts."""

from __future__ import annotations

import traceback
import warnings
from pathlib import Path

import gymnasium
from gymnasium.utils import env_checker

from levada.rl.envs.task import Task, TaskError, single_env
from levada.run.display.printable import plain_warning


def check_env(task: Task) -> list[str]:
    """Check an environment, as `levada check` does; return the remarks of Gymnasium's checker, one line each.

    A task that only makes vector environments is not checked, since Gymnasium has a checker of single environments alone.

    >>> import levada as lv
    >>> check_env(lv.Task("CartPole-v1"))  # doctest: +ELLIPSIS
    ['A Box observation space ...']

    Raises:
        TaskError: the environment breaks the contract; the message says how.

    Exceptions of the environment itself keep their type and traceback.
    """
    env = single_env(task)
    if env is None:
        return []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            env_checker.check_env(env.unwrapped, skip_render_check=True)
    except AssertionError as error:
        if not traceback.extract_tb(error.__traceback__)[-1].filename.startswith(str(Path(gymnasium.__file__).parent)):
            raise  # raised by the environment
        msg = f"environment {task.name!r} breaks Gymnasium's contract: {error}"
        raise TaskError(msg) from error
    finally:
        env.close()
    return [plain_warning(warning.message) for warning in caught]
