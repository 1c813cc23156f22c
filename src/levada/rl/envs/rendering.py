"""Environments that show what happens: in a window, or recorded as videos by Gymnasium's `RecordVideo`.

task = rendered(Task("CartPole-v1"), Recording(folder="videos", prefix="ppo", num_episodes=3))
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import gymnasium
from gymnasium.wrappers import RecordVideo

from levada.rl.envs.making import EnvMaker
from levada.rl.envs.registry import TaskError
from levada.rl.envs.task import Task

_DISPLAYS: Final = ("DISPLAY", "WAYLAND_DISPLAY")


@dataclass(frozen=True, kw_only=True)
class Recording:
    """Videos of the first episodes of an environment, one MP4 file each.

    Raises:
        TaskError: moviepy is not installed, or the folder is not empty, or cannot be made or written to, later too.
    """

    folder: str | os.PathLike[str]
    """New or empty directory of the videos."""
    prefix: str
    """Beginning of the names of the files."""
    num_episodes: int
    """Number of episodes to record."""

    def __post_init__(self) -> None:
        _check_installed()
        if not isinstance(self.folder, str | os.PathLike):
            msg = f"video: got {self.folder!r}, expected a directory"
            raise TaskError(msg)
        folder = Path(self.folder)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            msg = f"video: {os.fspath(folder)!r} is not empty, or no directory, and nothing is overwritten; give a new one"
            raise TaskError(msg)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / ".levada").touch()  # fails in a directory that is read-only
            (folder / ".levada").unlink()
        except OSError as error:
            msg = f"video: {os.fspath(folder)!r} cannot be written to: {error.strerror or error}"
            raise TaskError(msg) from error

    def __call__(self, env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
        """Wrap an environment."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*Overwriting existing videos")  # it is empty
            return _Recorder(
                env, os.fspath(self.folder), episode_trigger=lambda episode: episode < self.num_episodes,
                name_prefix=self.prefix,
            )  # fmt: skip


class _Recorder(RecordVideo):
    """Says in a line that a video cannot be written, where MoviePy gives advice on codecs."""

    def stop_recording(self) -> None:
        path = os.path.join(self.video_folder, f"{self._video_name}.mp4")
        try:
            super().stop_recording()  # type: ignore[no-untyped-call]
        except OSError as error:
            self.recorded_frames, self.recording = [], False  # it is not tried again when the environment is closed
            with contextlib.suppress(OSError):
                os.unlink(path)  # it is torn
            full, first = os.strerror(errno.ENOSPC), str(error).partition("\n")[0]
            hint = f"{full}; free some space, or give a directory on another disk"
            msg = f"video: {path!r} cannot be written: {hint if full in str(error) else first}"
            raise TaskError(msg) from error


def _check_installed() -> None:
    if find_spec("moviepy") is None:
        raise TaskError("video needs moviepy: pip install 'levada[video]'")


def check_recordable(task: Task) -> None:
    """Check that videos of an environment can be made, by making one without a video.

    Raises:
        TaskError: it cannot be rendered, or moviepy is not installed.
        Exception: any error of the environment.
    """
    _check_installed()
    _check_single(task)
    _Rendered(task, "rgb_array", None)().close()


def check_display() -> None:
    """Check that there is a screen to open a window on.

    Raises:
        TaskError: there is none.
    """
    if not _has_display():
        msg = (
            f"render needs a display, and neither {' nor '.join(_DISPLAYS)} is set; record videos instead: --video DIR"
        )
        raise TaskError(msg)


def _has_display() -> bool:
    return not sys.platform.startswith("linux") or any(os.environ.get(name) for name in _DISPLAYS)


def rendered(task: Task, recording: Recording | None = None) -> Task:
    """Return the same task whose environments are recorded, or shown in a window without `recording`.

    Raises:
        TaskError: its environments are vectorized by themselves, and cannot be rendered one by one.
    """
    _check_single(task)
    mode = "human" if recording is None else "rgb_array"
    return dataclasses.replace(task, env=_Rendered(task, mode, recording), env_kwargs={}, vectorization="auto")


def _check_single(task: Task) -> None:
    if task._is_vector or task._is_atari:
        msg = (
            f"task {task.name!r}: its environments are vectorized by themselves, and only single ones can be rendered; "
            "play with the policy in one of your own, with levada.load(RUN).policy.act"
        )
        raise TaskError(msg)


@dataclass(frozen=True)
class _Rendered:
    """Makes one environment that is rendered."""

    task: Task
    mode: str
    wrap: Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]] | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "__qualname__", self.task.name)  # from which tasks take their name

    def __call__(self) -> gymnasium.Env[Any, Any]:
        task = self.task
        if self.mode != "human" and not _has_display():
            os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame would complain that there is no display
        try:
            env = EnvMaker(task.env, {**task.env_kwargs, "render_mode": self.mode}, task.name, "sync").make_one()
        except TypeError as error:
            if "render_mode" not in str(error):
                raise
            raise TaskError(self._why(f"it does not take the argument render_mode ({error})")) from error
        if env.render_mode != self.mode:
            env.close()
            raise TaskError(self._why(f"its render_mode is {env.render_mode!r}"))
        return env if self.wrap is None else self.wrap(env)

    def _why(self, why: str) -> str:
        return (
            f"task {self.task.name!r} cannot be rendered: {why}; expected an environment with render_mode={self.mode!r}"
        )
