"""`levada eval --video` and `--render`."""

import importlib.util
import json
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from support.runs import cli as cli_harness

import levada as lv
from levada.algorithms.checks import ConfigError
from levada.rl.envs.registry import TaskError

FILMED = pytest.mark.skipif(importlib.util.find_spec("moviepy") is None, reason="no moviepy")


class Shown(gymnasium.Env):
    """An environment of three steps, which is drawn in one color, with masks in `info`."""

    metadata = {"render_modes": ["rgb_array", "human"], "render_fps": 5}  # noqa: RUF012
    observation_space = Box(-1.0, 1.0, (2,), np.float32)
    action_space = Discrete(2)
    num_shown = 0

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.num_steps = 0
        return np.zeros(2, np.float32), {"action_mask": np.array([0, 1], np.int8)}

    def step(self, action):
        assert action == 1
        self.num_steps += 1
        if self.render_mode == "human":
            type(self).num_shown += 1
        return np.zeros(2, np.float32), 1.0, self.num_steps == 3, False, {"action_mask": np.array([0, 1], np.int8)}

    def render(self):
        return np.full((16, 16, 3), 60 * self.num_steps, np.uint8)


class Hidden(Shown):
    """Cannot be drawn."""

    def __init__(self):
        super().__init__()


class Mute(Shown):
    """Ignores how it is to be drawn."""

    def __init__(self, render_mode=None):
        super().__init__()


def trained(env, out):
    return lv.train("ppo", env, until="updates=1", out=out, display="quiet", log="none", **cli_harness.TINY_FIELDS)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained("CartPole-v1", tmp_path_factory.mktemp("video") / "run")


@pytest.fixture
def shell(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    return cli_harness.Shell(capsys)


@FILMED
def test_each_episode_is_a_video(shell, run):
    done = shell(f"eval {run.path} --episodes 2 --json --video 'my videos'")
    assert (done.code, json.loads(done.out)["episodes"]) == (0, 2), done.err
    files = sorted(Path("my videos").iterdir())
    assert [file.name for file in files] == [f"ppo-CartPole-v1-1-episode-{episode}.mp4" for episode in (0, 1)]
    assert all(b"ftyp" in file.read_bytes()[:16] for file in files)
    again = shell(f"eval {run.path} --video 'my videos'")
    assert again.code == 2
    assert "video: 'my videos' is not empty, or no directory, and nothing is overwritten" in again.message


@FILMED
def test_a_directory_that_cannot_be_written_to_is_told(shell, run, tmp_path):
    (tmp_path / "file").write_text("")
    done = shell(f"eval {run.path} --video file/videos")
    assert done.code == 2
    assert "video: 'file/videos' cannot be written to: Not a directory" in done.message
    with pytest.raises(lv.LevadaError, match="video: got 5, expected a directory"):
        lv.evaluate(run, video=5)


@FILMED
@pytest.mark.filterwarnings("error")
def test_a_full_disk_is_told_in_a_line(shell, run, monkeypatch):
    from moviepy.video.io.ImageSequenceClip import ImageSequenceClip

    def full(clip, path, logger):
        Path(path).write_bytes(b"torn")
        raise OSError(
            "[Errno 32] Broken pipe\n\nMoviePy error: No space left on device\nPlease specify a valid 'codec'"
        )

    monkeypatch.setattr(ImageSequenceClip, "write_videofile", full)
    done = shell(f"eval {run.path} --episodes 1 --video videos")
    first, second = done.err.splitlines()
    assert done.code == 2
    assert first.endswith(
        "episode-0.mp4' cannot be written: No space left on device; free some space, or give a directory on another disk"
    )
    assert second.startswith("  environment 'CartPole-v1'")
    assert list(Path("videos").iterdir()) == []


@FILMED
def test_environments_with_masks_and_of_a_callable(tmp_path):
    run = trained(Shown, tmp_path / "run")
    (tmp_path / "videos").mkdir()
    assert lv.evaluate(run, num_episodes=3, video=tmp_path / "videos").returns.tolist() == [3.0] * 3
    assert len(list((tmp_path / "videos").iterdir())) == 3


@FILMED
@pytest.mark.parametrize("on", ["inline", "processes:1"])
def test_evaluations_are_recorded_and_change_nothing(tmp_path, on):
    def train(name, **options):
        return lv.train(
            "ppo", Shown, until="updates=5", seed=1, out=tmp_path / name, display="quiet", log="none", on=on, eval_every=2,
            eval_episodes=2, **options, **cli_harness.TINY_FIELDS,
        )  # fmt: skip

    run = train("run", eval_video=True)
    files = [path.relative_to(run.path).as_posix() for path in sorted(run.path.glob("videos/*/*"))]
    assert files == [f"videos/{version}/version-{version}-episode-0.mp4" for version in (2, 4)]
    assert run.summary.params_sha256 == train("other").summary.params_sha256


def test_videos_without_evaluations_or_pictures_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="eval_video is of evaluations, and there are none: add --eval-every 10"):
        lv.train("ppo", Shown, out=tmp_path / "run", eval_video=True)
    with pytest.raises(TaskError, match="'Hidden' cannot be rendered: it does not take the argument render_mode"):
        lv.train("ppo", Hidden, out=tmp_path / "run", eval_every=2, eval_video=True, display="quiet")


def test_a_window(tmp_path, monkeypatch):
    run = trained(Shown, tmp_path / "run")
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(Shown, "num_shown", 0)
    assert lv.evaluate(run, num_episodes=2, render=True).mean == 3.0
    assert Shown.num_shown == 6


def test_what_cannot_be_shown_is_refused(shell, run, tmp_path, monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(TaskError, match="render needs a display, and neither DISPLAY nor WAYLAND_DISPLAY is set"):
        lv.evaluate(run, render=True)
    done = shell(f"eval {run.path} --render")
    assert (done.code, "record videos instead: --video DIR" in done.message) == (2, True)
    monkeypatch.setenv("DISPLAY", ":0")
    with pytest.raises(TaskError, match="'Hidden' cannot be rendered: it does not take the argument render_mode"):
        lv.evaluate(trained(Hidden, tmp_path / "hidden"), render=True)
    with pytest.raises(TaskError, match=r"'Mute' cannot be rendered: its render_mode is None; expected .*'human'"):
        lv.evaluate(trained(Mute, tmp_path / "mute"), render=True)
    monkeypatch.setattr("levada.rl.envs.rendering.find_spec", lambda name: None)
    with pytest.raises(TaskError, match=r"video needs moviepy: pip install 'levada\[video\]'"):
        lv.evaluate(run, video=tmp_path / "videos")
    done = shell(f"eval {run.path} --render --video videos")
    assert (done.code, "leave one out" in done.message) == (2, True)


def test_environments_that_are_vectorized_by_themselves_are_refused(run, monkeypatch):
    monkeypatch.setenv("DISPLAY", ":0")
    task = lv.Task("CartPole-v1", vectorization="vector_entry_point")
    from levada.rl.envs.rendering import rendered

    with pytest.raises(TaskError, match="vectorized by themselves, and only single ones can be rendered"):
        rendered(task)
