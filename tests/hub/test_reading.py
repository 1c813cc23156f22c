"""Runs that are read from repositories of the Hugging Face Hub, as `hf://user/name`."""

import sys

import pytest
from support.hub import fake_hub
from support.runs.cli import TINY_FIELDS

import levada
from levada.errors import CheckpointWarning, RunDirectoryError, UntrustedError
from levada.hub import files

FIELDS = {"display": "quiet", "log": "none", **TINY_FIELDS}
REPO = "user/ppo-CartPole-v1"
URL = f"hf://{REPO}"
CODE = """
from levada import PPO
class Mine(PPO):
    pass
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run with several checkpoints."""
    out = tmp_path_factory.mktemp("runs") / "run"
    levada.train("ppo", "CartPole-v1", until="updates=6", seed=3, out=out, checkpoint_every_updates=2, **FIELDS)
    return out


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setattr(files, "draw", lambda groups, path, *, per_run: path.write_bytes(b"a picture"))
    with fake_hub(monkeypatch) as hub:
        yield hub


def push(run, **options):
    return levada.push(run, REPO, num_episodes=0, **options)


def test_reading_needs_few_requests(made, hub):
    push(made)
    hub.asked.clear()
    levada.load(URL)
    assert len(hub.asked) <= 8
    assert not any("metrics" in asked or "report" in asked for asked in hub.asked)


def test_what_is_read_is_what_is_there_now(made, hub):
    push(made, checkpoint=2)
    assert levada.load(URL).policy.version == 2
    push(made, checkpoint=4)
    assert levada.load(URL).policy.version == 4


def test_a_driver_that_is_not_installed(monkeypatch):
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "hf", raising=False)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(RunDirectoryError, match=r"huggingface_hub is not installed: pip install 'levada\[hub\]'"):
        levada.load(URL)


@pytest.mark.parametrize("url", ["hf://user/none", f"{URL}@nothing"])
def test_a_repository_that_does_not_exist(made, hub, url):
    push(made)
    with pytest.raises(RunDirectoryError, match=f"there is no run at {url}: it has no config.json; or it is private"):
        levada.load(url)


def test_no_run_is_written_to_a_repository(made, hub):
    push(made)
    commits = len(hub.commits)
    for call in (
        lambda: levada.train("ppo", "CartPole-v1", until="updates=1", out="hf://user/other", **FIELDS),
        lambda: levada.resume(URL, until="updates=8", display="quiet"),
    ):
        with pytest.raises(RunDirectoryError, match=r"no run is written to hf://.*`hf download`.*`levada push`"):
            call()
    assert len(hub.commits) == commits


def test_weights_from_a_repository(made, hub, tmp_path):
    push(made)
    again = levada.train("ppo", "CartPole-v1", until="updates=1", out=tmp_path / "run", init_from=URL, **FIELDS)
    assert again.summary.updates == 1


# ---- a run of somebody else


@pytest.fixture
def elsewhere(tmp_path_factory, monkeypatch):
    """On another machine."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("other-machine")))


def test_code_that_a_run_names_needs_consent(hub, tmp_path, monkeypatch, tmp_path_factory):
    (tmp_path / "mine.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    levada.train("mine.py:Mine", "CartPole-v1", until="updates=2", out="run", **FIELDS)
    push("run")
    card = hub.files(REPO)["README.md"].decode()
    assert f"levada eval {URL} --trust" in card
    assert f'lv.load("{URL}", trust=True)' in card
    assert "The run names code that is not in this repository" in card
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("other-machine")))
    with pytest.raises(UntrustedError, match=r"names code of its own: algorithm_class is '.*mine\.py:Mine'"):
        levada.load(URL)
    with pytest.raises(UntrustedError):
        push(tmp_path / "run")
    assert levada.load(URL, trust=True).policy.version == 2


@pytest.mark.filterwarnings("always::levada.errors.CheckpointWarning")
def test_a_run_of_somebody_else_is_evaluated_and_resumed_with_new_episodes(made, hub, elsewhere, tmp_path):
    push(made)
    assert levada.evaluate(URL, num_episodes=1).version == 6
    for name, data in hub.files(REPO).items():
        (tmp_path / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / name).write_bytes(data)
    with pytest.raises(UntrustedError, match="was not written by you on this machine"):
        levada.resume(tmp_path / "run", until="updates=8", display="quiet")
    with pytest.warns(CheckpointWarning, match="fresh episodes were asked for"):
        again = levada.resume(tmp_path / "run", until="updates=8", display="quiet", fresh_episodes=True)
    assert again.summary.updates == 8


def test_the_size_of_a_file_in_a_repository_is_checked(made, hub):
    push(made)
    hub.files(REPO)["config.json"] = b" " * ((1 << 24) + 1)
    with pytest.raises(RunDirectoryError, match=r"config\.json has 16,777,217 bytes, expected at most 16,777,216"):
        levada.load(URL)
