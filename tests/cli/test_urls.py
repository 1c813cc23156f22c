"""The commands take URLs of runs; a URL that cannot be used is refused before anything starts."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.runs.cli import TINY, Shell, tree
from support.runs.stores import Watched, failing

import levada
import levada.errors
from levada import cli

URL = "watched://runs/a"
TRAIN = f"train ppo --env CartPole-v1 {TINY} --seed 3 --until updates=2"


@pytest.fixture
def shell(capsys, tmp_path, monkeypatch):
    Watched.reset()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", "/tmp")
    return Shell(capsys)


def test_each_command_names_the_url(shell, tmp_path):
    done = shell(f"{TRAIN} --out {URL}")
    assert done.code == 0
    assert f"The run lies in {URL}. What next:" in done.err
    for command in (
        f"levada eval {URL} --episodes 20",
        f"levada resume {URL} --until ...",
        "tensorboard --logdir watched://runs",
    ):
        assert f"  {command}  " in done.err
    done = shell(f"eval {URL} --episodes 2 --json")
    assert (done.code, json.loads(done.out)["run"]) == (0, URL)
    done = shell(f"export {URL}")
    assert (done.code, "where no file is written; give out" in done.err) == (2, True)
    assert shell(f"export {URL} --out policy.onnx").code == 0
    (tmp_path / "policy.onnx").unlink()
    done = shell(f"resume {URL} --until updates=3")
    assert (done.code, "warning" in done.err) == (0, False)
    assert f"The run lies in {URL}." in done.err
    done = shell(f"train --config {URL}/config.json --until updates=3 --out memory://again --quiet")
    assert (done.code, done.err) == (0, "")
    same = {levada.load(url).summary.params_sha256 for url in (URL, "memory://again")}
    assert len(same) == 1
    assert shell(f"{TRAIN} --init-from {URL} --quiet --out plain").code == 0
    assert set(tree(tmp_path)) == {name for name in tree(tmp_path) if name.startswith("plain")}


REFUSED = [
    ("s3://bucket/a", "'s3://bucket/a': s3fs is not installed: pip install s3fs"),
    ("gs://bucket/a", "'gs://bucket/a': gcsfs is not installed: pip install gcsfs"),
    ("s3://", "'s3://' cannot be a run's directory: it has no bucket, expected such as s3://bucket/runs/a"),
    ("s3:/bucket/a", "'s3:/bucket/a' cannot be a run's directory: did you mean s3://bucket/a? Give it as text"),
    ("file:/tmp/a", "'file:/tmp/a' cannot be a run's directory: did you mean file:///tmp/a?"),
    ("file://runs/a", "expected an absolute path after file://, such as file:///data/runs/a; a path needs no file://"),
    ("s5://bucket/a", "'s5://bucket/a': fsspec knows no file system 's5'; did you mean s3"),
    ("sftp://me:secret@host/a", "'sftp://...' cannot be a run's directory: it has a password"),
]  # fmt: skip


@pytest.mark.parametrize(("url", "words"), REFUSED)
@pytest.mark.parametrize("command", [f"{TRAIN} --out", "resume", "eval", f"{TRAIN} --init-from", "train --config"])
def test_a_url_that_cannot_be_used(command, url, words, shell, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)  # a machine of the tests may have them
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    done = shell(f"{command} {url}{'/config.json' if 'config' in command else ''}")
    assert done.code == 2
    assert words.replace("secret", "") in done.err
    assert "secret" not in done.err
    assert "Traceback" not in done.err
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("url", [*(url for url, _ in REFUSED[:4]), Path("s3://bucket/a")])
def test_python_refuses_it_too(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    for call in (
        lambda: levada.train("ppo", "CartPole-v1", out=url, display="quiet"),
        lambda: levada.resume(url, display="quiet"),
        lambda: levada.load(url),
        lambda: levada.evaluate(url),
        lambda: levada.settings(url),
    ):
        with pytest.raises(levada.errors.RunDirectoryError):
            call()
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("command", ["resume", "eval"])
def test_there_is_no_run(shell, command):
    done = shell(f"{command} {URL}")
    assert (done.code, done.err) == (2, f"levada: there is no run at {URL}: it has no config.json\n")


def test_a_driver_without_permission(shell):
    Watched.watch(failing("write", error=PermissionError, message="Access Denied"))
    done = shell(f"{TRAIN} --out {URL} --quiet")
    assert (done.code, done.err) == (2, f"levada: {URL}/owner cannot be written: PermissionError: Access Denied\n")


def test_a_resumed_run_keeps_its_instruction_set(shell):
    shell(f"{TRAIN} --out {URL} --quiet")
    assert cli._recorded_mode([URL, "--quiet"]) == "auto"
    config = json.loads(Watched.files()[f"{URL}/config.json"])
    config["settings"]["portable"]["value"] = "on"
    Watched().pipe_file(f"{URL}/config.json", json.dumps(config).encode())
    assert cli._recorded_mode(["--quiet", URL]) == "on"
    assert cli._recorded_mode(["watched://nothing", "s9://a"]) == "off"


def test_only_urls_need_fsspec(tmp_path):
    """And they do not load torch, whose instruction set is decided by the run that is read from there."""
    code = (
        "import sys, levada, levada.cli\n"
        "from levada.run.storage.directory import RunDirectory\n"
        "from levada.run.storage.remote import open_at\n"
        "assert not {name for name in sys.modules if name.partition('.')[0] == 'fsspec'}\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
    code = (
        "import sys, levada.cli\n"
        f"assert levada.cli._recorded_mode(['file://{tmp_path}/run']) == 'off'\n"
        "assert 'fsspec' in sys.modules and 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
