"""`levada push` as a command; what it uploads is tested in tests/hub."""

import pytest
from support.hub import fake_hub
from support.runs import cli as cli_harness

import levada


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "first"
    levada.train("ppo", "CartPole-v1", until="updates=2", out=out, display="quiet", **cli_harness.TINY_FIELDS)
    return out


@pytest.fixture
def shell(run, monkeypatch, capsys):
    monkeypatch.chdir(run.parent)
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    return cli_harness.Shell(capsys)


def test_a_run_is_uploaded_and_evaluated_from_there(shell, monkeypatch):
    with fake_hub(monkeypatch) as hub:
        done = shell("push first user/name --episodes 2")
        assert (done.code, done.err) == (0, "")
        first, second = done.out.splitlines()
        assert "/user/name: 8 files, " in first
        assert ", commit 000000000000" in first
        assert second.startswith("return ")
        assert second.endswith(", 2 episodes")
        assert len(hub.commits) == 1
        evaluated = shell("eval hf://user/name --episodes 2")
        assert (evaluated.code, evaluated.err) == (0, "")
        assert second.removesuffix(", 2 episodes") in evaluated.out
        refused = shell("resume hf://user/name --until updates=4")
        assert refused.code == 2
        assert "no run is written to hf://user/name" in refused.err


def test_the_files_are_written_into_a_directory(shell, tmp_path):
    done = shell(f"push first user/name --out '{tmp_path}/ü b' --episodes 0 --replays")
    assert done.code == 0
    assert done.out.startswith(f"{tmp_path}/ü b: 8 files, ")
    assert done.err == "note: the checkpoint has no contents of replays: the run was trained without --save-replays\n"
    assert (tmp_path / "ü b" / "README.md").read_text().startswith("---\nlibrary_name: levada\n")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("push", ["which run?", "levada push RUN"]),
        ("push first", ["to which repository?", "`levada push RUN USER/NAME`"]),
        ("push nowhere user/name", ["there is no run at 'nowhere'"]),
        ("push first name", ["'name' is no name of a repository"]),
        ("push first user/name --episodes -1 --out out", ["num_episodes=-1"]),
        ("push first user/name --episodes x", ["--episodes x: expected an integer"]),
        ("push first user/name --checkpoint 7 --out out", ["has no checkpoint=7", "2"]),
        ("push first user/name --checkpoint best --out out", ["has no best checkpoint", "--eval-every"]),
        ("push first user/name --out first", ["first holds other files"]),
        ("push first user/name --out first/config.json", ["first/config.json is a file"]),
        (
            "push first user/name --out first/config.json/x --episodes 0",
            ["first/config.json", "cannot be read or written"],
        ),
        ("push hf://user user/name", ["expected hf://USER/NAME"]),
        ("push hf:/user/name user/name", ["did you mean hf://user/name? Give it as text"]),
    ],
)
def test_mistakes_are_said(shell, run, command, words):
    before = cli_harness.tree(run.parent)
    done = shell(command)
    assert (done.code, done.out) == (2, "")
    for word in words:
        assert word in done.err
    assert cli_harness.tree(run.parent) == before


def test_ctrl_c_leaves_nothing(shell, monkeypatch, tmp_path):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("levada.hub.upload.evaluate", interrupted)
    done = shell(f"push first user/name --out {tmp_path}/out")
    assert (done.code, done.out, done.err) == (130, "", "levada: interrupted\n")
    assert list(tmp_path.iterdir()) == []
